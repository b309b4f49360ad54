"""Keys and values of sequences in flight, and how one new token of each attends to them.

A prompt's keys and values are written once and read by all ``G`` rows that complete it: their
queries are gathered into one matrix per prompt, so that the prompt is read once a group and not
once a row. Each row has a slice of its own for what it has generated. Slots and rows stay dense:
the last moves into a hole, so no step gathers a cache or works on a finished row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

COLUMNS = 64
"""Arenas grow in this many tokens at least, and double, so that growing costs no more than filling.
"""


@dataclass(frozen=True, slots=True)
class KeyValueShape:
    """What one token leaves in the cache: ``2 · layers · heads · dim`` numbers."""

    layers: int
    heads: int
    dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def token_bytes(self) -> int:
        return 2 * self.layers * self.heads * self.dim * self.dtype.itemsize


class Arena:
    """``[2, layers, rows, heads, columns, dim]``: keys, then values. Zeroed, so that masked places
    stay finite.
    """

    def __init__(self, shape: KeyValueShape) -> None:
        self._shape = shape
        self._data = self._zeros(0, 0)

    @property
    def bytes(self) -> int:
        return self._data.nbytes

    @property
    def rows(self) -> int:
        return self._data.shape[2]

    @property
    def columns(self) -> int:
        return self._data.shape[4]

    @property
    def address(self) -> int:
        """Where it lies; elsewhere after it has grown."""
        return self._data.data_ptr()

    def _zeros(self, rows: int, columns: int) -> Tensor:
        s = self._shape
        return torch.zeros(
            2, s.layers, rows, s.heads, columns, s.dim, dtype=s.dtype, device=s.device
        )

    def keys(self, layer: int) -> Tensor:
        """``[rows, heads, columns, dim]``, a view."""
        return self._data[0, layer]

    def values(self, layer: int) -> Tensor:
        """``[rows, heads, columns, dim]``, a view."""
        return self._data[1, layer]

    def reserve(self, rows: int, columns: int, most_columns: int) -> None:
        """Makes room for ``rows`` of ``columns`` tokens, ``most_columns`` being all ever needed."""
        have_rows, have_columns = self._data.shape[2], self._data.shape[4]
        if rows <= have_rows and columns <= have_columns:
            return
        new_rows = have_rows if rows <= have_rows else max(rows, 2 * have_rows)
        new_columns = have_columns
        if columns > have_columns:
            new_columns = max(columns, min(max(2 * have_columns, COLUMNS), most_columns))
        grown = self._zeros(new_rows, new_columns)
        if have_rows and have_columns:
            grown[:, :, :have_rows, :, :have_columns] = self._data
        self._data = grown

    def move(self, source: Tensor, target: Tensor, columns: int) -> None:
        """Copies ``columns`` tokens of rows ``source`` over rows ``target`` (disjoint, ``[n]``)."""
        if not columns:
            return
        part = self._data[:, :, :, :, :columns]
        part[:, :, target] = part[:, :, source]


class KeyValueCache:
    """The prompts' arena and the completions' arena. What earlier work left in them is harmless."""

    def __init__(self, shape: KeyValueShape) -> None:
        self.shape = shape
        self.prompts = Arena(shape)
        self.completions = Arena(shape)

    @property
    def bytes(self) -> int:
        return self.prompts.bytes + self.completions.bytes


@dataclass(frozen=True, slots=True)
class Sharing:
    """Which row completes which prompt, as indices; made anew only when rows come or go.

    Rows that share a prompt are put side by side in a grid ``[slots, width]``: ``gather`` (``[slots
    · width]``) holds the row of each cell (0 in an empty one), ``cells`` (``[R]``) the cell of each
    row; both are None when they would change nothing. ``hidden`` (``[R, Lp]``) is True on prompt
    columns beyond the row's prompt, or None.
    """

    slots: int
    width: int
    longest: int
    gather: Tensor | None
    cells: Tensor | None
    hidden: Tensor | None

    @staticmethod
    def of(slot_of_row: np.ndarray, prompt_lengths: np.ndarray, device: torch.device) -> Sharing:
        """``slot_of_row`` is ``[R]``, ``prompt_lengths`` ``[slots]``; every slot has a row or waits
        for one.
        """
        rows = len(slot_of_row)
        width = int(np.bincount(slot_of_row).max())
        gather, cells = grid_cells(slot_of_row, len(prompt_lengths), width)
        trivial = len(prompt_lengths) * width == rows and bool((cells == np.arange(rows)).all())
        own = prompt_lengths[slot_of_row]
        longest = int(own.max())
        ragged = bool((own < longest).any())
        hidden = np.arange(longest)[None] >= own[:, None] if ragged else None
        return Sharing(
            slots=len(prompt_lengths),
            width=width,
            longest=longest,
            gather=None if trivial else torch.from_numpy(gather).to(device),
            cells=None if trivial else torch.from_numpy(cells).to(device),
            hidden=None if hidden is None else torch.from_numpy(hidden).to(device),
        )


def grid_cells(slot_of_row: np.ndarray, slots: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """``gather`` ``[slots · width]`` and ``cells`` ``[R]`` of :class:`Sharing`, no slot having more
    than ``width`` rows.
    """
    rows = len(slot_of_row)
    counts = np.bincount(slot_of_row, minlength=slots)
    order = np.argsort(slot_of_row, kind="stable")
    starts = np.cumsum(counts) - counts
    ordered = slot_of_row[order]
    cells = np.empty(rows, dtype=np.int64)
    cells[order] = ordered * width + np.arange(rows) - starts[ordered]
    gather = np.zeros(slots * width, dtype=np.int64)
    gather[cells] = np.arange(rows)
    return gather, cells


class OwnLayout:
    """Attention of one new token in each of ``R`` rows where no prompt is shared: a row goes on
    where its prompt ends, in the prompts' arena, and all that it looks at is one piece.

    Implements :class:`lydite.ops.layout.Layout`. ``written`` (``[R]``) is how many tokens each row
    holds, prompt included: the new one takes that column. ``longest`` and ``uniform`` say of it,
    on the host, its maximum and whether all are equal.
    """

    def __init__(self, arena: Arena, written: Tensor, longest: int, uniform: bool) -> None:
        self._arena = arena
        self._rows = len(written)
        self._columns = longest + 1
        self._column: int | None = longest if uniform else None
        _, heads, columns, _ = arena.keys(0).shape
        self._heads = heads
        places = torch.arange(self._rows * heads, device=written.device) * columns
        self._places = places + written.repeat_interleave(heads)
        self._hidden: Tensor | None = None
        if not uniform:
            past = torch.arange(self._columns, device=written.device) > written[:, None]
            self._hidden = past.repeat_interleave(heads, dim=0)[:, None]
        self._bias: Tensor | None = None

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float
    ) -> Tensor:
        """See :class:`lydite.ops.layout.Layout`. Softmax in float32 or wider."""
        heads, kv_heads, dim = query.shape[1], self._heads, query.shape[3]
        keys, values = (
            _written(whole, new[0].transpose(0, 1), self._column, self._places, self._columns)
            for whole, new in (
                (self._arena.keys(layer), key),
                (self._arena.values(layer), value),
            )
        )
        q = (query[0].transpose(0, 1) * scaling).reshape(-1, heads // kv_heads, dim)
        scores = torch.bmm(q, keys.transpose(1, 2))
        if self._hidden is not None:
            if self._bias is None:
                self._bias = q.new_zeros(self._hidden.shape)
                self._bias.masked_fill_(self._hidden, float("-inf"))
            scores += self._bias
        p = scores.softmax(2, dtype=torch.promote_types(q.dtype, torch.float32)).to(q.dtype)
        return torch.bmm(p, values).view(1, self._rows, heads, dim)


def _written(
    whole: Tensor, new: Tensor, column: int | None, places: Tensor, columns: int
) -> Tensor:
    """Stores ``[R, h, D]`` in ``whole`` ``[rows, h, columns, D]``, all in one column or each head
    in its place, and returns all that the rows hold, as ``[R · h, columns, D]``.
    """
    rows = len(new)
    if column is not None:
        whole[:rows, :, column] = new
    else:
        whole.flatten(0, 2).index_copy_(0, places, new.flatten(0, 1))
    return whole[:rows, :, :columns].flatten(0, 1)


class DecodeLayout:
    """Attention of one new token in each of ``R`` rows to its prompt and to what the row has
    generated.

    Implements :class:`lydite.ops.layout.Layout`. ``written`` (``[R]``) is how many tokens of each
    completion are in the cache already: the new token takes that column. ``longest`` and
    ``uniform`` say of ``written``, on the host, its maximum and whether all are equal.
    """

    def __init__(
        self, cache: KeyValueCache, sharing: Sharing, written: Tensor, longest: int, uniform: bool
    ) -> None:
        self._cache = cache
        self._sharing = sharing
        self._columns = longest + 1
        self._column: int | None = longest if uniform else None
        self._written = written
        # Where each head of each row stores its new token, with rows, heads and columns as one.
        _, heads, columns, _ = cache.completions.keys(0).shape
        places = torch.arange(len(written) * heads, device=written.device) * columns
        self._places = places + written.repeat_interleave(heads)
        self._bias_mask = self._hidden(uniform)
        self._bias: Tensor | None = None

    def _hidden(self, uniform: bool) -> Tensor | None:
        """``[R, 1, Lp + Lc]``: True where the row must not look; None if it may look everywhere."""
        prompt = self._sharing.hidden
        if uniform and prompt is None:
            return None
        rows, device = len(self._written), self._written.device
        if prompt is None:
            prompt = torch.zeros(rows, self._sharing.longest, dtype=torch.bool, device=device)
        own = torch.arange(self._columns, device=device) > self._written[:, None]
        return torch.cat([prompt, own], dim=1)[:, None]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float
    ) -> Tensor:
        """See :class:`lydite.ops.layout.Layout`. Softmax in float32 or wider."""
        sharing, longest = self._sharing, self._sharing.longest
        heads, kv_heads, dim = query.shape[1], key.shape[1], query.shape[3]
        rows, repeat = query.shape[2], heads // kv_heads
        keys, values = self._write(layer, key[0].transpose(0, 1), value[0].transpose(0, 1))
        q = query[0].transpose(0, 1) * scaling
        q_grid = self._to_grid(q.reshape(rows, kv_heads, repeat, dim))
        prompt_keys = self._cache.prompts.keys(layer)[: sharing.slots, :, :longest].flatten(0, 1)
        prompt_values = self._cache.prompts.values(layer)[: sharing.slots, :, :longest].flatten(
            0, 1
        )
        own = torch.bmm(q.reshape(rows * kv_heads, repeat, dim), keys.transpose(1, 2))
        shared = self._to_rows(torch.bmm(q_grid, prompt_keys.transpose(1, 2)), kv_heads, repeat)
        scores = torch.cat([shared, own.view(rows, heads, self._columns)], dim=2)
        if self._bias_mask is not None:
            if self._bias is None:
                self._bias = torch.zeros(
                    self._bias_mask.shape, dtype=scores.dtype, device=scores.device
                )
                self._bias.masked_fill_(self._bias_mask, float("-inf"))
            scores += self._bias
        p = scores.softmax(2, dtype=torch.promote_types(q.dtype, torch.float32)).to(q.dtype)
        p_grid = self._to_grid(p[:, :, :longest].unflatten(1, (kv_heads, repeat)))
        out = self._to_rows(torch.bmm(p_grid, prompt_values), kv_heads, repeat)
        p_own = p[:, :, longest:].unflatten(1, (kv_heads, repeat)).flatten(0, 1)
        return (out + torch.bmm(p_own, values).view(rows, heads, dim))[None]

    def _write(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Stores ``[R, h, D]`` and returns all that the rows hold, as ``[R · h, Lc, D]``."""
        arena = self._cache.completions
        keys, values = (
            _written(whole, new, self._column, self._places, self._columns)
            for whole, new in ((arena.keys(layer), key), (arena.values(layer), value))
        )
        return keys, values

    def _to_grid(self, x: Tensor) -> Tensor:
        """Rows ``[R, h, repeat, n]`` to matrices ``[slots · h, width · repeat, n]``, one for each
        prompt and head.
        """
        sharing = self._sharing
        if sharing.gather is not None:
            x = x[sharing.gather]
        grid: Tensor = x.unflatten(0, (sharing.slots, sharing.width)).transpose(1, 2)
        return grid.reshape(sharing.slots * x.shape[1], sharing.width * x.shape[2], x.shape[3])

    def _to_rows(self, x: Tensor, kv_heads: int, repeat: int) -> Tensor:
        """The way back: ``[slots · h, width · repeat, n]`` to ``[R, h · repeat, n]``."""
        sharing = self._sharing
        grid = x.view(sharing.slots, kv_heads, sharing.width, repeat, -1).transpose(1, 2)
        rows = grid.reshape(sharing.slots * sharing.width, kv_heads * repeat, -1)
        return rows if sharing.cells is None else rows[sharing.cells]
