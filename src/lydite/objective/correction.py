"""Weights that correct for an engine whose probabilities differ a little from the learner's."""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

from lydite.objective.kl import log_ratio


def truncated(
    old: Float[Tensor, "B T"], behaviour: Float[Tensor, "B T"], cap: float
) -> Float[Tensor, "B T"]:
    """Truncated importance sampling per token: ``min(π_old / π_behaviour, cap)``.

    F. Yao et al., "Your efficient RL framework secretly brings you off-policy RL training" (2025).
    """
    return log_ratio(old, behaviour).exp().clamp(max=cap)


CORRECTIONS: dict[str, Callable[[Tensor, Tensor, float], Tensor] | None] = {
    "none": None,
    "tis": truncated,
}
