"""What several samples of each problem say beside their mean: pass@k, maj@k, and scores by tag,
each with a 95% interval over problems.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from lydite.watch.intervals import Interval, accuracy_interval, share_interval
from lydite.watch.metrics import majority_score, pass_at_k

TAGS = 12
"""Tags with figures of their own, at most: those with the most problems."""

RIGHT = "\N{WHITE HEAVY CHECK MARK}"
"""Stands for every right answer in a vote: they all equal the reference, however they are
written.
"""

Decided = Sequence[tuple[str | None, float]]
"""The answer as read, and 1 or 0, of each sample of a problem that could be judged."""


def repeated_scores(problems: Sequence[Decided], samples: int) -> dict[str, Interval]:
    """``pass@k`` for k of 2, 4, 8, … and ``samples``, and ``maj@k`` for all of them; empty where
    there is one sample each. A problem with fewer than k that could be judged is left out of
    pass@k. Without a single answer that could be read there is no vote.
    """
    if samples < 2:
        return {}
    found = {}
    powers = (2**n for n in range(1, samples.bit_length()))
    for k in sorted({*powers, samples}):
        rights = [
            (len(each), sum(right > 0 for _, right in each)) for each in problems if len(each) >= k
        ]
        estimates = [pass_at_k(n, right, k) for n, right in rights]
        # k of n samples are drawn n/k times without one in common.
        found[f"pass@{k}"] = share_interval(estimates, sum(n // k for n, _ in rights))
    if any(answer is not None for each in problems for answer, _ in each):
        votes = [
            majority_score(
                [RIGHT if right > 0 else answer for answer, right in each], [r for _, r in each]
            )
            for each in problems
            if each
        ]
        found[f"maj@{samples}"] = share_interval(votes, len(votes))
    return {name: each for name, each in found.items() if each.n}


def tag_scores(
    scores: Mapping[str, Sequence[float]], tags: Mapping[str, str]
) -> dict[str, Interval]:
    """avg@k by tag, where problems have several; ``scores`` and ``tags`` are by problem."""
    by: dict[str, list[Sequence[float]]] = defaultdict(list)
    for problem, values in scores.items():
        if values:
            by[tags[problem]].append(values)
    if len(by) < 2:
        return {}
    often = sorted(by, key=lambda tag: (-len(by[tag]), tag))[:TAGS]
    return {tag: accuracy_interval(by[tag]) for tag in often}


def flat(intervals: Mapping[str, Interval]) -> dict[str, float]:
    """As metrics of an event: ``NAME``, ``NAME_lo`` and ``NAME_hi``."""
    found: dict[str, float] = {}
    for name, each in intervals.items():
        found |= {name: each.mean, f"{name}_lo": each.lo, f"{name}_hi": each.hi}
    return found
