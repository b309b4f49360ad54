"""What a completion is credited with, before anything is compared: from reward parts to a number.

Each takes parts ``[P, G, R]`` (NaN: excluded), weights ``[R]`` and a :class:`Rule`, and returns
``[P, G]``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from lydite.objective.advantage import BASELINES, SCALES, scaled_advantages


@dataclass(frozen=True, slots=True)
class Rule:
    """The objective's numbers that a credit may use: ``k``, and how a std is taken (Bessel's
    correction, what is added to it).
    """

    k: int = 1
    bessel: int = 0
    std_eps: float = 0.0


def weighted_sum(
    parts: Float[Tensor, "P G R"], weights: Float[Tensor, " R"], rule: Rule
) -> Float[Tensor, "P G"]:
    """``Σ_r w_r·r_r``: the reward itself when there is one part. Finite if the rewards are."""
    most = torch.finfo(parts.dtype).max / parts.shape[2]
    return (parts * weights).clamp(-most, most).sum(dim=2)


def pass_at_k(
    parts: Float[Tensor, "P G R"], weights: Float[Tensor, " R"], rule: Rule
) -> Float[Tensor, "P G"]:
    """The chance that ``k`` answers, this one among them, hold a right one: a reward above 0.

    1 for a right answer, ``1 − C(N⁻−1, k−1)/C(N−1, k−1)`` for a wrong one. The group's mean of it
    is pass@k, ``1 − C(N⁻, k)/C(N, k)``. Pass@k training, arXiv 2508.10751.
    """
    rewards = weighted_sum(parts, weights, rule)
    included = ~torch.isnan(rewards)
    right = included & (rewards > 0)
    total = included.sum(dim=1, keepdim=True).to(rewards)
    wrong = total - right.sum(dim=1, keepdim=True)
    none = torch.ones_like(total)
    for j in range(1, rule.k):  # C(N⁻−1, k−1)/C(N−1, k−1), factor by factor; 0 where N⁻ < k
        none = none * (wrong - j).clamp(min=0) / (total - j).clamp(min=1)
    return torch.where(right, 1.0, 1.0 - none).masked_fill(~included, torch.nan)


def standardised_parts(
    parts: Float[Tensor, "P G R"], weights: Float[Tensor, " R"], rule: Rule
) -> Float[Tensor, "P G"]:
    """``Σ_r w_r·(r_r − mean)/std`` within the group: no part drowns another.

    GDPO, arXiv 2601.05242.
    """
    shape = parts.shape
    rows = parts.movedim(2, 0).reshape(shape[2] * shape[0], shape[1])
    scaled = scaled_advantages(
        rows, BASELINES["group_mean"], SCALES["group_std"], rule.bessel, rule.std_eps
    )
    each = scaled.reshape(shape[2], shape[0], shape[1]).movedim(0, 2)
    return (each * weights).sum(dim=2).masked_fill(torch.isnan(parts).any(dim=2), torch.nan)


@dataclass(frozen=True, slots=True)
class Credit:
    """``by_part``: the parts of a reward do not simply add up. ``chance``: it is one, of ``k``
    completions.
    """

    value: Callable[[Tensor, Tensor, Rule], Tensor]
    by_part: bool = False
    chance: bool = False


CREDITS: dict[str, Credit] = {
    "reward": Credit(weighted_sum),
    "pass_at_k": Credit(pass_at_k, chance=True),
    "standardised_parts": Credit(standardised_parts, by_part=True),
}
