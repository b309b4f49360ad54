"""Log-probabilities and entropies from hidden states without ever holding ``[N, V]`` logits.

Logits are made tile by tile, some rows by some columns of the vocabulary; the backward pass makes
them again. One more product of the head buys memory that does not grow with ``N·V``. Tiles are many
rows high and few columns wide: each part of the weight's gradient is then one long product, written
once. (Whole rows, as one would cut for a softmax, are few at a time at a large vocabulary, and the
gradient of the weight becomes many thin products that each go through all of it: 3 times slower.)
The normaliser and the entropy are gathered over a row's tiles as in 1805.02867.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lydite.ops.linear import linear, outer
from lydite.ops.summed import is_summed

CHUNK_ELEMENTS = 1 << 22
"""Logits held at once: 16 MB of float32, which on a CPU also stays near the caches."""
ROWS_AT_ONCE = 4096
"""Rows of a tile at most."""


@dataclass(frozen=True, slots=True)
class HeadScale:
    """What some architectures do to logits: ``softcap · tanh(logits · scale / softcap)``; then the
    temperature divides.
    """

    temperature: float = 1.0
    scale: float = 1.0
    softcap: float | None = None


def logits_of(hidden: Tensor, weight: Tensor, bias: Tensor | None, scaling: HeadScale) -> Tensor:
    """Logits ``[n, V]`` (float32 or wider) of hidden states ``[n, d]``, scaled, capped, divided by
    the temperature.
    """
    return scaled_logits(raw_logits(hidden, weight, bias), scaling)


@dataclass(frozen=True, slots=True)
class _Tile:
    """Some rows of the logits and some columns. ``members`` are the rows whose target is among the
    columns, ``places`` (rows, columns) where those lie within the tile.
    """

    rows: slice
    columns: slice
    members: Tensor
    places: tuple[Tensor, Tensor]


class _TiledHead(torch.autograd.Function):
    """Keeps the inputs and two numbers for each row; the backward pass makes the logits again."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        scaling: HeadScale,
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        # Over the columns so far: the highest logit, and the sums of p = exp(logit - highest) and
        # of p (logit - highest).
        highest = hidden.new_full(targets.shape, torch.finfo(dtype).min, dtype=dtype)
        total, moment, chosen = (torch.zeros_like(highest) for _ in range(3))
        for tiles in _tiles(targets, weight.shape[0]):
            for tile in tiles:
                rows = tile.rows
                logits = _logits(hidden, weight, bias, tile, scaling)
                chosen[tile.members] = logits[tile.places]
                top = torch.maximum(highest[rows], logits.amax(1))
                shift = highest[rows] - top
                logits -= top[:, None]
                p = logits.exp()
                old, keep = total[rows], shift.exp()
                moment[rows] = keep * (moment[rows] + old * shift)
                total[rows] = keep * old + p.sum(1)
                moment[rows] += p.mul_(logits).sum(1)
                highest[rows] = top
        normaliser = highest + total.log()
        entropies = total.log() - moment / total
        ctx.save_for_backward(hidden, weight, bias, targets, entropies, normaliser)
        ctx.scaling = scaling
        return chosen - highest - total.log(), entropies

    @staticmethod
    def backward(
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        hidden, weight, bias, targets, entropies, normaliser = ctx.saved_tensors
        grad_logprobs, grad_entropies = grads
        if not bool(grad_entropies.any()):
            grad_entropies = torch.zeros(0)
        pull = _Pull(normaliser, entropies, grad_logprobs, grad_entropies)
        # Summed in float32: in bfloat16 what a tile adds vanishes beside what is there already.
        wide = torch.promote_types(weight.dtype, torch.float32)
        needed = ctx.needs_input_grad
        grad_hidden = torch.zeros_like(hidden, dtype=wide) if needed[0] else None
        sums = needed[1] and is_summed(weight)
        so_far = weight.grad if sums else None
        grad_weight = so_far
        if needed[1] and so_far is None:
            grad_weight = torch.empty_like(weight) if len(targets) else torch.zeros_like(weight)
        grad_bias = torch.zeros_like(bias, dtype=wide) if needed[2] else None
        for tiles in _tiles(targets, weight.shape[0]) if len(targets) else []:
            columns = tiles[0].columns
            product: Tensor | None = None
            for tile in tiles:
                logits = _logits(hidden, weight, bias, tile, ctx.scaling)
                d = pull.back(logits, tile, ctx.scaling).to(hidden.dtype)
                if grad_hidden is not None:
                    grad_hidden[tile.rows] += linear(d, weight[columns].t())
                if grad_bias is not None:
                    grad_bias[columns] += d.sum(0, dtype=wide)
                if grad_weight is not None:
                    more = outer(d, hidden[tile.rows])
                    product = more if product is None else product.to(wide) + more
            if grad_weight is not None and product is not None:
                if so_far is None:
                    grad_weight[columns] = product
                else:
                    grad_weight[columns] += product
        if sums:
            weight.grad, grad_weight = grad_weight, None
        return (
            None if grad_hidden is None else grad_hidden.to(hidden.dtype),
            grad_weight,
            None if grad_bias is None else grad_bias.to(weight.dtype),
            None,
            None,
        )


@dataclass(frozen=True, slots=True)
class _Pull:
    """What the backward pass knows of each row, all ``[N]``; ``grad_entropies`` is empty when
    nothing asks for it.
    """

    normaliser: Tensor
    entropies: Tensor
    grad_logprobs: Tensor
    grad_entropies: Tensor

    def back(self, logits: Tensor, tile: _Tile, scaling: HeadScale) -> Tensor:
        """The gradient of a tile's logits before they were scaled. Overwrites ``logits``."""
        rows = tile.rows
        slope = _slope(logits, scaling)
        log_p = logits.sub_(self.normaliser[rows, None])
        # d logp(target) / d logits = onehot - p;  d entropy / d logits = -p (log p + entropy).
        if self.grad_entropies.numel():
            p = log_p.exp()
            d = log_p.add_(self.entropies[rows, None]).mul_(self.grad_entropies[rows, None])
            d = d.add_(self.grad_logprobs[rows, None]).mul_(p).neg_()
        else:
            d = log_p.exp_().mul_(-self.grad_logprobs[rows, None])
        d[tile.places] += self.grad_logprobs[tile.members].to(d.dtype)
        return d if isinstance(slope, float) and slope == 1.0 else d.mul_(slope)


class HeadGradient:
    """The gradients of hidden states, weight and bias (those of them that are needed, in this
    order), chunk of rows by chunk.
    """

    def __init__(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, needed: Sequence[bool]
    ) -> None:
        self._hidden, self._weight = hidden, weight
        # Summed in float32: in bfloat16 what a chunk adds vanishes beside what is there already.
        self._wide = torch.promote_types(weight.dtype, torch.float32)
        self._of_hidden = torch.empty_like(hidden) if needed[0] else None
        self._of_weight = torch.zeros_like(weight, dtype=self._wide) if needed[1] else None
        self._of_bias = (
            torch.zeros_like(bias, dtype=self._wide) if bias is not None and needed[2] else None
        )

    def add(self, part: slice, d_logits: Tensor) -> None:
        """Takes the gradient ``[n, V]`` of a chunk's logits, as they leave the head."""
        d_logits = d_logits.to(self._hidden.dtype)
        if self._of_hidden is not None:
            self._of_hidden[part] = linear(d_logits, self._weight.t())
        if self._of_weight is not None:
            self._of_weight += outer(d_logits, self._hidden[part])
        if self._of_bias is not None:
            self._of_bias += d_logits.sum(0, dtype=self._wide)

    def whole(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """In the weights' own type."""
        of_weight, of_bias = (
            None if grad is None else grad.to(self._weight.dtype)
            for grad in (self._of_weight, self._of_bias)
        )
        return self._of_hidden, of_weight, of_bias


def token_logprobs(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, scaling: HeadScale
) -> tuple[Tensor, Tensor]:
    """Log-probability of each row's target and the entropy of its distribution, both ``[N]`` in
    nats, differentiable.

    ``hidden`` is ``[N, d]``, ``weight`` ``[V, d]``, ``bias`` ``[V]`` or None, ``targets`` ``[N]``.
    Results are float32, or float64 for float64 inputs.
    """
    out: tuple[Tensor, Tensor] = _TiledHead.apply(hidden, weight, bias, targets, scaling)
    return out


def raw_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``[n, V]`` as they leave the head, float32 or wider."""
    logits = linear(hidden, weight, bias)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, tile: _Tile, scaling: HeadScale
) -> Tensor:
    """Logits of a tile, in memory of their own."""
    part = None if bias is None else bias[tile.columns]
    return logits_of(hidden[tile.rows], weight[tile.columns], part, scaling)


def scaled_logits(logits: Tensor, scaling: HeadScale) -> Tensor:
    """Logits of the head as the softmax takes them."""
    factor = scaling.scale if scaling.softcap is not None else scaling.scale / scaling.temperature
    scaled = logits if factor == 1.0 else logits * factor
    if scaling.softcap is not None:
        scaled = torch.tanh(scaled / scaling.softcap) * (scaling.softcap / scaling.temperature)
    return scaled


def _slope(scaled: Tensor, scaling: HeadScale) -> Tensor | float:
    """The derivative of :func:`scaled_logits`, from its result."""
    if scaling.softcap is None:
        return scaling.scale / scaling.temperature
    tanh = scaled * (scaling.temperature / scaling.softcap)
    return (1 - tanh * tanh) * (scaling.scale / scaling.temperature)


def _tiles(targets: Tensor, vocabulary: int) -> list[list[_Tile]]:
    """Cuts ``[N, V]`` into tiles of at most :data:`CHUNK_ELEMENTS`: lists of those that share their
    columns.
    """
    count = targets.shape[0]
    height = max(1, min(count, ROWS_AT_ONCE, CHUNK_ELEMENTS))
    width = max(1, min(vocabulary, CHUNK_ELEMENTS // height))
    high, wide = -(-count // height), -(-vocabulary // width)
    tile_of = targets // width * high + torch.arange(count, device=targets.device) // height
    order = tile_of.argsort(stable=True)
    sizes = tile_of.bincount(minlength=high * wide).tolist()
    members = iter(order.split(sizes))
    found: list[list[_Tile]] = []
    for left in range(0, vocabulary, width):
        columns = slice(left, min(vocabulary, left + width))
        found.append([])
        for top in range(0, count, height):
            own = next(members)
            found[-1].append(
                _Tile(
                    slice(top, min(count, top + height)),
                    columns,
                    own,
                    (own - top, targets[own] - left),
                )
            )
    return found


def chunks(rows: int, vocabulary: int) -> list[slice]:
    """Cuts rows so that a chunk has at most ``CHUNK_ELEMENTS`` logits (one row at least)."""
    size = max(1, CHUNK_ELEMENTS // vocabulary)
    return [slice(start, min(rows, start + size)) for start in range(0, rows, size)]
