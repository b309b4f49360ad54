"""Whether held-out scores say anything at all."""

from __future__ import annotations

import math

from lydite.watch.diagnosis.curves import Curves
from lydite.watch.diagnosis.learning import CEILING
from lydite.watch.diagnosis.rule import Rule, Seen
from lydite.watch.intervals import paired_difference

FEWEST_PROBLEMS = 10


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
    evaluation = curves.recipe.get("evaluation") or {}
    sampled = (evaluation.get("sampling") or {}).get("temperature") != 0
    # The interval shrinks with the root of the number of problems.
    size = max(abs(change.mean), 0.01)
    needed = math.ceil(change.n * (half / size) ** 2)
    say = (
        f"about {needed} problems would show a change of {size:.1%}; there are {change.n}"
        if needed > change.n
        else f"{change.n} problems are enough to see {size:.1%}"
    )
    return Seen(
        (
            f"held out ({last.task}): {first.avg:.1%} at step {first.step}, {last.avg:.1%} at "
            f"step {last.step}; change {change.mean:+.1%} [{change.lo:+.1%}, {change.hi:+.1%}]",
            say,
        ),
        remedy=""
        if sampled
        else "Measure more problems before you believe a difference; more "
        "samples of each tell nothing while they are greedy",
        overrides=None if sampled else (),
        confidence="high" if half < 0.03 else "medium",
    )


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
