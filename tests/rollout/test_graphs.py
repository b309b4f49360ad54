"""Decode steps that are replayed, with a tape in place of a CUDA graph: what was recorded runs
again on the very same memory, and nothing else does.
"""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_engines import make_model, make_requests, policy_of
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from lydite.config import UserError
from lydite.ops.decode import KeyValueCache, KeyValueShape, Sharing
from lydite.rollout import graphs, local
from lydite.rollout.engine import EngineConfig
from lydite.rollout.graphs import Shape, Standing, rounded
from lydite.rollout.local import LocalEngine
from lydite.types import SamplingParams

aten = torch.ops.aten
READS = {
    aten._local_scalar_dense.default, aten.item.default, aten.is_nonzero.default,
    aten.nonzero.default, aten.equal.default,
}  # fmt: skip


class Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.tape = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in READS:
            raise RuntimeError("operation not permitted when stream is capturing")
        out = func(*args, **(kwargs or {}))
        # The memory that a parameter has now, not what it may be given later.
        held = tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs or {}))
        self.tape.append((func, *held, out))
        return out


class Tapes:
    """A :class:`lydite.rollout.graphs.Capture`."""

    def __init__(self):
        self.captured = self.replayed = 0

    def __call__(self, function):
        function()
        with Recorder() as recorder:
            function()
        self.captured += 1

        def replay():
            self.replayed += 1
            for func, args, kwargs, out in recorder.tape:
                again = func(*args, **kwargs)
                for kept, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                    if not isinstance(kept, torch.Tensor):
                        assert kept == new, func
                    elif kept.data_ptr() != new.data_ptr():  # neither a view nor in place
                        kept.copy_(new)

        return replay


@pytest.fixture
def tapes(monkeypatch):
    made = Tapes()
    monkeypatch.setattr(graphs, "capture_for", lambda device: made)
    monkeypatch.setattr(graphs, "REPEATED", 2)
    return made


@pytest.fixture(scope="module")
def policy():
    made = policy_of()
    return replace(made, model=make_model("llama"))


NEVER = {"cuda_graphs": "never", "pack_weights": False}
ALWAYS = {"cuda_graphs": "always", "pack_weights": False}


def alike(found, wanted):
    pairs = [pair for two in zip(found, wanted, strict=True) for pair in zip(*two, strict=True)]
    for ours, theirs in pairs:
        assert (ours.token_ids, ours.finish) == (theirs.token_ids, theirs.finish)
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)
    return pairs


def mixed(samples):
    """Limits and settings of every kind in one call."""
    every = make_requests(SamplingParams(20), samples)
    return [
        replace(r, params=SamplingParams(6 + 9 * i, temperature=i / 2, stop=("a",) * (i > 3)))
        for i, r in enumerate(every)
    ]


@pytest.mark.parametrize(
    ("requests", "rows"),
    [
        (make_requests(SamplingParams(70), samples=3), 256),  # past the first bucket of columns
        (make_requests(SamplingParams(30), samples=5), 7),  # refilled
        (make_requests(SamplingParams(30), samples=1), 256),  # rows with prompts of their own
        (make_requests(SamplingParams(30), samples=1), 4),
        (make_requests(SamplingParams(25), samples=1, count=1), 256),
        (mixed(4), 9),
        (mixed(1), 3),
    ],
)
def test_replayed_steps_sample_what_plain_ones_do(requests, rows, policy, tapes):
    wanted = LocalEngine(policy, EngineConfig(max_rows=rows, **NEVER)).generate(requests)
    assert tapes.captured == 0
    found = LocalEngine(policy, EngineConfig(max_rows=rows, **ALWAYS)).generate(requests)
    pairs = alike(found, wanted)
    assert len({len(ours.token_ids) for ours, _ in pairs}) > 1 or len(pairs) == 1
    assert tapes.captured and tapes.replayed > 2 * tapes.captured


def test_when_a_step_is_captured_changes_nothing(policy, tapes, monkeypatch):
    """To the bit: a run that is resumed captures at other steps."""
    requests = make_requests(SamplingParams(40), samples=3)
    found = []
    for repeated in (1, 5, 1000):
        monkeypatch.setattr(graphs, "REPEATED", repeated)
        found.append(LocalEngine(policy, EngineConfig(max_rows=7, **ALWAYS)).generate(requests))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("samples", [1, 3])
def test_what_was_sampled_before_changes_nothing(samples, policy, tapes):
    """To the bit, as shapes do not follow the room that an earlier call has left."""
    requests = make_requests(SamplingParams(40), samples, count=4)
    engine = LocalEngine(policy, EngineConfig(max_rows=9, **ALWAYS))
    wanted = engine.generate(requests)
    engine = LocalEngine(policy, EngineConfig(max_rows=9, **ALWAYS))
    engine.generate(make_requests(SamplingParams(70), 5))
    assert engine.generate(requests) == wanted


def test_what_was_captured_serves_the_next_call_with_changed_weights(tapes):
    policy = replace(policy_of(), model=make_model("llama"))
    requests = make_requests(SamplingParams(40), samples=3)
    engine = LocalEngine(policy, EngineConfig(**ALWAYS))
    first = engine.generate(requests)
    count = tapes.captured
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    plain = LocalEngine(policy, EngineConfig(**NEVER))
    second = engine.generate(requests)
    assert second != first
    alike(second, plain.generate(requests))
    before, replayed = tapes.captured, tapes.replayed
    for parameter in policy.model.parameters():  # elsewhere: nothing captured is of use
        parameter.data = parameter.data.clone() + 0.01
    alike(engine.generate(requests), plain.generate(requests))
    assert count and replayed and tapes.captured > before


def test_a_larger_call_moves_the_cache_and_captures_anew(policy, tapes):
    engine = LocalEngine(policy, EngineConfig(**ALWAYS))
    plain = LocalEngine(policy, EngineConfig(**NEVER))
    captured = [0]
    for tokens, samples in ((10, 2), (90, 5), (10, 2)):
        requests = make_requests(SamplingParams(tokens), samples)
        alike(engine.generate(requests), plain.generate(requests))
        captured.append(tapes.captured)
    assert captured[0] < captured[1] < captured[2]


def test_a_cache_that_is_not_kept_is_let_go_with_what_was_captured(policy, tapes, monkeypatch):
    monkeypatch.setattr(local, "_KEEP_BYTES", {"cpu": 0})
    made = []

    class Watched(KeyValueCache):
        def __init__(self, shape):
            super().__init__(shape)
            made.append(weakref.ref(self))

    monkeypatch.setattr(local, "KeyValueCache", Watched)
    engine = LocalEngine(policy, EngineConfig(**ALWAYS))
    engine.generate(make_requests(SamplingParams(30), samples=2))
    gc.collect()
    assert tapes.captured and [cache() for cache in made] == [None]


def fails(function):
    function()
    raise RuntimeError("operation not permitted when stream is capturing\nsee the manual")


def stands_still(function):
    return lambda: None


def spoils(function):
    def replay():
        function()
        function.__self__.out[0] *= float("nan")

    return replay


def misses_a_row(function):
    def replay():
        function()
        function.__self__.out[-1] *= 1.05

    return replay


@pytest.mark.parametrize("capture", [fails, stands_still, spoils, misses_a_row])
def test_a_capture_that_does_not_work_is_said_once_and_steps_are_plain(
    capture, policy, tapes, monkeypatch
):
    requests = make_requests(SamplingParams(40), samples=2, count=4)  # 8 rows: a bucket is full
    wanted = LocalEngine(policy, EngineConfig(**NEVER)).generate(requests)
    calls = []

    def counted(function):
        calls.append(1)
        if capture is stands_still:
            function.__self__.out.zero_()
        return capture(function)

    monkeypatch.setattr(graphs, "capture_for", lambda device: counted)
    engine = LocalEngine(policy, EngineConfig(**ALWAYS))
    said = r": operation not permitted when stream is capturing$" if capture is fails else "replay"
    with pytest.warns(UserWarning, match=said) as seen:
        alike(engine.generate(requests), wanted)
    alike(engine.generate(requests), wanted)
    assert len(calls) == 1 and len(seen) == 1


def test_settings_say_where_steps_are_replayed(policy, tapes, monkeypatch):
    def captures(tokens, **settings):
        before = tapes.captured
        config = EngineConfig(pack_weights=False, **settings)
        LocalEngine(policy, config).generate(make_requests(SamplingParams(tokens), samples=2))
        return tapes.captured > before

    assert captures(graphs.COLUMNS) and captures(20, cuda_graphs="always")
    assert not captures(63) and not captures(70, cuda_graphs="never")
    noisy = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.1))
    long = make_requests(SamplingParams(70))
    assert graphs.graphs_of(None, noisy, EngineConfig(), long) is None
    noisy[1].p = 0.0
    made = graphs.graphs_of(None, noisy, EngineConfig(), long)
    assert made is not None and graphs.graphs_of(made, noisy, EngineConfig(), long) is made
    monkeypatch.undo()
    assert not captures(70)
    with pytest.raises(UserError, match=r"engine\.cuda_graphs: `always` needs a CUDA device"):
        captures(70, cuda_graphs="always")


def test_sizes_by_hand():
    assert [rounded(n) for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 17, 25, 200)] == [
        1, 2, 3, 4, 6, 6, 8, 8, 12, 16, 24, 32, 256,
    ]  # fmt: skip
    most = Shape(10, 300, 70, 5, 10)
    slots = np.array([0, 0, 0, 0, 0, 1, 2, 3, 4])
    sharing = Sharing.of(slots, np.array([9, 65, 2, 2, 2]), torch.device("cpu"))
    shared = Standing(torch.zeros(3, 9), 97, sharing, slots)
    # As far as there can be any: 12 rows are 10, 96 columns of prompts 70, and 6 slots 5.
    assert Shape.of(shared, most) == Shape(10, 128, 70, 5, 6)
    own = Standing(torch.zeros(3, 3), 5, None, slots)
    assert Shape.of(own, most) == Shape(3, 64, 0, 0, 0)
    cache = KeyValueCache(KeyValueShape(1, 1, 8, torch.float32, torch.device("cpu")))
    Shape.of(shared, most).make_room(cache, most)
    assert (cache.completions.rows, cache.completions.columns) == (10, 300)
    assert (cache.prompts.rows, cache.prompts.columns) == (5, 70)
    Shape.of(own, replace(most, rows=12)).make_room(cache, replace(most, rows=12))
    assert cache.prompts.rows >= 12 and cache.prompts.columns == 300
