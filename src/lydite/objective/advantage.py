"""Advantages from rewards: a baseline to subtract and a scale to divide by, each chosen by name.

GRPO, arXiv 2402.03300 §4.1.2: ``A_i = (r_i − mean(r)) / std(r)`` over the group. The paper leaves
open which std it means and its epsilon: here the population std is the default, and no epsilon is
needed against division by zero, because a group of equal rewards gets advantages of exactly 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lydite.objective.group_filter import constant_rows

# One number per completion, from rewards [P, G] (0 where excluded), which are included [P, G], and
# lengths in tokens [P, G].
Statistic = Callable[[Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True, slots=True)
class Baseline:
    """``value`` is what is subtracted. ``compares``: it is made of the group's rewards.

    ``learned``: a critic has one for every token, which :mod:`lydite.objective.gae` subtracts.
    """

    value: Statistic
    compares: bool
    needs_lengths: bool = False
    learned: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """``spread`` takes (rewards, included, Bessel's correction); ``None`` is no division.

    ``within_group``: it is made of the group's rewards alone. ``of_centred``: its rewards come with
    the baseline subtracted. ``of_tokens``: it is taken over the advantages of single tokens.
    ``of_chance``: its rewards are chances.
    """

    spread: Callable[[Tensor, Tensor, int], Tensor] | None
    within_group: bool
    of_centred: bool = False
    of_tokens: bool = False
    of_chance: bool = False


def no_baseline(
    rewards: Float[Tensor, "P G"],
    included: Bool[Tensor, "P G"],
    lengths: Int[Tensor, "P G"] | None,
) -> Float[Tensor, "P G"]:
    """0: the reward itself is the advantage (REINFORCE)."""
    return torch.zeros_like(rewards)


def group_mean(
    rewards: Float[Tensor, "P G"],
    included: Bool[Tensor, "P G"],
    lengths: Int[Tensor, "P G"] | None,
) -> Float[Tensor, "P G"]:
    """The mean over the group, arXiv 2402.03300."""
    count = included.sum(dim=1, keepdim=True).clamp(min=1)
    return (rewards.sum(dim=1, keepdim=True) / count).expand_as(rewards)


def leave_one_out(
    rewards: Float[Tensor, "P G"],
    included: Bool[Tensor, "P G"],
    lengths: Int[Tensor, "P G"] | None,
) -> Float[Tensor, "P G"]:
    """The mean over the others of the group, RLOO, arXiv 2402.14740."""
    others = included.sum(dim=1, keepdim=True) - 1
    return (rewards.sum(dim=1, keepdim=True) - rewards) / others.clamp(min=1)


def batch_mean(
    rewards: Float[Tensor, "P G"],
    included: Bool[Tensor, "P G"],
    lengths: Int[Tensor, "P G"] | None,
) -> Float[Tensor, "P G"]:
    """The mean of all rewards of the step, REINFORCE++, arXiv 2501.03262."""
    return (rewards.sum() / included.sum().clamp(min=1)).expand_as(rewards)


def length_weighted(
    rewards: Float[Tensor, "P G"],
    included: Bool[Tensor, "P G"],
    lengths: Int[Tensor, "P G"] | None,
) -> Float[Tensor, "P G"]:
    """``Σ |o_i|·r_i / Σ |o_i|``, of least variance on policy: OPO, arXiv 2505.23585."""
    assert lengths is not None, "Objective.advantages asks for them"
    weights = lengths.to(rewards) * included
    total = weights.sum(dim=1, keepdim=True)
    mean = (weights * rewards).sum(dim=1, keepdim=True) / total.clamp(min=1)
    return mean.expand_as(rewards)


def group_std(
    rewards: Float[Tensor, "P G"], included: Bool[Tensor, "P G"], bessel: int
) -> Float[Tensor, "P G"]:
    """The standard deviation within the group."""
    return _std(rewards, included, bessel, dim=1).expand_as(rewards)


def batch_std(
    rewards: Float[Tensor, "P G"], included: Bool[Tensor, "P G"], bessel: int
) -> Float[Tensor, "P G"]:
    """The standard deviation of all rewards of the step, Lite PPO, arXiv 2508.08221."""
    flat = _std(rewards.reshape(1, -1), included.reshape(1, -1), bessel, dim=1)
    return flat.expand_as(rewards)


def reward_mean(
    rewards: Float[Tensor, "P G"], included: Bool[Tensor, "P G"], bessel: int
) -> Float[Tensor, "P G"]:
    """The group's mean reward: MaxRL, arXiv 2602.02710. A mean below 0 gives no signal."""
    return group_mean(rewards, included, None).clamp(min=0)


def bernoulli_std(
    rewards: Float[Tensor, "P G"], included: Bool[Tensor, "P G"], bessel: int
) -> Float[Tensor, "P G"]:
    """``√(R̄(1 − R̄))`` of the group's mean chance R̄: pass@k training, arXiv 2508.10751."""
    mean = group_mean(rewards, included, None).clamp(0, 1)
    return (mean * (1 - mean)).sqrt()


def informative_share(
    rewards: Float[Tensor, "P G"], included: Bool[Tensor, "P G"], bessel: int
) -> Float[Tensor, "P G"]:
    """The share of completions whose group's rewards differ: GPG's 1/α, arXiv 2504.02546."""
    constant = constant_rows(rewards.masked_fill(~included, torch.nan))
    share = included[~constant].sum().to(rewards) / included.sum().clamp(min=1)
    return share.expand_as(rewards)


BASELINES: dict[str, Baseline] = {
    "none": Baseline(no_baseline, compares=False),
    "batch_mean": Baseline(batch_mean, compares=False),
    "group_mean": Baseline(group_mean, compares=True),
    "leave_one_out": Baseline(leave_one_out, compares=True),
    "length_weighted": Baseline(length_weighted, compares=True, needs_lengths=True),
    "critic": Baseline(no_baseline, compares=False, learned=True),
}

SCALES: dict[str, Scale] = {
    "none": Scale(None, within_group=False),
    "group_std": Scale(group_std, within_group=True),
    "batch_std": Scale(batch_std, within_group=False),
    "advantage_std": Scale(batch_std, within_group=False, of_centred=True),
    "reward_mean": Scale(reward_mean, within_group=True),
    "bernoulli_std": Scale(bernoulli_std, within_group=True, of_chance=True),
    "informative_share": Scale(informative_share, within_group=False),
    "token_std": Scale(None, within_group=False, of_tokens=True),
}

# Bessel's correction, by the name of the estimator.
STDS: dict[str, int] = {"population": 0, "sample": 1}

# Rewards past this are held at it, so that their squares stay finite in float64.
_LARGEST = 1e100


def scaled_advantages(
    rewards: Float[Tensor, "P G"],
    baseline: Baseline,
    scale: Scale,
    bessel: int,
    std_eps: float,
    lengths: Int[Tensor, "P G"] | None = None,
) -> Float[Tensor, "P G"]:
    """``(r − baseline) / (spread + std_eps)``; NaN rewards are excluded from every statistic.

    Excluded entries get 0. So does every entry of a group that has nothing to compare (rewards
    equal up to rounding, or fewer than two of them) when baseline or scale compare within it.
    Computed in float64, returned in the rewards' type.
    """
    excluded = torch.isnan(rewards)
    values = rewards.masked_fill(excluded, 0.0).double().clamp(-_LARGEST, _LARGEST)
    result = (values - baseline.value(values, ~excluded, lengths)).masked_fill(excluded, 0.0)
    if scale.spread is not None:
        spread = scale.spread(result if scale.of_centred else values, ~excluded, bessel)
        # A constant has a computed spread of a rounding error, not 0.
        flat = (spread == 0) | constant_rows(rewards.reshape(1, -1))
        result = (result / (spread + std_eps).masked_fill(flat, 1.0)).masked_fill(flat, 0.0)
    silent = excluded
    if baseline.compares or scale.within_group:
        silent = silent | constant_rows(rewards)[:, None]
    limit = torch.finfo(rewards.dtype).max
    return result.masked_fill(silent, 0.0).clamp(-limit, limit).to(rewards.dtype)


def _std(values: Tensor, included: Tensor, bessel: int, dim: int) -> Tensor:
    """The std of the included entries along ``dim``, kept; 0 where there are too few for one."""
    count = included.sum(dim=dim, keepdim=True)
    mean = values.sum(dim=dim, keepdim=True) / count.clamp(min=1)
    squares = torch.where(included, values - mean, 0.0).square().sum(dim=dim, keepdim=True)
    return (squares / (count - bessel).clamp(min=1)).sqrt()
