"""Who does what: requests over workers, groups over ranks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lydite.cluster.config import ClusterConfig
from lydite.cluster.remote_engine import RemoteEngine, missing, shared_out
from lydite.cluster.remote_learner import RemoteLearner
from lydite.cluster.shares import run_tokens, together
from lydite.objective.objective import Objective
from lydite.train.batching import deal, split_groups
from lydite.types import (
    Completion,
    Request,
    SamplingParams,
    TrainBatch,
    TrainGroup,
    TrainSequence,
)


def request(name: str, samples: int, tokens: int = 10, first: int = 0) -> Request:
    return Request(name, (1, 2), samples, SamplingParams(tokens), first_sample=first)


def group(name: int, lengths: list[int], advantage: float = 1.0) -> TrainGroup:
    """Told apart by its prompt."""
    rows = [TrainSequence([5] * n, [1] * n, [0.0] * n, advantage) for n in lengths]
    return TrainGroup((name,), rows)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=13), st.integers(1, 4), st.integers(1, 5))
def test_every_optimiser_step_has_the_groups_that_it_has_in_one_process(
    sizes: list[int], ranks: int, minibatches: int
) -> None:
    batch = TrainBatch([group(i, [n]) for i, n in enumerate(sizes)])
    loads = run_tokens(batch, Objective.parse("grpo"))
    own = deal(batch, ranks, minibatches, loads)
    assert len(own) == ranks
    alone = split_groups(batch, minibatches)
    steps = [split_groups(share, minibatches) for share in own]
    for number, step in enumerate(alone):
        together = [
            each.prompt_ids
            for rank in steps
            if number < len(rank)
            for each in rank[number].groups
            if each.sequences
        ]
        assert sorted(together) == sorted(each.prompt_ids for each in step.groups)
    assert all(len(rank) <= len(alone) for rank in steps)


def test_a_sequence_that_teaches_nothing_weighs_nothing() -> None:
    batch = TrainBatch([group(0, [4, 4], advantage=0.0), group(1, [2])])
    assert run_tokens(batch, Objective.parse("grpo")) == [1, 3]
    assert run_tokens(batch, Objective.parse("grpo+kl")) == [9, 3]


def test_groups_come_back_to_their_places() -> None:
    batch = TrainBatch([group(i, [n]) for i, n in enumerate([9, 1, 5, 5])], 0.7)
    own = deal(batch, 2)
    held = [[g.prompt_ids[0] for g in share.groups if g.sequences] for share in own]
    assert held == [[0, 1], [2, 3]]
    assert together(own) == batch


def test_an_update_is_dealt_by_what_it_runs() -> None:
    groups = [group(0, [9], advantage=0.0), group(1, [4]), group(2, [3]), group(3, [3])]
    batch = TrainBatch(groups)
    loads = run_tokens(batch, Objective.parse("grpo"))
    own = deal(batch, 2, loads=loads)
    held = [[g.prompt_ids[0] for g in share.groups if g.sequences] for share in own]
    assert loads == [1, 5, 4, 4] and held == [[0, 1], [2, 3]]


def test_requests_are_shared_by_tokens_and_stay_in_order() -> None:
    wanted = [(i, request(f"p{i}", 4, tokens)) for i, tokens in enumerate([100, 50, 50, 10])]
    shares = shared_out(wanted, 2)
    assert [[i for i, _ in share] for share in shares] == [[0, 3], [1, 2]]


def test_one_request_is_cut_for_many_workers() -> None:
    shares = shared_out([(7, request("p", 5, first=10))], 3)
    cut = sorted((r.first_sample, r.samples) for share in shares for i, r in share if i == 7)
    assert cut == [(10, 1), (11, 2), (13, 2)]
    assert shared_out([(0, request("p", 1))], 3)[1:] == [[], []]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 5), st.integers(0, 20))
def test_every_sample_is_asked_of_one_worker(samples: list[int], count: int, first: int) -> None:
    wanted = [(i, request(f"p{i}", n, first=first)) for i, n in enumerate(samples)]
    asked = [
        (i, sample)
        for share in shared_out(wanted, count)
        for i, r in share
        for sample in range(r.first_sample, r.first_sample + r.samples)
    ]
    assert sorted(asked) == [(i, first + s) for i, n in enumerate(samples) for s in range(n)]


@pytest.mark.parametrize(
    ("there", "owed"),
    [
        ([], [(4, 4)]),
        ([4, 5, 6, 7], []),
        ([5], [(4, 1), (6, 2)]),
        ([4, 7], [(5, 2)]),
    ],
)
def test_what_is_owed_is_asked_in_runs(there: list[int], owed: list[tuple[int, int]]) -> None:
    found = {s: Completion("p", s, (1,), (2,), (0.0,), (1,), "stop", "") for s in there}
    left = missing(request("p", 4, first=4), found)
    assert [(r.first_sample, r.samples) for r in left] == owed


class CalledRanks:
    """Learner ranks that only note what they are called with."""

    def __init__(self, sharding):
        self.config = ClusterConfig(learner={"ranks": 4, "sharding": sharding})
        self.processes = [object()] * 4
        self.called: list[TrainBatch] = []

    def each(self, name, arguments, limit):
        self.called = [share for share, *_ in arguments]
        return [{"rank": float(rank)} for rank in range(4)]


@pytest.mark.parametrize(("sharding", "peers"), [(None, 1), ({}, 1), ({"tensor": 2}, 2)])
def test_ranks_that_a_product_lies_over_have_the_same_share(sharding, peers):
    ranks = CalledRanks(sharding)
    whole = TrainBatch([group(n, [n]) for n in (3, 9, 4, 7, 5)])
    RemoteLearner(ranks, 1, lambda: None).update(whole, Objective.parse("grpo"), (0, 1))
    assert len(ranks.called) == 4
    assert all(ranks.called[i] is ranks.called[i - i % peers] for i in range(4))
    taken = [g for share in ranks.called[::peers] for g in share.groups if g.sequences]
    assert sorted(len(g.sequences[0].token_ids) for g in taken) == [3, 4, 5, 7, 9]


@pytest.mark.parametrize("may_cut", [True, False])
def test_who_cannot_go_on_with_what_is_cut_is_not_interrupted(may_cut: bool) -> None:
    nobody: Any = None
    engine = RemoteEngine(ClusterConfig(), nobody, nobody, nobody)
    engine.may_cut = may_cut
    engine.interrupt()
    assert engine.interruption.noticed() == may_cut
