"""What comparing needs to know of the parts of two values: names, units, words, digits."""

from __future__ import annotations

import re
import string
from fractions import Fraction
from math import gcd

from lydite.verify import notation
from lydite.verify.grammar import Apply, Node, Num, parse
from lydite.verify.number import Number, decimal_comma, same_number
from lydite.verify.relation import assignment
from lydite.verify.units import Unit
from lydite.verify.value import (
    Based,
    Expression,
    Items,
    Quantity,
    Relation,
    Value,
    Words,
    read_value,
    unglued,
)


def alone(value: Value) -> Value:
    """The element of a set of one."""
    if isinstance(value, Items) and len(value.items) == 1 and value.brackets == "{}":
        return value if r"\emptyset" in getattr(value.items[0], "text", "") else value.items[0]
    return value


def same_words(gold: Value, answer: Value) -> bool:
    """Whether two texts say the same; around one "and", in either order."""
    if not (isinstance(gold, Words | Expression) and isinstance(answer, Words | Expression)):
        return False
    ours, theirs = (_SAYINGS.get(w, w) for w in map(_bare_words, (gold.text, answer.text)))
    if " and " in ours and " and " in theirs:
        return sorted(ours.split(" and ")) == sorted(theirs.split(" and "))
    return bool(ours) and ours == theirs


def _bare_words(text: str) -> str:
    """Without articles, points, commas and ordinal endings: ``March 5th`` is ``march 5``."""
    plain = notation.plain_words(text).replace("-infty", "negative infinity")
    plain = plain.replace(",", " ").replace("-", " ")
    plain = plain.replace("solutions", "solution")
    plain = re.sub(r"(?<=\d)(?:st|nd|rd|th)\b", "", re.sub(r"\b([ap])\.m\.?", r" \1m", plain))
    plain = re.sub(r"(?<=\d)(?=[ap]m\b)", " ", plain)
    return " ".join(
        word for word in re.sub(r"\.(?!\d)", " ", plain).split() if word not in _ARTICLES
    )


_SAYINGS = {
    saying: sayings[0]
    for sayings in (
        ["no solution", "no real solution", "there is no solution", "there are no solution",
         "there is no real solution", "there are no real solution", "no solution exists",
         "no solution exist", "no real solution exist", "empty set", "emptyset"],
        ["infinite", "infinitely many", "infinitely many solution", "infinite solution", "infty",
         "there are infinitely many solution", "infinite number of solution", "infinity"],
        ["does not exist", "dne", "doesn't exist", "doesnt exist", "limit does not exist"],
    )
    for saying in sayings
}  # fmt: skip
_ARTICLES = ("the", "a", "an")


def same_based(gold: Value, answer: Value) -> bool:
    """Digits in a base: the answer must name the same, or none."""
    if isinstance(answer, Based) and (not isinstance(gold, Based) or gold.base != answer.base):
        return answer.base == 10 and not isinstance(gold, Based) and _digits(gold) == answer.digits
    return _digits(gold) is not None and _digits(gold) == _digits(answer)


def _digits(value: Value) -> str | None:
    if isinstance(value, Based):
        return value.digits
    if isinstance(value, Expression) and re.fullmatch("[0-9A-Fa-f]{1,40}", value.text):
        return value.text.upper()
    whole = isinstance(value, Quantity) and value.number.value.denominator == 1
    return str(value.number.value) if whole and isinstance(value, Quantity) else None


def powers(unit: Unit | None) -> tuple[tuple[str, int], ...] | None:
    """The base units of a unit; ``None`` for none or one without meaning."""
    return unit.powers or None if unit is not None else None


def apart(value: Quantity | Expression, other: Quantity | Expression) -> Quantity | Expression:
    """``3m`` as three metres where the other is a quantity with a unit, or an answer's number."""
    if isinstance(value, Expression) and isinstance(other, Quantity):
        return unglued(value.text) or value
    return value


def scaled(value: Quantity | Expression, scale: Fraction) -> Quantity | Expression:
    """The amount in base units."""
    if isinstance(value, Quantity):
        number = value.number
        return Quantity(Number(number.value * scale, number.percent, None, number.power))
    return Expression(f"({value.text}) \\cdot \\frac{{{scale.numerator}}}{{{scale.denominator}}}")


def written(value: Quantity | Expression) -> str:
    """The number or formula as LaTeX, without its unit."""
    if isinstance(value, Expression):
        return value.text
    number = value.number.value / (100 if value.number.percent else 1)
    fraction = f"\\frac{{{number.numerator}}}{{{number.denominator}}}"
    return str(number.numerator) if number.denominator == 1 else fraction


def node_of(value: Quantity | Expression) -> Node:
    """The number or formula as a tree. Raises ``Unreadable`` and ``TooLarge``."""
    if isinstance(value, Expression):
        return parse(value.text)
    return Num(value.number.value / (100 if value.number.percent else 1))


def is_comma_number(number: Quantity, items: Items) -> bool:
    """Whether ``3,14`` read as a decimal is the number."""
    read = decimal_comma(items.text)
    return read is not None and same_number(number.number, read)


def same_choices(letters: str, items: Items) -> bool:
    """``AC`` against ``A, C``."""
    letters = re.sub(r"\band\b|[\s,()&]", "", letters).upper()
    listed = [getattr(item, "text", "").strip("()").upper() for item in items.items]
    return (
        re.fullmatch(r"[A-J]{2,6}", letters) is not None
        and all(re.fullmatch("[A-J]", letter) for letter in listed)
        and sorted(letters) == sorted(listed)
    )


def named_items(items: Items) -> dict[str, Value]:
    """``x=2, y=-1`` by name; empty unless every item is an assignment and the names differ."""
    named: dict[str, Value] = {}
    for item in items.items:
        parts = assignment(item)
        if parts is None or parts[0] in named:
            return {}
        named[parts[0]] = read_value(parts[1])
    return named


def without_names(items: Items, named: dict[str, Value]) -> Items:
    """The items without the names: ``n=2,3,4`` and ``x=2, x=-3`` are lists, ``x=2, y=-1`` is in
    that order.
    """
    if named:
        letters = "".join(sorted(named))
        if all(name.startswith(letters[0] + "_") for name in named):  # x_1 = 1, x_2 = 3: a list
            return Items(tuple(named.values()), items.brackets)
        # Named in the order of the alphabet wherever that is the usual one.
        usual = len(letters) == len(named) and letters in string.ascii_lowercase
        ordered = [named[name] for name in (letters if usual else named)]
        return Items(tuple(ordered), items.brackets or "()")
    parts = [assignment(item) for item in items.items]
    names = {part[0] for part in parts if part is not None}
    if len(names) != 1 or (None in parts and parts[0] is None):
        return items
    return Items(
        tuple(
            item if part is None else read_value(part[1])
            for item, part in zip(items.items, parts, strict=True)
        ),
        items.brackets,
    )


def difference(relation: Relation) -> Node:
    """The left side minus the right. Raises ``Unreadable`` and ``TooLarge``."""
    left, right = (parse(member) for member in relation.members)
    return Apply("+", (left, Apply("*", (Num(Fraction(-1)), right))))


def relation_text(relation: Relation) -> str:
    """The relation as LaTeX."""
    latex = {"<=": r"\le", ">=": r"\ge", "!=": r"\ne"}
    text = relation.members[0]
    for operator, member in zip(relation.operators, relation.members[1:], strict=True):
        text += f" {latex.get(operator, operator)} {member}"
    return text


def is_clock(text: str) -> bool:
    """``10:30`` is a time of day and 3:5 a ratio: two digits of minutes, not in lowest terms."""
    match = re.fullmatch(r"(\d{1,2}):([0-5]\d)(?::([0-5]\d))?", text)
    if match is None:
        return False
    return match[3] is not None or match[2][0] == "0" or gcd(int(match[1]), int(match[2])) > 1


_OPAQUE = re.compile(
    r"\\ldots|\\infty|\\mathbb|\\emptyset|\\(?:text|mathrm|mbox)[a-z]*\s*\{[^{}]*[A-Za-z]{2}"
    r"|(?<![\\A-Za-z])[A-Za-z]{2,} [A-Za-z]{2}|\?|[\d)}]\s*_"
)


def is_opaque(text: str) -> bool:
    """Whether words, dots, a question mark or a number's subscript stand in the formula.

    Math-Verify drops these, so "7 is wrong" would be 7.
    """
    return _OPAQUE.search(text) is not None
