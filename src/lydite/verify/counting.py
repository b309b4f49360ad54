"""Combinations and permutations in the notations of schools: ``C_8^3``, ``{}_8C_3``, ``C(8,3)``."""

from __future__ import annotations

import re

_ONE = r"(?:\{\s*(\d{1,4}|[a-z])\s*\}|(\d{1,4}|[a-z]))"
_NOTATIONS = tuple(
    re.compile(pattern)
    for pattern in (
        rf"(?:\{{\s*\}})?[_^]{_ONE}\s*(?P<kind>[CPA])\s*_{_ONE}",
        rf"(?P<kind>[CPA])_{_ONE}\^{_ONE}",
        rf"(?P<kind>[CPA])\^{_ONE}_{_ONE}",
        r"(?P<kind>[CP])\(\s*(\d{1,4}|[a-z])\s*,\s*(\d{1,4}|[a-z])\s*\)",
    )
)
_LETTER = re.compile(r"(?<![\\A-Za-z])[A-Za-z](?![A-Za-z])")


def counted(text: str) -> str:
    """The text with these as ``\\binom`` and quotients of factorials.

    A letter may be a variable, so they are only read where no other letter stands, or where one is
    the whole text.
    """
    if not any(kind in text for kind in "CPA"):
        return text
    plain = re.sub(r"\\(?:mathrm|text|rm|mathbf)\s*\{\s*([CPA])\s*\}", r"\1", text)
    for pattern in _NOTATIONS:
        if found := pattern.fullmatch(plain.strip()):
            return _spelled(found)
    for pattern in _NOTATIONS:
        plain = pattern.sub(_spelled, plain)
    return text if _LETTER.search(plain) else plain


def _spelled(match: re.Match[str]) -> str:
    kind = match["kind"]
    place = match.re.groupindex["kind"]
    groups = enumerate(match.groups(), 1)
    first, second = (group for at, group in groups if group is not None and at != place)
    if first.isdigit() and second.isdigit() and int(first) < int(second):
        first, second = second, first
    if kind == "C":
        return rf"\binom{{{first}}}{{{second}}}"
    if first.isdigit() and second.isdigit():
        return rf"\frac{{{first}!}}{{{int(first) - int(second)}!}}"
    return rf"\frac{{{first}!}}{{({first}-{second})!}}"
