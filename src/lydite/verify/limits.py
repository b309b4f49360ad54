"""What is too large to read as mathematics, found by looking at the text alone.

These caps refuse a hostile answer in microseconds, before any parser sees it. Powers, towers and
factorials are capped where they are evaluated (:mod:`lydite.verify.arithmetic`).
"""

from __future__ import annotations

import re

from lydite.verify.grammar import MAX_CHARS, MAX_DEPTH
from lydite.verify.tokens import MAX_DIGIT_RUN

MAX_EXPONENT_DIGITS = 5
MAX_FACTORIAL_DIGITS = 4

_LONG_RUN = re.compile(rf"\d{{{MAX_DIGIT_RUN + 1},}}")
_EXPONENT = re.compile(rf"\^\s*\{{?\s*\(?\s*-?\s*\d{{{MAX_EXPONENT_DIGITS + 1},}}")
_TOWER = re.compile(r"\^\s*\{?\s*\(?\s*\d+\s*\)?\s*\^\s*\{?\s*\(?\s*\d+\s*\)?\s*\^")
_FACTORIAL = re.compile(rf"\d{{{MAX_FACTORIAL_DIGITS + 1},}}[)}}\]]?\s*!|!\s*!|!\s*[)}}\]]\s*!")
_CHOOSE = re.compile(r"\\[dt]?binom\s*\{?\s*\d{6,}")
_RULES = (
    (_LONG_RUN, f"a number of more than {MAX_DIGIT_RUN} digits"),
    (_EXPONENT, f"an exponent of more than {MAX_EXPONENT_DIGITS} digits"),
    (_TOWER, "a tower of powers"),
    (_FACTORIAL, "a factorial of a large number"),
    (_CHOOSE, "a binomial coefficient of a large number"),
)


def too_large(text: str) -> str | None:
    """Why the text is not worth reading, or ``None`` if it is small enough."""
    if len(text) > MAX_CHARS:
        return f"more than {MAX_CHARS} characters"
    if _depth(text) > MAX_DEPTH:
        return f"brackets nested more than {MAX_DEPTH} deep"
    return next((reason for pattern, reason in _RULES if pattern.search(text)), None)


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth -= 1
    return deepest
