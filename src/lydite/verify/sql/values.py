"""Values to put into a column: those beside what a query compares it with, and ones like those it
holds.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Iterator

from lydite.verify.sql.engine import Cell, Kind
from lydite.verify.sql.facts import spelled_number

_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})(.*)", re.DOTALL)
_YEAR = re.compile(r"(?:1[5-9]|20|21)\d{2}")
_YEAR_MONTH = re.compile(r"((?:1[5-9]|20|21)\d{2})-(\d{2})")


def neighbours(
    kind: Kind, literals: Iterable[Cell], patterns: Iterable[str], held: Iterable[Cell]
) -> list[Cell]:
    """Values on both sides of every boundary that the literals and patterns draw, in a stable
    order.
    """
    found: list[Cell] = []
    patterns = sorted(patterns)
    sample = [value for value in held if value is not None]
    for literal in sorted(literals, key=lambda value: (str(type(value)), str(value))):
        if kind == "bool":
            found += [0, 1]
        elif kind == "date":
            found += _dates(literal, sample)
        elif kind in ("int", "real"):
            found += _numbers(kind, literal)
        else:
            found += _texts(literal, cased=not patterns)
    for pattern in patterns if kind in ("text", "other", "date") else ():
        made = list(_matching(pattern))
        found += made if kind != "date" else [d for p in made for d in _dates(p, sample)]
    return list(dict.fromkeys(found))


def _numbers(kind: Kind, literal: Cell) -> Iterator[Cell]:
    if isinstance(literal, str):
        if not spelled_number(literal):
            return
        literal = float(literal) if "." in literal else int(literal)
    if kind == "int":
        if isinstance(literal, float):
            yield from (int(literal), int(literal) + 1, int(literal) - 1)
            return
        yield from (literal, literal - 1, literal + 1)
        if abs(literal) > 3:
            yield from (literal // 2, literal * 2)
        return
    step = 1 if abs(literal) >= 1 else 0.01
    yield from (literal, literal - step, literal + step, literal + step / 2, literal - step / 2)
    if abs(literal) > 3:
        yield literal / 2


def _texts(literal: Cell, cased: bool) -> Iterator[Cell]:
    if isinstance(literal, int | float):
        # A length, or a number kept as text.
        if isinstance(literal, int) and 0 <= literal <= 40:
            yield from (
                "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz"[: literal + n]
                for n in (0, 1)
            )
            if literal > 0:
                yield "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrst"[: literal - 1]
        yield str(literal)
        return
    if spelled_number(literal):
        yield literal
        yield from (str(int(float(literal)) + n) for n in (-1, 1))
        return
    yield literal
    yield literal + "x"
    if len(literal) > 1:
        yield literal[:-1]
    if cased:
        yield from (literal.lower(), literal.upper(), literal.capitalize())


def _matching(pattern: str) -> Iterator[str]:
    """Strings that a pattern of LIKE takes, and ones that it barely does not."""
    core = pattern.replace("*", "%").replace("?", "_").replace("_", "q")
    parts = [part for part in core.split("%") if part]
    body = "-".join(parts)
    yield core.replace("%", "")
    yield from (body, body + "x", "x" + body, "x" + body + "x")
    if len(parts) > 1:
        yield from ("".join(reversed(parts)), parts[0], parts[-1])
    if len(body) > 1:
        yield from (body[:-1], body[1:])
    yield "zz"


def _dates(literal: Cell, sample: list[Cell]) -> Iterator[str]:
    """Days around a date, or around the year or month that a literal names."""
    text = str(literal).replace("%", "").strip()
    days: list[datetime.date] = []
    tail = ""
    if match := _DATE.match(text):
        days, tail = [_day(int(match[1]), int(match[2]), int(match[3]))], match[4]
    elif match := _YEAR_MONTH.match(text):
        first = _day(int(match[1]), int(match[2]), 1)
        days = [first, _day(first.year + first.month // 12, first.month % 12 + 1, 1)]
    elif match := _YEAR.fullmatch(text):
        days = [_day(int(text), 1, 1), _day(int(text), 12, 31), _day(int(text), 6, 15)]
    elif text.isdigit() and len(text) <= 2:
        days = [
            _day(2020, min(max(int(text), 1), 12), 1),
            _day(2020, 1, min(max(int(text), 1), 28)),
        ]
    shape = next((value for value in sample if isinstance(value, str)), "")
    clock = shape[10:] if _DATE.match(shape) else (tail if tail[:1] in (" ", "T") else "")
    for day in days:
        for shift in (0, -1, 1):
            moved = day + datetime.timedelta(days=shift)
            yield moved.isoformat() + clock


def _day(year: int, month: int, day: int) -> datetime.date:
    try:
        return datetime.date(min(max(year, 1000), 9000), month, day)
    except ValueError:
        return datetime.date(2020, 1, 1)


_FRESH_WORDS = ("Kestrel", "Umber", "Quill", "Zinnia", "Onyx", "Fennel", "Jasper", "Willow")


def fresh(kind: Kind, held: Iterable[Cell], number: int) -> Cell:
    """The ``number``-th value of a column's kind that its rows do not hold, shaped like them."""
    sample = [value for value in held if value is not None]
    if kind == "bool":
        return number % 2
    if kind == "int":
        top = max((v for v in sample if isinstance(v, int)), default=0)
        return min(top, 2**40) + 1 + number
    if kind == "real":
        highest = max((float(v) for v in sample if isinstance(v, int | float)), default=10.0)
        return (min(highest, 1e9) if highest == highest else 0.0) + 1.5 + number
    if kind == "date":
        shape = next((v for v in sample if isinstance(v, str)), "2020-01-31")
        match = _DATE.match(shape)
        day = _day(int(match[1]), int(match[2]), int(match[3])) if match else _day(2020, 1, 31)
        moved = day + datetime.timedelta(days=17 * (number + 1))
        return moved.isoformat() + (match[4] if match else "")
    texts = [value for value in sample if isinstance(value, str)]
    if texts and all(spelled_number(text) for text in texts):
        return str(max(int(float(text)) for text in texts) + 1 + number)
    if texts and not all(re.fullmatch(r"[\w .,'&()-]*", text) for text in texts):
        return texts[number % len(texts)]
    word = _FRESH_WORDS[number % len(_FRESH_WORDS)]
    return word if number < len(_FRESH_WORDS) else f"{word} {number}"
