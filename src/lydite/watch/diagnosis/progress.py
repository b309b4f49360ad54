"""Whether held-out scores say anything at all."""

from __future__ import annotations

import math
from statistics import variance

from lydite.watch.diagnosis.curves import Curves
from lydite.watch.diagnosis.learning import CEILING
from lydite.watch.diagnosis.rule import Confidence, Rule, Seen
from lydite.watch.events import Evaluated
from lydite.watch.intervals import Interval, paired_difference

FEWEST_PROBLEMS = 10
LEAST = 0.01
"""The smallest change that anyone would look for."""
MOST_SAMPLES = 1024
"""Samples of a problem that could still be drawn."""


def _noise(curves: Curves) -> Seen | None:
    found = curves.held_out
    if len(found) < 2 or not curves.long_enough or found[-1].n < FEWEST_PROBLEMS:
        return None
    first, last = found[0], found[-1]
    if last.avg > CEILING:
        return None
    change = paired_difference(first.scores, last.scores)
    if change.n == 0 or change.lo > 0 or change.hi < 0:
        return None
    half = (change.hi - change.lo) / 2
    size = max(abs(change.mean), LEAST)
    problems = math.ceil(change.n * (half / size) ** 2)
    samples = _samples_needed(first, last, change, size)
    if problems <= change.n:
        say = f"{change.n} problems are enough to see {size:.1%}"
    else:
        say = f"about {problems} problems would show a change of {size:.1%}; there are {change.n}"
        if samples is not None:
            say += f". Or about {samples} samples of each in place of {last.k}"
    evidence = (
        f"held out ({last.task}): {first.avg:.1%} at step {first.step}, {last.avg:.1%} at "
        f"step {last.step}; change {change.mean:+.1%} [{change.lo:+.1%}, {change.hi:+.1%}]",
        say,
    )
    evaluation = curves.recipe.get("evaluation") or {}
    greedy = (evaluation.get("sampling") or {}).get("temperature") == 0
    confidence: Confidence = "high" if half < 0.03 else "medium"
    if greedy:
        remedy = (
            "Measure more problems before you believe a difference; more samples of each tell "
            "nothing while they are greedy"
        )
        return Seen(evidence, remedy=remedy, overrides=(), confidence=confidence)
    if samples is not None:
        wanted = (f"/evaluation.samples={samples}",)
        return Seen(evidence, overrides=wanted, confidence=confidence)
    if last.k > 1 and problems > change.n:
        remedy = (
            "Measure more problems before you believe a difference: they differ so much from each "
            "other that more samples of the same ones cannot tell"
        )
        return Seen(evidence, remedy=remedy, overrides=(), confidence=confidence)
    return Seen(evidence, confidence=confidence)


def _samples_needed(first: Evaluated, last: Evaluated, change: Interval, size: float) -> int | None:
    """Samples of each problem that would show a change of ``size``, the problems kept; ``None``
    where no number would, or one cannot be told.

    A difference's variance is that between problems and, divided by the samples of each, that
    within them, ``p(1 − p)/(k − 1)`` at either end.
    """
    if last.k < 2 or first.k != last.k or change.n < 2:
        return None
    shared = first.scores.keys() & last.scores.keys()
    within = sum(
        each.scores[name] * (1 - each.scores[name]) / (last.k - 1)
        for each in (first, last)
        for name in shared
    ) / len(shared)
    gaps = [last.scores[name] - first.scores[name] for name in shared]
    if variance(gaps) == 0:
        return None
    between = max(0.0, variance(gaps) - within)
    quantile = (change.hi - change.lo) / 2 / math.sqrt(variance(gaps) / change.n)
    room = size**2 * change.n / quantile**2 - between
    if room <= 0 or within == 0:
        return None
    needed = math.ceil(within * last.k / room)
    return needed if last.k < needed <= MOST_SAMPLES else None


def _not_measured(curves: Curves) -> Seen | None:
    if curves.held_out or curves.index is None or not curves.long_enough:
        return None
    return Seen((f"no held-out task was measured in {len(curves.steps)} steps",))


RULES = (
    Rule(
        name="no_improvement",
        symptom="Held-out accuracy has not changed beyond noise.",
        cause="Either nothing was learnt, or too few problems were measured to see it.",
        remedy="Measure more problems, or more samples of each, before you believe a difference",
        look=_noise,
        override=("/evaluation.samples=*4",),
        source="2411.00640",
        kinds=("rl", "preference", "distill"),
    ),
    Rule(
        name="nothing_held_out",
        severity="note",
        symptom="Nothing is held out, so reward is all there is to see.",
        cause="Reward can rise while truth does not, and nobody would know.",
        remedy="Name a task under evaluation.tasks that no stage trains on",
        look=_not_measured,
        confidence="high",
    ),
)
