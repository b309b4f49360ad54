"""Weights that correct for an engine whose probabilities differ a little from the learner's.

Each takes ``π_old/π_behaviour`` as log-ratios ``[B, T]`` (0 outside the mask), the mask, and the
bounds. A weight of 0 takes a token's gradient, not its place in the denominators: as published.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from lydite.objective.kl import LOG_RATIO_LIMIT


def truncated(
    gap: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], low: float, high: float
) -> Float[Tensor, "B T"]:
    """Truncated importance sampling per token: ``min(π_old / π_behaviour, high)``.

    F. Yao et al., "Your efficient RL framework secretly brings you off-policy RL training" (2025).
    """
    return gap.exp().clamp(max=high)


def truncated_sequence(
    gap: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], low: float, high: float
) -> Float[Tensor, "B T"]:
    """The product of a sequence's ratios, truncated at ``high``: :func:`truncated` by sequence."""
    return truncated(_product(gap), mask, low, high)


def masked_token(
    gap: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], low: float, high: float
) -> Float[Tensor, "B T"]:
    """The token's ratio within ``[low, high]``, 0 outside: IcePop, arXiv 2510.18855."""
    ratio = gap.exp()
    return ratio.masked_fill((ratio < low) | (ratio > high), 0.0)


def masked_sequence(
    gap: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], low: float, high: float
) -> Float[Tensor, "B T"]:
    """The product of a sequence's ratios within ``[low, high]``, 0 outside: masked importance
    sampling.

    J. Liu et al., "When speed kills stability" (2025).
    """
    return masked_token(_product(gap), mask, low, high)


def geometric_mask(
    gap: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], low: float, high: float
) -> Float[Tensor, "B T"]:
    """1 for a sequence whose geometric mean ratio is within ``[low, high]``, else 0 (SkyRL)."""
    count = mask.sum(dim=1, keepdim=True).clamp(min=1)
    mean = (gap.sum(dim=1, keepdim=True) / count).exp()
    return ((mean >= low) & (mean <= high)).to(gap.dtype).expand_as(gap)


def _product(gap: Tensor) -> Tensor:
    """The log-ratio of the whole sequence, for each of its tokens."""
    summed = gap.sum(dim=1, keepdim=True).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return summed.expand_as(gap)


@dataclass(frozen=True, slots=True)
class Weighing:
    """``floor``: the lower bound means something to it."""

    weight: Callable[[Tensor, Tensor, float, float], Tensor]
    floor: bool = False


CORRECTIONS: dict[str, Weighing | None] = {
    "none": None,
    "tis": Weighing(truncated),
    "tis_sequence": Weighing(truncated_sequence),
    "mis": Weighing(masked_sequence, floor=True),
    "icepop": Weighing(masked_token, floor=True),
    "geometric_mask": Weighing(geometric_mask, floor=True),
}


def on_policy_or_good(
    lag: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    most: float,
) -> Float[Tensor, "B T"]:
    """0 where ``A < 0`` and the sequence's mean ``log π_behaviour/π`` is above ``most``, else 1.

    Off-policy sequence masking, DeepSeek-V3.2, arXiv 2512.02556. ``lag`` is that log-ratio per
    token, 0 outside the mask.
    """
    mean = lag.sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    return (~((mean > most) & (advantages < 0))).to(lag.dtype)
