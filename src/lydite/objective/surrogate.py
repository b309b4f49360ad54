"""What each token's gradient is taken of: the importance ratio, and the surrogate built on it.

A surrogate is one function and one line in ``SURROGATES``. All are to be maximised.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lydite.objective.kl import LOG_RATIO_LIMIT, log_ratio


@dataclass(frozen=True, slots=True)
class Clip:
    """The ratio is held in ``[1 − low, 1 + high]``, and below ``dual`` where advantages are < 0."""

    low: float
    high: float
    dual: float | None = None


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a surrogate may use, each ``[B, T]``. ``policy`` (nats) and ``ratio`` have gradient.

    ``anchor`` is what the ratio is taken against, in nats.
    """

    policy: Tensor
    anchor: Tensor
    ratio: Tensor
    advantages: Tensor
    mask: Tensor


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


def gspo_token_ratio(
    policy: Float[Tensor, "B T"], old: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """``sg[s_i]·π_t/sg[π_t]``: the sequence's value, the token's gradient.

    GSPO-token, arXiv 2507.18071 §4.3.
    """
    value = sequence_ratio(policy, old, mask).detach()
    return value * (policy - policy.detach()).exp()


def product_ratio(
    policy: Float[Tensor, "B T"], old: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """``Π_t π / π_old``, the importance weight of the whole sequence, the same for every token."""
    summed = log_ratio(policy, old).masked_fill(~mask, 0.0).sum(dim=1, keepdim=True)
    return summed.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp().expand_as(policy)


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
    return _unclipped(tokens.advantages * tokens.policy)


def cispo(tokens: Tokens, clip: Clip) -> Gain:
    """``sg[clip(r, 1 − low, 1 + high)]·A·log π``: a clipped token keeps its gradient.

    CISPO, arXiv 2506.13585 equation 4.
    """
    weight = tokens.ratio.detach().clamp(1.0 - clip.low, 1.0 + clip.high)
    return _unclipped(weight * tokens.advantages * tokens.policy)


def gmpo(tokens: Tokens, clip: Clip) -> Gain:
    """``exp(mean_t log r_t)·A``, each log-ratio held on the side where it would gain.

    ``log r ≤ high`` where A > 0, ``log r ≥ −low`` where A < 0. GMPO, arXiv 2507.20673.
    """
    logs, positive = log_ratio(tokens.policy, tokens.anchor), tokens.advantages > 0
    above, below = positive & (logs > clip.high), ~positive & (logs < -clip.low)
    held = torch.where(positive, logs.clamp(max=clip.high), logs.clamp(min=-clip.low))
    count = tokens.mask.sum(dim=1, keepdim=True).clamp(min=1)
    mean = held.masked_fill(~tokens.mask, 0.0).sum(dim=1, keepdim=True) / count
    return Gain(mean.exp() * tokens.advantages, above, below & (tokens.advantages < 0))


# Temperatures of SAPO's gate, for A > 0 and for the rest.
SAPO_POSITIVE, SAPO_NEGATIVE = 1.0, 1.05


def sapo(tokens: Tokens, clip: Clip) -> Gain:
    """``(4/τ)·σ(τ(r − 1))·A``: a gate that closes smoothly. SAPO, arXiv 2511.20347."""
    positive = tokens.advantages > 0
    tau = torch.full_like(tokens.ratio, SAPO_NEGATIVE).masked_fill(positive, SAPO_POSITIVE)
    gate = torch.sigmoid(tau * (tokens.ratio - 1.0)) * 4.0 / tau
    return _unclipped(gate * tokens.advantages)


def dppo(tokens: Tokens, clip: Clip) -> Gain:
    """``r·A``, without gradient where the probability has moved too far in A's direction.

    A > 0 with ``π − μ > high``, A < 0 with ``π − μ < −low``: total variation, not a ratio, so that
    rare tokens are not the first to be stopped. DPPO, arXiv 2602.04879.
    """
    moved = tokens.policy.detach().clamp(max=0).exp() - tokens.anchor.clamp(max=0).exp()
    above = (tokens.advantages > 0) & (moved > clip.high)
    below = (tokens.advantages < 0) & (moved < -clip.low)
    value = tokens.ratio * tokens.advantages
    return Gain(torch.where(above | below, value.detach(), value), above, below)


# VESPO's (k, λ), for A ≥ 0 and for A < 0.
VESPO_POSITIVE, VESPO_NEGATIVE = (2.0, 3.0), (3.0, 2.0)


def vespo(tokens: Tokens, clip: Clip) -> Gain:
    """``sg[W^k·exp(λ(1 − W))]·A·log π`` with the sequence's weight W. VESPO, arXiv 2602.10693."""
    good = tokens.advantages >= 0
    weight = tokens.ratio.detach()
    k, rate = (
        torch.full_like(weight, other).masked_fill(good, one)
        for one, other in zip(VESPO_POSITIVE, VESPO_NEGATIVE, strict=True)
    )
    kernel = (k * weight.log() + rate * (1.0 - weight)).exp()
    return _unclipped(kernel * tokens.advantages * tokens.policy)


def _unclipped(value: Tensor) -> Gain:
    never = torch.zeros_like(value, dtype=torch.bool)
    return Gain(value, never, never)


def ratio_edges(clip: Clip, probability: float) -> tuple[float, float]:
    """Between which ratios a token is not clipped: ``1 − low``, ``1 + high``."""
    return 1.0 - clip.low, 1.0 + clip.high


def log_ratio_edges(clip: Clip, probability: float) -> tuple[float, float]:
    """The same where the log-ratio is held: ``e^−low``, ``e^high``."""
    return math.exp(-clip.low), math.exp(clip.high)


def probability_edges(clip: Clip, probability: float) -> tuple[float, float]:
    """The same for a token of this old ``probability``, where its change is held."""
    return 1.0 - clip.low / probability, 1.0 + clip.high / probability


@dataclass(frozen=True, slots=True)
class Surrogate:
    """``formula`` is for people; numbers of the objective stand in braces. ``ratio``, ``clip``,
    ``dual``: the importance ratio, the clip range, the bound for A < 0 mean something to it.
    ``only_ratio``: the one ratio that it is made for. ``edges``: the clip range as ratios of a
    token, by its old probability.
    """

    gain: Callable[[Tokens, Clip], Gain]
    formula: str
    ratio: bool = True
    clip: bool = True
    dual: bool = False
    only_ratio: str | None = None
    edges: Callable[[Clip, float], tuple[float, float]] = ratio_edges


RATIOS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "token": token_ratio,
    "sequence": sequence_ratio,
    "gspo_token": gspo_token_ratio,
    "product": product_ratio,
}

# What the ratio is taken against, and whether that is what the engine sampled with.
ANCHORS: dict[str, bool] = {"old": False, "behaviour": True}

SURROGATES: dict[str, Surrogate] = {
    "clip": Surrogate(
        clipped, "gain = min( ρA, clip(ρ, 1 − {clip_low:g}, 1 + {clip_high:g})·A )", dual=True
    ),
    "reinforce": Surrogate(reinforce, "gain = A·log π(oₜ)", ratio=False, clip=False),
    "cispo": Surrogate(cispo, "gain = sg[clip(ρ, {floor:g}, {cap:g})]·A·log π(oₜ)"),
    "gmpo": Surrogate(
        gmpo,
        "gain = exp( 1/|o| Σₜ ℓₜ )·A,  ℓₜ = min(log ρₜ, {clip_high:g}) where A > 0, "
        "max(log ρₜ, −{clip_low:g}) where A < 0",
        only_ratio="token",
        edges=log_ratio_edges,
    ),
    "sapo": Surrogate(
        sapo, "gain = 4/τ·σ(τ(ρ − 1))·A,  τ = 1 where A > 0, 1.05 elsewhere", clip=False
    ),
    "dppo": Surrogate(
        dppo,
        "gain = ρA, constant where π − {under} > {clip_high:g} and A > 0, or < "
        "−{clip_low:g} and A < 0",
        only_ratio="token",
        edges=probability_edges,
    ),
    "vespo": Surrogate(
        vespo,
        "gain = sg[ρᵏ·exp(λ(1 − ρ))]·A·log π(oₜ),  (k, λ) = (2, 3) where A ≥ 0, (3, 2) where A < 0",
        clip=False,
        only_ratio="product",
    ),
}
