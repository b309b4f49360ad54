"""Which groups carry a signal, for one whose rewards are all equal has nothing to compare; which
prompts are solved.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

# Rewards that were added up in another order differ in the last bits; that is no signal.
_ROUNDING_STEPS = 16.0


@dataclass(frozen=True, slots=True)
class Filter:
    """``drops``: groups of equal rewards leave the step. ``refills``: others are drawn for them."""

    drops: bool = True
    refills: bool = False


FILTERS: dict[str, Filter] = {
    "none": Filter(drops=False),
    "drop_zero_variance": Filter(),
    "dynamic_sampling": Filter(refills=True),
}


def constant_rows(rewards: Float[Tensor, "P G"]) -> Bool[Tensor, " P"]:
    """``[P]``: True where fewer than two rewards are not NaN, or those are equal up to rounding."""
    included = ~torch.isnan(rewards)
    high = rewards.masked_fill(~included, -torch.inf).amax(dim=1)
    low = rewards.masked_fill(~included, torch.inf).amin(dim=1)
    largest = rewards.masked_fill(~included, 0.0).abs().amax(dim=1)
    tolerance = _ROUNDING_STEPS * torch.finfo(rewards.dtype).eps * largest
    return high - low <= tolerance


def informative(rewards: Float[Tensor, "P G"]) -> Bool[Tensor, " P"]:
    """``[P]``: the groups whose rewards differ; for rewards of two values, 0 < #correct < G.

    DAPO, arXiv 2503.14476, equation 11.
    """
    return ~constant_rows(rewards)


def solved(right: Bool[Tensor, "P G"], share: float | None) -> Bool[Tensor, " P"]:
    """``[P]``: the groups of which at least ``share`` is right; none where it is ``None``.

    ScaleRL, arXiv 2510.13786, takes prompts whose pass rate has reached 0.9 out of all later
    epochs. The pass rate here is that of the last group alone, since an older policy drew those
    before: with 8 completions, 0.9 means all of them.
    """
    if share is None:
        return torch.zeros(right.shape[0], dtype=torch.bool, device=right.device)
    return right.double().mean(dim=1) >= share
