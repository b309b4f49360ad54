"""Units as products of base units with a scale: 60 km/h, 60 km per hour and 1 km/min are the same
and 5 km is not 5 m. A word that is in no table is a unit of its own: 8 apples.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from lydite.verify import notation


@dataclass(frozen=True, slots=True)
class Unit:
    """``scale`` times the product of base units to their powers, sorted by name."""

    scale: Fraction
    powers: tuple[tuple[str, int], ...]


_TABLE = {
    "m": "1 m metre metres meter meters 米",
    "km": "1000 m kilometre kilometres kilometer kilometers kms 千米 公里",
    "dm": "1/10 m decimetre decimetres decimeter decimeters 分米",
    "cm": "1/100 m centimetre centimetres centimeter centimeters cms 厘米",
    "mm": "1/1000 m millimetre millimetres millimeter millimeters 毫米",
    "inch": "254/10000 m inches in",
    "ft": "3048/10000 m foot feet",
    "yd": "9144/10000 m yard yards yds",
    "mi": "1609344/1000 m mile miles",
    "g": "1 g gram grams gm gms 克",
    "kg": "1000 g kilogram kilograms kilo kilos kgs 千克 公斤",
    "mg": "1/1000 g milligram milligrams 毫克",
    "t": "1000000 g tonne tonnes 吨",
    "lb": "45359237/100000 g lbs pound pounds",
    "oz": "45359237/1600000 g ounce ounces",
    "s": "1 s sec secs second seconds 秒",
    "ms": "1/1000 s millisecond milliseconds",
    "min": "60 s mins minute minutes 分钟 分",
    "h": "3600 s hr hrs hour hours 小时 时",
    "day": "86400 s days d 天",
    "week": "604800 s weeks wk wks 周",
    "month": "1 month months mo 月",
    "year": "12 month years yr yrs 年",
    "l": "1 l litre litres liter liters 升",
    "ml": "1/1000 l millilitre millilitres milliliter milliliters 毫升",
    "dollar": "1 dollar dollars usd bucks 美元",
    "cent": "1/100 dollar cents ¢",
    "euro": "1 euro euros eur 欧元",
    "yuan": "1 yuan rmb cny 元",
    "sterling": "1 sterling gbp",
    "yen": "1 yen jpy 日元",
    "rupee": "1 rupee rupees rs inr",
    "degree": "1 degree degrees deg degs 度",
    "rad": "1 rad radian radians 弧度",
    "celsius": "1 celsius °c",
    "fahrenheit": "1 fahrenheit",
    "n": "1 newton newtons",
    "j": "1 joule joules",
    "kj": "1000 joule kilojoule kilojoules",
    "w": "1 watt watts",
    "kw": "1000 watt kilowatt kilowatts",
    "v": "1 volt volts",
    "a": "1 ampere amperes amp amps",
    "ohm": "1 ohm ohms",
    "pa": "1 pascal pascals",
    "hz": "1 hertz",
    "mol": "1 mol mole moles mols",
    "piece": "1 piece pieces 个 件 只 条 块 支 本 张",
    "person": "1 person persons people 人 名",
}
_BASE: dict[str, tuple[Fraction, str]] = {
    name: (Fraction(line.split()[0]), line.split()[1])
    for key, line in _TABLE.items()
    # A line's second word names its base, which is the unit itself only at scale 1.
    for name in (key, *line.split()[2 - (line.split()[0] == "1") :])
}
_COMPOUND = {"mph": "mi/h", "kmh": "km/h", "kph": "km/h", "sqft": "ft^2", "cc": "cm^3"} | {
    "平方米": "m^2", "平方厘米": "cm^2", "平方千米": "km^2", "平方公里": "km^2", "平方分米": "dm^2",
    "立方米": "m^3", "立方厘米": "cm^3", "立方分米": "dm^3", "千米每小时": "km/h", "米每秒": "m/s",
    "平方度": "degree^2",
}  # fmt: skip
# Other letters are variables unless a wrapper says otherwise.
_LETTERS = frozenset("mgshl")
_PLAIN = frozenset({"unit", "units", "单位", "total", "altogether", "in total", "exactly", "each"})
_REFUSED = frozenset(
    str.split(
        "and or nor not no is was are be if but else than then wrong either neither both "
        "maybe perhaps possibly probably likely approximately approx about around roughly "
        "between through to from at least most more less fewer greater larger smaller plus "
        "minus additional up minimum maximum unless except without instead rather versus vs "
        "hundred thousand million billion trillion dozen half third quarter over choose mod "
        "sin cos tan log ln exp sqrt pi theta alpha beta gamma delta lambda infinity "
        "incorrect false true correct remainder because since where when which what any all "
        "other unknown invalid none yes impossible percent"
    )
)
_POWER_WORDS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}
_WORD = re.compile(
    r"(?P<word>°c|[^\W\d_]+)(?:\s*\^\s*\{?\s*(?P<power>-?\d)\s*\}?)?|(?P<slash>/)|(?P<times>[*·])"
    r"|(?P<space>[\s.]+)",
    re.IGNORECASE,
)
MAX_WORDS = 6


def read_unit(text: str, wrapped: bool) -> Unit | None:
    """The unit that the text spells; ``None`` when it hedges, negates, computes, or may be
    variables.

    ``wrapped`` says that the text stood in ``\\text{}`` or the like; a bare word must be known or
    at least three letters long. A unit without meaning (``units``) has no powers.
    """
    plain = _plain(text)
    plain = _COMPOUND.get(plain, plain)
    tokens = _tokens(plain)
    words = [word for word, _ in tokens if word not in ("/", "per")]
    if not words or len(words) > MAX_WORDS or any(word in _REFUSED for word in words):
        return None
    if not wrapped and not all(
        len(word) >= 3
        or word in _LETTERS
        or (len(word) == 2 and word in _BASE)
        or word in _POWER_WORDS
        or not word.isascii()
        for word in words
    ):
        return None
    if " ".join(words) in _PLAIN or (words[-1] in ("unit", "units") and words[0] in _POWER_WORDS):
        return Unit(Fraction(1), ())
    return _product(tokens)


def is_measure(unit: Unit) -> bool:
    """Whether it is made of units that have a size: kilometres per hour, not apples."""
    sized = {base for _, base in _BASE.values()}
    return bool(unit.powers) and all(base in sized for base, _ in unit.powers)


def _plain(text: str) -> str:
    """Lower case, wrappers opened, fractions of units written with a slash."""
    text = re.sub(
        r"\\frac\s*\{((?:[^{}]|\{[^{}]*\})*)\}\s*\{((?:[^{}]|\{[^{}]*\})*)\}", r"\1/\2", text
    )
    text = re.sub(r"\^\s*\{\s*(-?\d)\s*\}", r"^\1", text)
    text = re.sub(r"\^\s*\{\\circ\}\s*", "°", notation.open_text(text)).replace(r"\cdot", "*")
    text = re.sub(r"degrees? (?=celsius|fahrenheit)", "", text, flags=re.IGNORECASE)
    return re.sub(r"[{}](?![^{}]*\d)|\\", "", text).strip(notation.TRAILING + "*()").casefold()


def _tokens(plain: str) -> list[tuple[str, int]]:
    """Words with their powers; none when anything else stands between them."""
    tokens: list[tuple[str, int]] = []
    at = 0
    while at < len(plain):
        match = _WORD.match(plain, at)
        if match is None:
            return []
        at = match.end()
        if match["word"]:
            known = _COMPOUND.get(match["word"])
            tokens += _tokens(known) if known else [(match["word"], int(match["power"] or 1))]
        elif match["slash"]:
            tokens.append(("/", 1))
    return tokens


def _product(tokens: list[tuple[str, int]]) -> Unit:
    scale, powers = Fraction(1), dict[str, int]()
    side, pending = 1, 1
    own: list[str] = []
    for word, power in tokens:
        if word in ("/", "per"):
            side = -1
        elif word in ("squared", "cubed"):
            last = next(reversed(powers), None)
            if last is not None:
                powers[last] *= _POWER_WORDS[word]
        elif word in _POWER_WORDS:
            pending = _POWER_WORDS[word]
        else:
            factor, base = _BASE.get(word, (Fraction(1), _singular(word)))
            exponent = side * power * pending
            scale *= factor**exponent
            powers[base] = powers.get(base, 0) + exponent
            pending = 1
            own.append(base)
    return Unit(scale, tuple(sorted((name, power) for name, power in powers.items() if power)))


def _singular(word: str) -> str:
    if len(word) > 3 and word.isascii() and word.endswith("s") and not word.endswith("ss"):
        stem = word[:-3] + "y" if word.endswith("ies") else word[:-1]
        return stem[:-1] if stem.endswith(("xe", "che", "she", "sse")) else stem
    return word
