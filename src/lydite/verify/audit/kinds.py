"""What kind of answer a problem has, and what else attacks need to know of it."""

from __future__ import annotations

import re
from fractions import Fraction

from lydite.types import Problem
from lydite.verify import notation
from lydite.verify.audit.attack import Kind
from lydite.verify.number import Number, read_number
from lydite.verify.value import Items, Matrix, Quantity, Relation, Union, Words, read_value

NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?|(?<![\w.])-?\.\d+")
_QUERY = re.compile(r"\s*(?:select|with)\b", re.IGNORECASE)
_STATED: tuple[Kind, ...] = (
    "integer", "rational", "decimal", "quantity", "expression", "equation", "tuple", "set",
    "interval", "matrix", "choice", "text",
)  # fmt: skip


def kind_of(problem: Problem) -> Kind:
    """The kind of a problem's answer: as its columns say, else as its reference is written."""
    fields = problem.fields
    if any(fields.get(key) for key in ("tests", "entry_point", "test_code")):
        return "code"
    gold = problem.reference or ""
    if _QUERY.match(gold) and any(fields.get(key) for key in ("schema", "database")):
        return "sql"
    stated = fields.get("answer_type")
    for kind in _STATED:
        if stated == kind:
            return kind
    return kind_of_answer(gold)


def kind_of_answer(gold: str) -> Kind:
    """The kind that an answer's writing shows."""
    text = notation.normalise(gold)
    if re.fullmatch(r"\(?[A-J]\)?", notation.open_text(text)):
        return "choice"
    value = read_value(text)
    if isinstance(value, Quantity):
        return _number_kind(value, text)
    if isinstance(value, Items):
        return _items_kind(value)
    if isinstance(value, Relation):
        return "equation" if set(value.operators) == {"="} else "interval"
    if isinstance(value, Words):
        return "text"
    if isinstance(value, Matrix):
        return "matrix"
    return "interval" if isinstance(value, Union) else "expression"


def _number_kind(value: Quantity, text: str) -> Kind:
    if value.unit is not None or value.number.percent:
        return "quantity"
    if "." in text:
        return "decimal"
    return "integer" if value.number.value.denominator == 1 else "rational"


def _items_kind(value: Items) -> Kind:
    if value.brackets in ("[)", "(]") or (value.brackets == "[]" and len(value.items) == 2):
        return "interval"
    return "tuple" if value.brackets in ("()", "[]") else "set"


def number_of(text: str) -> Fraction | None:
    """The plain number that a text is, if it is one."""
    found: Number | None = read_number(notation.normalise(text))
    return None if found is None or found.percent else found.value


def numbers_in(text: str) -> tuple[str, ...]:
    """The numbers of a text as written, each value once, in order."""
    found: dict[Fraction, str] = {}
    for match in NUMBER.finditer(text):
        spelled = match[0].rstrip(",")
        value = number_of(spelled)
        if value is not None:
            found.setdefault(value, spelled)
    return tuple(found.values())


def alike(answer: str, gold: str) -> bool:
    """Whether an answer is plainly the reference: the same number, or the same letters."""
    ours, theirs = number_of(gold), number_of(answer)
    if ours is not None and theirs is not None:
        return ours == theirs
    return _letters(answer) == _letters(gold)


def _letters(text: str) -> str:
    return re.sub(r"[^\w.+<>=-]", "", notation.open_text(notation.normalise(text))).casefold()


def plainly_wrong(gold: str, kind: Kind) -> str:
    """An answer that is not the reference, does not contain it and is not contained in it."""
    if kind == "code":
        return "def nothing():\n    return None\n"
    if kind == "sql":
        return "select -777777"
    if kind == "choice":
        letter = notation.open_text(notation.normalise(gold)).strip("()")
        return "A" if letter != "A" else "B"
    for digit in "73489512":
        candidate = digit * 6
        if gold.strip() not in candidate and candidate not in gold:
            return candidate
    return "no idea"


def shortened(numbers: tuple[str, ...], gold: str, most: int) -> list[str]:
    """The first few numbers that are not the reference."""
    return [number for number in numbers if not alike(number, gold)][:most]


__all__ = [
    "NUMBER",
    "alike",
    "kind_of",
    "kind_of_answer",
    "number_of",
    "numbers_in",
    "plainly_wrong",
    "shortened",
]
