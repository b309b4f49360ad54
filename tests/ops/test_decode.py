"""The cache and its layouts against attention written out row by row."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from lydite.ops import prefill
from lydite.ops.decode import (
    Arena,
    DecodeLayout,
    KeyValueCache,
    KeyValueShape,
    OwnLayout,
    Sharing,
)
from lydite.ops.prefill import PrefillLayout

CPU = torch.device("cpu")
HEADS, KV_HEADS, DIM = 4, 2, 8


def shape(dtype: torch.dtype = torch.float64) -> KeyValueShape:
    return KeyValueShape(layers=2, heads=KV_HEADS, dim=DIM, dtype=dtype, device=CPU)


def flat(tokens: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value as a model hands them over."""
    sizes = [(1, heads, tokens, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    q, k, v = (torch.randn(size, dtype=dtype) for size in sizes)
    return q, k, v


def attention(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    """One query ``[H, D]`` over ``[h, n, D]``."""
    key, value = (x.repeat_interleave(HEADS // KV_HEADS, dim=0) for x in (key, value))
    p = (torch.einsum("hd,hnd->hn", query, key) * scaling).softmax(1)
    return torch.einsum("hn,hnd->hd", p, value)


def test_sharing_of_ragged_groups() -> None:
    sharing = Sharing.of(np.array([1, 0, 1, 2, 1]), np.array([3, 5, 4]), CPU)
    assert (sharing.slots, sharing.width, sharing.longest) == (3, 3, 5)
    assert sharing.gather is not None and sharing.cells is not None and sharing.hidden is not None
    assert sharing.gather.tolist() == [1, 0, 0, 0, 2, 4, 3, 0, 0]
    assert sharing.cells.tolist() == [3, 0, 4, 6, 5]
    assert sharing.hidden.sum(1).tolist() == [0, 2, 0, 1, 0]


def test_sharing_of_full_groups_moves_nothing() -> None:
    sharing = Sharing.of(np.array([0, 0, 1, 1]), np.array([4, 4]), CPU)
    assert sharing.gather is None and sharing.cells is None and sharing.hidden is None


def test_a_prompt_that_waits_has_no_row_and_does_no_harm() -> None:
    sharing = Sharing.of(np.array([0, 2]), np.array([2, 9, 2]), CPU)
    assert (sharing.slots, sharing.width, sharing.longest) == (3, 1, 2)
    assert sharing.hidden is None


def test_prompts_are_padded_to_none_that_is_much_longer() -> None:
    lengths = [32, 512, 48, 500, 105, 71, 80, 512, 30]
    parts = prefill._alike(np.array(lengths), 3, CPU)
    found = [[lengths[slot - 3] for slot in part.slots.tolist()] for part in parts]
    assert found == [[512, 500, 512], [105, 80], [71], [32, 48, 30]]


@pytest.mark.parametrize("short", [0, 4, 64])
@pytest.mark.parametrize("lengths", [[5], [3, 1, 6], [9, 2, 8, 2, 9, 1]])
def test_prefill_is_causal_and_keeps_prompts_apart(
    lengths: list[int], short: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill, "SHORT", short)
    torch.manual_seed(0)
    arena = Arena(shape())
    arena.reserve(len(lengths) + 1, max(lengths), max(lengths))
    q, k, v = flat(sum(lengths))
    out = PrefillLayout(arena, 1, lengths, CPU).attend(1, q, k, v, 0.3)
    start = 0
    for slot, length in enumerate(lengths, start=1):
        part = slice(start, start + length)
        torch.testing.assert_close(arena.keys(1)[slot, :, :length], k[0, :, part])
        torch.testing.assert_close(arena.values(1)[slot, :, :length], v[0, :, part])
        for t in range(start, start + length):
            seen = slice(start, t + 1)
            want = attention(q[0, :, t], k[0, :, seen], v[0, :, seen], 0.3)
            torch.testing.assert_close(out[0, t], want)
        start += length


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("written", [[3, 3, 3, 3, 3], [0, 4, 2, 7, 1]])
def test_decode_attends_to_the_prompt_and_to_its_own(
    dtype: torch.dtype, written: list[int]
) -> None:
    torch.manual_seed(0)
    slots, lengths = np.array([1, 0, 1, 2, 1]), [3, 5, 4]
    cache = KeyValueCache(shape(dtype))
    cache.prompts.reserve(3, 5, 5)
    prompt_q, prompt_k, prompt_v = flat(sum(lengths), dtype)
    PrefillLayout(cache.prompts, 0, lengths, CPU).attend(0, prompt_q, prompt_k, prompt_v, 0.3)
    cache.completions.reserve(5, max(written) + 1, 20)
    own_k, own_v = (torch.randn(5, KV_HEADS, max(written), DIM, dtype=dtype) for _ in range(2))
    cache.completions.keys(0)[:, :, : max(written)] = own_k
    cache.completions.values(0)[:, :, : max(written)] = own_v
    uniform = len(set(written)) == 1
    sharing = Sharing.of(slots, np.array(lengths), CPU)
    layout = DecodeLayout(cache, sharing, torch.tensor(written), max(written), uniform)
    q, k, v = flat(5, dtype)
    out = layout.attend(0, q, k, v, 0.3)
    starts = np.cumsum(lengths) - lengths
    for row, count in enumerate(written):
        prompt = slice(int(starts[slots[row]]), int(starts[slots[row]] + lengths[slots[row]]))
        keys = torch.cat([prompt_k[0, :, prompt], own_k[row, :, :count], k[0, :, row, None]], dim=1)
        vals = torch.cat([prompt_v[0, :, prompt], own_v[row, :, :count], v[0, :, row, None]], dim=1)
        want = attention(q[0, :, row].double(), keys.double(), vals.double(), 0.3)
        close = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
        torch.testing.assert_close(out[0, row].double(), want, atol=close, rtol=0)
        torch.testing.assert_close(cache.completions.keys(0)[row, :, count], k[0, :, row])
        torch.testing.assert_close(cache.completions.values(0)[row, :, count], v[0, :, row])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lengths", [[4, 4, 4], [3, 5, 1]])
def test_a_row_with_a_prompt_of_its_own_goes_on_in_its_slot(
    dtype: torch.dtype, lengths: list[int]
) -> None:
    torch.manual_seed(0)
    arena = Arena(shape(dtype))
    arena.reserve(4, max(lengths), 20)
    _, prompt_k, prompt_v = prompt = flat(sum(lengths), dtype)
    PrefillLayout(arena, 0, lengths, CPU).attend(1, *prompt, 0.3)
    seen = [
        [x[0, :, end - n : end] for x in (prompt_k, prompt_v)]
        for n, end in zip(lengths, np.cumsum(lengths).tolist(), strict=True)
    ]
    for step in range(3):
        held = [n + step for n in lengths]
        arena.reserve(4, max(held) + 1, 20)
        layout = OwnLayout(arena, torch.tensor(held), max(held), len(set(held)) == 1)
        q, k, v = flat(3, dtype)
        out = layout.attend(1, q, k, v, 0.3)
        for row in range(3):
            seen[row] = [
                torch.cat([before, x[0, :, row, None]], dim=1)
                for before, x in zip(seen[row], (k, v), strict=True)
            ]
            want = attention(q[0, :, row].double(), *(x.double() for x in seen[row]), 0.3)
            close = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
            torch.testing.assert_close(out[0, row].double(), want, atol=close, rtol=0)


def test_an_arena_grows_without_forgetting_and_moves_rows() -> None:
    arena = Arena(shape())
    arena.reserve(3, 2, 100)
    first = torch.randn(3, KV_HEADS, 2, DIM, dtype=torch.float64)
    arena.keys(1)[:, :, :2] = first
    arena.reserve(5, 70, 100)
    assert arena.keys(1).shape[2] == 100  # doubling stops at the most that will ever be needed
    torch.testing.assert_close(arena.keys(1)[:3, :, :2], first)
    assert arena.keys(1)[3:].abs().sum() == 0
    arena.move(torch.tensor([2]), torch.tensor([0]), 2)
    torch.testing.assert_close(arena.keys(1)[0, :, :2], first[2])
    torch.testing.assert_close(arena.keys(1)[1, :, :2], first[1])
