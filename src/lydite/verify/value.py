"""The kinds of thing an answer can be, and how one is read from text.

Typing an answer before comparing it is what keeps "2, 3" from being 2, (0,1) from being [0,1] and
5 km from being 5 m; only what is left, an expression, needs algebra.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

from lydite.verify import notation
from lydite.verify.number import Number, read_number


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number, with its unit if one was written."""

    number: Number
    unit: str | None = None


@dataclass(frozen=True, slots=True)
class Words:
    """Text that is not mathematics: a name, yes or no. Casefolded."""

    text: str


@dataclass(frozen=True, slots=True)
class Items:
    """Several values. ``brackets`` is "()", "[]", "[)", "(]", "{}" or "" for a bare list."""

    items: tuple[Value, ...]
    brackets: str = ""


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of entries."""

    rows: tuple[tuple[Value, ...], ...]


@dataclass(frozen=True, slots=True)
class Union:
    """A union of intervals or sets, in no order."""

    parts: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Ratio:
    """``3:2``."""

    parts: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Relation:
    """A chain such as ``0 <= x < 1``: one more member than operators."""

    members: tuple[str, ...]
    operators: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Based:
    """Digits in a stated base: ``52_8``."""

    digits: str
    base: int


@dataclass(frozen=True, slots=True)
class Expression:
    """Whatever needs algebra. ``unit`` is a unit that followed it."""

    text: str
    unit: str | None = None


Value = Quantity | Words | Items | Matrix | Union | Ratio | Relation | Based | Expression

_UNIT_NAMES = {
    "degree": "degree degrees deg", "cm": "cm centimetre centimetres centimeter centimeters",
    "mm": "mm millimetre millimetres millimeter millimeters", "m": "m metre metres meter meters",
    "km": "km kilometre kilometres kilometer kilometers", "in": "inch inches",
    "ft": "ft foot feet", "mi": "mi mile miles", "mph": "mph", "kg": "kg kilogram kilograms",
    "g": "g gram grams", "mg": "mg milligrams", "l": "l litre litres liter liters",
    "ml": "ml millilitres milliliters", "s": "s sec second seconds",
    "min": "min mins minute minutes", "h": "h hr hrs hour hours", "day": "day days",
    "year": "year years", "dollar": "dollar dollars usd", "cent": "cent cents",
    "hz": "hz",
    "km/h": "km/h kmh kph", "m/s": "m/s", "rad": "rad radians", "unit": "unit units",
    "lb": "lb lbs pound pounds",
}  # fmt: skip
_UNITS = {name: unit for unit, names in _UNIT_NAMES.items() for name in names.split()}
_HEDGES = ("and", "or", "nor", "not", "no", "is", "was", "if", "but", "else", "than", "wrong")
_AMOUNTS = ("hundred", "thousand", "million", "billion", "trillion", "dozen", "half", "third")
_OPERATIONS = (
    "plus",
    "minus",
    "times",
    "over",
    "choose",
    "mod",
    "sin",
    "cos",
    "tan",
    "log",
    "sqrt",
)
_SYMBOL_NAMES = (
    "pi",
    "theta",
    "alpha",
    "beta",
    "gamma",
    "lambda",
    "infinity",
    "incorrect",
    "false",
)
_NOT_UNITS = frozenset((*_HEDGES, *_AMOUNTS, *_OPERATIONS, *_SYMBOL_NAMES))
_NAME = r"(?:[A-Za-z]|\\[A-Za-z]+)(?:_\{?\w+\}?)?'?"
NAME = re.compile(rf"{_NAME}(?:\s*\(\s*{_NAME}(?:\s*,\s*{_NAME})*\s*\))?")
_RELATION = re.compile(r"\\le(?![A-Za-z])|\\ge(?![A-Za-z])|\\ne(?![A-Za-z])|<=|>=|!=|=|<|>")
_DEPTHS = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}
_OPERATORS = {r"\le": "<=", r"\ge": ">=", r"\ne": "!="}
_TEXT_UNIT = re.compile(
    r"((?:\s*\\(?:text|mathrm|textrm|mbox)\s*\{[^{}]*\}(?:\s*\^\s*\{?\d\}?)?)+)$"
)
_DEGREES = re.compile(r"\s*\^\{\\circ\}(\s*[CF])?$")
_UNIT_WORD = r"[A-Za-z]+(?:/[A-Za-z]+)?"
_WORD_UNIT = re.compile(
    rf"(?<=[\d}})!])\s*({_UNIT_WORD}(?:[. ]+{_UNIT_WORD}){{0,3}}\.?(?:\s?\^\s?\{{?\d\}}?)?)$"
)
_HAN_UNIT = re.compile(r"(?<=\d)\s*([\u4e00-\u9fff]{1,6})$")
_MATRIX = re.compile(r"\\begin\{[pbvBV]?matrix\}(.*)\\end\{[pbvBV]?matrix\}", re.DOTALL)
_BASED = re.compile(
    r"([0-9A-Fa-f]+)_\{?\s*(?:\\text\{)?\s*(\d{1,2})\s*\}{0,2}|([0-9A-Fa-f]+)_\{?(two|eight|ten)\}?"
)
_MEMBER = re.compile(rf"^\s*{_NAME}\s*\\in\s*(?=[(\[\]{{\\])")
_INTEGER_WORDS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"),
    *("nineteen", "twenty"),
)
_MAX_ITEMS = 64


def read_value(text: str, depth: int = 0) -> Value:
    """The value that normalised text spells. Never fails: what fits no other kind is an
    :class:`Expression`.
    """
    text = notation.strip_outer(_MEMBER.sub("", text))
    if depth > 6:
        return Expression(text)
    number = read_number(text)
    if number is not None:
        return Quantity(number)
    if notation.plain_words(text) in ("infinity", "infty", "+infty", "+infinity"):
        return Expression(r"\infty")
    return _compound(text, depth) or _measured(text) or _words(text) or Expression(text)


def _compound(text: str, depth: int) -> Value | None:
    matrix = _MATRIX.fullmatch(text)
    if matrix is not None:
        rows = [row for row in re.split(r"\\\\", matrix[1]) if row.strip()]
        return Matrix(
            tuple(tuple(read_value(cell, depth + 1) for cell in row.split("&")) for row in rows)
        )
    if (pieces := _split(text, (",", ";", " and ", " or ", r"\lor ", r"\vee "))) and 1 < len(
        pieces
    ) <= _MAX_ITEMS:
        return Items(tuple(read_value(piece, depth + 1) for piece in pieces))
    if relation := _relation(text):
        return relation
    if r"\cup" in text and len(parts := _split(text, (r"\cup",))) > 1:
        return Union(tuple(read_value(part, depth + 1) for part in parts))
    if text.count(r"\pm") == 1:
        return Items(
            tuple(read_value(text.replace(r"\pm", sign), depth + 1) for sign in ("+", "-"))
        )
    if len(parts := _split(text, (":",))) in (2, 3):
        return Ratio(tuple(read_value(part, depth + 1) for part in parts))
    if based := _BASED.fullmatch(text.replace(" ", "")):
        base = int(based[2]) if based[2] else {"two": 2, "eight": 8, "ten": 10}[based[4]]
        return Based((based[1] or based[3]).lstrip("0") or "0", base)
    return _bracketed(text, depth)


_SETS = ((r"\{", r"\}"), ("{", "}"))
_BRACKETS = (("(", ")"), ("[", "]"), ("(", "]"), ("[", ")"), ("]", "["), (r"\langle", r"\rangle"))


_KINDS = {r"\{": "{}", "{": "{}", "]": "()", r"\langle": "()"}


def _bracketed(text: str, depth: int) -> Value | None:
    """A tuple, an interval or a set. A single thing in round brackets is just that thing."""
    for opening, closing in (*_SETS, *_BRACKETS):
        inside = text[len(opening) : -len(closing)]
        if not (text.startswith(opening) and text.endswith(closing) and inside):
            continue
        pieces = _split(inside, (",", ";"))
        if not pieces or len(pieces) > _MAX_ITEMS or (len(pieces) == 1 and opening != r"\{"):
            continue
        kind = _KINDS.get(opening, opening + closing)
        return Items(tuple(read_value(piece, depth + 1) for piece in pieces), kind)
    return None


def _split(text: str, separators: tuple[str, ...]) -> list[str]:
    """The parts between top-level separators; one part when there is none, none when brackets do
    not balance.

    Half-open intervals mix bracket kinds, so only the depth is counted. ``]0,1[`` is left whole.
    """
    parts, depth, start, at = [], 0, 0, 0
    if text.startswith("]") and text.endswith("["):
        return [text]
    while at < len(text):
        if text.startswith("\\", at) and text[at + 1 : at + 2] in ("{", "}"):
            depth += 1 if text[at + 1] == "{" else -1
            at += 2
            continue
        if text[at] in "([{":
            depth += 1
        elif text[at] in ")]}":
            depth -= 1
        if depth < 0:
            return []
        separator = next((s for s in separators if depth == 0 and text.startswith(s, at)), None)
        if separator is None:
            at += 1
        else:
            parts.append(text[start:at])
            at = start = at + len(separator)
    parts.append(text[start:])
    if depth != 0:
        return []
    return [part.strip() for part in parts if part.strip()]


def _relation(text: str) -> Relation | None:
    """A chain of relations outside all brackets."""
    depths = list(accumulate((_DEPTHS.get(character, 0) for character in text), initial=0))
    operators = [match for match in _RELATION.finditer(text) if depths[match.start()] == 0]
    if not operators or len(operators) > 8:
        return None
    bounds = [0, *(edge for match in operators for edge in match.span()), len(text)]
    members = tuple(text[a:b].strip() for a, b in zip(bounds[::2], bounds[1::2], strict=True))
    if not all(members):
        return None
    return Relation(members, tuple(_OPERATORS.get(match[0], match[0]) for match in operators))


def _measured(text: str) -> Value | None:
    """A number or expression followed by a unit."""
    for pattern in (_DEGREES, _TEXT_UNIT, _HAN_UNIT, _WORD_UNIT):
        match = pattern.search(text)
        if match is None or not text[: match.start()].strip():
            continue
        unit = (
            "degree" if pattern is _DEGREES else _unit(match[1], wrapped=pattern is not _WORD_UNIT)
        )
        if unit is None:
            continue
        core = notation.strip_outer(text[: match.start()])
        number = read_number(core)
        if number is not None:
            return Quantity(number, unit)
        return Expression(core, unit) if pattern is not _WORD_UNIT else None
    return None


def _unit(text: str, wrapped: bool) -> str | None:
    """The unit's canonical name; ``None`` if the text is not one (it hedges, negates, computes or
    may be a variable).
    """
    power = re.search(r"\^\s*\{?(\d)\}?\s*$", text)
    words = notation.plain_words(text[: power.start()] if power else text).replace(".", "").split()
    if (
        not words
        or len(words) > 5
        or any(word in _NOT_UNITS or any(map(str.isdigit, word)) for word in words)
    ):
        return None
    if not wrapped and not all(len(word) >= 3 or word in _UNITS for word in words):
        return None
    exponent = power[1] if power else ""
    if words[0] in ("square", "sq", "cubic", "cu") and len(words) > 1:
        exponent, words = ("2" if words[0].startswith("sq") else "3"), words[1:]
    name = " ".join(_UNITS.get(word, word) for word in words)
    return f"{name}^{exponent}" if exponent else name


def _words(text: str) -> Words | Quantity | None:
    plain = notation.plain_words(text)
    if plain in _INTEGER_WORDS:
        return Quantity(Number(Fraction(_INTEGER_WORDS.index(plain))))
    wrapped = re.fullmatch(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*\{[^{}]*\}", text)
    if wrapped:
        inner = read_number(notation.open_text(text))
        return Words(plain) if inner is None else Quantity(inner)
    letters = re.fullmatch(r"[^\W\d_]+(?:[ '-][^\W\d_]+)*", text)
    if letters and (
        not text.isascii() or " " in text or (len(text) > 3 and re.search("[aeiouAEIOU]", text))
    ):
        return Words(plain)
    return Words(plain) if plain in ("yes", "no") else None
