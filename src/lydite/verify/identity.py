"""Whether two formulas are the same: constants to their last digit, functions by their values.

Two formulas in variables are taken as equal when they agree, exactly where they are rational and to
fifty digits where they are not, at fixed points that no identity of textbook size hits by accident
(Schwartz 1980, Zippel 1979). Where both are real decides; points where either is complex or
undefined count only when there are no others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import mpmath

from lydite.verify.arithmetic import (
    SLACK,
    Approximation,
    Finer,
    Undefined,
    Values,
    approximation,
    evaluate,
    size,
)
from lydite.verify.grammar import Apply, Node, Num, Symbol
from lydite.verify.tokens import TooLarge

DIGITS = 60
MAX_DIGITS = 2_500
# Where many values are computed, or one is costly (the gamma function).
MAX_COSTLY_DIGITS = 200
# Denominators and signs differ, so that neither a pole nor a branch is shared; the last are whole
# numbers, for formulas in n.
_POINTS = (
    *((17, 10), (23, 8), (31, 14), (-7, 4), (19, 12), (-29, 16), (37, 22), (41, 18)),
    *((3, 8), (-53, 26), (61, 28), (5, 6)),
)
_WHOLE = ((3, 1), (7, 1), (4, 1), (9, 1), (5, 1), (8, 1), (11, 1), (6, 1), (13, 1), (10, 1))
_ROUNDS, _WHOLE_ROUNDS, _ENOUGH = 6, 4, 3
_Result = Fraction | Approximation


def symbols(*nodes: Node) -> list[str]:
    """The variables, sorted."""
    found: set[str] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if isinstance(node, Symbol):
            found.add(node.name)
        elif isinstance(node, Apply):
            waiting += node.args
    return sorted(found)


def substitute(node: Node, name: str, value: Node) -> Node:
    """The formula with a variable replaced."""
    if isinstance(node, Symbol):
        return value if node.name == name else node
    if isinstance(node, Apply):
        args = tuple(substitute(argument, name, value) for argument in node.args)
        return Apply(node.op, args, node.height)
    return node


def uses(node: Node, *ops: str) -> bool:
    """Whether one of the operations occurs."""
    return isinstance(node, Apply) and (
        node.op in ops or any(uses(argument, *ops) for argument in node.args)
    )


def same(ours: Node, theirs: Node) -> bool:
    """Whether the two formulas are equal.

    Raises:
        Undefined: a constant has no value.
        TooLarge: a cap was passed.
    """
    bases = (None, 10) if uses(ours, "log") or uses(theirs, "log") else (None,)
    return any(_same(ours, theirs, base) for base in bases)


def _same(ours: Node, theirs: Node, log_base: int | None) -> bool:
    names = symbols(ours, theirs)
    if not names:
        return equal_values(*_values(ours, theirs, {}, log_base))
    real: list[bool] = []
    other: list[bool] = []
    whole = _alternates(ours) or _alternates(theirs)
    for values in _points(names, whole):
        try:
            pair = _values(ours, theirs, values, log_base)
        except Undefined:
            continue
        agree = equal_values(*pair)
        (other if any(_complex(value) for value in pair) else real).append(agree)
        if real and not real[-1]:
            return False
    return all(real) if len(real) >= _ENOUGH else bool(other) and all([*real, *other])


def _alternates(node: Node) -> bool:
    """Whether a negative constant is raised to a power in variables, which only whole ones suit."""
    if not isinstance(node, Apply):
        return False
    if node.op == "^" and symbols(node.args[1]) and not symbols(node.args[0]):
        base = evaluate(node.args[0], {})
        if isinstance(base, Fraction) and base < 0:
            return True
    return any(_alternates(argument) for argument in node.args)


def _points(names: Sequence[str], whole: bool = False) -> Iterator[Values]:
    tables = [(_WHOLE, 2 * _WHOLE_ROUNDS if whole else _WHOLE_ROUNDS)]
    for table, rounds in tables if whole else [(_POINTS, _ROUNDS), *tables]:
        for start in range(rounds):
            yield {
                name: Fraction(*table[(start + 5 * place) % len(table)])
                + (place // len(table)) * Fraction(1, 3)
                for place, name in enumerate(names)
            }


def _values(
    ours: Node, theirs: Node, values: Values, log_base: int | None
) -> tuple[_Result, _Result, int]:
    """Both values, exact or to the digits that their terms ask for, and those digits."""
    first, second = evaluate(ours, values), evaluate(theirs, values)
    if first is not None and second is not None:
        return first, second, 0
    digits = DIGITS
    costly = bool(values) or uses(ours, "!", "binom") or uses(theirs, "!", "binom")
    most = MAX_COSTLY_DIGITS if costly else MAX_DIGITS
    while True:
        try:
            return (
                _present(evaluate(ours, values, digits, log_base)),
                _present(evaluate(theirs, values, digits, log_base)),
                digits,
            )
        except Finer as finer:
            if finer.digits > most or finer.digits <= digits:
                raise TooLarge("terms of too different size") from None
            digits = finer.digits


def _present(value: _Result | None) -> _Result:
    assert value is not None
    return value


def equal_values(first: _Result, second: _Result, digits: int) -> bool:
    """Whether two values are the same as far as they are known."""
    if isinstance(first, Fraction) and isinstance(second, Fraction):
        return first == second
    with mpmath.workdps(digits):
        one, two = approximation(first), approximation(second)
        difference = abs(one.value - two.value)
        return bool(
            difference <= mpmath.ldexp(1, max(one.scale, two.scale) - mpmath.mp.prec + 2 * SLACK)
        )


def _complex(value: Any) -> bool:
    return isinstance(value, Approximation) and not value.real


def proportional(ours: Node, theirs: Node) -> Fraction | Approximation | None:
    """The constant ``c ≠ 0`` with ``ours = c · theirs``, or ``None``: two equations ``… = 0`` are
    the same when there is one.

    Raises:
        Undefined, TooLarge.
    """
    names = symbols(ours, theirs)
    ratio: _Result | None = None
    found = 0
    for values in _points(names):
        try:
            first, second, digits = _values(ours, theirs, values, None)
            if _zero(first) and _zero(second):
                continue
            if _zero(first) or _zero(second):
                return None
            here = _quotient(first, second, digits)
        except Undefined:
            continue
        if ratio is not None and not equal_values(ratio, here, digits):
            return None
        ratio = here
        found += 1
    return ratio if found >= _ENOUGH else None


def _zero(value: _Result) -> bool:
    return not value if isinstance(value, Fraction) else not value.value


def _quotient(first: _Result, second: _Result, digits: int) -> _Result:
    if isinstance(first, Fraction) and isinstance(second, Fraction):
        return first / second
    with mpmath.workdps(digits):
        one, two = approximation(first), approximation(second)
        value = one.value / two.value
        lost = max(0, one.scale - size(one.value), two.scale - size(two.value))
        return Approximation(value, size(value) + lost)


def constant(node: Node) -> tuple[_Result, int]:
    """The value of a formula without variables and the digits it is known to (0: exact).

    Raises:
        Undefined, TooLarge.
    """
    value, _, digits = _values(node, Num(Fraction(0)), {}, None)
    return value, digits


def order(first: Node, second: Node) -> int:
    """-1, 0 or 1 as the first constant is less than, equal to or greater than the second.

    Raises:
        Undefined: one of them is no real number.
    """
    one, two, digits = _values(first, second, {}, None)
    if equal_values(one, two, digits):
        return 0
    if _imaginary(one) or _imaginary(two):
        raise Undefined
    with mpmath.workdps(max(digits, DIGITS)):
        return -1 if approximation(one).value < approximation(two).value else 1


def _imaginary(value: Any) -> bool:
    return isinstance(value, Approximation) and isinstance(value.value, mpmath.mpc)
