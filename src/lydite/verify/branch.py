"""Rewards that ask others only where it matters: behind a condition, or one after another."""

from __future__ import annotations

from collections.abc import Sequence

from lydite.types import Outcome, Problem
from lydite.verify.compose import NOT_ASKED, OURS, Part, summed
from lydite.verify.score import Score
from lydite.verify.settings import CascadeConfig, GateConfig


class GateReward:
    """The weighted sum of ``then`` where every part of ``require`` pays enough, else a fixed value.

    A requirement that could not be decided leaves the whole undecided. One that does not apply to
    a problem requires nothing of it. Where the gate is shut the outcome is the requirement's, and
    what is behind it is not asked; it is never correct.
    """

    def __init__(
        self, config: GateConfig, name: str, require: Sequence[Part], then: Sequence[Part]
    ) -> None:
        self.name = name
        self.weight = config.weight
        self.decides = max(part.reward.decides for part in then)
        self._require = tuple(require)
        self._then = tuple(then)
        self._at_least = config.at_least
        self._otherwise = config.otherwise

    def inner(self) -> Sequence[Part]:
        """The requirements, and what is paid behind them."""
        return (*self._require, *self._then)

    def score(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Score]:
        """One score per completion, in order."""
        rows: list[list[Score]] = [[] for _ in texts]
        shut: dict[int, Score] = {}
        for part in self.inner():
            asked = [i for i, p in enumerate(problems) if i not in shut and part.applies(p)]
            scores = part.reward.score([problems[i] for i in asked], [texts[i] for i in asked])
            found = dict(zip(asked, scores, strict=True))
            for index, row in enumerate(rows):
                row.append(found.get(index, NOT_ASKED))
                if part in self._require and not self._holds(row[-1]):
                    shut.setdefault(index, self._refusal(part, row[-1]))
        return [self._close(row, shut.get(index)) for index, row in enumerate(rows)]

    def check_golds(self, problems: Sequence[Problem]) -> list[str | None]:
        """What any part finds wrong."""
        columns = [part.check_golds(problems) for part in self.inner()]
        return [
            next((fault for fault in faults if fault is not None), None)
            for faults in zip(*columns, strict=True)
        ]

    def _holds(self, score: Score) -> bool:
        return not score.applies or (score.reward is not None and score.reward >= self._at_least)

    def _refusal(self, part: Part, score: Score) -> Score:
        name = part.reward.name
        if score.reward is None:
            outcome = score.outcome if score.outcome in OURS else Outcome.UNGRADABLE
            return Score(outcome, None, detail=f"{name}: {score.detail}")
        why = score.detail or f"{score.reward:g} is less than {self._at_least:g}"
        outcome = Outcome.WRONG if score.outcome is Outcome.CORRECT else score.outcome
        return Score(outcome, self._otherwise, detail=f"{name}: {why}")

    def _close(self, row: Sequence[Score], refusal: Score | None) -> Score:
        """One completion's score from those of the parts that were asked."""
        every = summed([part.reward for part in self.inner()], row)
        paid = refusal
        if paid is None:
            behind = row[len(self._require) :]
            if not any(score.applies for score in behind):
                return Score(
                    every.outcome, None, seconds=every.seconds, applies=False, parts=every.parts
                )
            paid = summed([part.reward for part in self._then], behind)
        return Score(
            paid.outcome, paid.reward, paid.answer, paid.detail, every.seconds, parts=every.parts
        )


class CascadeReward:
    """What the first of several rewards says that can decide, times that one's weight.

    One that cannot (crashed, ungradable), does not apply, or comes to an outcome in ``pass_on``
    hands the completion over to the next; what the last says holds. The others are not asked.
    """

    def __init__(self, config: CascadeConfig, name: str, parts: Sequence[Part]) -> None:
        self.name = name
        self.weight = config.weight
        self.decides = max(part.reward.decides for part in parts)
        self._parts = tuple(parts)
        self._pass_on = frozenset(Outcome(outcome) for outcome in config.pass_on)

    def inner(self) -> Sequence[Part]:
        """In the order in which they are asked."""
        return self._parts

    def score(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Score]:
        """One score per completion, in order."""
        rows: list[list[Score]] = [[] for _ in texts]
        said: dict[int, tuple[Part, Score]] = {}
        open_ones = set(range(len(texts)))
        for part in self._parts:
            asked = [i for i, p in enumerate(problems) if i in open_ones and part.applies(p)]
            scores = part.reward.score([problems[i] for i in asked], [texts[i] for i in asked])
            found = dict(zip(asked, scores, strict=True))
            for index, row in enumerate(rows):
                row.append(found.get(index, NOT_ASKED))
            for index, score in found.items():
                if not score.applies:
                    continue
                said[index] = (part, score)
                if score.reward is not None and score.outcome not in self._pass_on:
                    open_ones.discard(index)
        return [self._close(row, said.get(index)) for index, row in enumerate(rows)]

    def check_golds(self, problems: Sequence[Problem]) -> list[str | None]:
        """What is wrong with references that none of the rewards can use."""
        columns = [part.check_golds(problems) for part in self._parts]
        found: list[str | None] = []
        for problem, *faults in zip(problems, *columns, strict=True):
            asked = [
                fault
                for part, fault in zip(self._parts, faults, strict=True)
                if part.applies(problem)
            ]
            found.append(None if None in asked else next(iter(asked), None))
        return found

    def _close(self, row: Sequence[Score], said: tuple[Part, Score] | None) -> Score:
        every = summed([part.reward for part in self._parts], row)
        if said is None:
            return Score(
                every.outcome, None, seconds=every.seconds, applies=False, parts=every.parts
            )
        part, score = said
        reward = None if score.reward is None else part.reward.weight * score.reward
        detail = f"{part.reward.name}: {score.detail}" if score.detail else ""
        return Score(score.outcome, reward, score.answer, detail, every.seconds, parts=every.parts)
