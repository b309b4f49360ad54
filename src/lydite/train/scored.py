"""What a step's rollouts came to: groups with their rewards, and what they are on the whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lydite.config import UserError
from lydite.objective import group_filter
from lydite.train.evaluate import UNDECIDED
from lydite.types import Completion, Group, Outcome, Verdict
from lydite.watch.rollouts import rollout_figures

FEWEST_FAILURES = 3
"""Undecided verdicts in a round below which their share says nothing."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A group with its rewards ``[G]`` (NaN: excluded): as verified, and as shaped by the
    objective.
    """

    group: Group
    verified: Tensor
    shaped: Tensor


def reward_parts(
    groups: Sequence[Group], weights: Mapping[str, float], penalty: Tensor
) -> tuple[Tensor, list[float]]:
    """``[P, G, R]`` and the weights ``[R]``: a reward's parts by name, and then what the objective
    added to it ``[P, G]``; NaN throughout where the whole could not be decided.

    Parts inside others (``gate.math`` inside ``gate``) count with those. A part that did not apply
    where the whole was decided added nothing: 0.
    """
    every = {name for g in groups for v in g.verdicts for name in v.parts}
    names = sorted(name for name in every if not _inside(name, every))
    if not names:  # a verifier that gives one number
        values = [[[v.reward] for v in g.verdicts] for g in groups]
    else:
        values = [
            [
                [None if v.reward is None else v.parts.get(name) or 0.0 for name in names]
                for v in g.verdicts
            ]
            for g in groups
        ]
    undecided = float("nan")
    numbers = [[[undecided if x is None else x for x in row] for row in g] for g in values]
    parts = torch.tensor(numbers, dtype=penalty.dtype)
    given = [weights.get(name, 1.0) for name in names] or [1.0]
    return torch.cat([parts, penalty[:, :, None]], dim=2), [*given, 1.0]


def _inside(name: str, names: Collection[str]) -> bool:
    """Whether a part is inside another of these, as ``gate.sum.math`` is inside ``gate``."""
    places = (index for index, sign in enumerate(name) if sign == ".")
    return any(name[:place] in names for place in places)


def why_idle(scored: Scored) -> str:
    """Why a group's rewards are all alike, in two words."""
    decided = {verdict.outcome for verdict in scored.group.verdicts} - UNDECIDED
    if not decided:
        return "undecided"
    return (
        "all right"
        if decided == {Outcome.CORRECT}
        else "all wrong"
        if Outcome.CORRECT not in decided
        else "all alike"
    )


def check_failures(verdicts: Sequence[Verdict], fail_rate: float) -> None:
    """Verdicts that are our failure must not become the run's normal state.

    Raises:
        UserError: more than this share of them could not be decided.
    """
    failed = [verdict for verdict in verdicts if verdict.outcome in UNDECIDED]
    # One failure among eight is no rate yet.
    enough = len(failed) >= min(FEWEST_FAILURES, len(verdicts))
    if enough and len(failed) > fail_rate * len(verdicts):
        common = Counter(verdict.detail for verdict in failed).most_common(1)[0][0]
        raise UserError(
            f"verifier: {len(failed)} of {len(verdicts)} verdicts could not be decided, more than "
            f"limits.fail_rate={fail_rate:g} allows; most often: {common or failed[0].outcome}"
        )


def reward_metrics(scored: Sequence[Scored]) -> dict[str, float]:
    """What the step sampled, whether or not it was trained on."""
    verdicts = [v for s in scored for v in s.group.verdicts]
    completions = [c for s in scored for c in s.group.completions]
    tokens = sum(sum(c.loss_mask) for c in completions)
    logprobs = sum(
        lp for c in completions for lp, bit in zip(c.logprobs, c.loss_mask, strict=True) if bit
    )
    decided = [v for v in verdicts if v.reward is not None]
    informative = int(group_filter.informative(torch.stack([s.verified for s in scored])).sum())
    found = {
        "reward": _mean([v.reward for v in decided if v.reward is not None]),
        "accuracy": _mean([float(v.outcome is Outcome.CORRECT) for v in decided]),
        "length": _mean([float(c.sampled) for c in completions]),
        "truncated": _mean([float(c.finish == "length") for c in completions]),
        # Minus the mean log-probability of what was sampled: an unbiased estimate of the mean token
        # entropy.
        "entropy_sampled": -logprobs / max(1, tokens),
        "informative_groups": informative / max(1, len(scored)),
        **budget_metrics(completions),
        **rollout_figures([s.group for s in scored]),
    }
    counts = Counter(v.outcome for v in verdicts)
    found |= {f"outcome_{outcome}": counts[outcome] / len(verdicts) for outcome in Outcome}
    for name in {name for v in verdicts for name in v.parts}:
        parts = [v.parts[name] for v in verdicts if v.parts.get(name) is not None]
        found[f"reward_{name}"] = _mean([part for part in parts if part is not None])
    return found


def staleness_metrics(completions: Sequence[Completion], version: int) -> dict[str, float]:
    """How many updates behind ``version`` the sampled tokens are, on the mean (``staleness``) and
    at most (``staleness_max``), and the share of completions that more than one version sampled
    (``resumed``).
    """
    runs = [run for c in completions for run in c.version_runs if run[1]]
    tokens = sum(count for _, count in runs)
    if not tokens:
        return {}
    return {
        "staleness": sum((version - then) * count for then, count in runs) / tokens,
        "staleness_max": float(max(version - then for then, _ in runs)),
        "resumed": _mean([float(bool(c.changes)) for c in completions]),
    }


def budget_metrics(completions: Sequence[Completion]) -> dict[str, float]:
    """What completions made of their thinking budgets, empty where none had one: the share whose
    thought was ended by force (``budget_hits``), and means per completion of the budget
    (``thinking_budget``), of the tokens thought (``thinking_length``) and of those injected
    (``injected``).
    """
    found = [(c, c.thought) for c in completions if c.thought is not None]
    if not found:
        return {}
    return {
        "budget_hits": _mean([float(thought.cut) for _, thought in found]),
        "thinking_budget": _mean([float(thought.budget) for _, thought in found]),
        "thinking_length": _mean([float(thought.tokens) for _, thought in found]),
        "injected": _mean([float(len(c.token_ids) - c.sampled) for c, _ in found]),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
