"""Several rewards as one verdict: their weighted sum, each kept by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from lydite.types import Outcome, Problem, Unit, Verdict
from lydite.verify.base_config import Condition
from lydite.verify.pool import Pool
from lydite.verify.score import Compares, Reward, Score, Together

OURS = (Outcome.CRASHED, Outcome.UNGRADABLE)
UNITS: tuple[Unit, ...] = ("all", "problem", "completion")
NOT_ASKED = Score(Outcome.UNGRADABLE, None, applies=False)

When = Mapping[str, Condition | list[Condition]]


@dataclass(frozen=True, slots=True)
class Part:
    """A reward in its place: which problems it is asked about. All of ``when`` must hold."""

    reward: Reward
    when: tuple[When, ...] = ()

    def applies(self, problem: Problem) -> bool:
        """Whether it is asked about a problem."""
        return all(applies(condition, problem) for condition in self.when)

    def score(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Score]:
        """One score per completion; :data:`NOT_ASKED` where it does not apply."""
        asked = [index for index, problem in enumerate(problems) if self.applies(problem)]
        return spread(
            asked,
            self.reward.score([problems[i] for i in asked], [texts[i] for i in asked]),
            len(problems),
        )

    def check_golds(self, problems: Sequence[Problem]) -> list[str | None]:
        """Faults of the references that it would be asked to compare with."""
        asked = [index for index, problem in enumerate(problems) if self.applies(problem)]
        faults: list[str | None] = [None] * len(problems)
        found = self.reward.check_golds([problems[i] for i in asked]) if asked else []
        for index, fault in zip(asked, found, strict=True):
            faults[index] = fault
        return faults


def applies(when: When, problem: Problem) -> bool:
    """Whether every column that a condition names has its value, or one of them."""
    return all(_holds(_column(problem, name), value) for name, value in when.items())


def _column(problem: Problem, name: str) -> object:
    return problem.tag if name == "tag" else problem.fields.get(name)


def _holds(found: object, wanted: Condition | list[Condition]) -> bool:
    # As text: a column of a file may hold 3 or "3".
    options = wanted if isinstance(wanted, list) else [wanted]
    return found is not None and str(found) in {str(option) for option in options}


def spread(asked: Sequence[int], scores: Sequence[Score], count: int) -> list[Score]:
    """``count`` scores, those that were asked for in their places."""
    found = [NOT_ASKED] * count
    for index, score in zip(asked, scores, strict=True):
        found[index] = score
    return found


def combine(rewards: Sequence[Reward], scores: Sequence[Score]) -> Verdict:
    """One completion's verdict from its scores, one per reward; see :func:`summed`."""
    found = summed(rewards, scores)
    return Verdict(
        found.outcome, found.reward, found.answer, found.parts, found.detail, found.seconds
    )


def summed(rewards: Sequence[Reward], scores: Sequence[Score]) -> Score:
    """The weighted sum of one completion's scores, one per reward.

    ``parts`` holds each reward unweighted, ``None`` where it does not apply or could not decide;
    what a reward is made of stands behind its name and a point. The outcome is that of the first
    reward that compares with the reference (math, exact); without one, of the first that a user
    defines (function, regex, instruction); without either, of the first. If any part that applies
    could not be decided the whole could not: the reward is ``None`` and the outcome that part's,
    since a sum that leaves a term out is not comparable with its group. The exception is a part
    that has no weight and does not decide. Where no part applies, the whole cannot be decided.
    """
    parts: dict[str, float | None] = {}
    for reward, score in zip(rewards, scores, strict=True):
        parts[reward.name] = score.reward
        within = score.parts or dict.fromkeys(names_inside(reward))
        parts.update({f"{reward.name}.{name}": value for name, value in within.items()})
    seconds = sum(score.seconds for score in scores)
    asked = [(r, s) for r, s in zip(rewards, scores, strict=True) if s.applies]
    if not asked:
        return Score(Outcome.UNGRADABLE, None, None, NONE_APPLIES, seconds, parts=parts)
    most = max(reward.decides for reward, _ in asked)
    deciding = next(score for reward, score in asked if reward.decides == most)
    answers = (score.answer for score in (deciding, *(s for _, s in asked)))
    answer = next((answer for answer in answers if answer is not None), None)
    counted = [(r, s) for r, s in asked if r.weight or s is deciding]
    failed = next((score for _, score in counted if score.reward is None), None)
    if failed is not None:
        outcome = failed.outcome if failed.outcome in OURS else Outcome.UNGRADABLE
        return Score(outcome, None, answer, failed.detail, seconds, parts=parts)
    total = sum(reward.weight * (score.reward or 0.0) for reward, score in counted)
    said = [
        score.detail if len(rewards) == 1 else f"{reward.name}: {score.detail}"
        for reward, score in asked
        if score.detail
    ]
    return Score(deciding.outcome, total, answer, "; ".join(said), seconds, parts=parts)


NONE_APPLIES = "no reward applies to this problem: no `when` holds"


def scored(
    parts: Sequence[Part], problems: Sequence[Problem], texts: Sequence[str]
) -> list[list[Score]]:
    """For each completion its scores, one per part. Those that compare completions come last."""
    rewards = [part.reward for part in parts]
    columns = [
        [NOT_ASKED] * len(texts)
        if isinstance(part.reward, Compares)
        else part.score(problems, texts)
        for part in parts
    ]
    rows = [list(scores) for scores in zip(*columns, strict=True)]
    if any(isinstance(reward, Compares) for reward in rewards):
        outcomes = [summed(rewards, scores).outcome for scores in rows]
        for number, part in enumerate(parts):
            if isinstance(part.reward, Compares):
                asked = [i for i, problem in enumerate(problems) if part.applies(problem)]
                found = part.reward.compare(
                    [problems[i] for i in asked],
                    [texts[i] for i in asked],
                    [outcomes[i] for i in asked],
                )
                for index, score in zip(asked, found, strict=True):
                    rows[index][number] = score
    return rows


@runtime_checkable
class Combines(Protocol):
    """A reward that is made of others."""

    def inner(self) -> Sequence[Part]:
        """Those that it asks itself."""
        ...


def names_inside(reward: Reward) -> Iterator[str]:
    """The names of the parts of a reward that combines others, at any depth."""
    for part in reward.inner() if isinstance(reward, Combines) else ():
        yield part.reward.name
        yield from (f"{part.reward.name}.{name}" for name in names_inside(part.reward))


def leaves(parts: Sequence[Part], when: tuple[When, ...] = ()) -> Iterator[Part]:
    """The parts, those inside others in their stead and under their conditions."""
    for part in parts:
        conditions = (*when, *part.when)
        if isinstance(part.reward, Combines):
            yield from leaves(part.reward.inner(), conditions)
        else:
            yield Part(part.reward, conditions)


@runtime_checkable
class HoldsProcesses(Protocol):
    """A reward that keeps processes of its own, besides the pool that is shared."""

    def warm(self) -> None:
        """Starts them, so that the first call does not wait for them."""
        ...

    def close(self) -> None:
        """Ends them."""
        ...


class ComposedVerifier:
    """The rewards of a recipe as one :class:`lydite.types.Verifier`, with the worker pool they
    share.

    ``parts`` are what it adds up, ``leaves`` the rewards that are asked themselves, not what
    combines them, and ``rewards`` the latter without their conditions. ``warm_pool`` says whether
    every completion needs the pool; the processes of one that few or none need start with the
    first that does.
    """

    def __init__(
        self,
        rewards: Sequence[Reward | Part],
        pool: Pool | None = None,
        warm_pool: bool = True,
    ) -> None:
        self.parts = tuple(
            reward if isinstance(reward, Part) else Part(reward) for reward in rewards
        )
        self.leaves = tuple(leaves(self.parts))
        self.rewards = tuple(part.reward for part in self.leaves)
        self._pool = pool
        self._warm_pool = warm_pool

    @property
    def unit(self) -> Unit:
        """See :class:`lydite.types.PiecemealVerifier`. Rewards that wait for no process and no
        server gain nothing by being asked early: they would take turns with what samples.
        """
        if not self._holders():
            return "all"
        units = {
            reward.unit
            if isinstance(reward, Together)
            else "problem"
            if isinstance(reward, Compares)
            else "completion"
            for reward in self.rewards
        }
        return next(unit for unit in UNITS if unit in units)

    def verify(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Verdict]:
        """One verdict per pair, in order. Safe to call from any thread.

        Raises:
            UserError: a reward function is at fault.
        """
        return [verdict for verdict, _ in self.verify_timed(problems, texts)]

    def verify_timed(
        self, problems: Sequence[Problem], texts: Sequence[str]
    ) -> list[tuple[Verdict, float]]:
        """As :meth:`verify`, each verdict with the seconds spent on it over all rewards."""
        rewards = [part.reward for part in self.parts]
        return [
            (combine(rewards, scores), sum(score.seconds for score in scores))
            for scores in scored(self.parts, problems, texts)
        ]

    def gold_faults(self, problems: Sequence[Problem]) -> list[str | None]:
        """For each problem why its reference cannot be used, or ``None`` if it can."""
        columns = [part.check_golds(problems) for part in self.parts]
        none_applies = [
            None if any(part.applies(problem) for part in self.parts) else NONE_APPLIES
            for problem in problems
        ]
        return [
            next((fault for fault in faults if fault is not None), None)
            for faults in zip(*columns, none_applies, strict=True)
        ]

    def warm(self) -> None:
        """Starts the worker processes that are sure to be needed, so that the first call does not
        wait for them.
        """
        for holder in self._holders():
            if self._warm_pool or holder is not self._pool:
                holder.warm()

    def close(self) -> None:
        """Ends the worker processes, if there are any."""
        for holder in self._holders():
            holder.close()

    def _holders(self) -> list[Pool | HoldsProcesses]:
        own: list[Pool | HoldsProcesses] = [] if self._pool is None else [self._pool]
        return own + [reward for reward in self.rewards if isinstance(reward, HoldsProcesses)]


__all__ = [
    "NOT_ASKED",
    "OURS",
    "Combines",
    "ComposedVerifier",
    "Part",
    "combine",
    "leaves",
    "scored",
    "spread",
    "summed",
]
