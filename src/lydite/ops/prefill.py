"""How several prompts go through attention at once, each causal to itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from lydite.ops import varlen
from lydite.ops.decode import Arena

ALIKE = 0.75
"""Prompts are padded to one that is longer if they have at least this share of its tokens."""
SHORT = 64
"""Prompts of up to so many tokens are padded to one another: a call would cost more."""


@dataclass(frozen=True, slots=True)
class _Alike:
    """Prompts of about the same length: ``[n, width]`` cells are attended to at once.

    ``tokens`` are the flat places of their real tokens, prompt by prompt, ``gather``
    (``[n · width]``) the flat place that fills each cell, and ``cells`` the cells of the real
    tokens; both None of one prompt.
    """

    slots: Tensor
    shape: tuple[int, int]
    tokens: slice | Tensor
    gather: Tensor | None
    cells: Tensor | None


def _alike(lengths: np.ndarray, first_slot: int, device: torch.device) -> list[_Alike]:
    """Cuts prompts into parts in which little of attention, which is quadratic, goes to padding."""

    def moved(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device)

    starts = np.cumsum(lengths) - lengths
    order = np.argsort(-lengths, kind="stable")
    parts: list[list[int]] = []
    for index in order:
        longest = lengths[parts[-1][0]] if parts else 0
        if not parts or (longest > SHORT and lengths[index] < ALIKE * longest):
            parts.append([])
        parts[-1].append(int(index))
    found = []
    for part in map(sorted, parts):
        sizes, columns = lengths[part], np.arange(int(lengths[part].max()))
        slots, shape = moved(first_slot + np.array(part)), (len(part), len(columns))
        if len(part) == 1:
            at = slice(int(starts[part[0]]), int(starts[part[0]] + sizes[0]))
            found.append(_Alike(slots, shape, at, None, None))
            continue
        inside = columns[None] < sizes[:, None]
        places = np.where(inside, starts[part][:, None] + columns[None], 0).ravel()
        cells = np.flatnonzero(inside.ravel())
        found.append(_Alike(slots, shape, moved(places[cells]), moved(places), moved(cells)))
    return found


class PrefillLayout:
    """Attention of several prompts, each causal to itself, that leaves their keys and values in the
    cache.

    Implements :class:`lydite.ops.layout.Layout` over ``N = sum(lengths)`` flat tokens. The prompts
    take slots ``first_slot``, ``first_slot + 1``, … of ``arena``, which has room for them.
    """

    def __init__(
        self, arena: Arena, first_slot: int, lengths: Sequence[int], device: torch.device
    ) -> None:
        self._lengths = lengths
        self._runs: varlen.Runs | None = None
        self._arena = arena
        self._parts = _alike(np.asarray(lengths), first_slot, device)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float
    ) -> Tensor:
        """See :class:`lydite.ops.layout.Layout`."""
        flat_q, flat_k, flat_v = (x[0].transpose(0, 1) for x in (query, key, value))
        packed = len(self._lengths) > 1 and varlen.takes(flat_q, flat_k, flat_v)
        out = torch.empty_like(flat_q, memory_format=torch.contiguous_format)
        for part in self._parts:
            k, v = _padded(flat_k, part), _padded(flat_v, part)
            self._arena.keys(layer)[part.slots, :, : part.shape[1]] = k
            self._arena.values(layer)[part.slots, :, : part.shape[1]] = v
            if packed:
                continue
            # Padding lies to the right of every real token, where a causal query does not look.
            found = scaled_dot_product_attention(
                _padded(flat_q, part),
                k,
                v,
                is_causal=True,
                scale=scaling,
                enable_gqa=query.shape[1] != key.shape[1],
            )
            cells = found.transpose(1, 2).flatten(0, 1)
            out[part.tokens] = cells if part.cells is None else cells[part.cells]
        if packed:
            if self._runs is None:
                self._runs = varlen.Runs.of(self._lengths, query.device)
            return varlen.causal_attention(flat_q, flat_k, flat_v, self._runs, scaling)[None]
        return out[None]


def _padded(flat: Tensor, part: _Alike) -> Tensor:
    """``[N, h, D]`` to ``[n, h, width, D]``."""
    tokens = flat[part.tokens if part.gather is None else part.gather]
    padded: Tensor = tokens.unflatten(0, part.shape).transpose(1, 2)
    return padded
