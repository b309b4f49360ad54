"""On-policy distillation: what a teacher's log-probabilities of sampled tokens say of them.

The student is to minimise the reverse KL(π‖π_T) at every prefix that it samples. The gradient of
that is ``E_{y~π}[∇log π(y)·(log π(y) − log π_T(y))]``, so the negative log-ratio of the sampled
token is an unbiased advantage (Thinking Machines, "On-Policy Distillation", 2025; Qwen3,
2505.09388 §4.5).
"""

from __future__ import annotations

from jaxtyping import Float, Shaped
from torch import Tensor

from lydite.objective.kl import log_ratio


def token_advantages(
    student: Float[Tensor, "B T"],
    teacher: Float[Tensor, "B T"],
    mask: Shaped[Tensor, "B T"],
    clip: float | None = None,
    discount: float = 0.0,
) -> Float[Tensor, "B T"]:
    """``A_t = Σ_{s≥t} γ^{s−t}·(log π_T − log π)_s``, 0 outside the mask, without gradient.

    Each token's term is held within ``±clip`` nats, and always within ±20. With a ``discount`` γ of
    0 a token answers for itself alone, which is the gradient of the KL at each prefix; with 1 it
    also answers for where it leads, which is that of the whole sequence's KL. A token that the
    student did not sample (mask 0) has no term of its own.
    """
    live = mask.bool()
    terms = log_ratio(teacher, student).detach().masked_fill(~live, 0.0)
    if clip is not None:
        terms = terms.clamp(-clip, clip)
    if discount == 0:
        return terms
    ahead = terms.new_zeros(terms.shape[0])
    found = terms.clone()
    for column in range(terms.shape[1] - 1, -1, -1):
        ahead = terms[:, column] + discount * ahead
        found[:, column] = ahead
    return found.masked_fill(~live, 0.0)
