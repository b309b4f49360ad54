"""Whether what a program printed is what was expected."""

from __future__ import annotations

import re

from lydite.verify.code.values import Tolerance

_PARTS = re.compile(r"(\s+)")
_DECIMAL = re.compile(r"[+-]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d{1,4})?")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?")
_MAX_NUMBER = 400


def same_output(expected: str, got: str, tolerance: Tolerance) -> bool:
    """Compares line by line.

    Spaces, tabs and carriage returns that end a line and blank lines that end the output do not
    count. Everything else does: how many lines there are, blank lines within, leading and inner
    spaces, upper and lower case. A word that is expected to be a decimal number (``0.5``, ``1e-3``)
    may be any spelling of a number within ``tolerance``; a whole number is compared as text.
    """
    wanted, there = _lines(expected), _lines(got)
    return len(wanted) == len(there) and all(
        one == other or _close(one, other, tolerance)
        for one, other in zip(wanted, there, strict=True)
    )


def _lines(text: str) -> list[str]:
    lines = [line.rstrip(" \t\r") for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _close(expected: str, got: str, tolerance: Tolerance) -> bool:
    wanted, there = _PARTS.split(expected), _PARTS.split(got)
    return len(wanted) == len(there) and all(
        one == other or _close_numbers(one, other, tolerance)
        for one, other in zip(wanted, there, strict=True)
    )


def _close_numbers(expected: str, got: str, tolerance: Tolerance) -> bool:
    if len(got) > _MAX_NUMBER or not _DECIMAL.fullmatch(expected) or not _NUMBER.fullmatch(got):
        return False
    return tolerance.close(float(expected), float(got))
