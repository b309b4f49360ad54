"""How far an optimiser step moves the weights, from what AdamW keeps anyway: no copy of the weights
from before it is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from lydite.model.shards import is_sharded, local, sum_over_shards

_PIECE = {"cpu": 1 << 18}
_LARGE_PIECE = 1 << 24
"""Weights looked at together: on a CPU so many that what is made of them stays in its cache, and
calls cost little beside them.
"""


@torch.no_grad()
def update_ratio(groups: Iterable[Mapping[str, Any]], state: Mapping[Tensor, Any]) -> float:
    """``‖ΔW‖ / ‖W‖`` over all weights: the last step of AdamW (1711.05101, algorithm 2) against
    the weights after it. ``groups`` and ``state`` are those of ``torch.optim.AdamW``; NaN before
    its first step, and where all weights are 0.

    The step is taken from the moments rather than as a difference of weights, which would lose the
    small ones to rounding. Where some weights are sharded, every rank must call this.
    """
    looked = _Looked()
    for group in groups:
        for weight in group["params"]:
            if "exp_avg" in state.get(weight, ()):
                looked.at(weight, state[weight], group)
    moved, size = looked.sums()
    return math.sqrt(moved / size) if size else math.nan


class _Looked:
    """Squared norms of steps and of weights, piece by piece, on this rank's shards."""

    def __init__(self) -> None:
        self._weights: list[Tensor] = []
        self._scales: list[float] = []
        self._moved: list[Tensor] = []
        self._sizes: list[Tensor] = []
        self._rooms: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def at(self, weight: Tensor, kept: Mapping[str, Any], group: Mapping[str, Any]) -> None:
        """Adds a weight with its moments and its group's settings."""
        (first, second), count = group["betas"], float(kept["step"])
        # m̂/(√v̂ + ε) = scale · m/(√v + ε·root), so that v is read once and never corrected.
        root = math.sqrt(1 - second**count)
        scale = root / (1 - first**count)
        decay = group["weight_decay"]
        # With decay W was multiplied by 1 − ηλ first, and is known after the step only.
        rate = group["lr"] / (1 - group["lr"] * decay)
        flat = [
            each.reshape(-1) for each in map(local, (weight, kept["exp_avg"], kept["exp_avg_sq"]))
        ]
        room = self._room(flat[0])
        large = flat[0].numel() > room.numel()
        pieces = zip(*(each.split(room.numel()) for each in flat), strict=True) if large else [flat]
        for now, m, v in pieces:
            step = torch.sqrt(v, out=room[: v.numel()])
            torch.div(m, step.add_(group["eps"] * root), out=step)
            if decay:
                step.add_(now, alpha=decay / scale)
            self._weights.append(weight)
            self._scales.append((rate * scale) ** 2)
            self._moved.append(step.dot(step))
            self._sizes.append(now.dot(now))

    def sums(self) -> tuple[float, float]:
        """Of all steps and of all weights, over all shards."""
        if not self._weights:
            return 0.0, 0.0
        both = torch.stack([torch.stack(self._moved), torch.stack(self._sizes)], dim=1).double()
        both[:, 0] *= both.new_tensor(self._scales)
        whole = not any(map(is_sharded, self._weights))
        total = both.sum(0) if whole else sum_over_shards(self._weights, both.unbind())
        moved, size = total.tolist()
        return moved, size

    def _room(self, like: Tensor) -> Tensor:
        """Where a piece's step is made: memory that is new for each would be cold."""
        key = like.device, like.dtype
        if key not in self._rooms:
            self._rooms[key] = like.new_empty(_PIECE.get(like.device.type, _LARGE_PIECE))
        return self._rooms[key]
