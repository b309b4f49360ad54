"""The code that runs on a GPU, on one that is pretended (see ``pretended_gpu``) and, where there is
one, on a real one.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from itertools import chain
from pathlib import Path

import pytest
import torch
from pretended_gpu import GPU, PretendedGpu, move
from small_runs import MODEL, recipe, rl_stage, sft_stage, write
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lydite.model.loading import LoraConfig, ModelConfig, load_policy
from lydite.model.scoring import score
from lydite.objective.aggregate import Counts
from lydite.objective.objective import Objective
from lydite.ops import varlen
from lydite.ops.sampling import RowSampling, draw
from lydite.pipeline.recipe import load_recipe
from lydite.pipeline.runner import run_recipe
from lydite.rollout import graphs
from lydite.rollout.detached import DetachedLocalEngine
from lydite.rollout.engine import EngineConfig
from lydite.rollout.local import LocalEngine
from lydite.rollout.select import local_engine
from lydite.train.learner import Learner, UpdateConfig
from lydite.train.optimizer import OptimizerConfig
from lydite.types import Request, SamplingParams, TrainBatch, TrainGroup, TrainSequence
from lydite.watch.events import StepDone, read_events

real = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
DEVICES = ["pretended", pytest.param("cuda", marks=real)]
PROMPTS = [(3, 4, 5), (6, 7)]
COMPLETIONS = [[(8, 9), (10, 11, 12), (3,)], [(4, 5, 6, 7)]]


def plain(**changes):
    return load_policy(ModelConfig(**(MODEL | changes)))


@pytest.fixture
def on():
    """A policy on a device, and what has to be open while it is used."""

    def make(device, **changes):
        policy = plain(**changes)
        if device == "pretended":
            move(policy.model)
            return policy, PretendedGpu()
        policy.model.to("cuda")
        return policy, contextlib.nullcontext()

    return make


def on_host(tensor):
    return getattr(tensor, "held", tensor).detach().cpu()


def test_a_mix_of_devices_fails_as_it_would():
    """Else the tests below would say nothing."""
    with PretendedGpu() as gpu:
        here, there = torch.arange(3.0), torch.arange(3.0).to(GPU)
        assert there.device == GPU and torch.tensor([1.0, 2.0], device=GPU).tolist() == [1.0, 2.0]
        for wrong in (
            lambda: here + there,
            lambda: there[here.long()],
            lambda: torch.cat([here, there]),
        ):
            with pytest.raises((AssertionError, RuntimeError)):
                wrong()
        assert (there + 1).sum().item() == 6 and (2.0 * there).cpu().tolist() == [0, 2, 4]
        assert there[there > 0].shape == (2,)
    assert gpu.reads == {"a tensor": 2, "a number": 1, "where true": 1}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("read", [float, int, bool, torch.Tensor.item, lambda x: x.tolist()])
def test_a_read_is_counted_however_it_is_made(read, inference):
    with PretendedGpu() as gpu, torch.inference_mode(inference):
        there = torch.ones(1).to(GPU)
        assert gpu.reads.total() == 0
        assert read(there) in (1, [1])
    assert gpu.reads.total() == 1


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "top_p": 0.9, "stop": ("A",)}])
def test_an_engine_samples_what_it_samples_on_the_cpu(device, flat, sampling, on):
    requests = [
        Request(n, (3, 4 + i), 3, SamplingParams(12, **sampling)) for i, n in enumerate("abc")
    ]
    policies = plain(), on(device)
    for policy in (policies[0], policies[1][0]):
        policy.flat = flat
        if not flat:
            policy.model.set_attn_implementation("sdpa")
    wanted = local_engine(policies[0]).generate(requests)
    with policies[1][1]:
        found = local_engine(policies[1][0]).generate(requests)
    pairs = list(zip(chain(*wanted), chain(*found), strict=True))
    same = [(ours, theirs) for ours, theirs in pairs if ours.token_ids == theirs.token_ids]
    # Rounding differs between devices, and may tip a draw now and then.
    assert len(same) >= 0.8 * len(pairs)
    for ours, theirs in same:
        assert theirs.logprobs == pytest.approx(ours.logprobs, abs=1e-4)


def test_a_token_costs_one_read_of_the_device(on):
    """A read is a wait, and there is one in each step: which of the tokens end their completion."""
    policy, gpu = on("pretended")
    policy.stop_ids = frozenset()
    requests = [Request(n, (3, 4 + i), 3, SamplingParams(9)) for i, n in enumerate("ab")]
    with gpu:
        local_engine(policy).generate(requests)
    at_the_end = 3  # tokens, log-probabilities, and whether they are finite
    assert gpu.reads == {"a tensor": 9 + at_the_end}


class Asks(TorchDispatchMode):
    """Nothing in main memory takes part while it is open: a graph would hold on to what it was."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor) and x.ndim]
        assert all(x.device == GPU for x in given), f"{func}: a tensor in main memory"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("samples", [1, 3])
def test_a_step_that_is_captured_asks_the_device_nothing(samples, on, monkeypatch):
    policy, gpu = on("pretended")
    requests = [Request(n, (3, 4 + i), samples, SamplingParams(20)) for i, n in enumerate("abc")]
    wanted = local_engine(plain()).generate(requests)
    captured = []

    def capture(function):
        before = gpu.reads.copy()
        with Asks():
            function()
        assert gpu.reads == before
        captured.append(function)
        return function

    monkeypatch.setattr(graphs, "capture_for", lambda device: capture)
    monkeypatch.setattr(graphs, "REPEATED", 1)
    reads = []
    with gpu:
        for how in ("never", "always"):
            gpu.reads.clear()
            found = local_engine(policy, EngineConfig(cuda_graphs=how)).generate(requests)
            reads.append(gpu.reads.copy())
    assert captured
    assert reads[1] - reads[0] == {"a number": len(captured)}  # how far from the plain step
    pairs = list(zip(chain(*wanted), chain(*found), strict=True))
    assert sum(a.token_ids == b.token_ids for a, b in pairs) >= 0.8 * len(pairs)


@real
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("samples", [1, 6])
def test_cuda_graphs_sample_what_plain_steps_do(dtype, samples, on):
    """In bfloat16 rounding differs with the number of rows, and tips more draws."""
    policy, _ = on("cuda", context=200)
    policy.model.to(dtype)
    requests = [Request(n, (3, 4 + i), samples, SamplingParams(90)) for i, n in enumerate("abcdef")]
    engine = LocalEngine(policy, EngineConfig(max_rows=16, cuda_graphs="always"))
    wanted = LocalEngine(policy, EngineConfig(max_rows=16, cuda_graphs="never"))
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = engine.generate(requests)
        assert engine._graphs.on and any(s.replay for s in engine._graphs._steps.values())
        pairs = list(zip(chain(*wanted.generate(requests)), chain(*found), strict=True))
        same = [pair for pair in pairs if pair[0].token_ids == pair[1].token_ids]
        assert len(same) >= (0.8 if dtype == torch.float32 else 0.2) * len(pairs)
        for a, b in same:
            close = 1e-3 if dtype == torch.float32 else 0.1
            assert b.logprobs == pytest.approx(a.logprobs, abs=close)
        with torch.no_grad():  # in place, as an optimiser does
            for parameter in policy.model.parameters():
                parameter.mul_(1.1)


@real
def test_graphs_are_captured_while_another_thread_computes(on):
    policy, _ = on("cuda", context=200)
    requests = [Request(n, (3, 4 + i), 4, SamplingParams(90)) for i, n in enumerate("abc")]
    ended, square = threading.Event(), torch.ones(300, 300, device="cuda")

    def compute():
        while not ended.is_set():
            (square @ torch.ones(300, 500, device="cuda")).sum()

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            engine = LocalEngine(policy, EngineConfig(cuda_graphs="always"))
            found = engine.generate(requests)
    finally:
        ended.set()
        thread.join()
    assert engine._graphs.on and [len(group) for group in found] == [4, 4, 4]


@pytest.mark.parametrize(
    ("top_p", "width", "peaked", "reads"),
    [
        ((1.0, 1.0), 5000, True, 0),
        ((0.9, 0.9), 60, False, 0),  # all tokens are candidates
        ((0.9, 0.9), 5000, True, 1),  # that the first candidates are enough
        ((0.9, 1.0), 5000, True, 1),
        ((0.9, 1.0), 5000, False, 2),  # nor the first, nor the second: then all
    ],
)
def test_top_p_asks_the_device_once(top_p, width, peaked, reads):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, width, generator=generator) * (5 if peaked else 0.01)
    noise = torch.rand(2, generator=generator, dtype=torch.float64)
    params = [SamplingParams(1, top_p=p) for p in top_p]
    wanted = draw(logits, noise, RowSampling.of(params, "cpu"))
    with PretendedGpu() as gpu:
        found = draw(logits.to(GPU), noise.to(GPU), RowSampling.of(params, GPU))
    assert gpu.reads.total() == reads
    assert torch.equal(on_host(found[0]), wanted[0])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2)])
def test_log_probabilities_are_those_of_the_cpu(device, lora, on):
    wanted, entropy = score(plain(lora=lora), PROMPTS, COMPLETIONS, 0.7)
    policy, opened = on(device, lora=lora)
    with opened, torch.no_grad():
        found, other = score(policy, PROMPTS, COMPLETIONS, 0.7)
    torch.testing.assert_close(on_host(found), wanted.detach(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(on_host(other), entropy.detach(), atol=1e-5, rtol=1e-4)


@real
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_goes_through_the_kernels_without_padding(dtype, on, monkeypatch):
    """Scores with them and with a mask, prompts past a block of keys, beside the CPU's float32."""
    prompts = [tuple(3 + i % 9 for i in range(n)) for n in (90, 7)]
    wanted, _ = score(plain(), prompts, COMPLETIONS)
    policy, _ = on("cuda")
    policy.model.to(dtype)
    calls = []
    for used in (True, False):
        monkeypatch.setattr(varlen, "ON", used)
        whole = varlen.FORWARD
        monkeypatch.setattr(
            varlen, "FORWARD", lambda *a, w=whole, **s: calls.append(1) or w(*a, **s)
        )
        with torch.no_grad():
            found, _ = score(policy, prompts, COMPLETIONS)
        monkeypatch.setattr(varlen, "FORWARD", whole)
        assert bool(calls) is used
        calls.clear()
        torch.testing.assert_close(on_host(found).float(), wanted.detach(), atol=0.1, rtol=0.05)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "objective", ["grpo", "dapo+tis", "gspo", "grpo+kl", "cispo+icepop", "dr_grpo", "sapo", "gmpo"]
)
def test_a_loss_is_that_of_the_cpu(device, objective):
    built = Objective.parse(objective).with_limit(8)
    generator = torch.Generator().manual_seed(0)
    shape = (3, 4)
    policy, old, behaviour, reference, entropy = (
        torch.randn(shape, generator=generator) * 0.1 - 1.0 for _ in range(5)
    )
    mask = torch.tensor([[1.0, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]])
    given = {
        "policy": policy, "old": old, "behaviour": behaviour, "reference": reference,
        "advantages": torch.tensor([1.0, -0.5, 0.25]), "mask": mask, "entropy": entropy,
        "prompt_tokens": torch.tensor([6, 6, 1]),
    }  # fmt: skip
    counts = Counts(tokens=7, sequences=3, prompts=2)
    wanted, figures = built.loss(**given, counts=counts)
    opened = PretendedGpu() if device == "pretended" else contextlib.nullcontext()
    with opened:
        place = GPU if device == "pretended" else "cuda"
        there = {name: tensor.to(place) for name, tensor in given.items()}
        found, metrics = built.loss(**there, counts=counts)
        measured = metrics.cpu().means()
    assert float(on_host(found)) == pytest.approx(float(wanted), rel=1e-5)
    assert measured == pytest.approx(figures.means(), rel=1e-4, abs=1e-6)


@real
def test_weights_that_sample_ahead_stay_on_the_device(on):
    engine = DetachedLocalEngine(on("cuda")[0])
    kept = engine.snapshot()
    engine.load_weights(kept.items(), 3)
    assert {tensor.device.type for tensor in kept.values()} == {"cuda"}
    (group,) = engine.generate([Request("a", (3, 4), 2, SamplingParams(4))])
    assert group[0].versions == (3, 3)


def batch():
    groups = [
        TrainGroup(prompt, [TrainSequence(c, (1,) * len(c), (-1.0,) * len(c), 1.0 - i)
                            for i, c in enumerate(group)])
        for prompt, group in zip(PROMPTS, COMPLETIONS, strict=True)
    ]  # fmt: skip
    return TrainBatch(groups)


@real
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_update_on_a_gpu_is_that_of_the_cpu(dtype):
    updates = []
    for device in ("cpu", "cuda"):
        policy = plain()
        policy.model.to(device=device, dtype=dtype)
        learner = Learner(policy, OptimizerConfig(lr=0.01), UpdateConfig(minibatches=2))
        metrics = learner.update(batch(), Objective.parse("dapo").with_limit(8), (0, 2))
        updates.append((metrics, {n: t.float().cpu() for n, t in learner.state_tensors().items()}))
    loose = 1e-4 if dtype == torch.float32 else 5e-2
    assert updates[1][0]["loss"] == pytest.approx(updates[0][0]["loss"], rel=loose, abs=loose)
    assert updates[1][0]["grad_norm"] == pytest.approx(updates[0][0]["grad_norm"], rel=10 * loose)


@real
def test_a_run_on_a_gpu_resumes_to_the_bit(tmp_path: Path):
    """Same device, same program: as on the CPU. Interrupted by an error after its third step."""
    values = recipe(
        [sft_stage(steps=2), rl_stage(steps=5, staleness=1, objective="grpo+tis")], tmp_path
    )
    values |= {"device": "cuda", "checkpoint": {"every": 1}}
    file = write(values, tmp_path / "recipe.yaml")
    whole = run_recipe(load_recipe(file), tmp_path / "whole")

    class Stop(Exception):
        pass

    def stop(event):
        if isinstance(event, StepDone) and (event.stage, event.step) == ("rl", 3):
            raise Stop

    with pytest.raises(Stop):
        run_recipe(load_recipe(file), tmp_path / "again", listeners=[stop])
    again = run_recipe(load_recipe(file), tmp_path / "again")
    saved = [run.model / "model.safetensors" for run in (whole, again)]
    assert saved[0].read_bytes() == saved[1].read_bytes()
    assert len(read_events(tmp_path / "again/events.jsonl")) > 5
