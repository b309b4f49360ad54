from hypothesis import given
from hypothesis import strategies as st

from lydite.train.batching import micro_batches, split_groups
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
        assert tokens(pieces) <= budget or (len(pieces) == 1 and len(pieces[0].members) == 1)


@given(shapes, st.integers(1, 8))
def test_minibatches_share_out_the_groups(shape, parts):
    batch = TrainBatch([group(p, lengths) for p, lengths in shape])
    found = split_groups(batch, parts)
    assert sum(len(b.groups) for b in found) == len(batch.groups)
    assert all(b.groups for b in found)
