"""Small numbers in English words and in Chinese numerals."""

from __future__ import annotations

import re
from fractions import Fraction

_ONES = str.split(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen "
    "fourteen fifteen sixteen seventeen eighteen nineteen"
)
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_VALUES = {word: value for value, word in enumerate(_ONES)} | {
    word: 10 * (place + 2) for place, word in enumerate(_TENS)
}
_SCALES = {"thousand": 1000, "million": 10**6, "billion": 10**9}
_PARTS = {"half": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "eighth": 8}
_PARTS |= {f"{word}s": value for word, value in _PARTS.items()} | {"halves": 2}
_WORD = re.compile(r"[a-z]+(?:[ -][a-z]+){0,9}")


def read_words(text: str) -> Fraction | None:
    """``forty-two``, ``one hundred and five``, ``two thirds``; ``None`` for anything else."""
    text = " ".join(text.casefold().split())
    if not _WORD.fullmatch(text):
        return None
    words = [word for word in re.split(r"[ -]", text) if word != "and"]
    if not words or words[0] not in _VALUES:
        return None
    if words[-1] in _PARTS and len(words) == 2:
        return Fraction(_VALUES[words[0]], _PARTS[words[-1]])
    total = group = last = 0
    for word in words:
        if word in _VALUES:
            value = _VALUES[word]
            if last and not (last >= 20 and last % 10 == 0 and 0 < value < 10):
                return None
            group, last = group + value, last + value
        elif word == "hundred" and 0 < group < 100:
            group, last = group * 100, 0
        elif word in _SCALES and group:
            total, group, last = total + group * _SCALES[word], 0, 0
        else:
            return None
    return Fraction(total + group)


_HAN_DIGITS = {character: value for value, character in enumerate("零一二三四五六七八九")} | {
    "两": 2,
    "〇": 0,
}
_HAN_UNITS = {"十": 10, "百": 100, "千": 1000}
_HAN = "[零〇一二两三四五六七八九十百千万]{1,12}"
_HAN_PART = re.compile(rf"(负?)(?:({_HAN}|\d+)分之({_HAN}|\d+)|({_HAN}))")


def read_chinese(text: str) -> tuple[Fraction, bool] | None:
    """``十二``, ``三分之一``, ``百分之二十五`` (a percentage), with whether it is one."""
    match = _HAN_PART.fullmatch(text.strip())
    if match is None:
        return None
    sign = -1 if match[1] else 1
    if match[4]:
        whole = _han(match[4])
        return None if whole is None else (Fraction(sign * whole), False)
    bottom, top = _han(match[2]), _han(match[3])
    if match[2] == "百" and top is not None:
        return Fraction(sign * top), True
    return (Fraction(sign * top, bottom), False) if top is not None and bottom else None


def _han(text: str) -> int | None:
    if text.isascii() and text.isdigit():
        return int(text)
    high, separator, low = text.partition("万")
    if separator:
        above, below = _han(high), _han(low) if low else 0
        return None if above is None or below is None else above * 10_000 + below
    if len(text) > 1 and not set(text) & set(_HAN_UNITS):
        return int("".join(str(_HAN_DIGITS[character]) for character in text))
    total, digit = 0, None
    for character in text:
        if character in _HAN_UNITS:
            total += (1 if digit is None else digit) * _HAN_UNITS[character]
            digit = None
        else:
            digit = _HAN_DIGITS[character]
    return total + (digit or 0)
