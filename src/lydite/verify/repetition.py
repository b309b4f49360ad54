"""A penalty for text that says the same again."""

from __future__ import annotations

import time
from collections.abc import Sequence

from lydite.types import Outcome, Problem
from lydite.verify.score import Score
from lydite.verify.spoken import part_of, tokens_of
from lydite.verify.text_config import RepetitionConfig

MAX_CHARS = 400_000
"""Of a longer text the end is read: loops run to it."""


def repeated_share(text: str, n: int) -> float:
    """``1 − distinct/all`` of the text's n-grams of words, in any case; 0 where there is none.

    Signs are words too, so that a row of them counts. Time and memory are linear in the text.
    """
    words = [word.lower() for word in tokens_of(text[-MAX_CHARS:])]
    count = len(words) - n + 1
    if count < 1:
        return 0.0
    # Words as numbers, so that an n-gram is a few bytes however long its words are.
    numbers: dict[str, int] = {}
    coded = [numbers.setdefault(word, len(numbers)) for word in words]
    return 1 - len(set(zip(*(coded[start:] for start in range(n)), strict=False))) / count


class RepetitionReward:
    """0.0 to −1.0 for the share of repeated n-grams; correct where nothing is taken off."""

    def __init__(self, config: RepetitionConfig, name: str) -> None:
        self.name = name
        self.weight = config.weight
        self.decides = 0
        self._config = config

    def score(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Score]:
        """One score per completion, in order."""
        return [self._score(text) for text in texts]

    def check_golds(self, problems: Sequence[Problem]) -> list[str | None]:
        """Repetition needs no reference."""
        return [None] * len(problems)

    def _score(self, text: str) -> Score:
        begun = time.perf_counter()
        share = repeated_share(part_of(text, self._config.part), self._config.n)
        allowed = self._config.allowed
        excess = max(0.0, share - allowed) / (1 - allowed)
        seconds = time.perf_counter() - begun
        if not excess:
            return Score(Outcome.CORRECT, 0.0, seconds=seconds)
        detail = f"{share:.0%} of its {self._config.n}-grams are repeated"
        return Score(Outcome.WRONG, -excess, detail=detail, seconds=seconds)
