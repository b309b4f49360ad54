"""Asking a verifier about completions, one at a time or together, whatever it does."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from lydite.types import Outcome, Problem, Verdict, Verifier

Pair = tuple[Problem, str]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of one completion. ``reward`` is ``None`` where there was none; ``error`` is
    what was raised in its place; ``seconds`` is wall time.
    """

    reward: float | None
    outcome: str = ""
    detail: str = ""
    error: str = ""
    seconds: float = 0.0

    @property
    def crashed(self) -> bool:
        return bool(self.error) or self.outcome == Outcome.CRASHED


def trial_of(verdict: Verdict, seconds: float = 0.0) -> Trial:
    """A verdict as a trial; a reward that is not finite is an error."""
    reward = verdict.reward
    if reward is not None and not math.isfinite(reward):
        return Trial(None, str(verdict.outcome), verdict.detail, f"the reward is {reward}", seconds)
    return Trial(reward, str(verdict.outcome), verdict.detail, "", seconds)


def ask(verifier: Verifier, pair: Pair) -> Trial:
    """One completion by itself. Nothing is raised: an error is what is looked for."""
    begun = time.perf_counter()
    try:
        (verdict,) = verifier.verify([pair[0]], [pair[1]])
    except Exception as error:
        text = " ".join(str(error).split()) or type(error).__name__
        return Trial(None, error=text[:400], seconds=time.perf_counter() - begun)
    return trial_of(verdict, time.perf_counter() - begun)


def ask_all(
    verifier: Verifier, pairs: Sequence[Pair], threads: int, tell: Callable[[int], None]
) -> Iterator[Trial]:
    """Each completion by itself, ``threads`` at once, in order; ``tell`` hears how many are
    done.
    """
    with ThreadPoolExecutor(max(1, threads)) as pool:
        try:
            for done, trial in enumerate(pool.map(lambda pair: ask(verifier, pair), pairs), 1):
                tell(done)
                yield trial
        finally:
            pool.shutdown(cancel_futures=True)


def together(verifier: Verifier, pairs: Sequence[Pair]) -> list[Trial]:
    """All in one call.

    Raises:
        Exception: whatever the verifier raises.
        ValueError: there is not one verdict for each.
    """
    verdicts = verifier.verify([problem for problem, _ in pairs], [text for _, text in pairs])
    if len(verdicts) != len(pairs):
        raise ValueError(f"{len(verdicts)} verdicts for {len(pairs)} completions")
    return [trial_of(verdict) for verdict in verdicts]
