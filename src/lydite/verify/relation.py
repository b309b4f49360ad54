"""Equations and inequalities: what they assign, and which part of the line they describe."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction

from lydite.verify import notation
from lydite.verify.number import Number, read_number
from lydite.verify.value import (
    BOUND,
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
    r"|\\?Pr?\s*\([^()=]{1,60}\)|[A-Za-z]'?\(\s*-?[\d.]+(?:\s*,\s*-?[\d.]+)*\s*\)"
    r"|[A-Za-z]_\{?[\w\\ ]+\}?"
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


_TERM = r"[A-Za-z](?:_(?:[A-Za-z]|\d{1,3}|\{[A-Za-z\d]{1,8}\})|\(-?\d{1,4}\))?"
_TOTAL = re.compile(rf"{_TERM}(?:\^(?:\d|\{{\d\}}))?(?:[-+]?{_TERM}(?:\^(?:\d|\{{\d\}}))?)+")
_MAX_TOTAL = 60


def totalled(value: Relation) -> str | None:
    """What ``m + n = 5`` or ``f(1) + f(2) = 5`` says of a total of several unknowns, which the
    problem then asked for. Of one unknown it would be an equation left to solve, as ``… = 0`` is.
    """
    left, right = re.sub(r"\s", "", value.members[0]), value.members[-1]
    if len(left) > _MAX_TOTAL:
        return None
    number = read_number(right)
    if value.operators != ("=",) or number is None or not number.value:
        return None
    terms = set(re.findall(_TERM, left))
    return right if _TOTAL.fullmatch(left) and len(terms) > 1 else None


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


_POSITIVE = re.compile(r"(?:\\mathbb\s*\{?\s*R\s*\}?|\\R)\s*(?:\^\s*\{?\+\}?|_\s*\{\s*>\s*0\s*\})")


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
    if _POSITIVE.fullmatch(text.strip()):
        zero = Quantity(Number(Fraction(0)))
        return Region(None, (Interval(zero, _INFINITY, False, False),))
    whole, *rest = text.split(r"\setminus", 1)
    if _REALS.fullmatch(notation.open_text(whole.strip())):
        line = Region(None, (), ())
    elif rest and (kept := region(read_value(whole))) is not None and kept.intervals:
        line = kept
    else:
        return None
    if not rest:
        return line
    removed = read_value(rest[0])
    if isinstance(removed, Items) and removed.brackets == "{}":
        return _without(line, removed.items)
    gone = region(removed)
    if line.intervals or gone is None or len(gone.intervals) != 1:
        return None
    low, high = gone.intervals[0].low, gone.intervals[0].high
    below = Interval(_NEGATIVE_INFINITY, low, False, not gone.intervals[0].low_closed)
    above = Interval(high, _INFINITY, not gone.intervals[0].high_closed, False)
    return Region(None, tuple(
        one for one, end in ((below, low), (above, high)) if not is_infinite(end)
    ))  # fmt: skip


def _without(place: Region, points: tuple[Value, ...]) -> Region | None:
    """A region without some points: plain numbers, where it is not the whole line."""
    if not place.intervals:
        return Region(place.name, (), (*place.split_at, *points))
    intervals = list(place.intervals)
    for point in points:
        if not isinstance(point, Quantity):
            return None
        found = next((one for one in intervals if _inside(point, one)), None)
        if found is not None:
            at = intervals.index(found)
            intervals[at : at + 1] = [
                replace(found, high=point, high_closed=False),
                replace(found, low=point, low_closed=False),
            ]
    return Region(place.name, tuple(intervals))


def _inside(point: Quantity, interval: Interval) -> bool:
    """Whether a number lies between the ends, as far as these are plain numbers."""
    low, high = interval.low, interval.high
    above = not isinstance(low, Quantity) or low.number.value < point.number.value
    below = not isinstance(high, Quantity) or point.number.value < high.number.value
    return above and below


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
    items = [
        item
        for item in value.items
        if not (isinstance(item, Expression) and _REALS.fullmatch(item.text.strip()))
    ]
    if not items or not all(isinstance(item, Relation) for item in items):
        return None
    parts = [region(item) for item in items]
    found = [part for part in parts if part is not None]
    if len(found) != len(parts) or len({part.name for part in found}) != 1:
        return None
    name = found[0].name
    if all(part.split_at for part in found):
        return Region(name, (), tuple(point for part in found for point in part.split_at))
    points = tuple(point for part in found for point in part.split_at)
    rest = [part for part in found if not part.split_at]
    if points:
        return _without(rest[0], points) if len(rest) == 1 and not value.joined else None
    if len(found) == 1:
        return found[0]
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
        return Region(_variable(members[0]), (), tuple(points))
    if not set(operators) <= {"<", "<=", ">", ">="}:
        return None
    if len(members) == 2 and (around := _around(members[0], operators[0], members[1])):
        return around
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
        return Region(_variable(name), (), ())
    interval = Interval(
        low, high, closed[0] and not is_infinite(low), closed[1] and not is_infinite(high)
    )
    return Region(_variable(name), (interval,))


def _variable(name: str) -> str | None:
    return None if name == BOUND else notation.squeeze(name)


_DISTANCE = re.compile(rf"\|\s*({NAME.pattern}|x_\{{bound\}})\s*(?:([-+])\s*([\d./]+))?\s*\|")


def _around(left: str, operator: str, right: str) -> Region | None:
    """``|x| < 3`` is (-3, 3) and ``|x - 1| > 2`` what lies beyond -1 and 3."""
    found = _DISTANCE.fullmatch(left)
    if found is None:
        return None
    reach = read_number(right)
    if reach is not None and reach.value > 0:
        middle = read_number(found[3] or "0")
        if middle is None:
            return None
        at = middle.value if found[2] == "-" else -middle.value
        low, high = (Quantity(Number(at + side * reach.value)) for side in (-1, 1))
        ends: tuple[Value, Value] = (low, high)
    elif reach is None and not found[3]:
        ends = (Expression(f"-({right})"), Expression(right))
    else:
        return None
    name, closed = _variable(found[1]), operator in ("<=", ">=")
    if operator in ("<", "<="):
        return Region(name, (Interval(*ends, closed, closed),))
    below = Interval(_NEGATIVE_INFINITY, ends[0], False, closed)
    return Region(name, (below, Interval(ends[1], _INFINITY, closed, False)))
