"""Numbers that are left to be worked out.

On arithmetic a prompt answers itself: ``17+25`` is 42. Where the reference is a plain number, an
answer must therefore be a closed form of it, which is a matter of how it is written. Fractions,
mixed numbers, powers, roots, logarithms, factorials, binomial coefficients, percentages and
scientific notation are closed; sums, products and divisions are not.
"""

from __future__ import annotations

import re
from fractions import Fraction

from lydite.verify.grammar import Apply, Node, Num

_DIVISION = re.compile(r"\\div(?![A-Za-z])")


def left_to_do(node: Node, text: str = "") -> str | None:
    """The operation that a formula leaves to be done: sum, product or division; ``None`` for a
    closed form. ``text`` is its writing if ``\\div`` is to count as a division: of a whole number
    it asks, while 3 ÷ 8 is the fraction.
    """
    return "division" if _DIVISION.search(text) else _open_operation(node)


def _open_operation(node: Node) -> str | None:
    if not isinstance(node, Apply):
        return None
    if node.op == "+" and not _mixed(node):
        return "sum"
    if node.op == "*" and not (_scientific(node) or all(map(_counts, node.args))):
        return "product"
    if node.op == "/" and node.args[1] != _HUNDRED and any(map(_ratio, node.args)):
        return "division"
    return next(filter(None, map(_open_operation, node.args)), None)


_TEN, _HUNDRED = Num(Fraction(10)), Num(Fraction(100))


def _ratio(node: Node) -> bool:
    if isinstance(node, Apply) and node.op == "neg":
        return _ratio(node.args[0])
    return isinstance(node, Apply) and node.op == "/"


def _mixed(node: Apply) -> bool:
    """A whole number and a proper fraction, with or without a plus between them."""
    whole, part = node.args[0], node.args[1]
    if len(node.args) != 2 or not isinstance(whole, Num) or whole.places is not None:
        return False
    if isinstance(part, Apply) and part.op == "/":
        top, bottom = part.args
        if isinstance(top, Num) and isinstance(bottom, Num):
            return 0 < top.value < bottom.value
    return isinstance(part, Num) and part.places is None and 0 < part.value < 1


def _scientific(node: Apply) -> bool:
    """A mantissa and a power of ten."""
    power = node.args[-1]
    ten = isinstance(power, Apply) and power.op == "^" and power.args[0] == _TEN
    return len(node.args) == 2 and ten and (isinstance(node.args[0], Num) or _ratio(node.args[0]))


def _counts(node: Node) -> bool:
    """A factorial or binomial coefficient, or a power of one."""
    if isinstance(node, Apply) and node.op == "^":
        return _counts(node.args[0])
    return isinstance(node, Apply) and node.op in ("!", "binom")
