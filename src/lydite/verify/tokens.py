"""What formulas are spelled with: numbers, letters, commands and signs."""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_DIGIT_RUN = 400


class Unreadable(Exception):
    """The text is no formula of this grammar."""


class TooLarge(Exception):
    """Reading or evaluating it would pass a cap, which the message names."""


FUNCTIONS = {
    name: name
    for name in (
        str.split(
            "sin cos tan cot sec csc sinh cosh tanh coth ln exp lg cis arcsin arccos arctan arccot"
        )
    )
} | {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "arctg": "arctan", "tg": "tan"}
GREEK = frozenset(
    str.split(
        "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda "
        "mu nu xi rho sigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi "
        "Sigma Phi Psi Omega ell hbar"
    )
)
_PLAIN_WORDS = tuple(
    sorted([*FUNCTIONS, "log", "sqrt", "cbrt", "abs", "pi", "theta", "alpha", "beta"], key=len)[
        ::-1
    ]
)
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?|\.\d+)|\\(?P<command>[A-Za-z]+|[{}|])|(?P<letter>[A-Za-zͰ-Ͽ])"
    r"|(?P<op>\*\*|[-+*/^_!%'|()\[\]{}]))"
)


@dataclass(frozen=True, slots=True)
class Token:
    """``kind`` is number, command (without its backslash), letter or op."""

    kind: str
    text: str


def tokens(text: str) -> list[Token]:
    """The tokens of normalised text. Raises ``Unreadable`` and ``TooLarge``."""
    found, at = [], 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise Unreadable(text[at : at + 10])
        kind = match.lastgroup or ""
        start = match.start(kind)
        piece = match[kind]
        if kind == "number" and len(piece) > MAX_DIGIT_RUN:
            raise TooLarge(f"a number of more than {MAX_DIGIT_RUN} digits")
        word = None
        if kind == "letter":
            word = next((w for w in _PLAIN_WORDS if text.startswith(w, start)), None)
        found.append(Token("command", word) if word else Token(kind, piece))
        at = start + len(word) if word else match.end()
    return found
