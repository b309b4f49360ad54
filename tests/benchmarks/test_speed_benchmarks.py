"""The benchmarks of speed: what they count and divide, by hand."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

FOLDER = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)


def test_operations_of_an_update_by_hand() -> None:
    """One layer of 8 units, 2 heads of 4, an MLP of 16, 10 tokens. Prompt of 3, completions of 1
    and 4: 3 + 0 + 3 tokens run, 5 predicted; pairs 6 + 0 + (9 + 6).
    """
    workloads = importlib.import_module("workloads")
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=10, hidden_size=8, intermediate_size=16, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=1,
        )
    )  # fmt: skip
    policy: Any = SimpleNamespace(model=model, head=(model.lm_head.weight, None))
    batch = workloads.random_batch(10, [3], [[1, 4]])
    linear = 8 * 8 * 2 + 8 * 4 * 2 + 3 * 8 * 16
    wanted = 6 * linear * 6 + 6 * 10 * 8 * 5 + 12 * 8 * 21
    assert workloads.update_operations(policy, batch) == wanted


def test_ratios_are_taken_pair_by_pair() -> None:
    """4/2, 9/3 and 20/2: median 3, which is not that of the medians' ratio, 9/2."""
    vs_trl = pytest.importorskip("vs_trl")
    turn = importlib.import_module("contenders").Turn
    trl = [turn(s, 2 * s, s / 2, 100, 400, 50) for s in (4.0, 9.0, 20.0)]
    ours = [turn(s, s, s / 2, 100, 100, 50) for s in (2.0, 3.0, 2.0)]
    found = vs_trl.summary({"trl": trl, "lydite": ours})
    assert found["ratio"] == {"median": 3.0, "low": 2.0, "high": 10.0}
    assert found["processor_ratio"]["median"] == 6.0
    assert found["memory_share"] == 0.25
    assert found["trl"]["sampled_tokens_per_second"]["median"] == pytest.approx(100 / 4.5)
    assert found["lydite"]["trained_tokens_per_second"]["high"] == pytest.approx(100.0)


def test_new_results_take_the_place_of_old_ones_of_their_kind(tmp_path: Path) -> None:
    vs_trl = importlib.import_module("vs_trl")
    path = tmp_path / "results.json"
    kind = {"setting": "short", "dtype": "float32", "lengths": "equal", "threads": 1}
    vs_trl.merge(path, [{**kind, "ratio": 1}, {**kind, "threads": 2, "ratio": 2}])
    vs_trl.merge(path, [{**kind, "ratio": 3}])
    assert [row["ratio"] for row in json.loads(path.read_text())] == [2, 3]


def test_both_sides_reward_a_text_alike_and_differently_from_another() -> None:
    reward_of = importlib.import_module("contenders").reward_of
    assert reward_of("a") == reward_of("a") != reward_of("b")
    assert all(0 <= reward_of(str(i)) < 1 for i in range(100))


def test_peaks_are_of_one_machine() -> None:
    machine = importlib.import_module("machine").Machine(1, 2e9, 4e9, 1e9, 1e9)
    assert machine.products(torch.float32) == 2e9
    assert machine.products(torch.bfloat16) == 4e9
