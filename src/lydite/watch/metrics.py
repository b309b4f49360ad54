"""Scores of ``k`` samples per problem: avg@k, pass@k, maj@k. Plain Python, no torch.

``correct`` is ``[n][k]``: for each problem, whether (or how far, in 0…1) each of its samples was
right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def avg_at_k(correct: Sequence[Sequence[float]]) -> float:
    """The mean over problems of the mean over samples; NaN for no problems.

    Problems may have different numbers of samples (a verdict may be missing); each problem weighs
    the same. A problem without samples is left out.
    """
    means = problem_means(correct)
    return math.fsum(means) / len(means) if means else math.nan


def problem_means(correct: Sequence[Sequence[float]]) -> list[float]:
    """``[n]``: each problem's mean over its samples, problems without samples left out."""
    return [math.fsum(samples) / len(samples) for samples in correct if samples]


def pass_at_k(samples: int, right: int, k: int) -> float:
    """The chance that at least one of ``k`` samples, drawn without replacement from ``samples``, is
    right.

    The unbiased estimator ``1 − C(n−c, k)/C(n, k)`` of 2107.03374, eq. 1.

    Raises:
        ValueError: ``k`` is not within 1…``samples``, or ``right`` not within 0…``samples``.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"k: must be from 1 to the number of samples {samples}, got {k}")
    if not 0 <= right <= samples:
        raise ValueError(f"right: must be from 0 to the number of samples {samples}, got {right}")
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)


def mean_pass_at_k(correct: Sequence[Sequence[bool]], k: int) -> float:
    """:func:`pass_at_k`, averaged over problems; NaN for no problems."""
    if not correct:
        return math.nan
    return math.fsum(pass_at_k(len(s), sum(map(bool, s)), k) for s in correct) / len(correct)


def majority_score(answers: Sequence[str | None], correct: Sequence[float]) -> float:
    """How right the most frequent answer to one problem is (self-consistency, 2203.11171).

    ``answers`` are the answers as read, ``None`` where none was: those do not vote, and with no
    vote at all the score is 0. Ties are not broken by luck: the score is the mean over the tied
    answers.
    """
    votes: dict[str, list[float]] = {}
    for answer, right in zip(answers, correct, strict=True):
        if answer is not None:
            votes.setdefault(answer, []).append(float(right))
    if not votes:
        return 0.0
    most = max(map(len, votes.values()))
    tied = [math.fsum(v) / len(v) for v in votes.values() if len(v) == most]
    return math.fsum(tied) / len(tied)


def maj_at_k(answers: Sequence[Sequence[str | None]], correct: Sequence[Sequence[float]]) -> float:
    """:func:`majority_score`, averaged over problems; NaN for no problems."""
    scores = [majority_score(a, c) for a, c in zip(answers, correct, strict=True)]
    return math.fsum(scores) / len(scores) if scores else math.nan
