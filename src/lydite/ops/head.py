"""Log-probabilities and entropies from hidden states without ever holding ``[N, V]`` logits.

Rows go through the head in chunks; the backward pass computes each chunk's logits again. One more
product of the head buys memory that does not grow with ``N·V``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lydite.ops.linear import linear, outer

CHUNK_ELEMENTS = 1 << 22
"""Logits held at once: 16 MB of float32, which on a CPU also stays near the caches."""


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


class _ChunkedHead(torch.autograd.Function):
    """Keeps the inputs and each row's entropy; the backward pass makes the logits again."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        scaling: HeadScale,
    ) -> tuple[Tensor, Tensor]:
        rows = hidden.shape[0]
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        logprobs = hidden.new_empty(rows, dtype=dtype)
        entropies = hidden.new_empty(rows, dtype=dtype)
        for part in chunks(rows, weight.shape[0]):
            log_p = logits_of(hidden[part], weight, bias, scaling).log_softmax(1)
            logprobs[part] = log_p.gather(1, targets[part, None]).squeeze(1)
            entropies[part] = -(log_p.exp() * log_p).sum(1)
        ctx.save_for_backward(hidden, weight, bias, targets, entropies)
        ctx.scaling = scaling
        return logprobs, entropies

    @staticmethod
    def backward(
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        hidden, weight, bias, targets, entropies = ctx.saved_tensors
        grad_logprobs, grad_entropies = grads
        gathered = HeadGradient(hidden, weight, bias, ctx.needs_input_grad)
        for part in chunks(hidden.shape[0], weight.shape[0]):
            with torch.enable_grad():
                logits = raw_logits(hidden[part], weight, bias).detach().requires_grad_()
                scaled = scaled_logits(logits, ctx.scaling)
            log_p = scaled.detach().log_softmax(1)
            p = log_p.exp()
            # d logp(target) / d logits = onehot - p;  d entropy / d logits = -p (log p + entropy).
            d_scaled = -p * grad_logprobs[part, None]
            d_scaled.scatter_add_(
                1, targets[part, None], grad_logprobs[part, None].to(d_scaled.dtype)
            )
            if grad_entropies is not None and bool(grad_entropies[part].any()):
                d_scaled -= grad_entropies[part, None] * p * (log_p + entropies[part, None])
            (d_logits,) = torch.autograd.grad(scaled, logits, d_scaled)
            gathered.add(part, d_logits)
        return *gathered.whole(), None, None


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
    out: tuple[Tensor, Tensor] = _ChunkedHead.apply(hidden, weight, bias, targets, scaling)
    return out


def raw_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``[n, V]`` as they leave the head, float32 or wider."""
    logits = linear(hidden, weight, bias)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def scaled_logits(logits: Tensor, scaling: HeadScale) -> Tensor:
    """Logits of the head as the softmax takes them."""
    scaled = logits * (
        scaling.scale if scaling.softcap is not None else scaling.scale / scaling.temperature
    )
    if scaling.softcap is not None:
        scaled = torch.tanh(scaled / scaling.softcap) * (scaling.softcap / scaling.temperature)
    return scaled


def chunks(rows: int, vocabulary: int) -> list[slice]:
    """Cuts rows so that a chunk has at most ``CHUNK_ELEMENTS`` logits (one row at least)."""
    size = max(1, CHUNK_ELEMENTS // vocabulary)
    return [slice(start, min(rows, start + size)) for start in range(0, rows, size)]
