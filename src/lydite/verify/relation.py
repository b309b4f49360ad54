"""Equations and inequalities: what they assign, which interval they bound, how they are written."""

from __future__ import annotations

from lydite.verify import notation
from lydite.verify.value import NAME, Expression, Items, Relation, Value, read_value


def assignment(value: Value) -> tuple[str, str] | None:
    """``(name, value)`` of ``x = 3`` or ``f(x) = x^2``."""
    if (
        isinstance(value, Relation)
        and value.operators == ("=",)
        and NAME.fullmatch(value.members[0])
    ):
        return notation.squeeze(value.members[0]), value.members[1]
    return None


_FLIP = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!="}
_LATEX = {"<=": r"\le", ">=": r"\ge", "!=": r"\ne"}


def direction(relation: Relation) -> list[str]:
    """The operators, whichever way round they are written."""
    return [min(operator, _FLIP.get(operator, operator)) for operator in relation.operators]


def chain(relation: Relation) -> str:
    """The relation as LaTeX."""
    text = relation.members[0]
    for operator, member in zip(relation.operators, relation.members[1:], strict=True):
        text += f" {_LATEX.get(operator, operator)} {member}"
    return text


def interval(value: Value) -> tuple[str | None, Items] | None:
    """An interval as the variable it bounds (if named) and its ends: ``0 <= x < 1`` is [0, 1)."""
    if (
        isinstance(value, Items)
        and len(value.items) == 2
        and value.brackets in ("()", "[]", "(]", "[)")
    ):
        return None, value
    if not isinstance(value, Relation) or not set(value.operators) <= {"<", "<=", ">", ">="}:
        return None
    members, operators = value.members, value.operators
    if operators[0] in (">", ">="):
        members, operators = members[::-1], tuple(_FLIP[operator] for operator in operators[::-1])
    if not set(operators) <= {"<", "<="} or len(members) not in (2, 3):
        return None
    infinite = Expression(r"\infty")
    if len(members) == 3 and NAME.fullmatch(members[1]):
        name, low, high = members[1], read_value(members[0]), read_value(members[2])
        brackets = ("[" if operators[0] == "<=" else "(") + ("]" if operators[1] == "<=" else ")")
    elif len(members) == 2 and NAME.fullmatch(members[0]):
        name, low, high = members[0], Expression(r"-\infty"), read_value(members[1])
        brackets = "(" + ("]" if operators[0] == "<=" else ")")
    elif len(members) == 2 and NAME.fullmatch(members[1]):
        name, low, high = members[1], read_value(members[0]), infinite
        brackets = ("[" if operators[0] == "<=" else "(") + ")"
    else:
        return None
    return notation.squeeze(name), Items((low, high), brackets)
