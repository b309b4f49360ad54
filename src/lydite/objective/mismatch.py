"""How far the sampler's probabilities are from the trainer's, as moments that add up over
micro-batches and ranks, and what is made of them in the end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor

from lydite.objective.kl import log_ratio

LOW, HIGH = 0.5, 2.0
"""Ratios outside these are counted: where alerts on a mean ratio are set in practice."""

MOMENTS = ("weight", "weight_squared", "p", "q", "p_squared", "q_squared", "p_q")
_PREFIX = "moment_"


def moments(
    trainer: Float[Tensor, "B T"], sampler: Float[Tensor, "B T"]
) -> dict[str, Float[Tensor, "B T"]]:
    """Per token: the importance weight and its square, both probabilities, their squares and
    product, and whether the weight is outside of ``[0.5, 2]``. Both are log-probabilities, 0
    outside the mask.
    """
    weight = log_ratio(trainer, sampler).exp()
    p, q = trainer.clamp(max=0).exp(), sampler.clamp(max=0).exp()
    values = (weight, weight.square(), p, q, p.square(), q.square(), p * q)
    outside = ((weight < LOW) | (weight > HIGH)).to(weight.dtype)
    named = zip(MOMENTS, values, strict=True)
    return {"mismatch_outside": outside, **{_PREFIX + name: value for name, value in named}}


def derived(means: Mapping[str, float]) -> dict[str, float]:
    """The means of a step, moments turned into what they are for.

    ``mismatch_ess`` is the effective sample size of the weights as a share,
    ``E[w]²/E[w²]``; ``mismatch_correlation`` Pearson's of both probabilities over tokens (left out
    where one of them never varies); ``ratio_std`` the deviation of the importance ratio.
    """
    found = {n: v for n, v in means.items() if not n.startswith(_PREFIX) and n != "ratio_squared"}
    if "ratio_squared" in means:
        found["ratio_std"] = math.sqrt(max(0.0, means["ratio_squared"] - means["ratio"] ** 2))
    if _PREFIX + "weight" not in means:
        return found
    w, w2, p, q, p2, q2, pq = (means[_PREFIX + name] for name in MOMENTS)
    if w2 > 0:
        found["mismatch_ess"] = w * w / w2
    variances = p2 - p * p, q2 - q * q
    # Below float32's rounding of the squares there is no variance to speak of.
    if min(variances) > 1e-7:
        correlation = (pq - p * q) / math.sqrt(variances[0] * variances[1])
        found["mismatch_correlation"] = max(-1.0, min(1.0, correlation))
    return found
