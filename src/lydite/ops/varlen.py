"""Attention of sequences of several lengths on a GPU, without padding and without a mask, by the
variable-length FlashAttention kernels (2307.08691) that are in PyTorch's builds for CUDA.

A packed micro-batch of groups takes three calls a layer, however many groups it has: prompts to
themselves, completions to themselves, and all completions of a prompt, as one block of queries, to
their prompt. The parts are put together by their normalisers, and the backward pass of each is
given the whole's output and normaliser, as in :mod:`lydite.ops.group_attention`.

The kernels take bfloat16 and float16. What they give for small sequences is compared once with
plain attention, and where it is not the same, or they fail, they are not used.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from lydite.ops.group_attention import joined

ON = True
"""False: never, for comparison."""
FORWARD: Any = getattr(torch.ops.aten, "_flash_attention_forward", None)
BACKWARD: Any = getattr(torch.ops.aten, "_flash_attention_backward", None)
DTYPES = frozenset({torch.bfloat16, torch.float16})
MOST_DIM = 192
"""Size of a head up to which every GPU that has the kernels has their backward pass."""
CLOSE = 2e-2
"""How far, in length over length, results may be from plain attention in float32."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Sequences that lie one after the other: ``offsets`` ``[n + 1]`` (int32) are their starts and
    the end of the last; ``longest`` is at least the tokens of the longest.
    """

    offsets: Tensor
    longest: int

    @staticmethod
    def of(lengths: Sequence[int], device: str | torch.device) -> Runs:
        """Of sequences of these lengths, 0 included."""
        sizes = torch.tensor([0, *lengths], dtype=torch.int32)
        # For one query a sequence the kernels swap heads and queries, which takes all for present.
        return Runs(sizes.cumsum(0, dtype=torch.int32).to(device), max(2, *lengths))

    def places(self, tokens: int) -> tuple[Tensor, Tensor]:
        """The sequence of each of all ``tokens``, and its place there."""
        at = torch.arange(tokens, device=self.offsets.device)
        row = torch.searchsorted(self.offsets, at, right=True) - 1
        return row, at - self.offsets[row]


@dataclass(frozen=True, slots=True)
class GroupRuns:
    """Prompts, all completions of each prompt as one, and completions; the last two None where no
    completion has tokens. ``first`` is the number of prompt tokens.
    """

    first: int
    prompts: Runs
    groups: Runs | None
    completions: Runs | None

    @staticmethod
    def of(
        prompts: Sequence[int],
        completions: Sequence[int],
        owners: Sequence[int],
        device: str | torch.device,
    ) -> GroupRuns:
        """Lengths of prompts ``[P]``, of completions ``[B]`` (some of them 0), and the prompt each
        completion belongs to ``[B]``, which count up.
        """
        sizes = [0] * len(prompts)
        for owner, length in zip(owners, completions, strict=True):
            sizes[owner] += length
        some = any(completions)
        return GroupRuns(
            first=sum(prompts),
            prompts=Runs.of(prompts, device),
            groups=Runs.of(sizes, device) if some else None,
            completions=Runs.of([n for n in completions if n], device) if some else None,
        )


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of the kernel: which sequences are queries and which keys, and how."""

    queries: Runs
    keys: Runs
    scaling: float
    causal: bool


def takes(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether these, each ``[..., D]`` with heads in dimension 1, go through the kernels."""
    dim = query.shape[-1]
    return (
        ON
        and query.dtype in DTYPES
        and query.dtype == key.dtype == value.dtype
        and key.shape == value.shape
        and dim == key.shape[-1]
        and dim % 8 == 0
        and dim <= MOST_DIM
        and on_device(query.device)
        and _right(query.device, query.dtype, query.shape[1], key.shape[1], dim)
    )


@cache
def on_device(device: torch.device) -> bool:
    """Whether there are kernels for this device: NVIDIA, Ampere or newer."""
    return (
        device.type == "cuda"
        and FORWARD is not None
        and BACKWARD is not None
        and torch.version.hip is None
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )


def causal_attention(
    query: Tensor, key: Tensor, value: Tensor, runs: Runs, scaling: float
) -> Tensor:
    """Each sequence causal to itself: ``[N, H, D]``. ``query`` is ``[N, H, D]``, ``key`` and
    ``value`` are ``[N, H_kv, D]``. Not differentiable.
    """
    return _attend(query, key, value, _Call(runs, runs, scaling, True))[0]


def group_attention(
    query: Tensor, key: Tensor, value: Tensor, runs: GroupRuns, scaling: float
) -> Tensor:
    """``[N, H, D]``, differentiable: ``query`` is ``[N, H, D]``, ``key`` and ``value`` are
    ``[N, H_kv, D]``. All prompts come before all completions.
    """
    out = _GroupAttention.apply(query, key, value, runs, scaling)
    assert isinstance(out, Tensor)
    return out


def _calls(runs: GroupRuns, scaling: float) -> tuple[_Call, _Call | None, _Call | None]:
    """Prompts to themselves, completions to their prompts, completions to themselves."""
    prompts, groups, own = runs.prompts, runs.groups, runs.completions
    return (
        _Call(prompts, prompts, scaling, True),
        None if groups is None else _Call(groups, prompts, scaling, False),
        None if own is None else _Call(own, own, scaling, True),
    )


class _GroupAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, runs: GroupRuns, scaling: float
    ) -> Tensor:
        prompts, far, own = _calls(runs, scaling)
        first, then = slice(0, runs.first), slice(runs.first, None)
        out, norm, padded = _attend(query[first], key[first], value[first], prompts)
        if far is not None and own is not None:
            there = _attend(query[then], key[first], value[first], far)
            here = _attend(query[then], key[then], value[then], own)
            both, norms = joined(there[:2], here[:2])
            out, norm = torch.cat([out, both.to(out.dtype)]), torch.cat([norm, norms])
        ctx.save_for_backward(query, key, value, out, norm)
        ctx.runs, ctx.scaling, ctx.padded = runs, scaling, padded
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, norm = ctx.saved_tensors
        prompts, far, own = _calls(ctx.runs, ctx.scaling)
        first, then = slice(0, ctx.runs.first), slice(ctx.runs.first, None)
        grad = grads[0].contiguous()

        def back(at: slice, keys: slice, call: _Call) -> tuple[Tensor, Tensor, Tensor]:
            normal = _as_given(norm[at], call.queries, ctx.padded)
            return _back(query[at], key[keys], value[keys], (out[at], normal, grad[at]), call)

        found = back(first, first, prompts)
        if far is None or own is None:
            return (*found, None, None)
        there, here = back(then, first, far), back(then, then, own)
        return (
            torch.cat([found[0], there[0] + here[0]]),
            torch.cat([found[1] + there[1], here[1]]),
            torch.cat([found[2] + there[2], here[2]]),
            None,
            None,
        )


def _attend(query: Tensor, key: Tensor, value: Tensor, call: _Call) -> tuple[Tensor, Tensor, bool]:
    """``[n, H, D]`` and normalisers ``[n, H]`` of ``n`` queries, and whether the kernel pads its
    normalisers.
    """
    out, norm, *_ = FORWARD(
        *(query, key, value, call.queries.offsets, call.keys.offsets),
        *(call.queries.longest, call.keys.longest, 0.0, call.causal, False),
        scale=call.scaling,
    )
    if norm.ndim == 2:
        return out, norm.t(), False
    row, column = call.queries.places(len(query))
    return out, norm[row, :, column], True


def _as_given(norm: Tensor, queries: Runs, padded: bool) -> Tensor:
    """Normalisers ``[n, H]`` as the kernel has them: ``[H, n]``, or in older builds padded
    ``[sequences, H, longest]``.
    """
    if not padded:
        return norm.t().contiguous()
    row, column = queries.places(len(norm))
    whole = norm.new_zeros(len(queries.offsets) - 1, norm.shape[1], queries.longest)
    whole[row, :, column] = norm
    return whole


def _back(
    query: Tensor, key: Tensor, value: Tensor, whole: tuple[Tensor, Tensor, Tensor], call: _Call
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of a part, from the output, normaliser and gradient of the whole."""
    out, norm, grad = whole
    dropout = torch.zeros(2, dtype=torch.uint64, device=query.device)  # its state; there is none
    found: tuple[Tensor, Tensor, Tensor] = BACKWARD(
        *(grad, query, key, value, out, norm, call.queries.offsets, call.keys.offsets),
        *(call.queries.longest, call.keys.longest, 0.0, call.causal, dropout, dropout[0]),
        scale=call.scaling,
    )
    return found


@cache
def _right(device: torch.device, dtype: torch.dtype, heads: int, kv_heads: int, dim: int) -> bool:
    """Whether the kernels give what plain attention gives, on a small micro-batch with all that is
    hard: prompts past a block of keys, of one token, without completions' tokens. Warns where not.
    """
    prompts, completions, owners = (150, 1, 9), (40, 1, 0, 70, 0), (0, 0, 1, 2, 2)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            apart = _furthest((prompts, completions, owners), device, dtype, (heads, kv_heads, dim))
    except RuntimeError as error:
        said = f"fail: {(str(error) or type(error).__name__).splitlines()[0]}"
    else:
        if apart <= CLOSE:
            return True
        said = f"are {apart:.1g} from plain attention"
    warnings.warn(
        f"attention without padding is off, attention with a mask is used: on {device} in {dtype}, "
        f"{heads} heads of {dim}, PyTorch's kernels for it {said}",
        stacklevel=2,
    )
    return False


def _furthest(
    sizes: tuple[Sequence[int], Sequence[int], Sequence[int]],
    device: torch.device,
    dtype: torch.dtype,
    heads: tuple[int, int, int],
) -> float:
    """The largest relative difference of results and gradients from plain attention in float32."""
    many, few, dim = heads
    total = sum(sizes[0]) + sum(sizes[1])
    noise = torch.Generator().manual_seed(0)
    made = [torch.randn(total, n, dim, generator=noise) for n in (many, few, few, many)]
    *inputs, pull = (x.to(device, dtype) for x in made)
    runs, seen = GroupRuns.of(*sizes, device), _visible(*sizes).to(device)
    scaling = dim**-0.5

    def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        key, value = (x.repeat_interleave(many // few, dim=1) for x in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query, key) * scaling
        p = scores.masked_fill(~seen, float("-inf")).softmax(2)
        return torch.einsum("hqk,khd->qhd", p, value)

    def found(attend: Any, given: list[Tensor], grad: Tensor) -> list[Tensor]:
        given = [x.detach().requires_grad_() for x in given]
        out = attend(*given)
        return [out.detach(), *torch.autograd.grad(out, given, grad)]

    ours = found(lambda q, k, v: group_attention(q, k, v, runs, scaling), inputs, pull)
    wanted = found(plain, [x.float() for x in inputs], pull.float())
    apart = [float((a.float() - b).norm() / b.norm()) for a, b in zip(ours, wanted, strict=True)]
    return max(x if x == x else float("inf") for x in apart)


def _visible(prompts: Sequence[int], completions: Sequence[int], owners: Sequence[int]) -> Tensor:
    """``[N, N]``: True where a query (row) of a packed micro-batch sees a key."""
    lengths = torch.tensor([*prompts, *completions])
    owner = torch.tensor([*range(len(prompts)), *owners]).repeat_interleave(lengths)
    line = torch.arange(len(lengths)).repeat_interleave(lengths)
    order = torch.arange(int(lengths.sum()))
    own = (line[:, None] == line) & (order[:, None] >= order)
    return own | ((owner[:, None] == owner) & (line[:, None] != line) & (line < len(prompts)))
