"""Estimators of KL(p‖q) from tokens drawn from p.

After J. Schulman, "Approximating KL divergence" (2020). Each takes ``log q − log p`` of the drawn
token and returns nats per token. The log-ratio is held within ±``LOG_RATIO_LIMIT`` so that no
finite input overflows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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


def to_go(values: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """``Σ_{s ≥ t} v_s``: what lies ahead of each token, itself included."""
    return values.flip(1).cumsum(1).flip(1)


@dataclass(frozen=True, slots=True)
class Estimator:
    """``weighted``: multiplied by ``π/π_old``, with gradient.

    That makes the gradient of k3 unbiased for tokens that an older policy drew: DeepSeek-V3.2,
    arXiv 2512.02556.
    """

    value: Callable[[Tensor], Tensor]
    weighted: bool = False


ESTIMATORS: dict[str, Estimator] = {
    "k1": Estimator(k1),
    "k2": Estimator(k2),
    "k3": Estimator(k3),
    "k3_unbiased": Estimator(k3, weighted=True),
}

# Where the KL is subtracted, and whether that is from the rewards.
PLACES: dict[str, bool] = {"loss": False, "reward": True}
