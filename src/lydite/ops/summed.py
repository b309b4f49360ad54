"""Gradients of embeddings, summed where they lie.

Autograd hands on the gradient of a whole embedding for each of its uses, lookup and head, keeps the
first until the second is there, and adds both to the sum so far: up to three arrays of ``[V, d]``
and as many passes over memory in every micro-batch, the first of them when activations are at their
fullest. Here each use adds what it has to the sum itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_SUMMED: set[int] = set()


@contextmanager
def summed_in_place(weights: Iterable[Tensor]) -> Iterator[None]:
    """Backward passes while it is open add the gradients of these weights to their ``grad``
    themselves, where they can, and hand nothing on: for passes that do nothing else with them.

    Left out are weights that are not float32 or wider, whose sums would lose small gradients, and
    those on another device than a CPU, where rows would be added in no fixed order.
    """
    own = {
        id(weight)
        for weight in weights
        if weight.is_leaf
        and weight.device.type == "cpu"
        and weight.dtype in (torch.float32, torch.float64)
    } - _SUMMED
    _SUMMED.update(own)
    try:
        yield
    finally:
        _SUMMED.difference_update(own)


def is_summed(weight: Tensor) -> bool:
    """Whether its gradient is to be added to ``weight.grad`` rather than handed on."""
    return id(weight) in _SUMMED


def lookup(ids: Tensor, weight: Tensor, padding: int | None = None) -> Tensor:
    """Rows ``[..., d]`` of ``weight`` ``[V, d]`` by ids of any shape, differentiable. As
    ``nn.Embedding``, the row of the id ``padding`` gets no gradient.
    """
    out = _Lookup.apply(ids, weight, -1 if padding is None else padding % len(weight))
    assert isinstance(out, Tensor)
    return out


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, padding: int) -> Tensor:
        ctx.save_for_backward(ids, weight)
        ctx.padding = padding
        return torch.nn.functional.embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        ids, weight = ctx.saved_tensors
        if not is_summed(weight):
            return None, _dense(grads[0], ids, weight, ctx.padding), None
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
        rows, places = grads[0].flatten(0, -2), ids.flatten()
        if ctx.padding >= 0:
            real = places != ctx.padding
            rows, places = rows[real], places[real]
        weight.grad.index_add_(0, places, rows)
        return None, None, None


def _dense(grad: Tensor, ids: Tensor, weight: Tensor, padding: int) -> Tensor:
    found: Tensor = torch.ops.aten.embedding_dense_backward(grad, ids, len(weight), padding, False)
    return found
