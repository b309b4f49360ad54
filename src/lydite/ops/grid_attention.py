"""Attention of groups of short sequences on a CPU, by plain products.

Completions stand in a grid, a row for each prompt: all queries of a prompt's completions, and of
all query heads that share a key head, are one matrix against the prompt's keys, which are never
copied; against their own keys each completion is one. Probabilities are kept for the backward pass,
so the gradients are five products and no exponential. On blocks this small PyTorch's flash
attention takes one and a half to twice as long. It holds ``[B, H, T, P + T]`` numbers, so
it is for short sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Block:
    """Tokens of ``rows × width`` sequences among ``N`` flat ones, from ``start`` on.

    ``gather`` ``[rows, width · longest]`` are their places, any place where there is no token, and
    ``scatter`` the cells that hold one, in flat order; both None where all sequences are equally
    long and none is missing. ``causal`` ``[longest, longest]`` is minus infinity above the
    diagonal, else 0.
    """

    start: int
    tokens: int
    rows: int
    width: int
    longest: int
    gather: Tensor | None
    scatter: Tensor | None
    causal: Tensor


@dataclass(frozen=True, slots=True)
class GroupGrid:
    """Prompts (``width`` 1), and their completions if there are any. ``hidden`` ``[P, 1, longest]``
    is minus infinity past a prompt's end, else 0; None where prompts are equally long.
    """

    prompts: Block
    completions: Block | None
    hidden: Tensor | None

    @property
    def tokens(self) -> int:
        """How many there are; the rest of the ``N`` attend to nothing."""
        return self.prompts.tokens + (0 if self.completions is None else self.completions.tokens)


def blocks(lengths: Tensor, places: Tensor, shape: tuple[int, int], start: int) -> Block:
    """Sequences of ``lengths`` ``[B]`` that lie one after the other from ``start`` on, each in its
    place ``[B]`` of a grid of ``shape``.
    """
    rows, width = shape
    longest = int(lengths.max())
    real = torch.arange(longest) < lengths[:, None]
    gather = scatter = None
    if len(lengths) < rows * width or not bool(real.all()):
        begins = lengths.cumsum(0) - lengths + start
        columns = torch.arange(longest)
        gather = torch.full((rows * width, longest), start)
        gather[places] = torch.where(real, begins[:, None] + columns, start)
        scatter = (places[:, None] * longest + columns)[real]
    causal = torch.full((longest, longest), float("-inf")).triu(1)
    return Block(start, int(lengths.sum()), rows, width, longest, gather, scatter, causal)


def grid_of(prompts: Tensor, completions: Tensor, owners: Tensor) -> GroupGrid:
    """Of prompts of lengths ``[P]``, and completions of lengths ``[B]`` that belong to prompts
    ``[B]``, in their order; without tokens they are left out.
    """
    count = len(prompts)
    first = blocks(prompts, torch.arange(count), (count, 1), 0)
    own = hidden = None
    if int(completions.sum()):
        sizes = owners.bincount(minlength=count)
        rank = torch.arange(len(owners)) - (sizes.cumsum(0) - sizes)[owners]
        width = int(sizes.max())
        own = blocks(completions, owners * width + rank, (count, width), first.tokens)
    if first.gather is not None:
        past = torch.arange(first.longest) >= prompts[:, None]
        hidden = torch.zeros(past.shape).masked_fill_(past, float("-inf"))[:, None]
    return GroupGrid(first, own, hidden)


def grid_attention(
    query: Tensor, key: Tensor, value: Tensor, grid: GroupGrid, scaling: float
) -> Tensor:
    """``[N, H, D]``, differentiable: ``query`` is ``[N, H, D]``, ``key`` and ``value`` are
    ``[N, H_kv, D]``.
    """
    out = _GridAttention.apply(query, key, value, grid, scaling)
    assert isinstance(out, Tensor)
    return out


class _GridAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, grid: GroupGrid, scaling: float
    ) -> Tensor:
        prompts, own = grid.prompts, grid.completions
        q, k, v = _laid_out(query, key, value, prompts)
        q *= scaling
        p = _probabilities(q, k, None, prompts, None)
        out = query.new_empty(query.shape)
        out[grid.tokens :] = 0
        _put(out, _products(p, v, None, prompts), prompts)
        saved = [q, k, v, p]
        if own is not None:
            far = k, v
            q, k, v = _laid_out(query, key, value, own)
            q *= scaling
            p = _probabilities(q, k, far[0], own, grid.hidden)
            _put(out, _products(p, v, far[1], own), own)
            saved += [q, k, v, p]
        ctx.save_for_backward(*saved)
        ctx.grid, ctx.scaling, ctx.heads = grid, scaling, (query.shape[1], key.shape[1])
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved, grid, grad = ctx.saved_tensors, ctx.grid, grads[0]
        heads, kv_heads = ctx.heads
        found = [
            grad.new_empty(grad.shape[0], count, grad.shape[2])
            for count in (heads, kv_heads, kv_heads)
        ]
        for whole in found:
            whole[grid.tokens :] = 0
        parts = _back(grad, saved[:4], None, grid.prompts)
        if grid.completions is not None:
            own = _back(grad, saved[4:], (saved[1], saved[2]), grid.completions)
            parts[1] += own[3]
            parts[2] += own[4]
            own[0] *= ctx.scaling
            for whole, part in zip(found, own, strict=False):
                _put(whole, part, grid.completions)
        parts[0] *= ctx.scaling
        for whole, part in zip(found, parts, strict=False):
            _put(whole, part, grid.prompts)
        return (*found, None, None)


def _back(
    grad: Tensor,
    saved: tuple[Tensor, Tensor, Tensor, Tensor],
    far: tuple[Tensor, Tensor] | None,
    block: Block,
) -> list[Tensor]:
    """Gradients of (scaled) queries, keys and values of a block, and of the prompts' keys and
    values that it looked at.
    """
    q, k, v, p = saved
    d_out = _take(grad, block, k.shape[1])
    if block.gather is not None and block.scatter is not None:
        d_out *= _real(block, d_out)
    d_p = _scores(d_out, v, None if far is None else far[1], block)
    d_s = torch._softmax_backward_data(d_p, p, -1, p.dtype)
    found = [_products(d_s, k, None if far is None else far[0], block)]
    mine, theirs = (_split(x, block, 0 if far is None else far[0].shape[2]) for x in (d_s, p))
    for left, right in ((mine, q), (theirs, d_out)):
        whole = torch.bmm(left[0].transpose(1, 2), _single(right, block))
        found.append(whole.view(k.shape))
    if far is not None:
        for left, right in ((mine, q), (theirs, d_out)):
            whole = torch.bmm(left[1].transpose(1, 2), right.flatten(0, 1))
            found.append(whole.view(far[0].shape))
    return found


def _laid_out(
    query: Tensor, key: Tensor, value: Tensor, block: Block
) -> tuple[Tensor, Tensor, Tensor]:
    """Each ``[rows, H_kv, width · longest (· repeat), D]``, in memory of its own."""
    heads = key.shape[1]
    return _take(query, block, heads), _take(key, block, heads), _take(value, block, heads)


def _take(flat: Tensor, block: Block, kv_heads: int) -> Tensor:
    """``[N, H, D]`` to ``[rows, H_kv, width · longest · H / H_kv, D]``."""
    _, heads, dim = flat.shape
    if block.gather is None:
        cells = flat[block.start : block.start + block.tokens]
    else:
        cells = flat.index_select(0, block.gather.flatten())
    parts = cells.view(block.rows, -1, kv_heads, heads // kv_heads, dim).transpose(1, 2)
    return parts.clone(memory_format=torch.contiguous_format).flatten(2, 3)


def _put(flat: Tensor, laid_out: Tensor, block: Block) -> None:
    """The way back of :func:`_take`, into ``flat``."""
    rows, kv_heads, _, dim = laid_out.shape
    repeat = flat.shape[1] // kv_heads
    parts = laid_out.view(rows, kv_heads, -1, repeat, dim).transpose(1, 2)
    at = flat[block.start : block.start + block.tokens]
    if block.scatter is None:
        at.view(rows, -1, kv_heads, repeat, dim).copy_(parts)
    else:
        cells = parts.reshape(-1, flat.shape[1], dim)
        torch.index_select(cells, 0, block.scatter, out=at)


def _real(block: Block, like: Tensor) -> Tensor:
    """``[rows, 1, width · longest · repeat, 1]``: 1 where there is a token, else 0."""
    assert block.scatter is not None
    cells = like.new_zeros(block.rows * block.width * block.longest)
    cells[block.scatter] = 1
    repeat = like.shape[2] // (block.width * block.longest)
    return cells.view(block.rows, 1, -1, 1).repeat_interleave(repeat, 2)


def _single(x: Tensor, block: Block) -> Tensor:
    """``[rows, H_kv, width · n, D]`` to a matrix for each sequence: ``[rows · H_kv · width, n,
    D]``.
    """
    return x.view(-1, x.shape[2] // block.width, x.shape[3])


def _scores(q: Tensor, k: Tensor, far: Tensor | None, block: Block) -> Tensor:
    """Products with the prompt's keys, then with a sequence's own: ``[rows · H_kv · width, n, Lp +
    longest]``.
    """
    own = torch.bmm(_single(q, block), _single(k, block).transpose(1, 2))
    if far is None:
        return own
    there = torch.bmm(q.flatten(0, 1), far.flatten(0, 1).transpose(1, 2))
    return torch.cat([there.view(*own.shape[:2], -1), own], dim=2)


def _probabilities(
    q: Tensor, k: Tensor, far: Tensor | None, block: Block, hidden: Tensor | None
) -> Tensor:
    scores = _scores(q, k, far, block)
    prompt = 0 if far is None else far.shape[2]
    repeat = scores.shape[1] // block.longest
    scores[:, :, prompt:] += block.causal.repeat_interleave(repeat, 0)
    if hidden is not None and far is not None:
        scores.view(block.rows, -1, scores.shape[2])[:, :, :prompt] += hidden
    return scores.softmax(-1)


def _split(p: Tensor, block: Block, prompt: int) -> tuple[Tensor, Tensor]:
    """What concerns a sequence's own keys, ``[rows · H_kv · width, n, longest]``, and its prompt's,
    ``[rows · H_kv, width · n, Lp]``.
    """
    whole = p.view(-1, block.width * p.shape[1], p.shape[2])
    return p[:, :, prompt:], whole[:, :, :prompt]


def _products(p: Tensor, v: Tensor, far: Tensor | None, block: Block) -> Tensor:
    """``[rows, H_kv, width · n, D]``: sums over keys."""
    own, there = _split(p, block, 0 if far is None else far.shape[2])
    out = torch.bmm(own, _single(v, block)).view(*v.shape[:2], -1, v.shape[3])
    if far is not None:
        out.flatten(0, 1).baddbmm_(there, far.flatten(0, 1))
    return out
