"""Pairs of reference and completion whose verdict is known because of how they are made: equal by
rewriting, or different by a near miss. One function a kind yields (gold, completion, expected).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator

Pair = tuple[str, str, bool]
Kind = Callable[[random.Random], Iterator[Pair]]
KINDS: dict[str, Kind] = {}
# A text with § in front is a whole completion; any other is an answer to be worded.
WORDINGS = (
    r"So the answer is \boxed{%s}.",
    r"<think>maybe \boxed{-999}?</think>Hence $\boxed{%s}$",
    r"Therefore \[ \boxed{%s} \]",
    "We get it.\n\n**Final Answer**\n\\boxed{%s}",
    "<answer>%s</answer>",
)


def kind(build: Kind) -> Kind:
    KINDS[build.__name__] = build
    return build


def pairs(name: str, seed: int = 0) -> list[Pair]:
    noise = random.Random(f"{name} {seed}")
    return [
        (gold, text[1:] if text[0] == "§" else noise.choice(WORDINGS) % text, expected)
        for gold, text, expected in KINDS[name](noise)
    ]


def right(gold: str, answers: Iterable[str]) -> Iterator[Pair]:
    return ((gold, answer, True) for answer in answers)


def wrong(gold: str, answers: Iterable[str]) -> Iterator[Pair]:
    return ((gold, answer, False) for answer in answers)


def grouped(value: int, separator: str) -> str:
    return f"{value:,}".replace(",", separator)
