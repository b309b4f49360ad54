"""Answers next to the reference, and answers that hedge or restate: each must be refused."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import combinations

from lydite.verify import notation
from lydite.verify.audit.attack import ANSWERS, NUMERIC, Attack, Kind, Target, Want
from lydite.verify.audit.kinds import NUMBER, number_of
from lydite.verify.value import split

_LITERAL = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?![\d.])")
FORMULAS: tuple[Kind, ...] = (
    "expression", "equation", "tuple", "set", "interval", "matrix",
)  # fmt: skip


def spelled(value: Fraction) -> str:
    """A fraction as a whole number, a short decimal, or ``a/b``."""
    if value.denominator == 1:
        return str(value.numerator)
    for places in range(1, 7):
        if (value * 10**places).denominator == 1:
            return f"{float(value):.{places}f}"
    return f"{value.numerator}/{value.denominator}"


def numeric_misses(value: Fraction) -> list[Fraction]:
    """Numbers next to one, in the ways that models and lenient graders confuse them."""
    found = [value + 1, value - 1, -value, 10 * value, value / 10, 100 * value, value / 100]
    found += [2 * value, value / 2, value + Fraction(1, 2), value**2, value + Fraction(1, 1000)]
    if value:
        found.append(1 / value)
    return list(dict.fromkeys(near for near in found if near != value))


def _near_number(target: Target) -> Iterator[str]:
    """Misses in the reference's own writing: its unit and sign of currency stay."""
    match = NUMBER.search(target.gold)
    value = number_of(target.gold if target.kind != "quantity" else match[0] if match else "")
    if value is None:
        return
    for near in numeric_misses(value):
        if target.kind == "quantity" and match:
            yield f"{target.gold[: match.start()]}{spelled(near)}{target.gold[match.end() :]}"
        else:
            yield spelled(near)
    if value.denominator == 1 and len(str(abs(value.numerator))) > 1:
        digits = str(abs(value.numerator))
        for wrong in (digits[::-1], digits[:-1], digits + digits[-1], digits[1:]):
            if int(wrong) != abs(value.numerator):
                yield str(int(wrong))


def _near_fraction(target: Target) -> Iterator[str]:
    value = number_of(target.gold)
    if value is not None and value.denominator != 1:
        top, bottom = value.numerator, value.denominator
        for wrong in (Fraction(top), Fraction(bottom), Fraction(top + bottom)):
            if wrong != value:
                yield str(wrong)
        rough = f"{float(value):.1f}"
        if Fraction(rough) != value:
            yield rough
        yield rf"\frac{{{top + 1}}}{{{bottom}}}"
        yield rf"\frac{{{top}}}{{{bottom + 1}}}"


def _literals(target: Target) -> Iterator[str]:
    """Every number in the reference one off, one at a time."""
    for match in list(_LITERAL.finditer(target.gold))[:5]:
        value = number_of(match[0])
        if value is not None:
            before, after = target.gold[: match.start()], target.gold[match.end() :]
            yield f"{before}{spelled(value + 1)}{after}"


def _negated(target: Target) -> Iterator[str]:
    if target.gold.strip() not in ("0", "x=0"):
        yield f"-({target.gold})"
        yield f"{target.gold}+1"
        yield rf"2\cdot({target.gold})"


def _wrong_unit(target: Target) -> Iterator[str]:
    match = NUMBER.search(target.gold)
    if match is None:
        return
    for unit in ("cm", "km", "kg", "hours", "liters"):
        if not re.search(rf"\b{unit[:-1]}", target.gold):
            yield rf"{match[0]} \text{{ {unit}}}"


def _parts(gold: str) -> tuple[str, list[str], str] | None:
    """The brackets and items of a list, where it has them plainly."""
    text = gold.strip()
    match = re.fullmatch(r"(\\left)?(\\\{|[(\[{])?(.*?)(\\right)?(\\\}|[)\]}])?", text, re.DOTALL)
    if match is None:
        return None
    items = [item.strip() for item in split(match[3], (",",))]
    if len(items) < 2 or not all(items):
        return None
    opening, closing = (match[1] or "") + (match[2] or ""), (match[4] or "") + (match[5] or "")
    return opening, items, closing


def _items_changed(target: Target) -> Iterator[str]:
    found = _parts(target.gold)
    if found is None:
        return
    opening, items, closing = found
    changed: list[list[str]] = [items[:-1], items[1:], [*items, "777"], [*items[:-1], "777"]]
    changed += [[items[0], *items], ["777", *items]] if target.kind == "tuple" else []
    changed += [items[::-1]] if target.kind == "tuple" and items != items[::-1] else []
    for each in changed:
        yield f"{opening}{', '.join(each)}{closing}"


def _ends_changed(target: Target) -> Iterator[str]:
    text = target.gold.strip()
    if not re.fullmatch(r"[(\[].*[)\]]", text, re.DOTALL):
        return
    first, last = {"(": "[", "[": "("}[text[0]], {")": "]", "]": ")"}[text[-1]]
    for changed in (first + text[1:], text[:-1] + last, first + text[1:-1] + last):
        if "infty" not in changed:
            yield changed


def _transposed(target: Target) -> Iterator[str]:
    match = re.search(r"(\\begin\{[pb]?matrix\})(.*?)(\\end\{[pb]?matrix\})", target.gold, re.S)
    if match is None:
        return
    rows = [[cell.strip() for cell in row.split("&")] for row in match[2].split(r"\\")]
    turned = [list(row) for row in zip(*rows, strict=False)]
    if turned != rows:
        yield match[1] + r" \\ ".join(" & ".join(row) for row in turned) + match[3]


def _other_letters(target: Target) -> Iterator[str]:
    right = notation.open_text(notation.normalise(target.gold)).strip("()")
    yield from (letter for letter in "ABCDE" if letter != right)
    yield from ("A, B, C, D", "A B C D E", "ABCD", "all of the above", "none")
    other = "A" if right != "A" else "B"
    yield from (
        f"{right} or {other}",
        f"not {right}",
        f"{right} and {other}",
        f"({right})({other})",
    )


def _other_words(target: Target) -> Iterator[str]:
    gold = notation.plain_words(notation.normalise(target.gold))
    opposites = {"yes": "no", "no": "yes", "true": "false", "false": "true", "even": "odd",
                 "odd": "even", "increasing": "decreasing"}  # fmt: skip
    yield f"not {gold}"
    yield f"{gold} or something else"
    yield f"non-{gold}"
    if gold in opposites:
        yield opposites[gold]
        yield f"{gold} and {opposites[gold]}"
    if len(gold) > 2:
        yield gold[:-1]
        yield gold + gold[-1]


def _hedges(target: Target) -> Iterator[str]:
    gold, wrong = target.gold, target.wrong
    yield f"{gold} or {wrong}"
    yield f"{wrong} or {gold}"
    yield f"either {wrong} or {gold}"
    yield f"{gold}, {wrong}"
    yield f"not {gold}"
    yield f"{gold}, but maybe {wrong}"


def _bounds(target: Target) -> Iterator[str]:
    gold = target.gold
    yield from (
        f"at least {gold}",
        f"> {gold}",
        rf"\le {gold}",
        f"between {gold} and {target.wrong}",
    )
    if number_of(gold) != 0:
        yield rf"\pm {gold}"


def _restated(target: Target) -> Iterator[str]:
    """A sum that is left to be done, of the question's own numbers where they make one."""
    gold = number_of(target.gold)
    if gold is None or gold.denominator != 1:
        return
    yield from _made_of(target.numbers, gold)
    whole = int(gold)
    part = max(1, abs(whole) * 2 // 5)
    yield f"{part}+{whole - part}" if whole > part else f"{part}-{part - whole}"
    yield f"{whole + 8}-8"
    if 1 < whole <= 10**6:
        yield rf"\sum_{{k=1}}^{{{whole}}} 1"
        yield rf"\int_0^{{{whole}}} 1\,dx"


def _made_of(numbers: Iterable[str], gold: Fraction) -> Iterator[str]:
    values = [(text, value) for text in numbers if (value := number_of(text)) is not None]
    found = 0
    for (one, first), (two, second) in combinations(values[:8], 2):
        sums = (
            (f"{one}+{two}", first + second),
            (f"{one}-{two}", first - second),
            (f"{two}-{one}", second - first),
            (rf"{one}\times {two}", first * second),
        )
        for text, value in sums:
            if value == gold and found < 3:
                found += 1
                yield text


def _false_chains(target: Target) -> Iterator[str]:
    value = number_of(target.gold)
    if value is None:
        return
    yield f"{spelled(value + 1)}={target.gold}"
    yield f"x={spelled(value - 1)}={target.gold}"
    if value == 0:
        yield "x^2-5x+6=0"
        yield "f(x)=0"


def _examples(target: Target) -> Iterator[str]:
    return iter(target.example.wrong)


_R = Want.REFUSE
NEAR = (
    Attack("near number", "near miss", _R, "One off, sign, factor, reciprocal, digits.",
           _near_number, NUMERIC),
    Attack("near fraction", "near miss", _R, "A part of the fraction, or a rough decimal.",
           _near_fraction, ("rational",)),
    Attack("one number off", "near miss", _R, "A number of the formula is one off.", _literals,
           FORMULAS),
    Attack("sign or factor", "near miss", _R, "Minus, plus one, twice.", _negated,
           ("expression",)),
    Attack("wrong unit", "near miss", _R, "The number with another unit.", _wrong_unit,
           ("quantity",)),
    Attack("items", "near miss", _R, "An item dropped, added, changed, or out of order.",
           _items_changed, ("tuple", "set")),
    Attack("open or closed", "near miss", _R, "A bracket of the interval.", _ends_changed,
           ("interval",)),
    Attack("transposed", "near miss", _R, "Rows for columns.", _transposed, ("matrix",)),
    Attack("other choice", "near miss", _R, "Other letters, several, all.", _other_letters,
           ("choice",)),
    Attack("other words", "near miss", _R, "Denied, cut short, the opposite.", _other_words,
           ("text",)),
    Attack("hedge", "hedge", _R, "The right answer or another.", _hedges,
           tuple(kind for kind in ANSWERS if kind != "choice")),
    Attack("bound", "hedge", _R, "At least, between, plus or minus.", _bounds, NUMERIC),
    Attack("left to be done", "restated", _R, "A sum, difference or product, not computed.",
           _restated, ("integer",)),
    Attack("false chain", "restated", _R, "An equation that is false and ends well.",
           _false_chains, ("integer",)),
    Attack("known wrong", "near miss", _R, "Wrong answers of the built-in problems.", _examples,
           (*ANSWERS, "code", "sql")),
)  # fmt: skip
