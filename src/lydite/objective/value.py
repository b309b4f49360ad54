"""What a critic minimises: how far its values are from the returns, per token."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lydite.objective.aggregate import Counts
from lydite.objective.loss import inside
from lydite.objective.metrics import Metrics


def value_loss(
    values: Float[Tensor, "B T"],
    before: Float[Tensor, "B T"],
    returns: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    counts: Counts,
    clip: float | None = None,
) -> tuple[Float[Tensor, ""], Metrics]:
    """``½·mean_t max((V − R)², (V' − R)²)``, ``V'`` being V held within ``clip`` of ``before``.

    The clip is OpenAI's PPO2 (arXiv 2005.12729 §3; not in the paper of PPO): a value that has moved
    past it, towards its return, stops learning from this rollout. The mean is over ``counts``, the
    tokens of the whole optimiser step, so that micro-batches add up.

    Metrics are per-token means: ``value_loss``, and ``value_clip``, the share without gradient.
    """
    live, start, goal = (inside(x, mask) for x in (values, before, returns))
    start, goal = start.detach(), goal.detach()
    error = (live - goal).square()
    clipped = torch.zeros_like(mask)
    if clip is not None:
        held = (start + (live - start).clamp(-clip, clip) - goal).square()
        clipped = (held > error) & ((live - start).abs() > clip)
        error = torch.maximum(error, held)
    half = 0.5 * error
    loss = half.masked_fill(~mask, 0.0).sum() / max(counts.tokens, 1)
    return loss, Metrics.over(mask, {"value_loss": half, "value_clip": clipped.to(half.dtype)})


def explained_variance(
    values: Float[Tensor, "B T"], returns: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> float | None:
    """``1 − Var(R − V) / Var(R)`` over the tokens in the mask: 1 is a perfect critic, 0 one that
    says the same of every token; ``None`` where all returns are equal.
    """
    goal, error = (x[mask].double() for x in (returns, returns - values))
    if not len(goal):
        return None
    rounding = 16 * torch.finfo(returns.dtype).eps * goal.abs().max()
    whole = goal.std(unbiased=False)
    if whole <= rounding:
        return None
    return 1.0 - (error.std(unbiased=False) / whole).square().item()
