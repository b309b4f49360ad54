"""Addressed noise, truncation and the inverse of the cumulative distribution."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lydite.ops.sampling import (
    RowSampling,
    address_key,
    draw,
    inverse_cdf,
    truncate,
    uniforms,
)
from lydite.types import SamplingParams

PLAIN = SamplingParams(1)


def settings(rows: int, params: SamplingParams = PLAIN) -> RowSampling:
    return RowSampling.of([params] * rows, "cpu")


def many_uniforms(count: int) -> Tensor:
    return uniforms(torch.full((count,), address_key(0, "p", 0, 0)), torch.arange(count))


def splitmix(state: int, steps: int) -> int:
    """The published generator in Python integers: the oracle for the tensor arithmetic."""
    mask = (1 << 64) - 1
    x = (state + (steps + 1) * 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def test_uniforms_are_splitmix64() -> None:
    # The published first outputs for seed 1234567.
    assert [splitmix(1234567, i) for i in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]
    keys = [0, 1, -1, 1234567, -(2**63), 2**63 - 1]
    for position in (0, 1, 100_000):
        got = uniforms(torch.tensor(keys), torch.full((len(keys),), position))
        want = [(splitmix(key % 2**64, position) >> 11) * 2.0**-53 for key in keys]
        assert got.tolist() == want


def test_every_part_of_the_address_counts() -> None:
    keys = {
        address_key(*address)
        for address in [
            (0, "p", 0, 0),
            (1, "p", 0, 0),
            (0, "q", 0, 0),
            (0, "p", 1, 0),
            (0, "p", 0, 1),
        ]
    }
    assert len(keys) == 5
    assert address_key(1, "x", 11, 1) != address_key(11, "x", 1, 1)
    # Pinned: a changed hash would make every old run impossible to repeat.
    assert address_key(0, "p", 0, 0) == 8281681185084828896


def test_neighbouring_streams_are_uncorrelated() -> None:
    keys = torch.tensor([address_key(0, f"p{i}", 0, 0) for i in range(200)])
    u = torch.stack([uniforms(keys, torch.full((200,), t)) for t in range(100)])
    assert abs(u.mean().item() - 0.5) < 0.01
    for a, b in ((u[1:], u[:-1]), (u[:, 1:], u[:, :-1])):
        corr = torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]
        assert abs(corr.item()) < 0.03


def chi_square(counts: Tensor, p: Tensor) -> float:
    expected = p.double() * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_distribution(temperature: float) -> None:
    n = 20_000
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0])
    params = SamplingParams(1, temperature=temperature)
    ids, logprobs = draw(logits.expand(n, 4), many_uniforms(n), settings(n, params))
    p = (logits / temperature).softmax(0)
    assert chi_square(ids.bincount(minlength=4).double(), p) < 16.3  # 3 degrees of freedom, 0.1%
    torch.testing.assert_close(logprobs, p.log()[ids])


def test_draws_follow_a_wide_distribution() -> None:
    """More than one block: the likely tokens lie in different blocks, the last one ragged."""
    n, width = 20_000, 1300
    logits = torch.full((width,), -50.0)
    places = torch.tensor([3, 511, 512, 1299])
    p = torch.tensor([0.1, 0.2, 0.3, 0.4])
    logits[places] = p.log()
    ids, _ = draw(logits.expand(n, width), many_uniforms(n), settings(n))
    counts = (ids[:, None] == places).sum(0)
    assert int(counts.sum()) == n
    assert chi_square(counts.double(), p) < 16.3


def test_wide_and_narrow_agree() -> None:
    """The block search finds what one cumulative sum over everything finds."""
    torch.manual_seed(0)
    weights = torch.rand(50, 2000)
    noise = many_uniforms(50)
    cumulative = weights.cumsum(1, dtype=torch.float64)
    want = torch.searchsorted(cumulative, (noise * cumulative[:, -1])[:, None], right=True)
    assert torch.equal(inverse_cdf(weights, noise), want.squeeze(1))


@pytest.mark.parametrize("width", [5, 700, 150_000])
def test_rounding_never_picks_an_impossible_token(width: int) -> None:
    weights = torch.zeros(3, width)
    weights[:, 1] = 0.3
    weights[:, 3] = 1e-20
    extremes = torch.tensor([0.0, 1 - 2.0**-53, 0.999999], dtype=torch.float64)
    assert inverse_cdf(weights, extremes).tolist()[0] == 1
    assert set(inverse_cdf(weights, extremes).tolist()) <= {1, 3}
    only = torch.zeros(3, width)
    only[:, width - 1] = 1e-30
    assert inverse_cdf(only, extremes).tolist() == [width - 1] * 3


def test_a_row_does_not_feel_its_neighbours() -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, 40)
    params = [
        SamplingParams(1, temperature=t, top_k=k, top_p=p)
        for t, k, p in [(1, 0, 1), (0.7, 5, 1), (0, 0, 1), (1, 0, 0.5), (1.3, 3, 0.9), (1, 0, 1)]
    ]
    noise = many_uniforms(6)
    together = draw(logits, noise, RowSampling.of(params, "cpu"))
    order = [4, 0, 5, 2, 1, 3]
    mixed = draw(logits[order], noise[order], RowSampling.of([params[i] for i in order], "cpu"))
    assert torch.equal(mixed[0], together[0][order])
    for i in range(6):
        ids, logprobs = draw(
            logits[i : i + 1], noise[i : i + 1], RowSampling.of(params[i : i + 1], "cpu")
        )
        assert ids[0] == together[0][i]
        torch.testing.assert_close(logprobs[0], together[1][i])


P = torch.tensor([[0.4, 0.1, 0.3, 0.15, 0.05]])


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SamplingParams(1), {0, 1, 2, 3, 4}),
        (SamplingParams(1, top_k=2), {0, 2}),
        (SamplingParams(1, top_k=99), {0, 1, 2, 3, 4}),
        (SamplingParams(1, top_p=0.39), {0}),
        (SamplingParams(1, top_p=0.41), {0, 2}),  # the token that crosses the share is in
        (SamplingParams(1, top_p=0.84), {0, 2, 3}),
        (SamplingParams(1, top_p=1e-9), {0}),
        (SamplingParams(1, min_p=0.3), {0, 2, 3}),  # 0.3 * 0.4 = 0.12
        (SamplingParams(1, min_p=1.0), {0}),
        # top-p is taken of what top-k left: 0.4 / 0.85 = 0.47 and 0.7 / 0.85 = 0.82.
        (SamplingParams(1, top_k=3, top_p=0.8), {0, 2}),
        (SamplingParams(1, top_k=4, min_p=0.5), {0, 2}),
    ],
)
def test_truncation_keeps_the_right_tokens(params: SamplingParams, kept: set[int]) -> None:
    weights = truncate(P, settings(1, params))
    assert set(weights[0].nonzero().flatten().tolist()) == kept
    torch.testing.assert_close(weights[weights > 0], P[weights > 0])


def test_top_p_beyond_the_first_candidates() -> None:
    """A flat distribution over more tokens than are sorted at first."""
    width = 4000
    p = (torch.arange(width, 0, -1.0) + 1e5)[None]
    p = p / p.sum()
    kept = (truncate(p, settings(1, SamplingParams(1, top_p=0.75))) > 0).sum()
    want = int((p.double().cumsum(1) < 0.75).sum()) + 1
    assert abs(int(kept) - want) <= 1


def test_log_probs_are_of_the_distribution_before_truncation() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    params = SamplingParams(1, temperature=0.5, top_k=1)
    ids, logprobs = draw(logits, torch.tensor([0.9], dtype=torch.float64), settings(1, params))
    # softmax(4, 2, 0): log p(0) = -log(1 + e^-2 + e^-4).
    assert ids.tolist() == [0]
    assert logprobs.item() == pytest.approx(-math.log(1 + math.exp(-2) + math.exp(-4)), abs=1e-6)


def test_greedy_takes_the_likeliest() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, 3.0, 1.0]])
    params = [SamplingParams(1, temperature=0), SamplingParams(1, temperature=0)]
    noise = torch.tensor([0.99, 0.99], dtype=torch.float64)
    ids, logprobs = draw(logits, noise, RowSampling.of(params, "cpu"))
    assert ids.tolist() == [1, 0]
    torch.testing.assert_close(logprobs, logits.log_softmax(1).amax(1))


def test_many_rows_of_a_wide_vocabulary_are_drawn_like_one_row() -> None:
    """What is drawn at once on a CPU is cut into parts, each row with its own settings."""
    torch.manual_seed(0)
    rows, width = 11, 60_000
    logits = torch.randn(rows, width) * 3
    params = [
        SamplingParams(1, temperature=t, top_k=k, top_p=p)
        for t, k, p in [(1, 0, 1), (0, 0, 1), (0.7, 0, 0.9), (1.3, 50, 1)]
    ]
    kinds = [params[row % len(params)] for row in range(rows)]
    noise = many_uniforms(rows)
    ids, logprobs = draw(logits, noise, RowSampling.of(kinds, "cpu"))
    for row in range(rows):
        one = slice(row, row + 1)
        alone, _ = draw(logits[one], noise[one], RowSampling.of(kinds[one], "cpu"))
        assert ids[row] == alone[0]
    temperature = torch.tensor([kind.temperature or 1.0 for kind in kinds])
    want = (logits.double() / temperature[:, None]).log_softmax(1).gather(1, ids[:, None])
    torch.testing.assert_close(logprobs.double(), want.squeeze(1), atol=5e-6, rtol=0)


def test_top_p_of_peaked_flat_and_free_rows() -> None:
    """Each row gets as many candidates as it needs, whatever its neighbours need."""
    width = 4000
    flat = torch.arange(width, 0, -1.0) + 1e5
    middle = torch.cat([torch.full((200,), 10.0), torch.full((width - 200,), 1e-4)])
    peaked = torch.cat([torch.tensor([6.0, 3.0]), torch.full((width - 2,), 1e-6)])
    weights = torch.stack([flat, peaked, middle, peaked, flat])
    params = [SamplingParams(1, top_p=p) for p in (0.75, 0.5, 0.9, 0.95, 1.0)]
    kept = (truncate(weights, RowSampling.of(params, "cpu")) > 0).sum(1).tolist()
    want = int((flat.double().cumsum(0) < 0.75 * flat.double().sum()).sum()) + 1
    # Equal weights tie with the last one kept, and stay.
    assert kept[1:] == [1, 200, 2, width]
    assert abs(kept[0] - want) <= 1
