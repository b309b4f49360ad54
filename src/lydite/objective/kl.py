"""Estimators of KL(p‖q) from tokens drawn from p.

After J. Schulman, "Approximating KL divergence" (2020). Each takes ``log q − log p`` of the drawn
token and returns nats per token. The log-ratio is held within ±``LOG_RATIO_LIMIT`` so that no
finite input overflows.
"""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

# e^20 ≈ 4.9e8: past any ratio that a sound run meets, and safe in float32.
LOG_RATIO_LIMIT = 20.0


def log_ratio(above: Float[Tensor, "B T"], below: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """``log above − log below`` within ±``LOG_RATIO_LIMIT``; no gradient past it."""
    return (above - below).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def k1(log_q_over_p: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """``−x``: unbiased, of either sign, high variance."""
    return -log_q_over_p


def k2(log_q_over_p: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """``x²/2``: biased, never negative."""
    return 0.5 * log_q_over_p.square()


def k3(log_q_over_p: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """``eˣ − x − 1``: unbiased and never negative; GRPO's, arXiv 2402.03300 equation 4."""
    return log_q_over_p.expm1() - log_q_over_p


ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
