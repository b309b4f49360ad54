"""How far an optimiser step moves the weights, from what AdamW keeps anyway: no copy of the weights
from before it is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from lydite.model.shards import local, sum_over_shards

_PIECE = {"cpu": 1 << 15}
_LARGE_PIECE = 1 << 24
"""Weights looked at together: on a CPU as many as its cache holds."""


@torch.no_grad()
def update_ratio(groups: Iterable[Mapping[str, Any]], state: Mapping[Tensor, Any]) -> float:
    """``‖ΔW‖ / ‖W‖`` over all weights: the last step of AdamW (1711.05101, algorithm 2) against
    the weights after it. ``groups`` and ``state`` are those of ``torch.optim.AdamW``; NaN before
    its first step, and where all weights are 0.

    The step is taken from the moments rather than as a difference of weights, which would lose the
    small ones to rounding. Where some weights are sharded, every rank must call this.
    """
    weights: list[Tensor] = []
    squares: list[Tensor] = []
    for group in groups:
        for weight in group["params"]:
            if "exp_avg" in state.get(weight, ()):
                weights.append(weight)
                squares.append(_squares(weight, state[weight], group))
    moved, size = sum_over_shards(weights, squares).tolist() if weights else (0.0, 0.0)
    return math.sqrt(moved / size) if size else math.nan


def _squares(weight: Tensor, kept: Mapping[str, Any], group: Mapping[str, Any]) -> Tensor:
    """Squared norms of a weight's step and of the weight, float64 ``[2]``; of a shard, its own."""
    (first, second), count = group["betas"], float(kept["step"])
    # m̂/(√v̂ + ε) = scale · m/(√v + ε·root), so that v is read once and never corrected.
    root = math.sqrt(1 - second**count)
    scale = root / (1 - first**count)
    decay = group["weight_decay"]
    flat = [each.reshape(-1) for each in map(local, (weight, kept["exp_avg"], kept["exp_avg_sq"]))]
    size = _PIECE.get(flat[0].device.type, _LARGE_PIECE)
    total = torch.zeros(2, dtype=torch.float64, device=flat[0].device)
    for now, m, v in zip(*(each.split(size) for each in flat), strict=True):
        step = m / v.sqrt().add_(group["eps"] * root)
        if decay:
            step.add_(now, alpha=decay / scale)
        total += torch.stack([step.dot(step), now.dot(now)])
    # With decay W was multiplied by 1 − ηλ first, and is known after the step only.
    rate = group["lr"] / (1 - group["lr"] * decay)
    return total * total.new_tensor([(rate * scale) ** 2, 1.0])
