"""What the vLLM engine does around vLLM, with a fake in its place, and without any."""

from __future__ import annotations

import importlib.util
import sys
import threading
import types
from pathlib import Path

import pytest
import torch
from small_runs import recipe, rl_stage

from lydite.config import UserError, validate
from lydite.pipeline.dry_run import Mark, check_recipe
from lydite.pipeline.recipe import Recipe
from lydite.rollout import vllm as module
from lydite.rollout.engine import EngineConfig
from lydite.rollout.vllm import VllmEngine
from lydite.rollout.vllm_start import Served, mode_of
from lydite.types import Request, SamplingParams

TOKENIZER = types.SimpleNamespace(pad_token_id=0, decode=lambda ids, **_: " ".join(map(str, ids)))
ADAPTER = {"r": 4}


@pytest.fixture
def nothing(monkeypatch):
    """vllm is not installed."""
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "vllm" else found(name, *a)
    )


class FakeVllm:
    """Writes down what is asked of it; its weights are the version that was set last."""

    def __init__(self):
        self.log = []
        self.llm_engine = self
        self.version = ""

    def set_weight_version(self, version):
        self.version = version

    def get_weight_version(self):
        return self.version

    def collective_rpc(self, name, args=(), kwargs=None):
        if name == "reload_weights":
            names = [name for name, _ in kwargs["weights_iterator"]]
            self.log.append(f"load {' '.join(names)}")

    def sleep(self, level):
        self.log.append(f"sleep {level}")

    def wake_up(self, tags=None):
        self.log.append(f"wake {' '.join(tags)}" if tags else "wake")

    def reset_prefix_cache(self):
        self.log.append("forget")


def engine_on(monkeypatch, source=True, device="cuda", adapter=None, **settings):
    monkeypatch.setattr(module, "installed_version", lambda: "0")
    fake = FakeVllm()
    monkeypatch.setattr(VllmEngine, "_start", lambda self, settings: fake)
    monkeypatch.setattr(VllmEngine, "_stream", lambda self, requests, *a: [[] for _ in requests])
    monkeypatch.setattr(
        VllmEngine, "_swap_adapter", lambda self, w: fake.log.append(f"adapter {len(list(w))}")
    )
    served = Served(Path("none"), TOKENIZER, frozenset({1}), 64, torch.float32, adapter)
    config = validate(EngineConfig, {"kind": "vllm", "vllm": settings})
    weights = [("w", torch.zeros(1))]
    if adapter:
        weights = [
            ("base_model.model.q.base_layer.weight", torch.zeros(1)),
            ("base_model.model.q.lora_A.default.weight", torch.zeros(1)),
        ]
    engine = VllmEngine(served, config, 0, (lambda: weights) if source else None, device)
    begun, fake.log[:] = list(fake.log), []
    return engine, fake.log, begun


REQUEST = Request("q", (2, 3), 1, SamplingParams(4))
NEW = [("w", torch.ones(1))]


def test_absence_is_one_line_that_names_the_extra(nothing):
    line = r"engine\.kind: vllm is not installed; pip install 'lydite\[vllm\]'"
    with pytest.raises(UserError, match=line):
        VllmEngine(Served(Path("none"), TOKENIZER, frozenset(), 8))


def test_a_dry_run_tells_and_starts_nothing(nothing, tmp_path):
    values = recipe([rl_stage()], tmp_path, engine={"kind": "vllm"})
    checks = {c.name: c for c in check_recipe(validate(Recipe, values), tmp_path / "run")}
    assert checks["engine"].mark is Mark.FAILED and "lydite[vllm]" in checks["engine"].text
    assert "vllm" not in sys.modules
    values["engine"] = {"kind": "local"}
    names = {c.name for c in check_recipe(validate(Recipe, values), tmp_path / "run")}
    assert "engine" not in names


def test_a_run_is_refused_before_it_makes_a_folder(nothing, tmp_path):
    from lydite.pipeline.runner import run_recipe

    values = recipe([rl_stage()], tmp_path, engine={"kind": "vllm"})
    with pytest.raises(UserError, match="vllm is not installed"):
        run_recipe(validate(Recipe, values), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_stale_sampling_beside_one_vllm_is_refused_when_the_recipe_is_read(tmp_path):
    values = recipe([rl_stage(staleness=1)], tmp_path, engine={"kind": "vllm"})
    with pytest.raises(UserError, match=r"stages\.0\.staleness: one vLLM"):
        validate(Recipe, values)


@pytest.mark.parametrize(
    ("params", "mode"),
    [
        (SamplingParams(4), ("processed_logprobs", 1.0)),
        (SamplingParams(4, 0.5), ("processed_logprobs", 1.0)),
        (SamplingParams(4, 0.5, top_p=0.9), ("raw_logprobs", 2.0)),
        (SamplingParams(4, 2.0, top_k=3), ("raw_logprobs", 0.5)),
        (SamplingParams(4, 1.0, min_p=0.1), ("raw_logprobs", 1.0)),
        (SamplingParams(4, 0.0, top_p=0.9), ("processed_logprobs", 1.0)),
    ],
)
def test_which_log_probabilities_vllm_is_asked_for(params, mode):
    assert mode_of(params) == mode


def test_it_sleeps_while_the_learner_works_and_keeps_its_weights(monkeypatch):
    engine, log, begun = engine_on(monkeypatch, sleep="offload")
    assert begun == ["load w", "forget"]
    engine.generate([REQUEST])
    engine.load_weights(NEW, 1)
    engine.generate([REQUEST])
    assert log == ["sleep 1", "wake", "load w", "forget", "sleep 1"]


def test_discarded_weights_are_taken_again_or_replaced(monkeypatch):
    engine, log, _ = engine_on(monkeypatch, sleep="discard")
    engine.generate([REQUEST])
    engine.generate([REQUEST])  # nothing new came
    assert log == ["sleep 2", "wake", "load w", "forget", "sleep 2"]
    log.clear()
    engine.load_weights(NEW, 1)
    engine.generate([REQUEST])
    assert log == ["wake weights", "load w", "forget", "wake", "sleep 2"]


def test_discarded_weights_beneath_adapters_come_back_with_them(monkeypatch):
    engine, log, begun = engine_on(monkeypatch, adapter=ADAPTER, sleep="discard")
    assert begun == ["load q.weight", "adapter 1", "forget"]
    engine.generate([REQUEST])
    engine.load_weights([("base_model.model.q.lora_A.default.weight", torch.ones(1))], 1)
    assert log == [
        "sleep 2", "wake weights", "load q.weight", "adapter 1", "forget", "adapter 1", "forget",
    ]  # fmt: skip


@pytest.mark.parametrize("where", [{"device": "cpu"}, {"source": False}, {"sleep": "never"}])
def test_it_stays_awake_on_a_cpu_and_in_a_process_of_its_own(monkeypatch, where):
    engine, log, _ = engine_on(monkeypatch, **where)
    engine.generate([REQUEST])
    assert log == []


def test_weights_of_another_version_are_refused(monkeypatch):
    engine, _, _ = engine_on(monkeypatch)
    engine.load_weights(NEW, 3)
    assert engine.version == 3
    engine.version = 4
    with pytest.raises(UserError, match=r"has the weights of version 3.*samples of version 4"):
        engine.generate([REQUEST])


def test_what_vllm_is_started_with(monkeypatch):
    given = {}
    monkeypatch.setattr(module, "installed_version", lambda: "0")
    monkeypatch.setattr(VllmEngine, "_start", lambda self, s: given.update(s) or FakeVllm())
    served = Served(Path("m"), TOKENIZER, frozenset({1}), 64, torch.bfloat16, {"r": 12})
    config = validate(EngineConfig, {"cache_gb": 2, "max_rows": 7, "vllm": {"memory_share": 0.3}})
    VllmEngine(served, config, -1, device="cuda:0")
    assert (given["gpu_memory_utilization"], given["enforce_eager"]) == (0.3, False)
    assert (given["max_lora_rank"], given["max_num_seqs"], given["dtype"]) == (16, 7, "bfloat16")
    assert given["load_format"] == "auto" and not given["enable_sleep_mode"]
    assert given["seed"] == 2**32 - 1 and "kv_cache_memory_bytes" not in given
    given.clear()
    VllmEngine(served, config, device="cpu", source=lambda: [])
    assert given["kv_cache_memory_bytes"] == 2e9 and given["load_format"] == "dummy"
    assert given["enforce_eager"] and "gpu_memory_utilization" not in given


def test_what_cannot_be_is_refused_in_one_line(monkeypatch):
    with pytest.raises(UserError, match="tensor_parallel: 1 on a CPU"):
        engine_on(monkeypatch, device="cpu", tensor_parallel=2)
    with pytest.raises(UserError, match="lora: adapters are merged only beside the learner"):
        engine_on(monkeypatch, source=False, adapter=ADAPTER, lora="merge")


def test_the_wait_for_vllm_ends_and_its_complaint_is_one_line(monkeypatch):
    monkeypatch.setattr(module, "installed_version", lambda: "0")
    go = threading.Event()
    fake = types.ModuleType("vllm")
    fake.LLM = lambda **settings: go.wait(30)
    monkeypatch.setitem(sys.modules, "vllm", fake)
    served = Served(Path("none"), TOKENIZER, frozenset(), 8)
    config = validate(EngineConfig, {"kind": "vllm", "vllm": {"start_seconds": 0.05}})
    with pytest.raises(UserError, match=r"start_seconds: vLLM has not started in 0\.05 s"):
        VllmEngine(served, config, device="cpu")
    go.set()

    def fail(**settings):
        raise ValueError("no\nsuch card")

    fake.LLM = fail
    with pytest.raises(UserError, match="vLLM does not start: no such card"):
        VllmEngine(served, config, device="cpu")
