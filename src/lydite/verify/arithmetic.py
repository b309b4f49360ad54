"""Values of formulas: exact where they are rational, else to the digits that a comparison needs.

Every step is capped by the size of its result before it is taken, and all steps of a comparison by
what they cost together, so that a hostile formula costs a bounded time and is refused, never
approximated. Computation is in mpmath's arbitrary precision; no
float ever decides.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import mpmath

from lydite.verify.grammar import Node, Num, Symbol
from lydite.verify.tokens import TooLarge

MAX_BITS = 40_000
MAX_FACTORIAL = 3_000
MAX_CHOOSE = 5_000
MAX_ARGUMENT = 20_000
MAX_WORK = 300_000
"""Roughly the microseconds that all operations of one comparison may take."""

Values = Mapping[str, Fraction]


class Undefined(Exception):
    """The formula has no value here: a division by zero, the logarithm of zero, an infinity."""


class _Work(threading.local):
    left: float = MAX_WORK


_WORK = _Work()


def allow_work(units: float = MAX_WORK) -> None:
    """Sets what the evaluations of this thread may cost from now on, together."""
    _WORK.left = units


def _charge(units: float) -> None:
    _WORK.left -= units
    if _WORK.left < 0:
        raise TooLarge("too many operations on large numbers")


class Finer(Exception):
    """Terms of very different size are added: the comparison needs about this many more digits."""

    def __init__(self, digits: int) -> None:
        super().__init__(digits)
        self.digits = digits


@dataclass(frozen=True, slots=True)
class Approximation:
    """A real or complex value, and the power of two that its error stands below when it is
    computed with ``p`` bits, plus ``p``. ``real`` says that no step on the way to it was complex.
    """

    value: Any
    scale: int
    real: bool = True


def evaluate(
    node: Node, values: Values, digits: int = 0, log_base: int | None = None
) -> Fraction | Approximation | None:
    """The exact value where it is rational, else one to about ``digits`` decimal digits; ``None``
    in place of that when ``digits`` is 0. A logarithm without a base is natural, or to
    ``log_base``.

    Raises:
        Undefined, TooLarge, Finer.
    """
    if not digits:
        return _evaluate(node, values, None)
    with mpmath.workdps(digits):
        return _evaluate(node, values, _Numeric(log_base))


def _evaluate(
    node: Node, values: Values, numeric: _Numeric | None
) -> Fraction | Approximation | None:
    if isinstance(node, Num):
        return node.value
    if isinstance(node, Symbol):
        return values[node.name]
    if node.op == "inf":
        raise Undefined
    args = [_evaluate(arg, values, numeric) for arg in node.args]
    operation = _EXACT.get(node.op)
    if operation is not None and all(isinstance(arg, Fraction) for arg in args):
        _charge(_exact_cost(node.op, args))
        result = operation(*args)
        if result is not None:
            return _bounded(result)
    if numeric is not None:
        _charge((2 + mpmath.mp.dps / 60) ** 2 * max(3, len(args)))
    return None if numeric is None else numeric.apply(node.op, [approximation(arg) for arg in args])


def _exact_cost(op: str, args: Sequence[Any]) -> float:
    """Fractions are reduced in a time that grows with the square of their length, and the root of
    one is found in steps of that kind.
    """
    bits = max((_bits(arg) for arg in args), default=0)
    if op in ("!", "binom"):
        return 1 + min(float(args[0]), MAX_CHOOSE) / 4 if args[0] > 0 else 1
    root = op == "sqrt" or (op == "^" and args[1].denominator != 1)
    return len(args) * (1 + (bits / 1000) ** 2 * (10 if root else 1))


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def approximation(value: Fraction | Approximation | None) -> Approximation:
    """As it is, or a fraction rounded to the current precision."""
    if isinstance(value, Approximation):
        return value
    assert value is not None
    number = mpmath.mpf(value.numerator) / value.denominator
    return Approximation(number, size(number))


def _bounded(value: Fraction) -> Fraction:
    if _bits(value) > MAX_BITS:
        raise TooLarge(f"a number of more than {MAX_BITS} bits")
    return value


def _add(*terms: Fraction) -> Fraction:
    return sum(terms, Fraction(0))


def _multiply(*factors: Fraction) -> Fraction:
    result = Fraction(1)
    for factor in factors:
        result = _bounded(result * factor)
    return result


def _divide(top: Fraction, bottom: Fraction) -> Fraction:
    if not bottom:
        raise Undefined
    return top / bottom


def _power(base: Fraction, exponent: Fraction) -> Fraction | None:
    if exponent.denominator != 1:
        root = _root(base, Fraction(exponent.denominator))
        return None if root is None else _power(root, Fraction(exponent.numerator))
    power = int(exponent)
    if power < 0 and not base:
        raise Undefined
    if power == 0 and not base:
        raise Undefined
    if abs(base) != 1 and base and _bits(base) * abs(power) > MAX_BITS:
        raise TooLarge(f"a power of more than {MAX_BITS} bits")
    if abs(base) == 1:
        power %= 2
    return base**power


def _root(base: Fraction, index: Fraction) -> Fraction | None:
    """The exact real root, if there is one. An even root of a negative number is not real; an odd
    one is the real one.
    """
    if index.denominator != 1 or not 0 < index <= 64:
        return None
    degree = int(index)
    negative = base < 0
    if negative and degree % 2 == 0:
        return None
    top, bottom = (
        _integer_root(abs(base.numerator), degree),
        _integer_root(base.denominator, degree),
    )
    if top is None or bottom is None:
        return None
    return Fraction(-top if negative else top, bottom)


def _integer_root(value: int, degree: int) -> int | None:
    if degree == 2:
        root = math.isqrt(value)
        return root if root * root == value else None
    guess = 1 << (value.bit_length() // degree + 1)  # above the root, so Newton's steps descend
    while True:
        closer = ((degree - 1) * guess + value // guess ** (degree - 1)) // degree
        if closer >= guess:
            return guess if guess**degree == value else None
        guess = closer


def _factorial(value: Fraction) -> Fraction | None:
    if value.denominator != 1 or value < 0:
        return None
    if value > MAX_FACTORIAL:
        raise TooLarge(f"a factorial above {MAX_FACTORIAL}!")
    return Fraction(math.factorial(int(value)))


def _choose(n: Fraction, k: Fraction) -> Fraction | None:
    if n.denominator != 1 or k.denominator != 1 or n < 0:
        return None
    if n > MAX_CHOOSE:
        raise TooLarge(f"a binomial coefficient above {MAX_CHOOSE}")
    return Fraction(math.comb(int(n), int(k))) if k >= 0 else Fraction(0)


_EXACT: dict[str, Callable[..., Fraction | None]] = {
    "+": _add,
    "*": _multiply,
    "/": _divide,
    "^": _power,
    "neg": lambda value: -value,
    "sqrt": _root,
    "!": _factorial,
    "binom": _choose,
    "abs": abs,
    "floor": lambda value: Fraction(math.floor(value)),
    "ceil": lambda value: Fraction(math.ceil(value)),
    "conj": lambda value: value,
}


ZERO_SIZE = -(10**9)
# Bits by which a rounding error may have grown unseen.
SLACK = 25


def size(value: Any) -> int:
    """The power of two above the magnitude; far below every other for zero."""
    return int(mpmath.mag(value)) if value else ZERO_SIZE


class _Numeric:
    """Operations on approximations at the current precision."""

    def __init__(self, log_base: int | None) -> None:
        self._log_base = log_base

    def apply(self, op: str, args: list[Approximation]) -> Approximation:
        """One operation, its error tracked and values below their error made zero."""
        if op in _CONSTANTS:
            return Approximation(_CONSTANTS[op](), 2, op != "i")
        sizes = [size(arg.value) for arg in args]
        if op == "+":
            _same_reach(sizes)
        try:
            value = self._value(op, [arg.value for arg in args])
        except (ZeroDivisionError, ValueError, ArithmeticError, TypeError):
            raise Undefined from None
        if not mpmath.isfinite(value):
            raise Undefined
        real = not isinstance(value, mpmath.mpc) and all(arg.real for arg in args)
        return _clean(value, _scale(op, args, sizes, size(value)), real)

    def _value(self, op: str, args: list[Any]) -> Any:
        if op == "+":
            return mpmath.fsum(args)
        if op == "*":
            return mpmath.fprod(args)
        if op == "/":
            return args[0] / args[1]
        if op == "neg":
            return -args[0]
        if op == "^":
            return _to_power(args[0], args[1])
        if op == "sqrt":
            return _nth_root(args[0], args[1])
        if op in ("!", "binom"):
            if any(abs(arg) > MAX_ARGUMENT for arg in args):
                raise TooLarge(f"a factorial above {MAX_ARGUMENT}!")
            return mpmath.factorial(args[0]) if op == "!" else mpmath.binomial(*args)
        if op == "log":
            return mpmath.log(args[0]) / (mpmath.log(self._log_base) if self._log_base else 1)
        if op not in ("abs", "conj", "ln", "lg") and abs(args[0]) > MAX_ARGUMENT:
            raise TooLarge(f"an argument above {MAX_ARGUMENT} of a function")
        return _FUNCTIONS[op](args[0])


_CONSTANTS: dict[str, Callable[[], Any]] = {
    "pi": lambda: +mpmath.pi,
    "e": lambda: +mpmath.e,
    "i": lambda: mpmath.mpc(0, 1),
}


def _same_reach(sizes: list[int]) -> None:
    """Refuses to add terms of which the smaller would vanish beside the larger."""
    present = [one for one in sizes if one > ZERO_SIZE]
    span = max(present) - min(present) if present else 0
    if span > mpmath.mp.prec - 3 * SLACK:
        raise Finer(int(span * math.log10(2)) + 40)


def _scale(op: str, args: list[Approximation], sizes: list[int], result: int) -> int:
    """To first order what the errors of the arguments make of the result's."""
    if op == "*":
        others = [sum(sizes) - one for one in sizes]
        errors = [arg.scale + other for arg, other in zip(args, others, strict=True)]
    elif op == "/":
        errors = [args[0].scale - sizes[1], sizes[0] + args[1].scale - 2 * sizes[1]]
    elif op in ("^", "sqrt"):
        lost = max(arg.scale - one for arg, one in zip(args, sizes, strict=True) if one > ZERO_SIZE)
        errors = [result + max(0, lost) + max(0, sizes[1])]
    else:
        errors = [arg.scale for arg in args]
    return max([result, *errors])


def _clean(value: Any, scale: int, real: bool) -> Approximation:
    """Without the parts that are smaller than their error."""
    floor = mpmath.ldexp(1, scale - mpmath.mp.prec + SLACK)
    if isinstance(value, mpmath.mpc):
        real = value.real if abs(value.real) > floor else mpmath.mpf(0)
        value = mpmath.mpc(real, value.imag) if abs(value.imag) > floor else real
    elif abs(value) <= floor:
        value = mpmath.mpf(0)
    return Approximation(value, scale, real)


def _to_power(base: Any, exponent: Any) -> Any:
    reach = abs(size(base)) if base else 1
    if abs(exponent) > 10 * MAX_ARGUMENT or abs(exponent) * reach > 10 * MAX_ARGUMENT:
        raise TooLarge("a power too large")
    if not base and (mpmath.im(exponent) or exponent <= 0):
        raise Undefined
    return base**exponent


def _nth_root(base: Any, index: Any) -> Any:
    """The real root where there is one."""
    if not index:
        raise Undefined
    if not isinstance(base, mpmath.mpc) and base < 0 and mpmath.isint(index) and int(index) % 2:
        return -((-base) ** (1 / index))
    return mpmath.sqrt(base) if index == 2 else base ** (1 / index)


def _whole(value: Any, rounded: Callable[[Any], Any]) -> Any:
    """``rounded(value)``, a value within error of an integer being that integer."""
    near = mpmath.nint(value)
    if abs(value - near) < mpmath.ldexp(1, max(size(value), 1) - mpmath.mp.prec + SLACK):
        return near
    return rounded(value)


_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "sin": mpmath.sin,
    "cos": mpmath.cos,
    "tan": mpmath.tan,
    "cot": mpmath.cot,
    "sec": mpmath.sec,
    "csc": mpmath.csc,
    "sinh": mpmath.sinh,
    "cosh": mpmath.cosh,
    "tanh": mpmath.tanh,
    "coth": mpmath.coth,
    "arcsin": mpmath.asin,
    "arccos": mpmath.acos,
    "arctan": mpmath.atan,
    "arccot": mpmath.acot,
    "ln": mpmath.log,
    "lg": lambda value: mpmath.log(value) / mpmath.log(10),
    "exp": mpmath.exp,
    "abs": abs,
    "floor": lambda value: _whole(value, mpmath.floor),
    "ceil": lambda value: _whole(value, mpmath.ceil),
    "deg": lambda value: value * mpmath.pi / 180,
    "conj": mpmath.conj,
}
