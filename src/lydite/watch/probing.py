"""What a model's answers to problems say of how to train it: the figures of `lydite probe`.

Plain Python over counts; no torch. All shares are over problems, each weighing the same, with 95%
intervals over problems.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance
from typing import Literal

from lydite.watch.intervals import Interval, mean_interval, wilson
from lydite.watch.metrics import pass_at_k

ENOUGH = math.sqrt(2.0)
"""A doubled group must raise the share of informative groups by this much to be recommended:
half-way, in ratio, between nothing and what twice the prompts would bring for the same sampling.
"""

SMALLEST_GROUP = 4
"""Fewer completions make a poor baseline, whatever they cost."""

WORTH_CHANGING = 1.15
"""By how much a group size must be better than the present one to be recommended in its place."""

TRUNCATED = 0.05
"""Share of completions cut off from which their lengths no longer say how long they would be."""

HEADROOM = 1.5
"""Recommended limit over the length that 99% of the right answers keep within: they may grow."""

FEWEST_RIGHT = 50
"""Right answers below which their lengths say too little to lower a limit."""

_STRONGEST = 1e4
"""Largest sum of the parameters of a fitted Beta distribution: problems that are all alike."""


@dataclass(frozen=True, slots=True)
class Tally:
    """A problem's completions: those decided, the right ones among them, and how many there were of
    each different reward.
    """

    problem_id: str
    right: int
    decided: int
    alike: tuple[int, ...]
    tag: str = ""

    @property
    def rate(self) -> float:
        """The share that was right."""
        return self.right / self.decided

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's, of the pass rate."""
        return wilson(self.right, self.decided)


def tally(
    problem_id: str, right: Sequence[bool], rewards: Sequence[float], tag: str = ""
) -> Tally | None:
    """Of the decided completions; ``None`` where there were fewer than two."""
    if len(right) < 2:
        return None
    # Rewards that were added up in another order differ in the last bits.
    alike = Counter(round(reward, 9) for reward in rewards)
    return Tally(problem_id, sum(right), len(right), tuple(sorted(alike.values())), tag)


def share_interval(values: Sequence[float]) -> Interval:
    """The mean of numbers in 0…1, one for each problem: Wilson's interval, with the number of
    problems replaced by ``p(1−p)/SE²``, which is larger where the numbers are not just 0 and 1.
    """
    n = len(values)
    if not n:
        return Interval(math.nan, math.nan, math.nan, 0)
    mean = min(1.0, max(0.0, fmean(values)))
    squared_error = pvariance(values) / max(1, n - 1)
    effective = mean * (1 - mean) / squared_error if squared_error > 0 else n
    return Interval(mean, *wilson(mean * max(n, effective), max(n, effective)), n)


@dataclass(frozen=True, slots=True)
class Shares:
    """Problems of which all completions were right, none was, or some."""

    always: Interval
    never: Interval
    sometimes: Interval


def shares(tallies: Sequence[Tally]) -> Shares:
    """At as many completions as were drawn: with more, fewer problems are always or never right."""
    every = [t.right == t.decided for t in tallies]
    none = [t.right == 0 for t in tallies]
    some = [not (a or b) for a, b in zip(every, none, strict=True)]
    return Shares(*(share_interval([float(x) for x in flags]) for flags in (every, none, some)))


def doublings(most: int) -> list[int]:
    """1, 2, 4 … up to ``most``, and that itself."""
    found = [1 << power for power in range(max(1, most).bit_length())]
    return found if found[-1] == most else [*found, most]


def pass_curve(tallies: Sequence[Tally]) -> list[tuple[int, Interval]]:
    """pass@k (2107.03374, eq. 1) at 1, 2, 4 … completions, as far as all problems have them."""
    most = min((t.decided for t in tallies), default=0)
    return [
        (k, share_interval([pass_at_k(t.decided, t.right, k) for t in tallies]))
        for k in (doublings(most) if most else ())
    ]


def mixed(alike: Sequence[int], size: int) -> float:
    """The chance that ``size`` completions, drawn without replacement, differ in reward;
    ``alike`` counts the completions of each different reward.

    ``1 − Σ C(nᵥ, G) / C(n, G)``: the unbiased estimate of the chance that a new group of the same
    policy does, as it is of pass@k. For right and wrong alone that is ``1 − p^G − (1−p)^G``.

    Raises:
        ValueError: there are fewer completions than ``size``.
    """
    total = sum(alike)
    if not 1 <= size <= total:
        raise ValueError(f"size: must be from 1 to the number of completions {total}, got {size}")
    return 1.0 - sum(math.comb(count, size) for count in alike) / math.comb(total, size)


@dataclass(frozen=True, slots=True)
class GroupSize:
    """What groups of a size come to: the share that is informative, and completions sampled for
    each of those.
    """

    size: int
    informative: Interval

    @property
    def cost(self) -> float:
        """Infinite where no group is."""
        share = self.informative.mean
        return self.size / share if share > 0 else math.inf


def group_sizes(tallies: Sequence[Tally]) -> list[GroupSize]:
    """Sizes 2, 4, 8 … as far as all problems have completions."""
    most = min((t.decided for t in tallies), default=0)
    sizes = [size for size in doublings(most) if size > 1]
    return [GroupSize(s, share_interval([mixed(t.alike, s) for t in tallies])) for s in sizes]


@dataclass(frozen=True, slots=True)
class Choice:
    """A group size. ``sure``: the sizes beside it are worse by more than chance explains, or it is
    the present one and none is much better.
    """

    size: int
    sure: bool


def best_size(tallies: Sequence[Tally], now: int | None = None) -> Choice | None:
    """The group size with the largest ``q(G)/√G``, ``q`` being the share of informative groups:
    doubling goes on while it raises the share by :data:`ENOUGH` or more.

    ``q(G)`` is the mean square of GRPO's normalised advantages over all that is sampled, so larger
    groups always teach more a completion, and more prompts always give more informative groups for
    the same cost; the rule stands half-way. The size that is used ``now`` stays where none is
    better by :data:`WORTH_CHANGING`. ``None`` where no group is informative.
    """
    found = [g for g in group_sizes(tallies) if g.size >= SMALLEST_GROUP and _is_doubling(g.size)]
    found = found or group_sizes(tallies)[-1:]
    if not found or found[-1].informative.mean == 0:
        return None
    chosen = max(found, key=lambda g: (_worth(g), -g.size))
    present = [g for g in group_sizes(tallies) if g.size == now]
    if present and _worth(chosen) < WORTH_CHANGING * _worth(present[0]):
        return Choice(present[0].size, True)
    place = found.index(chosen)
    beside = found[max(0, place - 1) : place + 2]
    sure = all(_beats(tallies, chosen.size, other.size) for other in beside if other is not chosen)
    return Choice(chosen.size, sure)


def _worth(group: GroupSize) -> float:
    return group.informative.mean / math.sqrt(group.size)


def _is_doubling(size: int) -> bool:
    return size & (size - 1) == 0


def _beats(tallies: Sequence[Tally], size: int, other: int) -> bool:
    differences = [
        mixed(t.alike, size) / math.sqrt(size) - mixed(t.alike, other) / math.sqrt(other)
        for t in tallies
    ]
    return mean_interval(differences).lo > 0


def fit_beta(tallies: Sequence[Tally]) -> tuple[float, float]:
    """The Beta distribution of pass rates over problems, by moments.

    The variance of observed rates is that of the rates and that of drawing; the latter is taken out
    (``p̂(1−p̂)/(n−1)`` is unbiased for it). One completion, half right, is added to the mean, so
    that no rate is thought impossible.
    """
    right, decided = sum(t.right for t in tallies), sum(t.decided for t in tallies)
    mean = (right + 0.5) / (decided + 1)
    if len(tallies) < 2:
        return mean, 1 - mean
    rates = [t.rate for t in tallies]
    noise = fmean(t.rate * (1 - t.rate) / (t.decided - 1) for t in tallies)
    variance = pvariance(rates) * len(rates) / (len(rates) - 1) - noise
    whole = mean * (1 - mean) / variance - 1 if variance > 0 else _STRONGEST
    whole = min(_STRONGEST, max(0.1, whole))
    return mean * whole, (1 - mean) * whole


@dataclass(frozen=True, slots=True)
class Lengths:
    """Sampled tokens of completions, sorted, and how many of them reached the limit."""

    tokens: tuple[int, ...]
    truncated: int

    @property
    def truncated_share(self) -> float:
        return self.truncated / len(self.tokens) if self.tokens else 0.0

    @property
    def mean(self) -> float:
        return fmean(self.tokens) if self.tokens else math.nan

    def within(self, share: float) -> int:
        """The length that this share of the completions keeps within."""
        return self.tokens[max(0, math.ceil(share * len(self.tokens)) - 1)]

    def cut_by(self, limit: int) -> float:
        """The share that a limit would cut off."""
        return sum(t > limit for t in self.tokens) / len(self.tokens)


@dataclass(frozen=True, slots=True)
class Limit:
    """A completion limit in tokens, and in a sentence why."""

    tokens: int
    verdict: Literal["raise", "lower", "keep"]
    why: str


def completion_limit(right: Lengths, every: Lengths, limit: int) -> Limit:
    """From the lengths of right answers and of all, sampled under ``limit``."""
    cut = max(right.truncated_share, every.truncated_share if not right.tokens else 0.0)
    if (every.truncated_share > TRUNCATED and right.truncated_share > 0.01) or cut > TRUNCATED:
        return Limit(
            2 * limit,
            "raise",
            f"{every.truncated_share:.0%} of all and {right.truncated_share:.0%} of the right "
            f"answers reach the limit of {limit}, so how long they would be is not known; probe "
            "again with twice as much",
        )
    if len(right.tokens) < FEWEST_RIGHT:
        few = f"{len(right.tokens)} right answers are too few to say how long they get"
        return Limit(limit, "keep", few)
    most = right.within(0.99)
    wanted = _round_up(math.ceil(HEADROOM * most))
    said = f"99% of the right answers keep within {most} tokens"
    if wanted >= 0.8 * limit:
        return Limit(limit, "keep", f"{said}; {limit} leaves them room to grow")
    return Limit(
        wanted,
        "lower",
        f"{said}; half as much again is {wanted}, which cuts off {right.cut_by(wanted):.1%} of the "
        f"right and {every.cut_by(wanted):.1%} of all answers",
    )


def _round_up(tokens: int) -> int:
    step = 8 if tokens <= 256 else 64 if tokens <= 2048 else 256
    return -(-tokens // step) * step


def skill(curve: Sequence[tuple[int, Interval]], found: Shares) -> str:
    """Whether there is something to sharpen, in a sentence."""
    (first, once), (most, best) = curve[0], curve[-1]
    said = f"pass@{first} is {once.mean:.1%}, pass@{most} {best.mean:.1%}"
    if best.mean < 0.05:
        return (
            f"{said}: the skill is hardly there. RL sharpens what is now and then right; teach it "
            "first (an sft stage on worked solutions), take easier problems, or make sure with "
            "`lydite audit` that right answers are accepted"
        )
    if found.always.mean > 0.8:
        return f"{said}: it can do nearly all of this already. Take harder problems"
    if best.mean > max(1.5 * once.mean, once.mean + 0.1):
        return f"{said}: the skill is there and comes out now and then, which RL can sharpen"
    return (
        f"{said}: more tries hardly help, so most problems are either solved or out of reach. Few "
        "can teach"
    )
