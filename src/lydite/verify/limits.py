"""What is too large to hand to computer algebra, found by reading the text alone.

Algebra libraries evaluate while they parse: ``9^{9^{9^9}}`` is lost before a comparison starts.
These caps refuse it in microseconds; what slips through meets the worker's wall limit.
"""

from __future__ import annotations

import re

MAX_CHARS = 600
MAX_DIGIT_RUN = 400
MAX_DEPTH = 24
MAX_EXPONENT = 10_000
MAX_POLYNOMIAL_EXPONENT = 60
MAX_FACTORIAL = 5_000
MAX_CHOOSE = 10_000

_EXPONENT = re.compile(r"(?P<base>[)}\w])\s*\^\s*\{?\s*\(?\s*-?\s*(?P<digits>\d+)")
_TOWER = re.compile(
    r"\^\s*\{?\s*\(?\s*(?P<base>\d+)\s*\)?\s*\^\s*\{?\s*(?P<exponent>\d+)\s*(?P<more>\^)?"
)
_FACTORIAL = re.compile(r"(?P<digits>\d*)(?P<closing>[)}\]]?)\s*!(?P<again>\s*!)?")
_CHOOSE = re.compile(r"\\[dt]?binom\s*\{?\s*(\d+)")


def too_large(text: str) -> str | None:
    """Why the text is not worth handing to computer algebra, or ``None`` if it is small enough."""
    if len(text) > MAX_CHARS:
        return f"more than {MAX_CHARS} characters"
    if any(len(run) > MAX_DIGIT_RUN for run in re.findall(r"\d+", text)):
        return f"a number of more than {MAX_DIGIT_RUN} digits"
    if _depth(text) > MAX_DEPTH:
        return f"brackets nested more than {MAX_DEPTH} deep"
    return _large_power(text) or _large_product(text)


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth -= 1
    return deepest


def _large_power(text: str) -> str | None:
    for tower in _TOWER.finditer(text):
        base, exponent = int(tower["base"][:6]), int(tower["exponent"][:6])
        if tower["more"] or (base > 1 and exponent > 13) or base**exponent > MAX_EXPONENT:
            return "a tower of powers"
    for power in _EXPONENT.finditer(text):
        cap = MAX_POLYNOMIAL_EXPONENT if power["base"] == ")" else MAX_EXPONENT
        if len(power["digits"]) > 6 or int(power["digits"]) > cap:
            return f"an exponent above {cap}"
    return None


def _large_product(text: str) -> str | None:
    for factorial in _FACTORIAL.finditer(text):
        digits = factorial["digits"]
        if factorial["again"]:
            return "a factorial of a factorial"
        if len(digits) > 6 or (digits and int(digits) > MAX_FACTORIAL):
            return f"a factorial above {MAX_FACTORIAL}!"
        if factorial["closing"] and re.search(r"\d{4,}|\^|!", text[: factorial.start()][-20:]):
            return "a factorial of a large expression"
    for choose in _CHOOSE.finditer(text):
        if len(choose[1]) > 6 or int(choose[1]) > MAX_CHOOSE:
            return f"a binomial coefficient above {MAX_CHOOSE}"
    return None
