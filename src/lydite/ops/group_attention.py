"""Attention of groups on a CPU, in parts that are never copied: a prompt to itself, completions to
themselves, and all completions of a group, as one block of queries, to their prompt.

The parts of a query's attention are put together by their normalisers, as blocks are in
FlashAttention (2205.14135, §3.1) and Ring Attention (2310.01889). PyTorch's kernel for a CPU gives
the normaliser of a part, and its backward pass, given the whole's output and normaliser in place of
the part's, gives the part's share of the whole's gradient.

Against one call whose keys are each completion's own copy of its prompt, padded and masked: memory
that does not grow with the number of completions times the length of the prompt, long blocks
instead of short ones, and keys whose gradients are summed inside the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_NAME = "_scaled_dot_product_flash_attention_for_cpu"


def available() -> bool:
    """Whether this build of PyTorch has the kernel and its backward pass."""
    return hasattr(torch.ops.aten, _NAME) and hasattr(torch.ops.aten, f"{_NAME}_backward")


@dataclass(frozen=True, slots=True)
class GroupSpans:
    """Where tokens lie among ``N`` flat ones.

    ``prompts[p]`` and ``completions[p]`` are the tokens of prompt ``p`` and of all its completions.
    ``gather`` ``[B, longest]`` are the flat places of each completion's tokens, any place where
    ``real`` ``[B, longest]`` is False; ``scatter`` are the true ones of ``real``, counted flat.
    """

    prompts: list[slice]
    completions: list[slice]
    gather: Tensor
    real: Tensor
    scatter: Tensor


def group_attention(
    query: Tensor, key: Tensor, value: Tensor, spans: GroupSpans, scaling: float
) -> Tensor:
    """``[N, H, D]``, differentiable: ``query`` is ``[N, H, D]``, ``key`` and ``value`` are
    ``[N, H_kv, D]``. All prompts come before all completions.
    """
    out = _GroupAttention.apply(query, key, value, spans, scaling)
    assert isinstance(out, Tensor)
    return out


class _GroupAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, spans: GroupSpans, scaling: float
    ) -> Tensor:
        wide = torch.promote_types(query.dtype, torch.float32)
        out = query.new_zeros(query.shape)
        norm = query.new_empty(query.shape[:2], dtype=wide)
        for at in spans.prompts:
            out[at], norm[at] = _attend(query[at], key[at], value[at], scaling, causal=True)
        if len(spans.scatter):
            own = _own(query, key, value, spans, scaling)
            first = spans.prompts[-1].stop
            for prompt, at in zip(spans.prompts, spans.completions, strict=True):
                if at.stop > at.start:
                    inner = slice(at.start - first, at.stop - first)
                    far = _attend(query[at], key[prompt], value[prompt], scaling, causal=False)
                    out[at], norm[at] = joined(far, (own[0][inner], own[1][inner]))
        ctx.save_for_backward(query, key, value, out, norm)
        ctx.spans, ctx.scaling = spans, scaling
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, norm = ctx.saved_tensors
        spans, scaling = ctx.spans, ctx.scaling
        grad = grads[0].contiguous()
        wide = torch.promote_types(query.dtype, torch.float32)
        found = tuple(x.new_zeros(x.shape, dtype=wide) for x in (query, key, value))
        for at in spans.prompts:
            whole = out[at], norm[at], grad[at]
            parts = _back(query[at], key[at], value[at], whole, scaling, causal=True)
            for x, part in zip(found, parts, strict=True):
                x[at] = part
        if len(spans.scatter):
            first = spans.prompts[-1].stop
            parts = _own_back(query, key, value, (out, norm, grad), spans, scaling)
            for x, part in zip(found, parts, strict=True):
                x[first : first + len(part)] = part
            for prompt, at in zip(spans.prompts, spans.completions, strict=True):
                if at.stop > at.start:
                    whole = out[at], norm[at], grad[at]
                    parts = _back(
                        query[at], key[prompt], value[prompt], whole, scaling, causal=False
                    )
                    for x, place, part in zip(found, (at, prompt, prompt), parts, strict=True):
                        x[place] += part
        return (*(x.to(query.dtype) for x in found), None, None)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, causal: bool
) -> tuple[Tensor, Tensor]:
    """``[n, H, D]`` and normalisers ``[n, H]`` of ``n`` queries and ``m`` keys."""
    q, k, v = _by_head(query, key, value)
    out, norm = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, scale=scaling
    )
    return out.permute(2, 1, 0, 3).flatten(1, 2), norm.permute(2, 1, 0).flatten(1)


def _back(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    whole: tuple[Tensor, Tensor, Tensor],
    scaling: float,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of a part, from the output, normaliser and gradient of the whole."""
    q, k, v = _by_head(query, key, value)
    heads = k.shape[1]
    out, grad = (x.unflatten(1, (heads, -1)).permute(2, 1, 0, 3) for x in (whole[0], whole[2]))
    norm = whole[1].unflatten(1, (heads, -1)).permute(2, 1, 0)
    d_q, d_k, d_v = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, q, k, v, out, norm, 0.0, causal, scale=scaling
    )
    wide = norm.dtype
    return (
        d_q.permute(2, 1, 0, 3).flatten(1, 2),
        d_k.sum(0, dtype=wide).transpose(0, 1),
        d_v.sum(0, dtype=wide).transpose(0, 1),
    )


def _by_head(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``[r, H_kv, ·, D]`` each, where ``r`` query heads share a key head. Nothing is copied."""
    repeat = query.shape[1] // key.shape[1]
    q = query.unflatten(1, (key.shape[1], repeat)).permute(2, 1, 0, 3)
    return q, *(x.transpose(0, 1).expand(repeat, -1, -1, -1) for x in (key, value))


def _own(
    query: Tensor, key: Tensor, value: Tensor, spans: GroupSpans, scaling: float
) -> tuple[Tensor, Tensor]:
    """Completions to themselves: ``[n, H, D]`` and ``[n, H]`` of their ``n`` tokens in order."""
    q, k, v = (_padded(x, spans) for x in (query, key, value))
    out, norm = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, *_repeated(q, k, v), 0.0, True, scale=scaling
    )
    return _flat(out, spans), _flat(norm[..., None], spans)[..., 0]


def _own_back(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    whole: tuple[Tensor, Tensor, Tensor],
    spans: GroupSpans,
    scaling: float,
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v, out, grad = (_padded(x, spans) for x in (query, key, value, whole[0], whole[2]))
    norm = _padded(whole[1][..., None], spans)[..., 0]
    # Queries that are padding: probabilities of zero.
    norm = norm.masked_fill(~spans.real[:, None], float("inf"))
    d_q, d_k, d_v = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, q, *_repeated(q, k, v), out, norm, 0.0, True, scale=scaling
    )
    heads = k.shape[1]
    d_k, d_v = (x.unflatten(1, (heads, -1)).sum(2, dtype=norm.dtype) for x in (d_k, d_v))
    return _flat(d_q, spans), _flat(d_k, spans), _flat(d_v, spans)


def _repeated(query: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    repeat = query.shape[1] // others[0].shape[1]
    if repeat == 1:
        return others
    return tuple(x.repeat_interleave(repeat, dim=1) for x in others)


def _padded(flat: Tensor, spans: GroupSpans) -> Tensor:
    """``[N, h, D]`` to ``[B, h, longest, D]``."""
    rows = flat.index_select(0, spans.gather.flatten())
    found: Tensor = rows.unflatten(0, spans.gather.shape).transpose(1, 2)
    return found


def _flat(padded: Tensor, spans: GroupSpans) -> Tensor:
    """The way back, of completion tokens only: ``[B, h, longest, D]`` to ``[n, h, D]``."""
    found: Tensor = padded.transpose(1, 2).flatten(0, 1).index_select(0, spans.scatter)
    return found


def joined(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Two parts of the same queries' attention as one."""
    norm: Tensor = torch.logaddexp(one[1], other[1])
    first, second = (out * (part - norm).exp()[..., None] for out, part in (one, other))
    return first + second, norm
