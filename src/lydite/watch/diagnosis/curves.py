"""A stage's figures over its steps, and what can be said of their course despite the noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from lydite.watch.events import Evaluated
from lydite.watch.intervals import Interval, student_quantile
from lydite.watch.samples import Sample

FEWEST_STEPS = 8
"""Steps below which a course says nothing."""

MOST_SHARE = 4
"""The start and the end of a course are each this part of it."""


def no_samples(step: int) -> Sequence[Sample]:
    """Where a log has no texts."""
    del step
    return ()


@dataclass(frozen=True, slots=True)
class Curves:
    """One stage. ``metrics`` holds a value for each of ``steps``, NaN where there was none;
    ``evaluations`` the held-out scores by task, in order; ``settings`` the stage as the recipe has
    it, with ``index`` its place there (both empty for another trainer's log); ``samples`` gives the
    rollouts of a step.
    """

    stage: str
    kind: str
    steps: tuple[int, ...]
    metrics: Mapping[str, tuple[float, ...]]
    evaluations: Mapping[str, tuple[Evaluated, ...]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    index: int | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict)
    samples: Callable[[int], Sequence[Sample]] = no_samples

    @property
    def long_enough(self) -> bool:
        """Whether there are steps enough to speak of a course."""
        return len(self.steps) >= FEWEST_STEPS

    def has(self, *names: str) -> bool:
        """Whether each of these was measured, at half of the steps or more."""
        return all(2 * len(self._known(name)) >= max(1, len(self.steps)) for name in names)

    def values(self, name: str) -> list[float]:
        """The finite values, in order."""
        return [value for _, value in self._known(name)]

    def _known(self, name: str) -> list[tuple[int, float]]:
        values = self.metrics.get(name, ())
        return [(s, v) for s, v in zip(self.steps, values, strict=False) if math.isfinite(v)]

    def start(self, name: str) -> float:
        """Mean over the first quarter of the steps; NaN without any."""
        values = self.values(name)
        return _mean(values[: _quarter(values)])

    def end(self, name: str) -> float:
        """Mean over the last quarter of the steps; NaN without any."""
        values = self.values(name)
        return _mean(values[-_quarter(values) :])

    def mean(self, name: str) -> float:
        return _mean(self.values(name))

    def change(self, name: str) -> Interval:
        """End less start with a 95% interval (Welch's), whose noise is taken from the steps."""
        values = self.values(name)
        size = _quarter(values)
        return difference(values[:size], values[-size:])

    def rises(self, name: str) -> bool:
        """Whether the end is above the start beyond noise."""
        return self.long_enough and self.change(name).lo > 0

    def falls(self, name: str) -> bool:
        """Whether the end is below the start beyond noise."""
        return self.long_enough and self.change(name).hi < 0

    def late_change(self, name: str) -> Interval:
        """The same within the second half: whether it still moves."""
        values = self.values(name)
        half = values[len(values) // 2 :]
        size = max(1, len(half) // 3)
        return difference(half[:size], half[-size:])

    def spell(self, name: str) -> str:
        """``name 0.42 at step 1, 0.13 at step 90``: the course as evidence."""
        known = self._known(name)
        if not known:
            return f"{name}: not measured"
        size = _quarter(known)
        first = f"{_number(self.start(name))} (steps {known[0][0]}-{known[size - 1][0]})"
        last = f"{_number(self.end(name))} (steps {known[-size][0]}-{known[-1][0]})"
        return f"{name}: {first}, then {last}"

    @property
    def held_out(self) -> tuple[Evaluated, ...]:
        """The evaluations of the task that was measured most often."""
        return max(self.evaluations.values(), key=len, default=())


def difference(first: Sequence[float], last: Sequence[float]) -> Interval:
    """The mean of ``last`` less that of ``first``, with Welch's 95% interval; infinitely wide where
    there are not two of each.
    """
    if not first or not last:
        return Interval(math.nan, -math.inf, math.inf, 0)
    mean = fmean(last) - fmean(first)
    if len(first) < 2 or len(last) < 2:
        return Interval(mean, -math.inf, math.inf, len(first) + len(last))
    errors = [_variance(part) / len(part) for part in (first, last)]
    squared = sum(errors)
    if squared == 0:
        return Interval(mean, mean, mean, len(first) + len(last))
    freedom = squared**2 / sum(
        e**2 / (len(part) - 1) for e, part in zip(errors, (first, last), strict=True)
    )
    half = student_quantile(max(1, int(freedom))) * math.sqrt(squared)
    return Interval(mean, mean - half, mean + half, len(first) + len(last))


def _variance(values: Sequence[float]) -> float:
    mean = fmean(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def _quarter(values: Sequence[object]) -> int:
    return max(1, len(values) // MOST_SHARE)


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan


def _number(value: float) -> str:
    return f"{value:.3g}"
