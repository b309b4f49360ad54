"""The reference in other words that mean the same: each must be accepted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from fractions import Fraction

from lydite.verify import notation
from lydite.verify.audit.attack import ANSWERS, NUMERIC, Attack, Target, Want
from lydite.verify.audit.kinds import NUMBER, number_of
from lydite.verify.audit.near import FORMULAS, _parts
from lydite.verify.value import split


def _as_written(target: Target) -> Iterator[str]:
    gold = target.gold
    yield gold
    yield f" {gold} "
    yield f"${gold}$" if "$" not in gold else gold


def _alone(target: Target) -> Iterator[str]:
    if target.gold:
        yield target.gold


def _wrapped(target: Target) -> Iterator[str]:
    gold = target.gold.strip()
    if "$" not in gold:
        yield rf"\( {gold} \)"
    if not gold.endswith((".", "!")):
        yield f"{gold}."


def _whole(target: Target) -> Iterator[str]:
    value = number_of(target.gold)
    if value is None or value.denominator != 1:
        return
    number = int(value)
    yield str(number)
    if abs(number) >= 1000:
        yield f"{number:,}"
    yield rf"\text{{{number}}}"
    yield rf"\mathbf{{{number}}}"
    if number < 0:
        yield f"\u2212{abs(number)}"


def _whole_by_value(target: Target) -> Iterator[str]:
    value = number_of(target.gold)
    if value is None or value.denominator != 1:
        return
    number = int(value)
    yield f"{number}.0"
    yield f"x = {number}"
    if abs(number) >= 1000:
        yield f"{number:,}".replace(",", "{,}")
        yield f"{number:,}".replace(",", r"\,")
    yield rf"\frac{{{2 * number}}}{{2}}"
    yield "".join(chr(ord(digit) + 0xFEE0) if digit.isdigit() else digit for digit in str(number))


def _fractions(target: Target) -> Iterator[str]:
    value = number_of(target.gold)
    if value is None or value.denominator == 1:
        return
    top, bottom, sign = abs(value.numerator), value.denominator, "-" if value < 0 else ""
    yield rf"{sign}\frac{{{top}}}{{{bottom}}}"
    yield rf"{sign}\dfrac{{{top}}}{{{bottom}}}"
    yield f"{sign}{top}/{bottom}"
    yield rf"{sign}\frac{{{3 * top}}}{{{3 * bottom}}}"
    yield rf"{sign}\left(\frac{{{top}}}{{{bottom}}}\right)"
    yield rf"x = {sign}\frac{{{top}}}{{{bottom}}}"
    decimal = _exact_decimal(value)
    if decimal:
        yield decimal
    if top > bottom and not sign:
        yield rf"{top // bottom}\frac{{{top % bottom}}}{{{bottom}}}"


def _exact_decimal(value: Fraction) -> str:
    for places in range(1, 9):
        scaled = abs(value) * 10**places
        if scaled.denominator == 1:
            digits = f"{scaled.numerator:0{places + 1}d}"
            return f"{'-' if value < 0 else ''}{digits[:-places]}.{digits[-places:]}"
    return ""


def _decimals(target: Target) -> Iterator[str]:
    gold = target.gold.strip()
    if re.fullmatch(r"-?\d+\.\d+", gold):
        yield f"{gold}0"
        yield f"{gold}00"
        if gold.lstrip("-").startswith("0."):
            yield gold.replace("0.", ".", 1)


def _united(target: Target) -> Iterator[str]:
    match = NUMBER.search(target.gold)
    if match is None:
        return
    unit = target.gold[match.end() :].strip()
    if match.start() == 0 and re.fullmatch(r"[A-Za-z/^0-9]+", unit):
        yield rf"{match[0]} \text{{ {unit}}}"
        yield rf"{match[0]}\,\mathrm{{{unit}}}"
        yield f"{match[0]} {unit}"
        yield f"{match[0]}.0 {unit}" if "." not in match[0] else f"{match[0]}0 {unit}"


def _spaced(target: Target) -> Iterator[str]:
    gold = target.gold
    yield rf"\displaystyle {gold}"
    yield re.sub(r"\s*([,+=&])\s*", r" \1 ", gold)
    yield re.sub(r"(?<=[^\\])\s+(?![A-Za-z])", "", gold) if " " in gold else gold


def _latex(target: Target) -> Iterator[str]:
    gold = target.gold
    if r"\frac" in gold:
        yield gold.replace(r"\frac", r"\dfrac")
        yield gold.replace(r"\frac", r"\tfrac")
    if r"\left" not in gold and re.search(r"\((?=[^()]*\))", gold) and gold.count("(") == 1:
        yield gold.replace("(", r"\left(").replace(")", r"\right)") if ")" in gold else gold
    if r"\sqrt" in gold:
        yield re.sub(r"(\d)\\sqrt", r"\1\\cdot\\sqrt", gold)
        yield re.sub(r"\\sqrt\{(\d+)\}", r"\\sqrt {\1}", gold)
    if r"\pi" in gold:
        yield re.sub(r"(\d)\\pi", r"\1\\cdot\\pi", gold)
        yield gold.replace(r"\pi", "π")
    yield re.sub(r"\^(\d)(?!\d)", r"^{\1}", gold)


def _regrouped(target: Target) -> Iterator[str]:
    """Terms of a plain sum in another order, and the formula scaled back and forth."""
    terms = split(target.gold, ("+",))
    if len(terms) == 2 and not re.search(r"[-=,<>\\]", target.gold):
        yield f"{terms[1]}+{terms[0]}"
    yield rf"\frac{{2({target.gold})}}{{2}}"


def _sides(target: Target) -> Iterator[str]:
    sides = target.gold.split("=")
    if len(sides) == 2:
        yield f"{sides[1].strip()} = {sides[0].strip()}"


def _reordered(target: Target) -> Iterator[str]:
    found = _parts(target.gold)
    if found is None:
        return
    opening, items, closing = found
    yield f"{opening}{', '.join(items[::-1])}{closing}"
    yield rf"\{{{', '.join([*items[1:], items[0]])}\}}"
    yield " and ".join(items) if len(items) == 2 else ", ".join(items)


def _bracketed(target: Target) -> Iterator[str]:
    text = target.gold.strip()
    if re.fullmatch(r"[(\[].*[)\]]", text, re.DOTALL):
        yield rf"\left{text[0]} {text[1:-1].strip()} \right{text[-1]}"


def _letters(target: Target) -> Iterator[str]:
    letter = notation.open_text(notation.normalise(target.gold)).strip("()")
    yield from (letter, rf"\text{{{letter}}}")


def _letters_by_value(target: Target) -> Iterator[str]:
    letter = notation.open_text(notation.normalise(target.gold)).strip("()")
    yield from (
        f"({letter})",
        f"{letter}.",
        rf"\text{{({letter})}}",
        rf"\textbf{{({letter})}}",
        f"{letter})",
    )


def _words(target: Target) -> Iterator[str]:
    gold = target.gold.strip()
    yield rf"\text{{{gold}}}"
    yield f"{gold}."
    if gold.isascii() and gold.isalpha():
        yield gold.upper()
        yield gold.capitalize()


def _examples(target: Target) -> Iterator[str]:
    return iter(target.example.right)


def _worked(target: Target) -> Iterator[str]:
    """A solution in the data, unless it is one that was made to be bad."""
    if target.problem.worked and target.problem.fields.get("style", "clean") == "clean":
        yield target.problem.worked


def _as_data(target: Target) -> Iterator[str]:
    """The same data in other writing; only the reference itself where it is no JSON."""
    yield target.gold
    try:
        data = json.loads(target.gold)
    except (ValueError, RecursionError):
        return
    yield json.dumps(data, indent=2)
    yield json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    if isinstance(data, dict):
        yield json.dumps(dict(reversed(data.items())))


_A = Want.ACCEPT
REWRITES = (
    Attack("as written", "as written", _A, "The reference itself.", _as_written),
    Attack("as written", "as written", _A, "The reference itself.", _alone, ("code", "sql")),
    Attack("wrapped", "spelling", _A, "In LaTeX wrappers, with a closing point.", _wrapped,
           tuple(kind for kind in ANSWERS if kind not in ("text", "choice"))),
    Attack("whole number", "spelling", _A, "Thousands commas, text, minus sign.", _whole,
           ("integer",)),
    Attack("whole number", "equal value", _A, "x =, 2n/2, spacing of thousands.", _whole_by_value,
           ("integer",), by_value=True),
    Attack("fraction", "equal value", _A, "Unreduced, slanted, mixed, as a decimal.", _fractions,
           ("rational", "decimal"), by_value=True),
    Attack("decimal", "spelling", _A, "Trailing zeros, no leading zero.", _decimals,
           ("decimal",)),
    Attack("unit", "equal value", _A, "The unit as text or upright.", _united, ("quantity",),
           by_value=True),
    Attack("spacing", "equal value", _A, "Spaces added and taken out.", _spaced, FORMULAS,
           by_value=True),
    Attack("LaTeX forms", "equal value", _A, "dfrac, left and right, cdot, braces.", _latex,
           FORMULAS, by_value=True),
    Attack("regrouped", "equal value", _A, "Terms in another order, 2x/2.", _regrouped,
           ("expression",), by_value=True),
    Attack("sides", "equal value", _A, "The sides of an equation exchanged.", _sides,
           ("equation",), by_value=True),
    Attack("order", "equal value", _A, "Items of a set in another order.", _reordered, ("set",),
           by_value=True),
    Attack("brackets", "equal value", _A, "left and right brackets.", _bracketed,
           ("tuple", "interval"), by_value=True),
    Attack("choice", "spelling", _A, "The letter, as text.", _letters, ("choice",)),
    Attack("choice", "equal value", _A, "The letter in brackets, with a point, bold.",
           _letters_by_value, ("choice",), by_value=True),
    Attack("words", "spelling", _A, "Case, wrapper, closing point.", _words, ("text",)),
    Attack("known right", "equal value", _A, "Right answers of the built-in problems.", _examples,
           (*ANSWERS, "code", "sql"), by_value=True),
    Attack("worked solution", "worked solution", _A, "The solution in the data.", _worked,
           (*ANSWERS, "code", "sql"), whole=True),
)  # fmt: skip
DATA_REWRITES = (
    Attack("as data", "as written", _A, "Indented, compact, keys in another order.", _as_data),
)
"""What stands in for :data:`REWRITES` where the reward reads JSON: those are no JSON."""

__all__ = ["DATA_REWRITES", "NUMERIC", "REWRITES"]
