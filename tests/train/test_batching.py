from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lydite.train import batching
from lydite.train.batching import Room, micro_batches, room_for, split_groups
from lydite.train.fields import field_of
from lydite.types import TrainBatch, TrainGroup, TrainSequence


def group(prompt, lengths):
    return TrainGroup(
        [1] * prompt, [TrainSequence([2] * n, [1] * n, [0.0] * n, 1.0) for n in lengths]
    )


def tokens(pieces):
    return sum(piece.tokens for piece in pieces)


def test_a_group_over_budget_is_cut_and_its_prompt_run_again():
    found = micro_batches(TrainBatch([group(4, [3, 5, 2])]), budget=9)
    assert [[p.rows for p in pieces] for pieces in found] == [[(1,)], [(0, 2)]]
    assert [tokens(pieces) for pieces in found] == [9, 9]


def test_a_group_behind_a_long_prompt_is_not_cut_into_its_completions():
    """40 + 9 · 10 tokens in passes of 50 would run the prompt nine times; passes of 80 run it three
    times.
    """
    found = micro_batches(TrainBatch([group(40, [10] * 9)]), budget=50)
    assert [tokens(pieces) for pieces in found] == [80, 80, 50]


def test_longest_first_and_filled_to_the_budget():
    found = micro_batches(TrainBatch([group(2, [1]), group(2, [8]), group(2, [3])]), budget=10)
    assert [[p.longest for p in pieces] for pieces in found] == [[8], [3, 1]]


def test_empty_completions_keep_their_place_and_are_not_run():
    found = micro_batches(TrainBatch([group(2, [0, 3]), group(2, [4])]), budget=100)
    assert sorted(row for pieces in found for p in pieces for row in p.rows) == [1, 2]


shapes = st.lists(
    st.tuples(st.integers(1, 9), st.lists(st.integers(0, 9), min_size=1, max_size=5)),
    min_size=1,
    max_size=6,
)


@given(shapes, st.integers(1, 40))
def test_every_completion_is_run_exactly_once_within_the_budget(shape, budget):
    found = micro_batches(TrainBatch([group(p, lengths) for p, lengths in shape]), budget)
    flat = [n for _, lengths in shape for n in lengths]
    rows = [row for pieces in found for p in pieces for row in p.rows]
    assert sorted(rows) == [row for row, n in enumerate(flat) if n]
    for pieces in found:
        alone = len(pieces) == 1
        twice = 2 * len(pieces[0].group.prompt_ids)
        assert tokens(pieces) <= budget or (
            alone and (len(pieces[0].members) == 1 or tokens(pieces) <= twice)
        )


@given(shapes, st.integers(1, 8))
def test_minibatches_share_out_the_groups(shape, parts):
    batch = TrainBatch([group(p, lengths) for p, lengths in shape])
    found = split_groups(batch, parts)
    assert sum(len(b.groups) for b in found) == len(batch.groups)
    assert all(b.groups for b in found)


def test_the_first_micro_batch_may_be_larger():
    groups = [group(2, [4]) for _ in range(5)]
    found = micro_batches(TrainBatch(groups), budget=6, first=13)
    assert [sum(p.tokens for p in part) for part in found] == [12, 6, 6, 6]
    found = micro_batches(TrainBatch(groups), budget=12, first=6)
    assert [sum(p.tokens for p in part) for part in found] == [12, 12, 6]


@pytest.fixture
def sized(monkeypatch):
    """A policy of 100,000 float32 weights, 60,000 of them trained, 10,000 of those its head's, and
    40 bytes kept of a token.
    """
    model = torch.nn.ParameterList([torch.zeros(n) for n in (50_000, 40_000, 10_000)])
    model[1].requires_grad_(False)
    monkeypatch.setattr(batching, "kept_per_token", lambda model: 40)
    monkeypatch.setattr(batching, "MOST_TOKENS", 10**6)
    monkeypatch.setattr(batching, "SMALL", 0)
    return SimpleNamespace(device="cpu", shards=None, model=model, head=(model[2], None))


def test_activations_take_half_of_the_weights_and_at_first_the_gradients_room(sized, monkeypatch):
    """400 kB of weights: 200 kB are 5,000 tokens. 200 kB of gradients are as many again; the
    head's does not count, it is there as soon as activations go.
    """
    batch = TrainBatch([group(2, [4])])
    assert room_for(sized, batch) == Room(first=10_000, later=5_000)
    sized.model[1].requires_grad_(True)
    assert room_for(sized, batch) == Room(first=14_000, later=5_000)
    sized.model[2].requires_grad_(False)
    assert room_for(sized, batch) == Room(first=14_000, later=5_000)
    monkeypatch.setattr(batching, "MOST_TOKENS", 12_000)
    assert room_for(sized, batch) == Room(first=12_000, later=5_000)


def test_no_group_is_cut_and_little_is_not_saved(sized, monkeypatch):
    batch = TrainBatch([group(1_000, [1_500, 3_500]), group(1, [1])])
    assert room_for(sized, batch).later == 6_000
    monkeypatch.setattr(batching, "SMALL", 320_000)
    assert room_for(sized, TrainBatch([group(2, [4])])).later == 8_000
    monkeypatch.setattr(batching, "kept_per_token", lambda model: 10**9)
    assert room_for(sized, TrainBatch([group(2, [4])])) == Room(512, 512)


def test_other_devices_and_shards_run_the_most(sized):
    most = Room(10**6, 10**6)
    sized.shards = object()
    assert room_for(sized, TrainBatch([])) == most
    sized.shards, sized.device = None, "cuda:0"
    assert room_for(sized, TrainBatch([])) == most


def test_fields_are_padded_with_zeros_past_their_ends():
    rows = [
        TrainSequence((1, 2, 3), (1, 0, 1), (-0.1, -0.25, -3.0), 0.5),
        TrainSequence((4,), (1,), (-0.7,), -0.5),
        TrainSequence((), (), (), 0.0),
    ]
    like = torch.zeros(1)
    mask, behaviour = (field_of(rows, name, like) for name in ("loss_mask", "behaviour"))
    assert mask.tolist() == [[1, 0, 1], [1, 0, 0], [0, 0, 0]]
    want = torch.tensor([[-0.1, -0.25, -3.0], [-0.7, 0, 0], [0, 0, 0]])
    assert torch.equal(behaviour, want)
    assert field_of(rows[2:], "behaviour", like.double()).shape == (1, 0)
