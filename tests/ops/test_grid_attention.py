"""Attention of groups by plain products, against attention sequence by sequence."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from lydite.ops import groups
from lydite.ops.grid_attention import grid_attention, grid_of
from lydite.ops.groups import GroupLayout

DIM, SCALING = 6, 0.3


def one_by_one(
    q: Tensor, k: Tensor, v: Tensor, prompts: list[int], completions: list[int], owners: list[int]
) -> Tensor:
    """``[N, H, D]``, every query with the keys that it may see."""
    found, at = [], 0
    begins = [sum(prompts[:i]) for i in range(len(prompts))]
    sequences = [(begin, n, None) for begin, n in zip(begins, prompts, strict=True)]
    at = sum(prompts)
    for owner, n in zip(owners, completions, strict=True):
        sequences.append((at, n, owner))  # type: ignore[arg-type]
        at += n
    for begin, n, owner in sequences:
        before = [] if owner is None else range(begins[owner], begins[owner] + prompts[owner])
        for i in range(n):
            seen = torch.tensor([*before, *range(begin, begin + i + 1)])
            out = scaled_dot_product_attention(
                q[begin + i : begin + i + 1].transpose(0, 1),
                k[seen].transpose(0, 1),
                v[seen].transpose(0, 1),
                scale=SCALING,
                enable_gqa=True,
            )
            found.append(out.transpose(0, 1))
    return torch.cat(found)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize(
    ("prompts", "completions", "owners"),
    [
        ([3, 3], [4, 4, 4, 4], [0, 0, 1, 1]),  # a full grid
        ([3, 5], [4, 2, 1, 4], [0, 0, 1, 1]),  # ragged
        ([2, 4, 1], [3, 1, 2], [0, 0, 2]),  # a prompt without completions
        ([3, 3], [0, 2, 2, 0], [0, 0, 1, 1]),  # completions of one token, which is not run
        ([3, 2], [0, 0], [0, 1]),  # nothing but prompts
    ],
)
def test_it_is_attention(
    kv_heads: int, prompts: list[int], completions: list[int], owners: list[int]
) -> None:
    torch.manual_seed(0)
    total = sum(prompts) + sum(completions)
    inputs = [
        torch.randn(total, heads, DIM, dtype=torch.float64, requires_grad=True)
        for heads in (4, kv_heads, kv_heads)
    ]
    grid = grid_of(*(torch.tensor(x) for x in (prompts, completions, owners)))
    found = grid_attention(*inputs, grid, SCALING)  # type: ignore[arg-type]
    want = one_by_one(*inputs, prompts, completions, owners)
    pull = torch.randn_like(want)
    grads = (torch.autograd.grad(x, inputs, pull) for x in (found, want))
    for a, b in zip([found, *next(grads)], [want, *next(grads)], strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-10)


def test_only_short_sequences_in_a_filled_grid_go_this_way(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[bool] = []

    def watched(*args: Tensor) -> Tensor:
        taken.append(True)
        return args[0]

    monkeypatch.setattr(groups, "grid_attention", watched)
    cases = {
        (3, 2 * DIM - 3, (0, 0, 1, 1)): True,
        (3, 2 * DIM - 2, (0, 0, 1, 1)): False,  # a key too many
        (3, 2, (0, 0, 0, 0, 0, 1)): True,  # 6 of 10 places
        (3, 2, (0, 0, 0, 0, 0, 0, 1)): False,  # 7 of 12
    }
    for (prompt, inner, owners), want in cases.items():
        layout = GroupLayout([prompt, prompt], [inner] * len(owners), list(owners), "cpu")
        tokens = 2 * prompt + inner * len(owners)
        x = torch.randn(1, 2, tokens, DIM)
        taken.clear()
        layout.attend(0, x, x, x, SCALING)
        assert bool(taken) == want, (prompt, inner, owners)
        taken.clear()
        layout = GroupLayout([prompt, prompt], [inner] * len(owners), list(owners), "cpu")
        layout.attend(0, *[x.bfloat16()] * 3, SCALING)
        assert not taken
