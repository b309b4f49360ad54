"""All rules over all stages."""

from __future__ import annotations

from collections.abc import Sequence

from lydite.watch.diagnosis import groups, learning, progress, rewards, text
from lydite.watch.diagnosis.curves import Curves
from lydite.watch.diagnosis.rule import Finding, Rule

RULES: tuple[Rule, ...] = (
    *rewards.RULES,
    *groups.RULES,
    *learning.RULES,
    *text.RULES,
    *progress.RULES,
)
"""Every rule, what is worst first."""

EXPLAINED_BY = {
    "tied_groups": ("constant_reward", "learning_rate_too_high", "verifier_gamed"),
    "truncation": ("learning_rate_too_high",),
    "learning_rate_too_high": ("entropy_explosion",),
    "wrong_answers_lengthen": ("entropy_explosion", "learning_rate_too_high"),
    "nothing_trained": ("constant_reward", "tied_groups"),
    "no_improvement": ("verifier_gamed", "constant_reward", "tied_groups", "nothing_trained"),
    "identical_samples": ("entropy_collapse",),
    "messy_output": ("learning_rate_too_high", "entropy_explosion"),
    "language_mixing": ("learning_rate_too_high", "entropy_explosion"),
    "learning_rate_too_low": ("constant_reward", "tied_groups", "nothing_trained"),
}
"""A finding that another one explains is not told beside it."""

_ORDER = ("high", "medium", "low")


def diagnose(stages: Sequence[Curves], rules: Sequence[Rule] = RULES) -> list[Finding]:
    """What is wrong in the stages of a run: problems before notes, the surest first."""
    found: list[Finding] = []
    for curves in stages:
        mine = [f for rule in rules if (f := rule.apply(curves)) is not None]
        names = {finding.rule for finding in mine}
        found += [f for f in mine if not names.intersection(EXPLAINED_BY.get(f.rule, ()))]
    return sorted(found, key=lambda f: (f.severity == "note", _ORDER.index(f.confidence)))
