"""How far a student's next-token distributions are from a teacher's, over the whole vocabulary, and
still without holding ``[N, V]`` logits of either: rows go through both heads in chunks, and the
backward pass makes the student's logits again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lydite.ops.head import (
    HeadGradient,
    HeadScale,
    chunks,
    logits_of,
    raw_logits,
    scaled_logits,
)


@dataclass(frozen=True, slots=True)
class Rows:
    """What predicts ``N`` tokens: hidden states ``[N, d]``, and the head ``[V, d]`` (bias ``[V]``
    or None) that makes logits of them.
    """

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    scaling: HeadScale


def divergence(student: Rows, teacher: Rows, beta: float = 1.0) -> Tensor:
    """``[N]`` in nats, differentiable in the student: see :func:`divergence_of`.

    Where one head has more rows than the other (padding of the vocabulary), both distributions are
    those over the tokens that they share.
    """
    out: Tensor = _ChunkedDivergence.apply(
        student.hidden, student.weight, student.bias, student.scaling, teacher, beta
    )
    return out


def divergence_of(log_p: Tensor, log_q: Tensor, beta: float) -> Tensor:
    """``[n]``: the divergence of students ``log_p`` from teachers ``log_q``, both ``[n, V]``.

    ``beta`` 1 is the reverse KL(p‖q), 0 the forward KL(q‖p); between them lies the generalised
    Jensen-Shannon divergence of GKD (2306.13649, eq. 1): with the mixture ``m = β·q + (1−β)·p``,
    ``β·KL(q‖m) + (1−β)·KL(p‖m)``.
    """
    if beta == 1:
        return _kl(log_p, log_q)
    if beta == 0:
        return _kl(log_q, log_p)
    share = torch.tensor(beta, dtype=log_p.dtype, device=log_p.device)
    mixed = torch.logaddexp(log_q + share.log(), log_p + (-share).log1p())
    return beta * _kl(log_q, mixed) + (1 - beta) * _kl(log_p, mixed)


def _kl(log_a: Tensor, log_b: Tensor) -> Tensor:
    return (log_a.exp() * (log_a - log_b)).sum(1)


class _ChunkedDivergence(torch.autograd.Function):
    """Keeps the inputs; the backward pass makes the logits again."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        scaling: HeadScale,
        teacher: Rows,
        beta: float,
    ) -> Tensor:
        ctx.save_for_backward(hidden, weight, bias)
        ctx.scaling, ctx.teacher, ctx.beta = scaling, teacher, beta
        found = hidden.new_empty(
            hidden.shape[0], dtype=torch.promote_types(hidden.dtype, torch.float32)
        )
        for part in _parts(hidden, weight, teacher):
            logits = logits_of(hidden[part], weight, bias, scaling)
            found[part] = divergence_of(*_shared(logits, teacher, part), beta)
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias = ctx.saved_tensors
        (pull,) = grads
        gathered = HeadGradient(hidden, weight, bias, ctx.needs_input_grad)
        for part in _parts(hidden, weight, ctx.teacher):
            with torch.enable_grad():
                logits = raw_logits(hidden[part], weight, bias).detach().requires_grad_()
                pair = _shared(scaled_logits(logits, ctx.scaling), ctx.teacher, part)
                apart = divergence_of(*pair, ctx.beta)
            (d_logits,) = torch.autograd.grad(apart, logits, pull[part])
            gathered.add(part, d_logits)
        return *gathered.whole(), None, None, None


def _shared(logits: Tensor, teacher: Rows, part: slice) -> tuple[Tensor, Tensor]:
    """Log-probabilities of both over the tokens that they share."""
    with torch.no_grad():
        theirs = logits_of(teacher.hidden[part], teacher.weight, teacher.bias, teacher.scaling)
    both = min(logits.shape[1], theirs.shape[1])
    wide = torch.promote_types(logits.dtype, theirs.dtype)
    log_p, log_q = (x[:, :both].to(wide).log_softmax(1) for x in (logits, theirs))
    return log_p, log_q


def _parts(hidden: Tensor, weight: Tensor, teacher: Rows) -> list[slice]:
    return chunks(hidden.shape[0], max(weight.shape[0], teacher.weight.shape[0]))
