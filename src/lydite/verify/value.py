"""The kinds of thing an answer can be, and how one is read from text.

Typing an answer before comparing it is what keeps "2, 3" from being 2, (0,1) from being [0,1] and
5 km from being 5 m; only what is left is a formula.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

from lydite.verify import notation
from lydite.verify.number import Number, read_number
from lydite.verify.units import Unit, read_unit


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number, with its unit if one was written."""

    number: Number
    unit: Unit | None = None


@dataclass(frozen=True, slots=True)
class Words:
    """Text that is not mathematics: a name, yes or no, a date. Casefolded."""

    text: str


@dataclass(frozen=True, slots=True)
class Items:
    """Several values. ``brackets`` is "()", "[]", "[)", "(]", "{}" or "" for a bare list, of
    which ``joined`` says whether it was written with "or", and ``text`` is the writing.
    """

    items: tuple[Value, ...]
    brackets: str = ""
    joined: bool = False
    text: str = ""


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
    """``3:2``. ``text`` keeps the writing, since 10:30 may be a time of day."""

    parts: tuple[Value, ...]
    text: str = ""


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
    """A formula, or what cannot be read at all. ``unit`` is a unit that followed it."""

    text: str
    unit: Unit | None = None


Value = Quantity | Words | Items | Matrix | Union | Ratio | Relation | Based | Expression

_NAME = r"(?:[A-Za-z]|\\[A-Za-z]+(?<!infty))(?:_(?:\w|\{[\w,]+\}))?'*"
NAME = re.compile(rf"{_NAME}(?:\^\{{-1\}})?(?:\s*\(\s*{_NAME}(?:\s*,\s*{_NAME})*\s*\))?")
_RELATION = re.compile(r"\\le(?![A-Za-z])|\\ge(?![A-Za-z])|\\ne(?![A-Za-z])|<=|>=|!=|=|<|>")
_DEPTHS = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}
_OPERATORS = {r"\le": "<=", r"\ge": ">=", r"\ne": "!="}
_FONT = r"\\(?:text|mathrm|textrm|textbf|textit|mbox|mathbf|mathit|operatorname)"
_TEXT_PIECE = rf"{_FONT}\s*\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}}(?:\s*\^\s*(?:\{{-?\d\}}|\d))?"
_TEXT_UNIT = re.compile(
    rf"((?:\s*(?:{_TEXT_PIECE}|\\frac\s*\{{{_TEXT_PIECE}\}}\s*\{{{_TEXT_PIECE}\}}))"
    rf"(?:(?:\s*(?:/|\\cdot|\*))?\s*{_TEXT_PIECE})*)$"
)
_DEGREES = re.compile(r"\s*\^\{\\circ\}(\s*\\?(?:text|mathrm)?\{?\s*[CF]\}?)?$")
_WORD_UNIT = re.compile(
    r"(?:(?<=[\d}\)!])\s*|(?<=\\pi)\s+)"
    r"((?:[A-Za-z]++\.?(?:\s?\^\s?(?:\{-?\d\}|\d))?(?:\s*/\s*|\s+per\s+|[. ]+)?){1,6})$"
)
_HAN_UNIT = re.compile(r"(?<=[\d}%])\s*\(?([\u4e00-\u9fff]{1,8})\)?$")
_MINUTES = re.compile(r"(\d{1,3})\s*\^\{\\circ\}\s*(\d{1,2})\s*'(?:\s*(\d{1,2})\s*'')?")
_EACH = re.compile(r"\s*(?:\\text\s*\{\s*(?:per [a-z]+|each)\s*\}|\s(?:per [a-z]+|each))$")
_SIGN_UNIT = re.compile(
    r"^([+-]?\s*)(?:US|CA|AU|HK)?(\\?\$|€|£|¥|₹|USD(?=[\s\d])|Rs\.?(?=[\s\d]))\s*(?=[-+\d.\\(])"
)
_SIGN_AFTER = re.compile(r"(?<=\d)\s*(\\\$|\$|€|£|¥|₹|¢|USD|EUR|GBP)$")
_SIGNS = {"$": "dollar", "€": "euro", "£": "sterling", "¥": "yen", "₹": "rupee", "¢": "cent",
          "USD": "dollar", "Rs": "rupee", "Rs.": "rupee", "EUR": "euro",
          "GBP": "sterling"}  # fmt: skip
_GRID = re.compile(
    r"(?:\\?[(\[|])?\s*\\begin\{(?:[pbB]?matrix|smallmatrix|array)\}(?:\s*\{[lcr| ]*\})?(.*)"
    r"\\end\{(?:[pbB]?matrix|smallmatrix|array)\}\s*(?:\\?[)\]|])?",
    re.DOTALL,
)
_BASED = re.compile(
    r"\(?([0-9A-Fa-f]+)\)?_(?:\{?\(?(?:\\text\{)?(\d{1,2})\}{0,2}\)?\}?"
    r"|\{?(?:\\text\{)?base\}?(\d{1,2})\}{0,2}"
    r"|\{?(?:\\text\{)?(two|three|five|seven|eight|ten|sixteen)\}{0,2})"
)
_BASES = {"two": 2, "three": 3, "five": 5, "seven": 7, "eight": 8, "ten": 10, "sixteen": 16}
_BASE_WORDS = re.compile(
    r"([0-9A-Fa-f]+)\s*(?:\\text\{)?\s*\(?\s*(?:in\s+)?base[\s-]*\}?\s*(\d{1,2})\s*\)?\s*\}?"
)
_MEMBER = re.compile(rf"^\s*\(?\s*{_NAME}(?:\s*,\s*{_NAME})*\s*\)?\s*\\in\s*(?=[(\[\]{{\\])")
_BUILDER = re.compile(
    rf"\\?\{{\s*({_NAME})\s*(?:\\in\s*(?:\\mathbb\s*\{{?R\}}?|\\R)\s*)?(?:\||:)\s*(.+?)\s*\\?\}}"
)
# The variable of a set of numbers: any name is as good.
BOUND = "x_{bound}"
_ORDINAL = re.compile(
    r"(\d+)\s*(?:\^\s*\{?\s*)?(?:\\(?:text|mathrm)\s*\{)?\s*(?:st|nd|rd|th)\s*\}{0,2}"
)
_SEPARATORS = (",", ";", " and ", " or ", r"\lor ", r"\vee ", r"\cup ")
_APPROXIMATELY = re.compile(
    r"^(?:\\approx|\\sim|\\simeq|=|\\Rightarrow|\\therefore)(?![A-Za-z])\s*"
)
_SAYS = (
    r"(?:the\s+)?(?:(?:final|correct)\s+)?(?:answers?|points?|vertex|cent(?:er|re)"
    r"|solution(?:s| set)?|interval|domain|range|values?|coordinates|total(?=\s*:)"
    r"|area|volume|probability)"
    r"\s*(?:is|are)?\s*[:=]?"
)
_SAID = re.compile(
    rf"{_FONT}\s*\{{\s*(?:{_SAYS}\s+|[A-Za-z]\s*=\s*)(-?[\d.,/]+|-?\d+\s+[a-z]+)\s*\}}",
    re.IGNORECASE,
)
_APPROXIMATED = re.compile(
    rf"^\\text\s*\{{\s*{_SAYS}\s*\}}|"
    r"^(?:\\text\s*\{)?\s*(?:approximately|approx\.?|about|roughly|around|exactly)\s*\}?\s*(?=[-\d\\$.])"
    r"|\s*(?:\\text\s*\{)?\s*\(approx(?:imately|\.)?\)\s*\}?$",
    re.IGNORECASE,
)
# 1,234 people: the comma groups digits where no other comma follows.
_GROUPED_FIRST = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?![\d,])(?=[^,;]*$)(?!\s*(?:$|and\b|or\b))")
_TIME = re.compile(
    rf"(?:{_FONT}\s*\{{)?\s*\d{{1,2}}:\d\d(?::\d\d)?\s*(?:{_FONT}\s*\{{)?\s*[ap]\.?\s?m\.?\s*\}}?",
    re.IGNORECASE,
)
_MAX_ITEMS = 64
MAX_DEPTH = 6


def read_value(text: str, depth: int = 0) -> Value:
    """The value that normalised text spells. Never fails: what fits no other kind is an
    :class:`Expression`.
    """
    text = _APPROXIMATED.sub("", _APPROXIMATELY.sub("", _MEMBER.sub("", text)))
    text = _APPROXIMATELY.sub("", text)
    text = notation.strip_outer(_exactly(text))
    if depth > MAX_DEPTH:
        return Expression(text)
    money = _money(text)
    if money is not None:
        return money
    number = read_number(text)
    if number is not None:
        return Quantity(number)
    plain = notation.plain_words(text)
    if plain in ("infinity", "infty", "+infty", "+infinity"):
        return Expression(r"\infty")
    if plain in ("negative infinity", "minus infinity", "-infinity"):
        return Expression(r"-\infty")
    if said := _SAID.fullmatch(text):
        return read_value(said[1], depth + 1)
    return _compound(text, depth) or _measured(text) or _words(text) or Expression(text)


def _exactly(text: str) -> str:
    """What comes before ``≈``, or after it when that is a name: ``2√3 ≈ 3.46`` is 2√3."""
    first, sign, second = text.partition(r"\approx")
    if not sign or not first.strip():
        return text
    return second if NAME.fullmatch(first.strip()) else first


def _money(text: str) -> Quantity | None:
    found = _SIGN_UNIT.search(text)
    text = _EACH.sub("", text) if found is not None else text
    rest, sign = text, ""
    if found is not None:
        rest, sign = found[1] + text[found.end() :], found[2]
    elif (found := _SIGN_AFTER.search(text)) is not None:
        rest, sign = text[: found.start()], found[1]
    number = read_number(rest) if sign else None
    unit = read_unit(_SIGNS[sign.lstrip("\\")], wrapped=True) if sign else None
    return None if number is None else Quantity(number, unit)


def _compound(text: str, depth: int) -> Value | None:
    if grid := _matrix(text, depth):
        return grid
    if builder := _BUILDER.fullmatch(text):
        name = rf"(?<![A-Za-z\\]){re.escape(builder[1])}(?![A-Za-z])"
        inner = read_value(builder[2], depth + 1)
        if "=" not in re.sub("[<>!]=", "", builder[2]):
            inner = read_value(re.sub(name, lambda _: BOUND, builder[2]), depth + 1)
        if isinstance(inner, Relation | Items):
            return inner
    if sixtieths := _sixtieths(text):
        return sixtieths
    if grouped := _GROUPED_FIRST.match(text):
        text = grouped[0].replace(",", "") + text[grouped.end() :]
        return read_value(text, depth + 1)
    if text[:1].isdigit() and (amount := _parts(text)):
        return amount
    if (pieces := split(text, _SEPARATORS[:-1])) and 1 < len(pieces) <= _MAX_ITEMS:
        joined = any(word in text for word in (" or ", r"\lor ", r"\vee "))
        items = tuple(read_value(piece, depth + 1) for piece in _carried(pieces))
        return Items(items, "", joined, text)
    if r"\cup" in text and len(parts := split(text, (r"\cup",))) > 1:
        return Union(tuple(read_value(part, depth + 1) for part in parts))
    if found := _relation(text) or _plus_minus(text, depth):
        return found
    if len(parts := split(text, (":", " to "))) in (2, 3):
        return Ratio(tuple(read_value(part, depth + 1) for part in parts), text.replace(" ", ""))
    return _based(text) or _bracketed(text, depth)


def _sixtieths(text: str) -> Value | None:
    """A time of day, or an angle in degrees and minutes."""
    if _TIME.fullmatch(text):
        return Words(notation.plain_words(text))
    if (angle := _MINUTES.fullmatch(text)) is None:
        return None
    turns = int(angle[1]) + Fraction(60 * int(angle[2]) + int(angle[3] or 0), 3600)
    return Quantity(Number(turns), read_unit("degree", wrapped=True))


def _carried(pieces: list[str]) -> list[str]:
    """``x ≠ 0, 1`` with its name before each."""
    name = re.match(rf"{_NAME}\s*\\ne(?![A-Za-z])", pieces[0])
    if name is None or any(_RELATION.search(piece) for piece in pieces[1:]):
        return pieces
    return [pieces[0], *(f"{name[0]} {piece}" for piece in pieces[1:])]


def _plus_minus(text: str, depth: int) -> Items | None:
    """The two values of ``1 ± √2``; with ∓ in it, that sign is the other one."""
    text = text.replace("+/-", r"\pm ").replace("+-", r"\pm ")
    text = text if r"\pm" in text else text.replace(r"\mp", r"\pm")
    inside = text.startswith(r"\{") and text.endswith(r"\}")
    if inside or text.count(r"\pm") != 1 or text.count(r"\mp") > 1:
        return None
    return Items(
        tuple(
            read_value(text.replace(r"\pm", one).replace(r"\mp", other), depth + 1)
            for one, other in (("+", "-"), ("-", "+"))
        )
    )


def _based(text: str) -> Based | None:
    words = _BASE_WORDS.fullmatch(text)
    match = words or _BASED.fullmatch(text.replace(" ", ""))
    if match is None:
        return None
    digits = next((group for group in match.groups()[1:] if group), "")
    base = int(digits) if digits.isdigit() else _BASES[digits]
    return Based((match[1].lstrip("0") or "0").upper(), base)


def _matrix(text: str, depth: int) -> Matrix | None:
    grid = _grid(text, depth)
    at = text.find(r"\begin{")
    if grid is not None or at <= 0:
        return grid
    factor = read_number(text[:at].strip().removesuffix(r"\cdot").strip().removesuffix("*"))
    grid = _grid(text[at:], depth)
    return None if grid is None or factor is None else _times(factor.value, grid)


def _times(factor: Fraction, grid: Matrix) -> Matrix:
    """A matrix with a number before it."""

    def cell(value: Value) -> Value:
        if isinstance(value, Quantity):
            return Quantity(Number(factor * value.number.value), value.unit)
        if not isinstance(value, Expression):
            return value
        scale = f"\\frac{{{factor.numerator}}}{{{factor.denominator}}}"
        return Expression(f"{scale} \\cdot ({value.text})")

    return Matrix(tuple(tuple(map(cell, row)) for row in grid.rows))


def _grid(text: str, depth: int) -> Matrix | None:
    match = _GRID.fullmatch(text)
    if match is not None:
        rows = [
            row for row in re.split(r"\\\\(?:\[[^\]]*\])?|\\cr(?![a-z])", match[1]) if row.strip()
        ]
        cells = [row.replace(r"\hline", "").split("&") for row in rows]
    elif re.match(r"\[\s*\[.*\]\s*\]$", text, re.DOTALL):
        outer = split(text[1:-1], (",", ";"))
        if not all(row.startswith("[") and row.endswith("]") for row in outer):
            return None
        cells = [split(row[1:-1], (",",)) for row in outer]
    else:
        return None
    if sum(map(len, cells)) > _MAX_ITEMS:
        return None
    return Matrix(tuple(tuple(read_value(cell, depth + 1) for cell in row) for row in cells))


_SETS = ((r"\{", r"\}"), ("{", "}"))
_BRACKETS = (("(", ")"), ("[", "]"), ("(", "]"), ("[", ")"))
_REVERSED = (("]", "[", "()"), ("]", "]", "(]"), ("[", "[", "[)"))
_KINDS = {r"\{": "{}", "{": "{}"}


def _bracketed(text: str, depth: int) -> Value | None:
    """A tuple, an interval or a set. A single thing in round brackets is just that thing."""
    for opening, closing in (*_SETS, *_BRACKETS):
        inside = text[len(opening) : -len(closing)]
        if not (text.startswith(opening) and text.endswith(closing) and inside):
            continue
        pieces = split(inside, (",", ";", " and "))
        if not pieces or len(pieces) > _MAX_ITEMS or (len(pieces) == 1 and opening != r"\{"):
            continue
        kind = _KINDS.get(opening, opening + closing)
        return Items(tuple(read_value(piece, depth + 1) for piece in pieces), kind)
    for opening, closing, kind in _REVERSED:
        pieces = split(text[1:-1], (",", ";"))
        if text.startswith(opening) and text.endswith(closing) and len(pieces) == 2:
            return Items(tuple(read_value(piece, depth + 1) for piece in pieces), kind)
    return None


def split(text: str, separators: tuple[str, ...]) -> list[str]:
    """The parts between top-level separators; one part when there is none, none when brackets do
    not balance.

    Half-open intervals mix bracket kinds, so only the depth is counted. ``]0,1[`` is left whole.
    """
    parts, depth, start, at = [], 0, 0, 0
    if text.startswith("]") or (text.endswith("[") and text.startswith("[")):
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
    """A number or formula followed by a unit."""
    for pattern in (_DEGREES, _TEXT_UNIT, _HAN_UNIT, _WORD_UNIT):
        match = pattern.search(text)
        if match is None or not text[: match.start()].strip():
            continue
        bare = pattern is _WORD_UNIT
        unit = read_unit(_degrees(match[1]) if pattern is _DEGREES else match[1], wrapped=not bare)
        if unit is None:
            continue
        if pattern is _WORD_UNIT and _GLUED.fullmatch(text):
            return None
        if pattern is _DEGREES and _TURNED.search(text):
            return None
        core = notation.strip_outer(text[: match.start()].rstrip("-"))
        number = read_number(core)
        if number is not None:
            return Quantity(number, unit)
        return None if bare and not unit.powers else Expression(core, unit)
    if ordinal := _ORDINAL.fullmatch(text):
        number = read_number(ordinal[1])
        return None if number is None else Quantity(number)
    return None


# 3m may be three metres or three times m; a space or another spelling would say so.
_GLUED = re.compile(r".*[\d})]([mgshl])(?:\s?\^\s?(?:\{-?\d\}|\d))?", re.DOTALL)


# The degrees in it belong to a function's argument.
_TURNED = re.compile(r"(?:sin|cos|tan|cot|sec|csc|cis)(?![a-z])")
_PART = re.compile(r"\s*(?:,|and)?\s*(\d+(?:\.\d+)?)\s*((?:square |cubic )?[A-Za-z]+(?:\^\d)?)")


def _parts(text: str) -> Quantity | None:
    """``1 hour 30 minutes``: several amounts of the same kind, added."""
    opened = notation.open_text(text)
    found = list(_PART.finditer(opened))
    if not 2 <= len(found) <= 3 or sum(len(match[0]) for match in found) != len(opened.rstrip()):
        return None
    units = [read_unit(match[2], wrapped=True) for match in found]
    known = [unit for unit in units if unit is not None and unit.powers]
    if len(known) != len(found) or len({unit.powers for unit in known}) != 1:
        return None
    if len({unit.scale for unit in known}) != len(known):
        return None
    total = sum(
        (Fraction(match[1]) * unit.scale for match, unit in zip(found, known, strict=True)),
        Fraction(0),
    )
    return Quantity(Number(total), Unit(Fraction(1), known[0].powers))


def unglued(text: str) -> Quantity | None:
    """``3m`` read as a quantity."""
    found = _GLUED.fullmatch(text)
    number = read_number(text[: found.start(1)]) if found else None
    if found is None or number is None:
        return None
    return Quantity(number, read_unit(text[found.start(1) :], wrapped=True))


def _degrees(scale: str | None) -> str:
    letter = (scale or "").strip(" {}")[-1:]
    return {"C": "celsius", "F": "fahrenheit"}.get(letter, "degree")


_WRAPPED = re.compile(rf"{_FONT}\s*\{{[^{{}}]*\}}")
_MATHEMATICAL = re.compile(r"[\\^_{}=<>+*/|]")
_FUNCTION_WORDS = re.compile(
    r"(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|log|ln|lg|exp|sqrt|pi|abs|theta|alpha|beta"
)


def _words(text: str) -> Value | None:
    """Text: what stands in a text wrapper, and runs of letters that are no formula."""
    plain = notation.plain_words(text)
    opened = notation.open_text(text)
    if _WRAPPED.fullmatch(text):
        inner = read_number(opened)
        if inner is None and opened[:1].isdigit() and (measured := _measured(opened)):
            return measured
        return Words(plain) if inner is None else Quantity(inner)
    if _MATHEMATICAL.search(opened):
        return None
    runs = [run for run in re.findall(r"[^\W\d_]+", opened) if not _FUNCTION_WORDS.fullmatch(run)]
    long = [run for run in runs if len(run) > 3 or not run.isascii()]
    spoken = any(re.search("[aeiouyAEIOUY]|[^\x00-\x7f]", run) for run in long)
    several = " " in opened and any(len(run) > 1 for run in runs)
    if spoken or (several and opened[:1].isalpha()) or plain in ("yes", "no"):
        return Words(plain)
    return None
