"""Plain numbers read exactly, as fractions: no float ever decides whether an answer is right."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from lydite.verify.numeral import read_chinese, read_words

MAX_DIGITS = 1000
# A decimal shorter than this is the number it says, never a rounding of another one (1.41 is not
# √2).
ROUNDED_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Number:
    """An exact value. ``places`` is the number of decimals it was written with, ``None`` unless it
    is a decimal. ``power`` says that it was written as one, ``2^{10}``.
    """

    value: Fraction
    percent: bool = False
    places: int | None = None
    power: bool = False

    @property
    def significant(self) -> int:
        """How many significant digits a decimal shows."""
        scaled = abs(self.value) * 10 ** (self.places or 0)
        return len(str(scaled.numerator // scaled.denominator)) if scaled else 0


_INTEGER = r"(?:\d{1,3}(?P<SEP>[, _'])\d{3}(?:(?P=SEP)\d{3})*(?!\d)|\d+)"
_COUNT = iter(range(10**6))


def _integer() -> str:
    """The pattern of an integer, its separator group under a name of its own."""
    return _INTEGER.replace("SEP", f"sep{next(_COUNT)}")


def _decimal_pattern() -> str:
    return rf"(?:{_integer()}(?:\.\d*)?|\.\d+)"


_EXPONENT = r"\{?\s*\(?(?P<exponent>[+-]?\s*\d{1,4})\)?\s*\}?"
_PLAIN = re.compile(_decimal_pattern())
_RATIO = re.compile(
    rf"(?P<top>-?\s*{_decimal_pattern()})\s*/\s*(?P<bottom>-?\s*{_decimal_pattern()})"
)
_FRACTION = re.compile(
    rf"\\frac\s*\{{\s*(?P<top>-?\s*{_decimal_pattern()})\s*\}}\s*"
    rf"\{{\s*(?P<bottom>-?\s*{_decimal_pattern()})\s*\}}"
)
_MIXED = re.compile(
    r"(?P<whole>\d+)(?:\s*(?:\\?&|\band\b|\+)?\s+|\s*(?=\\))"
    r"(?P<part>\d+\s*/\s*\d+|\\frac\{\s*\d+\s*\}\s*\{\s*\d+\s*\})"
)
_SCIENTIFIC = re.compile(
    rf"(?P<mantissa>{_decimal_pattern()})\s*"
    rf"(?:[eE]|(?:\\times|\\cdot|\*|x)\s*10\s*(?:\^|\*\*)|\\times\s*\{{\s*10\s*\}}\s*\^)\s*{_EXPONENT}"
)
_POWER = re.compile(rf"\{{?(?P<base>\d{{1,6}})\}}?\s*\^\s*{_EXPONENT}")
_REPEATING = re.compile(
    r"(?P<whole>\d*)\.(?P<fixed>\d*)(?:\\overline\s*\{\s*(?P<bar>\d+)\s*\}|\((?P<round>\d+)\)"
    r"|\\dot\s*\{?(?P<first>\d)\}?(?:(?P<middle>\d*)\\dot\s*\{?(?P<last>\d)\}?)?)(?:\\ldots|\.{2,})?"
)
# 0.333… shows its period at least twice, and three times when it is one digit long.
_TRAILING_PERIOD = re.compile(
    r"(?P<whole>\d*)\.(?P<fixed>\d*?)(?:(?P<one>\d)(?P=one){2,}|(?P<more>\d{2,}?)(?P=more)+)"
    r"\s*(?:\\ldots|\.{2,})\s*"
)
# Points group only where there are two of them, or a comma follows with the decimals.
_EUROPEAN = re.compile(r"\d{1,3}(?:\.\d{3}){2,}(?:,\d+)?|\d{1,3}(?:[. ]\d{3})+,\d{1,2}")
_CURRENCY = re.compile(r"^([+-]?)\s*(?:US|CA|AU|HK)?(?:\\?\$|€|£|¥|₹|USD(?![A-Za-z]))\s*")
_NEGATIVE = re.compile(r"^(?:\\text\s*\{)?\s*(?:negative|minus)(?:\s*\}\s*|\s+)", re.IGNORECASE)
_MAGNITUDES = {
    "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
    "dozen": 12, "万": 10**4, "亿": 10**8, "千": 10**3, "百": 100, "百万": 10**6, "千万": 10**7,
}  # fmt: skip
_MAGNITUDE = re.compile(
    rf"\s*(?:\\text\s*\{{)?\s*(?<![A-Za-z])({'|'.join(sorted(_MAGNITUDES, key=len)[::-1])})\s*\}}?$"
)
_PERCENT = re.compile(
    r"\s*(?:\\?%|(?<![A-Za-z])per ?cent|\\(?:text|mathrm)\s*\{\s*(?:percent|%|\\%)\s*\})$"
)


def read_number(text: str) -> Number | None:
    """The number that the (normalised) text spells, or ``None`` if it spells anything else.

    Integers with or without thousands separators or a magnitude in words, decimals, repeating
    decimals, fractions, mixed numbers, scientific notation, powers of integers and small numbers in
    words; with a sign, a currency before or a percent sign after. A percentage keeps the number as
    written: 25% has value 25. ``None`` too when it has more than ``MAX_DIGITS`` digits.
    """
    text = text.strip()
    if len(text) > 2 * MAX_DIGITS or sum(character.isdigit() for character in text) > MAX_DIGITS:
        return None
    percent = _PERCENT.search(text)
    if percent is not None:
        text = text[: percent.start()]
    magnitude = _MAGNITUDE.search(text)
    if magnitude is not None and text[: magnitude.start()].strip()[-1:].isdigit():
        text = text[: magnitude.start()]
    else:
        magnitude = None
    text = _CURRENCY.sub(r"\1", _NEGATIVE.sub("-", text))
    negative, text = _sign(text)
    text = _CURRENCY.sub(r"\1", text)
    number = _unsigned(text.strip())
    if number is None:
        return None
    value = -number.value if negative else number.value
    if magnitude is not None:
        return Number(value * _MAGNITUDES[magnitude[1]], percent is not None)
    return Number(value, number.percent or percent is not None, number.places, number.power)


def _sign(text: str) -> tuple[bool, str]:
    """Peels signs and the brackets around the whole number."""
    negative = False
    for _ in range(8):
        text = text.strip()
        # Nobody writes `--1` for 1: two signs need brackets between them.
        if re.match(r"[-+](?!\s*[-+])", text):
            negative ^= text[0] == "-"
            text = text[1:]
        elif re.fullmatch(r"\([^()]*\)|\{[^{}]*\}", text):
            text = text[1:-1]
        else:
            break
    return negative, text


def _unsigned(text: str) -> Number | None:
    if _PLAIN.fullmatch(text):
        return _decimal(text)
    if not any(map(str.isdigit, text)):
        return _in_words(text)
    for pattern, build in _PATTERNS:
        match = pattern.fullmatch(text)
        if match is not None:
            value = build(match)
            return None if value is None else Number(value, power=pattern is _POWER)
    if _EUROPEAN.fullmatch(text):
        return _decimal(re.sub(r"[. ]", "", text).replace(",", "."))
    return None


def _in_words(text: str) -> Number | None:
    value = read_words(text)
    if value is not None:
        return Number(value)
    found = read_chinese(text)
    return None if found is None else Number(found[0], found[1])


def decimal_comma(text: str) -> Number | None:
    """The number that ``3,14`` is where a comma is the decimal point, and ``12,34,567`` is in
    India. Which it is the text alone does not say, so only a plain number to compare with can
    decide it.
    """
    negative, text = _sign(text.strip())
    if re.fullmatch(r"\d+,\d+", text):
        number = _decimal(text.replace(",", "."))
    elif re.fullmatch(r"\d{1,2}(?:,\d{2})+,\d{3}", text):
        number = _decimal(text.replace(",", ""))
    else:
        return None
    return Number(-number.value if negative else number.value, places=number.places)


def _bare(text: str) -> str:
    return re.sub(r"[, _']", "", text)


def _decimal(text: str) -> Number:
    text = _bare(text)
    _, point, decimals = text.partition(".")
    return Number(Fraction(text.rstrip(".")), places=len(decimals) if point and decimals else None)


def _ratio(match: re.Match[str]) -> Fraction | None:
    top, bottom = (Fraction(_bare(match[name]).rstrip(".")) for name in ("top", "bottom"))
    return top / bottom if bottom else None


def _mixed(match: re.Match[str]) -> Fraction | None:
    """A whole number and a proper fraction; an improper one after a whole number is a product, not
    this.
    """
    part = _unsigned(match["part"])
    return int(match["whole"]) + part.value if part is not None and part.value < 1 else None


def _scientific(match: re.Match[str]) -> Fraction | None:
    exponent = int(match["exponent"].replace(" ", ""))
    if abs(exponent) > MAX_DIGITS:
        return None
    power: int = 10 ** abs(exponent)
    mantissa = _decimal(match["mantissa"]).value
    return mantissa * power if exponent >= 0 else mantissa / power


def _power(match: re.Match[str]) -> Fraction | None:
    base, exponent = int(match["base"]), int(match["exponent"].replace(" ", ""))
    if abs(exponent) * len(match["base"]) > 4 * MAX_DIGITS or (base == 0 and exponent <= 0):
        return None
    power: int = base ** abs(exponent)
    return Fraction(power) if exponent >= 0 else Fraction(1, power)


def _repeating(match: re.Match[str]) -> Fraction:
    """``0.1\\overline{6}``: the period p of length n after f fixed digits adds p / (10^n − 1) /
    10^f.
    """
    groups = match.groupdict()
    period = (
        groups.get("bar")
        or groups.get("round")
        or groups.get("one")
        or groups.get("more")
        or match["first"] + (match["middle"] or "") + (match["last"] or "")
    )
    fixed = match["fixed"]
    repeated = Fraction(int(period), 10 ** len(period) - 1)
    return (int((match["whole"] or "0") + fixed) + repeated) / Fraction(10 ** len(fixed))


_PATTERNS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Fraction | None]], ...] = (
    (_RATIO, _ratio),
    (_FRACTION, _ratio),
    (_MIXED, _mixed),
    (_SCIENTIFIC, _scientific),
    (_POWER, _power),
    (_REPEATING, _repeating),
    (_TRAILING_PERIOD, _repeating),
)


def same_number(gold: Number, answer: Number) -> bool:
    """Whether the two are equal, exactly or as a rounding that shows at least ``ROUNDED_DIGITS``
    significant digits.

    A percentage may be written as a fraction (25% is 0.25). One of at least 1% may leave its sign
    out, or the reference may (25% is 25); below, 0.5 for 0.5% would be a factor of 100. 3 is
    neither 300 nor 0.03.
    """
    if gold.percent == answer.percent:
        return _equal(gold, answer)
    scaled_gold = Number(gold.value / 100, places=None) if gold.percent else gold
    scaled_answer = Number(answer.value / 100, places=None) if answer.percent else answer
    return (abs(gold.value) >= 1 and _equal(gold, answer)) or _equal(scaled_gold, scaled_answer)


def _equal(gold: Number, answer: Number) -> bool:
    return gold.value == answer.value or rounds_to(gold, answer) or rounds_to(answer, gold)


def rounds_to(exact: Number, rounded: Number) -> bool:
    """Whether ``rounded`` is the decimal rounding of a number that has no decimal of its own."""
    if rounded.places is None or exact.places is not None or rounded.significant < ROUNDED_DIGITS:
        return False
    return abs(exact.value - rounded.value) <= Fraction(1, 2 * 10**rounded.places)
