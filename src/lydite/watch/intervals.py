"""95% intervals that are honest for few problems and several samples each. Plain Python,
deterministic.

A score over problems uses the standard error of 2411.00640 (samples of one problem are one
cluster), put into Wilson's interval through the effective sample size ``p(1−p)/SE²``. With one
sample per problem and a right or wrong score that is Wilson's interval itself; near 0 and 1 it
stays inside 0…1 and never shrinks to a point.

A change between two evaluations of the same problems uses the paired differences (2411.00640) and
Student's t.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from lydite.watch.metrics import problem_means


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its interval; NaN when there was nothing to estimate from. ``n`` is the
    problems counted.
    """

    mean: float
    lo: float
    hi: float
    n: int

    @property
    def excludes_zero(self) -> bool:
        return self.lo > 0 or self.hi < 0


def wilson(successes: float, n: float, level: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval for ``successes`` of ``n``; ``n`` may be an effective, fractional
    one.
    """
    if n <= 0:
        return (math.nan, math.nan)
    z = _normal_quantile(level)
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    # At p = 0 and p = 1 the bound is exact; the subtraction would leave 1e-17.
    lo = 0.0 if p == 0 else max(0.0, centre - half)
    hi = 1.0 if p == 1 else min(1.0, centre + half)
    return (lo, hi)


def accuracy_interval(correct: Sequence[Sequence[float]], level: float = 0.95) -> Interval:
    """The mean score of ``[n][k]`` samples in 0…1, with an interval over *problems*.

    Samples of one problem are not independent, so what counts is how the problems' means vary. The
    effective sample size is kept between ``n`` and the number of samples.

    Raises:
        ValueError: a score is outside 0…1.
    """
    return share_interval(problem_means(correct), sum(map(len, correct)), level)


def share_interval(means: Sequence[float], total: float, level: float = 0.95) -> Interval:
    """The mean of independent problems' scores in 0…1, each itself a mean: ``total`` independent
    draws in all, more than which the effective sample size cannot be.

    Raises:
        ValueError: a score is outside 0…1.
    """
    if not means:
        return Interval(math.nan, math.nan, math.nan, 0)
    if not all(0.0 <= mean <= 1.0 for mean in means):
        raise ValueError("correct: scores must lie in 0…1")
    n = len(means)
    p = math.fsum(means) / n
    squared_error = _squared_standard_error(means)
    effective = p * (1 - p) / squared_error if squared_error > 0 else (n if p in (0, 1) else total)
    effective = min(max(effective, n), max(n, total))
    return Interval(p, *wilson(p * effective, effective, level), n)


def mean_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """The mean of independent numbers on any scale with Student's t interval; infinitely wide for
    one number.
    """
    n = len(values)
    if n == 0:
        return Interval(math.nan, math.nan, math.nan, 0)
    mean = math.fsum(values) / n
    if n == 1:
        return Interval(mean, -math.inf, math.inf, 1)
    half = student_quantile(n - 1, level) * math.sqrt(_squared_standard_error(values))
    return Interval(mean, mean - half, mean + half, n)


def paired_difference(
    before: Mapping[str, float], after: Mapping[str, float], level: float = 0.95
) -> Interval:
    """How much each problem's score (in 0…1) changed, on average, over the problems that both have.

    Where every problem changed by the same amount (all of them not at all, most often), the
    variance says nothing; the half-width is then the upper end of Wilson's interval for none of
    ``n``, about ``4/n``.
    """
    differences = [
        after[problem] - before[problem] for problem in sorted(before.keys() & after.keys())
    ]
    plain = mean_interval(differences, level)
    if plain.n == 0:
        return plain
    half = plain.hi - plain.mean
    if half == 0:
        half = wilson(0, plain.n, level)[1]
    return Interval(plain.mean, max(-1.0, plain.mean - half), min(1.0, plain.mean + half), plain.n)


def student_quantile(freedom: int, level: float = 0.95) -> float:
    """The two-sided quantile of Student's t: 12.706 for 1 degree of freedom at 0.95, 1.960 for
    many.

    Exact for 1 and 2 degrees; above, the expansion around the normal quantile (Abramowitz & Stegun
    26.7.5), within 0.2% at 3 and closer from there on.

    Raises:
        ValueError: fewer than 1 degree of freedom.
    """
    if freedom < 1:
        raise ValueError(f"freedom: must be at least 1, got {freedom}")
    if freedom == 1:
        return math.tan(math.pi * level / 2)
    if freedom == 2:
        return level * math.sqrt(2 / (1 - level * level))
    z = _normal_quantile(level)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.fsum(term / freedom**power for power, term in enumerate(terms))


def _normal_quantile(level: float) -> float:
    return NormalDist().inv_cdf((1 + level) / 2)


def _squared_standard_error(values: Sequence[float]) -> float:
    """Sample variance over ``n``; 0 for one value."""
    n = len(values)
    if n < 2:
        return 0.0
    mean = math.fsum(values) / n
    return math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n
