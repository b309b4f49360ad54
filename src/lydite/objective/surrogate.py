"""What each token's gradient is taken of: the importance ratio, and the surrogate built on it.

A surrogate is one function and one line in ``SURROGATES``. All are to be maximised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lydite.objective.kl import log_ratio


@dataclass(frozen=True, slots=True)
class Clip:
    """The ratio is held in ``[1 − low, 1 + high]``, and below ``dual`` where advantages are < 0."""

    low: float
    high: float
    dual: float | None = None


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a surrogate may use, each ``[B, T]``. ``policy`` (nats) and ``ratio`` have gradient."""

    policy: Tensor
    ratio: Tensor
    advantages: Tensor


@dataclass(frozen=True, slots=True)
class Gain:
    """``value`` ``[B, T]`` to maximise, and which tokens were clipped, and so have no gradient."""

    value: Tensor
    above: Tensor
    below: Tensor


def token_ratio(
    policy: Float[Tensor, "B T"], old: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """``π(o_t) / π_old(o_t)`` of each token, arXiv 2402.03300 equation 3."""
    return log_ratio(policy, old).exp()


def sequence_ratio(
    policy: Float[Tensor, "B T"], old: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """``s_i = exp(1/|o_i| Σ_t log(π / π_old))``, the same for every token.

    GSPO, arXiv 2507.18071 equation 7. Every token of a sequence carries it, so a
    ``sample_mean`` of the tokens is the paper's ``1/G Σ_i``.
    """
    summed = log_ratio(policy, old).masked_fill(~mask, 0.0).sum(dim=1, keepdim=True)
    return (summed / mask.sum(dim=1, keepdim=True).clamp(min=1)).exp().expand_as(policy)


def clipped(tokens: Tokens, clip: Clip) -> Gain:
    """``min(r·A, clip(r, 1 − low, 1 + high)·A)``.

    PPO, arXiv 1707.06347 equation 7; low ≠ high is DAPO's clip-higher, arXiv 2503.14476 §3.1. With
    ``dual`` = c it is at least ``c·A`` where A < 0 (dual-clip PPO, arXiv 1912.09729).
    """
    ratio, advantages = tokens.ratio, tokens.advantages
    low, high = 1.0 - clip.low, 1.0 + clip.high
    value = torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
    above = (ratio > high) & (advantages > 0)
    below = (ratio < low) & (advantages < 0)
    if clip.dual is not None:
        bounded = (ratio > clip.dual) & (advantages < 0)
        value = torch.where(bounded, clip.dual * advantages, value)
        above = above | bounded
    return Gain(value, above, below)


def reinforce(tokens: Tokens, clip: Clip) -> Gain:
    """``A·log π``: no ratio and no clip, for one update per rollout. RLOO's, arXiv 2402.14740."""
    never = torch.zeros_like(tokens.advantages, dtype=torch.bool)
    return Gain(tokens.advantages * tokens.policy, never, never)


@dataclass(frozen=True, slots=True)
class Surrogate:
    """``uses_ratio``: importance ratios and the clip range mean something to it."""

    gain: Callable[[Tokens, Clip], Gain]
    uses_ratio: bool


RATIOS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "token": token_ratio,
    "sequence": sequence_ratio,
}

SURROGATES: dict[str, Surrogate] = {
    "clip": Surrogate(clipped, uses_ratio=True),
    "reinforce": Surrogate(reinforce, uses_ratio=False),
}
