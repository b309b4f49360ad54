"""Which tokens of an optimiser step are treated apart, and how.

What is picked depends on all tokens of the step, so it is picked once, before the first backward
pass, from the log-probs and entropies of the weights that the step starts from
(:meth:`Objective.pick`), and handed to every micro-batch: cutting the step changes nothing.
A token without gradient stays in the denominators, as in the papers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

# Clip-Cov's band of covariances, arXiv 2505.22617.
COVARIANCE_BAND = (1.0, 5.0)

# Token values, log-probs and picks; (policy, start, value, picked, strength) → value.
Treatment = Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]


def covariance(
    logprobs: Float[Tensor, " N"], advantages: Float[Tensor, " N"]
) -> Float[Tensor, " N"]:
    """``(A − mean A)·(log π − mean log π)`` over the step's tokens, arXiv 2505.22617 §4.2."""
    return (advantages - advantages.mean()) * (logprobs - logprobs.mean())


def highest_entropy(
    logprobs: Float[Tensor, " N"],
    advantages: Float[Tensor, " N"],
    entropy: Float[Tensor, " N"],
    share: float,
) -> Bool[Tensor, " N"]:
    """The ``share`` of tokens with the highest entropy, the 80/20 rule, arXiv 2506.01939."""
    return _top(entropy, share)


def highest_covariance(
    logprobs: Float[Tensor, " N"],
    advantages: Float[Tensor, " N"],
    entropy: Float[Tensor, " N"],
    share: float,
) -> Bool[Tensor, " N"]:
    """The ``share`` of tokens with the highest covariance: KL-Cov, arXiv 2505.22617."""
    return _top(covariance(logprobs, advantages), share)


def spread_over_band(
    logprobs: Float[Tensor, " N"],
    advantages: Float[Tensor, " N"],
    entropy: Float[Tensor, " N"],
    share: float,
) -> Bool[Tensor, " N"]:
    """A ``share`` of the tokens, out of those whose covariance is in the band: Clip-Cov.

    The paper draws them at random; here every n-th by rank is taken, which spreads them as evenly
    and gives the same answer in any order and on any number of machines. arXiv 2505.22617.
    """
    values = covariance(logprobs, advantages)
    low, high = COVARIANCE_BAND
    inside = ((values >= low) & (values <= high)).nonzero().flatten()
    picked = torch.zeros_like(values, dtype=torch.bool)
    count = min(_count(values, share), len(inside))
    if count:
        ranked = inside[values[inside].argsort(stable=True)]
        picked[ranked[torch.arange(count, device=values.device) * len(inside) // count]] = True
    return picked


def only_picked(
    policy: Tensor, start: Tensor, value: Tensor, picked: Tensor, strength: float
) -> Tensor:
    """The others have no gradient and no value."""
    return value.masked_fill(~picked, 0.0)


def without_picked(
    policy: Tensor, start: Tensor, value: Tensor, picked: Tensor, strength: float
) -> Tensor:
    """The picked have no gradient."""
    return torch.where(picked, value.detach(), value)


def penalise_picked(
    policy: Tensor, start: Tensor, value: Tensor, picked: Tensor, strength: float
) -> Tensor:
    """The picked pay ``strength·|log π − log π_old|``."""
    drift = (policy - start).masked_fill(~picked, 0.0)
    return value - strength * drift.abs()


@dataclass(frozen=True, slots=True)
class Filter:
    """``pick`` takes (log-probs, advantages, entropies, share), each over the step's tokens.

    ``moves_idle``: a token of advantage 0 has gradient under it. ``of_drift``: it takes, by the
    strength, from how far a token has moved since the rollout.
    """

    pick: Callable[[Tensor, Tensor, Tensor, float], Tensor]
    treat: Treatment
    moves_idle: bool = False
    of_drift: bool = False


TOKEN_FILTERS: dict[str, Filter | None] = {
    "none": None,
    "high_entropy": Filter(highest_entropy, only_picked),
    "clip_cov": Filter(spread_over_band, without_picked),
    "kl_cov": Filter(highest_covariance, penalise_picked, moves_idle=True, of_drift=True),
}


def _count(values: Tensor, share: float) -> int:
    """At least one token, where there are any: the published shares are below one in a thousand."""
    return min(len(values), max(1, round(share * len(values))))


def _top(values: Tensor, share: float) -> Tensor:
    picked = torch.zeros_like(values, dtype=torch.bool)
    picked[values.topk(_count(values, share)).indices] = True
    return picked
