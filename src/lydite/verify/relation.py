"""Equations and inequalities: what they assign, and which part of the line they describe."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lydite.verify import notation
from lydite.verify.value import (
    NAME,
    Expression,
    Items,
    Quantity,
    Relation,
    Union,
    Value,
    read_value,
    split,
)

_LABEL = re.compile(
    r"(?:m\s*)?\\angle\s*\{?[A-Za-z]{1,3}\}?|\|?[A-Z]{2,4}\|?|\[[A-Z]{3,4}\]|\\overline\s*\{[A-Z]{2}\}"
    r"|[A-Za-z]'?\(\s*-?[\d.]+(?:\s*,\s*-?[\d.]+)*\s*\)|[A-Za-z]_\{?[\w\\ ]+\}?"
    r"|\\text\s*\{[A-Za-z ]+\}|[A-Za-z]{3,}(?: [A-Za-z]+){0,4}"
)


def labelled(value: Value) -> str | None:
    """What an answer such as ``AB = 5``, ``f(3) = 5`` or ``Area = 5`` says: the value of something
    that the problem names. ``f(x) = 0`` says nothing: it may be what was to be solved.
    """
    if not isinstance(value, Relation) or set(value.operators) != {"="}:
        return None
    if len(value.members) != 2 or not _LABEL.fullmatch(value.members[0]):
        return None
    return value.members[1]


def assignment(value: Value) -> tuple[str, str] | None:
    """``(name, value)`` of ``x = 3``, of ``f(x) = x^2`` and of ``3 = x``."""
    if not isinstance(value, Relation) or value.operators != ("=",):
        return None
    left, right = value.members
    if _NAMES.fullmatch(left):
        return notation.squeeze(left), right
    if NAME.fullmatch(left):
        return notation.squeeze(left), right
    if NAME.fullmatch(right) and re.fullmatch(r"-?[\d./]+|-?\\frac\{\d+\}\{\d+\}", left):
        return notation.squeeze(right), left
    return None


_NAMES = re.compile(rf"\(\s*{NAME.pattern}(?:\s*,\s*{NAME.pattern})+\s*\)")
FLIP = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!=", "=": "="}


@dataclass(frozen=True, slots=True)
class Interval:
    """From ``low`` to ``high``; infinite ends are open."""

    low: Value
    high: Value
    low_closed: bool
    high_closed: bool


@dataclass(frozen=True, slots=True)
class Region:
    """A union of intervals, and the variable that it bounds if one is named. ``split_at`` lists
    the points that ``x ≠ a`` or ``ℝ \\ {a}`` leaves out of the whole line.
    """

    name: str | None
    intervals: tuple[Interval, ...]
    split_at: tuple[Value, ...] = ()


_INFINITY, _NEGATIVE_INFINITY = Expression(r"\infty"), Expression(r"-\infty")
_REALS = re.compile(
    r"\\mathbb\s*\{?\s*R\s*\}?|\\R|all real numbers|all reals|\(-\\infty\s*,\s*\\infty\)"
)


def is_infinite(value: Value) -> bool:
    """Whether it is ∞ or −∞."""
    return isinstance(value, Expression) and re.sub(r"[\s{}()+]", "", value.text) in (
        r"\infty",
        r"-\infty",
    )


def region(value: Value) -> Region | None:
    """The part of the line that an interval, an inequality, or a union of them describes."""
    if isinstance(value, Items):
        if value.brackets in ("()", "[]", "(]", "[)"):
            return _bracketed(value)
        return _combined(value) if value.brackets == "" else None
    if isinstance(value, Union):
        parts = [region(part) for part in value.parts]
        found = [part for part in parts if part is not None and not part.split_at]
        if len(found) != len(parts):
            return None
        return Region(found[0].name, tuple(one for part in found for one in part.intervals))
    if isinstance(value, Relation):
        return _bounded(value)
    return _line(value.text) if isinstance(value, Expression) else _spoken_line(value)


def _spoken_line(value: Value) -> Region | None:
    text = getattr(value, "text", "")
    return Region(None, (), ()) if text in ("all real numbers", "all reals") else None


def _line(text: str) -> Region | None:
    """ℝ, or ℝ without some points."""
    whole, *rest = text.split(r"\setminus", 1)
    if not _REALS.fullmatch(notation.open_text(whole.strip())):
        return None
    if not rest:
        return Region(None, (), ())
    removed = read_value(rest[0])
    if isinstance(removed, Items) and removed.brackets == "{}":
        return Region(None, (), removed.items)
    return None


def _bracketed(value: Items) -> Region | None:
    if len(value.items) != 2:
        return None
    low, high = value.items
    if is_infinite(low) and is_infinite(high):
        return Region(None, (), ())
    opening, closing = value.brackets[0], value.brackets[1]
    return Region(
        None,
        (Interval(
            low,
            high,
            opening == "[" and not is_infinite(low),
            closing == "]" and not is_infinite(high),
        ),),
    )  # fmt: skip


def _combined(value: Items) -> Region | None:
    """``x < 2 or x > 3`` is a union; ``x > 1 and x < 3`` one interval; ``x ≠ 1, x ≠ 2`` a line
    without points.
    """
    if not all(isinstance(item, Relation) for item in value.items):
        return None
    parts = [region(item) for item in value.items]
    found = [part for part in parts if part is not None]
    if len(found) != len(parts) or len({part.name for part in found}) != 1:
        return None
    name = found[0].name
    if all(part.split_at for part in found):
        return Region(name, (), tuple(point for part in found for point in part.split_at))
    intervals = [one for part in found for one in part.intervals]
    if len(intervals) != len(found):
        return None
    if len(intervals) == 2 and not value.joined:
        lower = [one for one in intervals if is_infinite(one.high)]
        upper = [one for one in intervals if is_infinite(one.low)]
        if len(lower) == len(upper) == 1 and _ascending(lower[0].low, upper[0].high):
            both = Interval(lower[0].low, upper[0].high, lower[0].low_closed, upper[0].high_closed)
            return Region(name, (both,))
    return Region(name, tuple(intervals))


def _ascending(low: Value, high: Value) -> bool:
    if not (isinstance(low, Quantity) and isinstance(high, Quantity)):
        return True
    return low.number.value < high.number.value


def _bounded(value: Relation) -> Region | None:
    members, operators = value.members, value.operators
    if operators == ("!=",) and NAME.fullmatch(members[0]):
        points = [read_value(piece) for piece in split(members[1], (",", " and ", " or "))]
        return Region(notation.squeeze(members[0]), (), tuple(points))
    if not set(operators) <= {"<", "<=", ">", ">="}:
        return None
    if operators[0] in (">", ">="):
        members, operators = members[::-1], tuple(FLIP[operator] for operator in operators[::-1])
    if not set(operators) <= {"<", "<="} or len(members) not in (2, 3):
        return None
    if len(members) == 3 and NAME.fullmatch(members[1]):
        name, low, high = members[1], read_value(members[0]), read_value(members[2])
        closed = operators[0] == "<=", operators[1] == "<="
    elif len(members) == 2 and NAME.fullmatch(members[0]):
        name, low, high = members[0], _NEGATIVE_INFINITY, read_value(members[1])
        closed = False, operators[0] == "<="
    elif len(members) == 2 and NAME.fullmatch(members[1]):
        name, low, high = members[1], read_value(members[0]), _INFINITY
        closed = operators[0] == "<=", False
    else:
        return None
    if is_infinite(low) and is_infinite(high):
        return Region(notation.squeeze(name), (), ())
    interval = Interval(
        low, high, closed[0] and not is_infinite(low), closed[1] and not is_infinite(high)
    )
    return Region(notation.squeeze(name), (interval,))
