"""Several rewards as one verdict: their weighted sum, each kept by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from lydite.types import Outcome, Problem, Verdict
from lydite.verify.pool import Pool
from lydite.verify.score import Reward, Score

_OURS = (Outcome.CRASHED, Outcome.UNGRADABLE)


def combine(rewards: Sequence[Reward], scores: Sequence[Score]) -> Verdict:
    """One completion's verdict from its scores, one per reward.

    ``parts`` holds each reward unweighted. The outcome is that of the first reward that compares
    with the reference (math, exact); without one, of the first function; without either, of the
    first reward. If any part could not be decided the whole could not: the reward is ``None`` and
    the outcome that part's, since a sum that leaves a term out is not comparable with its group.
    """
    parts = {reward.name: score.reward for reward, score in zip(rewards, scores, strict=True)}
    failed = next((score for score in scores if score.reward is None), None)
    deciding = scores[max(range(len(rewards)), key=lambda index: (rewards[index].decides, -index))]
    answer = next((score.answer for score in (deciding, *scores) if score.answer is not None), None)
    if failed is not None:
        outcome = failed.outcome if failed.outcome in _OURS else Outcome.UNGRADABLE
        return Verdict(outcome, None, answer, parts, failed.detail)
    total = sum(
        reward.weight * (score.reward or 0.0) for reward, score in zip(rewards, scores, strict=True)
    )
    said = [
        score.detail if len(rewards) == 1 else f"{reward.name}: {score.detail}"
        for reward, score in zip(rewards, scores, strict=True)
        if score.detail
    ]
    return Verdict(deciding.outcome, total, answer, parts, "; ".join(said))


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
    """

    def __init__(self, rewards: Sequence[Reward], pool: Pool | None = None) -> None:
        self.rewards = tuple(rewards)
        self._pool = pool

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
        columns = [reward.score(problems, texts) for reward in self.rewards]
        return [
            (combine(self.rewards, scores), sum(score.seconds for score in scores))
            for scores in zip(*columns, strict=True)
        ]

    def warm(self) -> None:
        """Starts the worker processes, so that the first call does not wait for them."""
        for holder in self._holders():
            holder.warm()

    def close(self) -> None:
        """Ends the worker processes, if there are any."""
        for holder in self._holders():
            holder.close()

    def _holders(self) -> list[Pool | HoldsProcesses]:
        own: list[Pool | HoldsProcesses] = [] if self._pool is None else [self._pool]
        return own + [reward for reward in self.rewards if isinstance(reward, HoldsProcesses)]
