"""Runs a group's prompt once for all its completions, with gradient and without padding in the
linear layers.

Tokens of a micro-batch lie flat: first every prompt, then every completion less its last token,
whose hidden state nobody asks for. A completion's queries attend to the prompt's keys and to its
own; the prompt's keys receive gradient from all ``G`` of them. This is the same function as ``G``
separate sequences, computed with ``G - 1`` fewer prompts. Only inside attention may sequences be
padded, to the longest in the micro-batch; of long prompts on a CPU, and in half precision on a GPU,
they are not.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from lydite.ops import varlen
from lydite.ops.grid_attention import GroupGrid, grid_attention, grid_of
from lydite.ops.group_attention import GroupSpans, available, group_attention
from lydite.ops.linear import WHOLE

PARTS_FROM = 512
"""Keys that one call would copy for each prompt, completions times the prompt's tokens, from which
on attention on a CPU is computed in parts (:mod:`lydite.ops.group_attention`). With fewer, calls
cost more than copies.
"""
GRID_UP_TO = 2
"""Keys that a completion's token sees at most, in sizes of a head, up to which attention of float32
on a CPU is computed by plain products (:mod:`lydite.ops.grid_attention`): what that keeps for the
backward pass is then at most twice the queries.
"""
GRID_FILLED = 0.6
"""And the share of places for completions, as many for each prompt, that must be taken.
"""


ROUND = 64
"""On a CPU, micro-batches of :data:`lydite.ops.linear.WHOLE` tokens and more are filled up to a
multiple of it by tokens that nobody looks at. oneDNN builds kernels for every number of rows and
keeps a thousand, half a megabyte each: lengths as they come would fill it.
"""


@dataclass(frozen=True, slots=True)
class PackedGroups:
    """A micro-batch as flat tensors.

    ``input_ids`` and ``position_ids`` are ``[N]``. ``predictor[m]`` is the flat index of the token
    whose hidden state predicts ``targets[m]``, for the ``M`` tokens of all completions in order;
    ``rows`` and ``columns`` place them in a padded ``[B, T]``. Both may be longer, see
    :data:`ROUND`: what is past the ``M`` counts nowhere.
    """

    input_ids: Tensor
    position_ids: Tensor
    predictor: Tensor
    targets: Tensor
    rows: Tensor
    columns: Tensor
    shape: tuple[int, int]
    layout: GroupLayout

    def padded(self, values: Tensor) -> Tensor:
        """Values of ``predictor``'s tokens as ``[B, T]``, zero where there is no token.
        Differentiable.
        """
        out = values.new_zeros(self.shape)
        return out.index_put((self.rows, self.columns), values[: len(self.rows)])


@dataclass(frozen=True, slots=True)
class _Block:
    """Where a set of flat sequences lies: ``gather`` ``[n, longest]`` flat indices, ``scatter``
    ``[tokens]`` back.
    """

    start: int
    gather: Tensor
    lengths: Tensor
    scatter: Tensor

    @property
    def tokens(self) -> int:
        return self.scatter.shape[0]


class GroupLayout:
    """Attention of prompts causal to themselves, and of completions to their own prompt and
    themselves.

    Implements :class:`lydite.ops.layout.Layout`.
    """

    def __init__(
        self, prompts: Sequence[int], completions: Sequence[int], owners: Sequence[int], device: str
    ) -> None:
        """Lengths of prompts ``[P]``, of completions ``[B]``, and the prompt each completion
        belongs to ``[B]``.
        """
        self._prompts = _block(prompts, 0, device)
        self._completions = (
            _block(completions, self._prompts.tokens, device) if sum(completions) else None
        )
        self._owners = torch.tensor(owners, dtype=torch.long, device=device)
        self._sizes = (prompts, completions, owners)
        self._runs: varlen.GroupRuns | None = None
        copied = len(completions) * max(prompts) / len(prompts)
        parts = device == "cpu" and copied >= PARTS_FROM and available()
        self._spans = self._in_parts() if parts else None
        self._grid: GroupGrid | None = None
        self._mask: Tensor | None = None

    def _short(self, value: Tensor) -> bool:
        """Whether plain products pay."""
        own = self._completions
        if value.device.type != "cpu" or value.dtype not in (torch.float32, torch.float64):
            return False
        keys = self._prompts.gather.shape[1] + (0 if own is None else own.gather.shape[1])
        places = len(self._prompts.lengths) * int(self._owners.bincount().max())
        filled = len(self._owners) >= GRID_FILLED * places
        return filled and keys <= GRID_UP_TO * value.shape[-1]

    def _as_grid(self) -> GroupGrid:
        own = self._completions
        none = torch.zeros_like(self._owners)
        return grid_of(self._prompts.lengths, none if own is None else own.lengths, self._owners)

    def _in_parts(self) -> GroupSpans:
        """Where prompts and the completions of each lie; owners count up."""
        prompts, starts = self._prompts, 0
        sizes = torch.zeros(len(prompts.lengths), dtype=torch.long)
        own = self._completions
        if own is not None:
            sizes.index_add_(0, self._owners, own.lengths)
        spans: list[list[slice]] = []
        for lengths in (prompts.lengths, sizes):
            ends = (lengths.cumsum(0) + starts).tolist()
            begins = [starts, *ends[:-1]]
            spans.append([slice(a, b) for a, b in zip(begins, ends, strict=True)])
            starts = prompts.tokens
        nothing = torch.zeros(0, dtype=torch.long)
        if own is None:
            return GroupSpans(spans[0], spans[1], nothing, nothing.bool(), nothing)
        real = torch.arange(own.gather.shape[1]) < own.lengths[:, None]
        return GroupSpans(spans[0], spans[1], own.gather + own.start, real, own.scatter)

    def _completion_mask(self) -> Tensor:
        """``[B, 1, Lc, Lp + Lc]``: True where a completion's query may look."""
        assert self._completions is not None
        width_p, width_c = self._prompts.gather.shape[1], self._completions.gather.shape[1]
        device = self._owners.device
        prompt = torch.arange(width_p, device=device) < self._prompts.lengths[self._owners, None]
        causal = torch.ones(width_c, width_c, dtype=torch.bool, device=device).tril()
        batch = self._owners.shape[0]
        return torch.cat(
            [
                prompt[:, None].expand(batch, width_c, width_p),
                causal.expand(batch, width_c, width_c),
            ],
            dim=2,
        )[:, None]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float
    ) -> Tensor:
        """See :class:`lydite.ops.layout.Layout`; the same for every layer."""
        del layer
        q, k, v = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))
        if self._grid is None and v.shape == k.shape and self._short(v):
            self._grid = self._as_grid()
        if self._grid is not None:
            return grid_attention(q, k, v, self._grid, scaling)[None]
        if self._spans is not None and v.shape == k.shape:
            return group_attention(q, k, v, self._spans, scaling)[None]
        if varlen.takes(q, k, v):
            if self._runs is None:
                self._runs = varlen.GroupRuns.of(*self._sizes, q.device)
            return varlen.group_attention(q, k, v, self._runs, scaling)[None]
        if self._mask is None and self._completions is not None:
            self._mask = self._completion_mask()
        repeat = query.shape[1] // key.shape[1]
        k_prompt, v_prompt = (self._pick(x, self._prompts, repeat) for x in (k, v))
        out = scaled_dot_product_attention(
            self._pick(q, self._prompts, 1), k_prompt, v_prompt, is_causal=True, scale=scaling
        )
        flat = take(out.transpose(1, 2).flatten(0, 1), self._prompts.scatter)
        if self._completions is None:
            return self._filled_up(flat, query.shape[2])
        k_own, v_own = (self._pick(x, self._completions, repeat) for x in (k, v))
        out = scaled_dot_product_attention(
            self._pick(q, self._completions, 1),
            torch.cat([take(k_prompt, self._owners), k_own], dim=2),
            torch.cat([take(v_prompt, self._owners), v_own], dim=2),
            attn_mask=self._mask,
            scale=scaling,
        )
        own = take(out.transpose(1, 2).flatten(0, 1), self._completions.scatter)
        return self._filled_up(torch.cat([flat, own]), query.shape[2])

    @staticmethod
    def _filled_up(flat: Tensor, tokens: int) -> Tensor:
        """``[1, tokens, H, D]``, zero past the last token that counts."""
        spare = tokens - len(flat)
        return (torch.cat([flat, flat.new_zeros(spare, *flat.shape[1:])]) if spare else flat)[None]

    @staticmethod
    def _pick(flat: Tensor, block: _Block, repeat: int) -> Tensor:
        """``[N, h, D]`` to ``[n, h·repeat, longest, D]``."""
        tokens = flat[block.start : block.start + block.tokens]
        padded = take(tokens, block.gather).transpose(1, 2)
        return padded if repeat == 1 else padded.repeat_interleave(repeat, dim=1)


def take(x: Tensor, index: Tensor) -> Tensor:
    """``x[index]``, rows of ``x`` by an index of any shape, with the same gradient every time.

    A row that is taken several times collects several gradients, and a float sum depends on their
    order. On a CPU with several threads indexing adds them in no fixed order, on a GPU
    ``index_select`` does; each is fixed where the other is not. A resumed run repeats to the bit.
    """
    if x.device.type == "cpu":
        rows = x.index_select(0, index.flatten())
        return rows.view(*index.shape, *x.shape[1:])
    return x[index]


def _block(lengths: Sequence[int], start: int, device: str) -> _Block:
    sizes = torch.tensor(lengths, dtype=torch.long)
    longest = int(sizes.max())
    columns = torch.arange(longest)
    real = columns < sizes[:, None]
    first = sizes.cumsum(0) - sizes
    # Padding points at a real token: its output is dropped, and no query sees its key.
    gather = torch.where(real, first[:, None] + columns, 0)
    scatter = real.flatten().nonzero().squeeze(1)
    return _Block(start, gather.to(device), sizes.to(device), scatter.to(device))


def pack_groups(
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[Sequence[int]]],
    device: str = "cpu",
) -> PackedGroups:
    """Packs ``P`` prompts and each one's completions (token ids; no prompt and no completion is
    empty).

    Row ``b`` of the padded ``[B, T]`` counts completions in order, group by group.
    """
    owners = [p for p, group in enumerate(completions) for _ in group]
    flat = [list(completion) for group in completions for completion in group]
    assert all(prompts), "a prompt needs a token to predict from"
    assert all(flat), "an empty completion has nothing to learn from"
    inner = [len(completion) - 1 for completion in flat]
    layout = GroupLayout([len(p) for p in prompts], inner, owners, device)
    ids = [token for prompt in prompts for token in prompt] + [t for c in flat for t in c[:-1]]
    positions = [i for prompt in prompts for i in range(len(prompt))]
    positions += [len(prompts[o]) + i for o, n in zip(owners, inner, strict=True) for i in range(n)]
    predictor = _predictors([len(p) for p in prompts], inner, owners)
    lengths = torch.tensor([len(c) for c in flat])
    rows = torch.arange(len(flat)).repeat_interleave(lengths)
    columns = torch.cat([torch.arange(n) for n in lengths.tolist()])
    goals = [token for completion in flat for token in completion]
    if device == "cpu":
        ids, positions = _filled(ids), _filled(positions)
        predictor, goals = _filled(predictor), _filled(goals)
    return PackedGroups(
        input_ids=_integers(ids).to(device),
        position_ids=_integers(positions).to(device),
        predictor=_integers(predictor).to(device),
        targets=_integers(goals).to(device),
        rows=rows.to(device),
        columns=columns.to(device),
        shape=(len(flat), int(lengths.max())),
        layout=layout,
    )


def _integers(values: list[int]) -> Tensor:
    """``torch.tensor(values)``, which looks at each of them for its type, in a fifth of the time;
    some values.
    """
    return torch.frombuffer(array("q", values), dtype=torch.long)


def _filled(values: list[int]) -> list[int]:
    """Up to a multiple of :data:`ROUND` with zeros; few stay as they are."""
    return values + [0] * (-len(values) % ROUND if len(values) >= WHOLE else 0)


def _predictors(prompts: Sequence[int], inner: Sequence[int], owners: Sequence[int]) -> list[int]:
    """The first token of a completion is predicted by its prompt's last; each later one by the one
    before it.
    """
    ends = torch.tensor(prompts).cumsum(0) - 1
    start = int(ends[-1]) + 1
    found: list[int] = []
    for owner, n in zip(owners, inner, strict=True):
        found.append(int(ends[owner]))
        found.extend(range(start, start + n))
        start += n
    return found
