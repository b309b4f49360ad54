"""Terms for the length of a completion: a limit of its own, or its length among its group."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from lydite.types import Outcome, Problem
from lydite.verify.score import Score
from lydite.verify.spoken import part_of
from lydite.verify.text_config import LengthConfig


def overlong_penalty(length: int, limit: int, cache: float) -> float:
    """DAPO's soft overlong punishment (arXiv 2503.14476, eq. 13), in [−1, 0].

    0 up to ``limit − cache``, ``((limit − cache) − length)/cache`` up to ``limit``, then −1.
    """
    return max(-1.0, min(0.0, (limit - cache - length) / cache))


def relative_terms(lengths: Sequence[int], correct: Sequence[bool]) -> list[float]:
    """Kimi k1.5's length reward (arXiv 2501.12599, §2.3.3) of one group, in [−0.5, 0.5].

    ``λ = 0.5 − (length − min)/(max − min)``: λ for a correct completion, ``min(0, λ)`` for
    another; 0 for all where all are equally long.
    """
    low, high = min(lengths), max(lengths)
    if low == high:
        return [0.0] * len(lengths)
    terms = [0.5 - (length - low) / (high - low) for length in lengths]
    return [t if right else min(0.0, t) for t, right in zip(terms, correct, strict=True)]


def shortest_correct_terms(lengths: Sequence[int], correct: Sequence[bool]) -> list[float]:
    """1 for the shortest of one group's correct completions if another correct one is longer."""
    among = [length for length, right in zip(lengths, correct, strict=True) if right]
    if not among or min(among) == max(among):
        return [0.0] * len(lengths)
    return [float(r and n == min(among)) for n, r in zip(lengths, correct, strict=True)]


class LengthReward:
    """A term that needs no other completion."""

    def __init__(self, config: LengthConfig, name: str) -> None:
        self.name = name
        self.weight = config.weight
        self.decides = 0
        self._config = config

    def score(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Score]:
        """One score per completion, in order."""
        return [self._score(self.length(text)) for text in texts]

    def check_golds(self, problems: Sequence[Problem]) -> list[str | None]:
        """A length needs no reference."""
        return [None] * len(problems)

    def length(self, text: str) -> int:
        """In the unit of the settings, of the part that they name."""
        part = part_of(text, self._config.part)
        return len(part.split()) if self._config.unit == "words" else len(part)

    def _score(self, length: int) -> Score:
        limit = self._config.limit
        assert limit is not None
        return self.term(overlong_penalty(length, limit, self._config.cache * limit), length)

    def term(self, value: float, length: int) -> Score:
        """A term as a score; wrong where it takes something off."""
        outcome = Outcome.WRONG if value < 0 else Outcome.CORRECT
        return Score(outcome, value, detail=f"{length} {self._config.unit}")


class GroupLengthReward(LengthReward):
    """A term that compares a completion with the others of its problem that stand beside it; see
    :class:`lydite.verify.score.Compares`.
    """

    def compare(
        self, problems: Sequence[Problem], texts: Sequence[str], outcomes: Sequence[Outcome]
    ) -> list[Score]:
        """One score per completion, in order. Those that could not be decided are compared with
        nothing and get 0: they are left out as a whole.
        """
        terms = relative_terms if self._config.rule == "relative" else shortest_correct_terms
        ours = (Outcome.CRASHED, Outcome.UNGRADABLE)
        scores: list[Score] = []
        rows = zip(problems, map(self.length, texts), outcomes, strict=True)
        for _, group in groupby(rows, key=lambda row: row[0].id):
            members = list(group)
            decided = [row for row in members if row[2] not in ours]
            values = iter(
                terms([n for _, n, _ in decided], [o is Outcome.CORRECT for *_, o in decided])
                if decided
                else []
            )
            scores += [self.term(0.0 if o in ours else next(values), n) for _, n, o in members]
        return scores
