"""Mismatch made on purpose, its corrections, and whole runs, with vLLM as the engine."""

from __future__ import annotations

import json
import math

import pytest
import torch

pytest.importorskip("vllm", reason="vllm is not installed; make test-vllm")

from small_runs import recipe, rl_stage
from small_vllm import ENGINE, MODEL, SEED

from lydite.config import validate
from lydite.model.loading import ModelConfig
from lydite.model.scoring import score
from lydite.objective.objective import Objective
from lydite.pipeline.evaluation import evaluate_model, load_measurement
from lydite.pipeline.recipe import Recipe
from lydite.pipeline.runner import run_recipe
from lydite.rollout.colocated import release
from lydite.rollout.vllm import VllmEngine
from lydite.train.learner import Learner, UpdateConfig
from lydite.train.optimizer import OptimizerConfig
from lydite.types import Request, SamplingParams, TrainBatch, TrainGroup, TrainSequence

TEMPERATURE = 0.8


def rollout(engine):
    """Completions with made-up advantages."""
    params = SamplingParams(12, TEMPERATURE)
    requests = [Request(f"q{i}", (7 + i, 8, 9, 10), 4, params) for i in range(3)]
    groups = []
    for request, group in zip(requests, engine.generate(requests), strict=True):
        sequences = [
            TrainSequence(c.token_ids, c.loss_mask, c.logprobs, 1.0 if c.sample % 2 else -1.0)
            for c in group
        ]
        groups.append(TrainGroup(request.prompt_ids, sequences))
    return TrainBatch(groups, TEMPERATURE)


@torch.no_grad()
def gaps(policy, batch):
    """``log π/μ`` of every token, a list for each sequence."""
    found = []
    for group in batch.groups:
        for s in group.sequences:
            ids = [[list(s.token_ids)]]
            ours = score(policy, [list(group.prompt_ids)], ids, TEMPERATURE)[0][0]
            found.append((ours - torch.tensor(s.behaviour)).tolist())
    return found


def measured(policy, batch, spec):
    learner = Learner(policy, OptimizerConfig(lr=1e-12), UpdateConfig())
    return learner.update(batch, Objective.parse(spec), (0, 1))


def corrupt(policy, engine, size):
    """Hands vLLM other weights than the learner has."""
    noise = torch.Generator().manual_seed(2)
    engine.load_weights(
        [
            (name, p.detach() + size * torch.randn(p.shape, generator=noise))
            for name, p in policy.model.named_parameters()
        ],
        engine.version,
    )


def test_mismatch_is_nothing_with_the_learners_weights_and_grows_with_the_corruption(
    policy, engine
):
    clean = measured(policy, rollout(engine), "grpo")
    assert clean["kl_behaviour"] < 1e-6 and clean["mismatch_ess"] > 0.9999
    assert clean["mismatch_outside"] == 0.0 and clean["mismatch_correlation"] > 0.9999
    corrupt(policy, engine, 0.02)
    some = measured(policy, rollout(engine), "grpo")
    corrupt(policy, engine, 0.1)
    batch = rollout(engine)
    much = measured(policy, batch, "grpo")
    assert clean["kl_behaviour"] < some["kl_behaviour"] < much["kl_behaviour"]
    assert clean["mismatch_ess"] > some["mismatch_ess"] > much["mismatch_ess"]
    ratios = [math.exp(gap) for row in gaps(policy, batch) for gap in row]
    outside = sum(not 0.5 <= ratio <= 2.0 for ratio in ratios) / len(ratios)
    assert much["mismatch_outside"] == pytest.approx(outside) and outside > 0.05


def expected(kind, low, high, rows):
    """The weights of all tokens, worked out here."""
    found = []
    for row in rows:
        product = math.exp(sum(row))
        for gap in row:
            ratio = math.exp(gap)
            found.append(
                {
                    "tis": min(ratio, high),
                    "icepop": ratio if low <= ratio <= high else 0.0,
                    "tis_sequence": min(product, high),
                    "mis": product if low <= product <= high else 0.0,
                }[kind]
            )
    return found


@pytest.mark.parametrize(
    ("kind", "low", "high", "size"),
    [
        ("tis", 0.0, 1.2, 0.05),
        ("icepop", 0.8, 1.2, 0.05),
        ("tis_sequence", 0.0, 1.02, 0.01),
        ("mis", 0.9, 1.1, 0.01),
    ],
)
def test_a_correction_weighs_what_other_weights_sampled(policy, engine, kind, low, high, size):
    correction = {"kind": kind, "low": low, "high": high}
    spec = {"preset": "grpo", "correction": correction}
    clean = measured(policy, rollout(engine), spec)
    assert clean["correction"] == pytest.approx(1.0, abs=1e-3)
    corrupt(policy, engine, size)
    batch = rollout(engine)
    weights = expected(kind, low, high, gaps(policy, batch))
    found = measured(policy, batch, spec)
    assert found["correction"] == pytest.approx(sum(weights) / len(weights), abs=1e-3)
    if kind in ("icepop", "mis"):
        assert 0.0 in weights, "nothing was masked"
    else:
        assert high in weights, "nothing was truncated"


def run(tmp_path, stages, **changes):
    values = recipe(stages, tmp_path, model=MODEL, engine=ENGINE, seed=SEED, **changes)
    return run_recipe(validate(Recipe, values), tmp_path / "run")


def events(tmp_path):
    lines = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_a_run_of_rl_samples_with_vllm_and_never_with_old_weights(tmp_path):
    run(tmp_path, [rl_stage(objective="grpo+tis", optimizer={"lr": 0.05})])
    steps = [e["metrics"] for e in events(tmp_path) if e["kind"] == "step_done"]
    assert len(steps) == 4
    trained = [m for m in steps if "kl_behaviour" in m]
    assert trained, "no group taught anything"
    # At this learning rate, weights of one update ago would be far from those that learn.
    assert all(m["kl_behaviour"] < 1e-5 for m in trained)
    assert all("seconds_sync" in m for m in trained)
    (before, *_, after) = [e for e in events(tmp_path) if e["kind"] == "evaluated"]
    assert before["answers"] != after["answers"]


def test_stages_one_after_another_share_one_vllm(tmp_path, monkeypatch):
    started = []
    release()
    start = VllmEngine._start
    monkeypatch.setattr(VllmEngine, "_start", lambda *a: started.append(1) or start(*a))
    finished = run(
        tmp_path,
        [
            {"kind": "sft", "task": "worked", "steps": 2, "batch_size": 8},
            rl_stage(steps=2),
            rl_stage(name="again", steps=2),
        ],
    )
    assert [s.name for s in finished.stages] == ["sft", "rl", "again"]
    assert len(started) == 1


def test_evaluation_by_a_recipe_uses_its_engine(tmp_path):
    run(tmp_path, [rl_stage(steps=1)])
    path = tmp_path / "run" / "recipe.yaml"
    plan = load_measurement(["heldout"], str(path), {}, None, 0)
    assert plan.recipe is not None and plan.recipe.engine.kind == "vllm"
    config = plan.model(ModelConfig(path=str(tmp_path / "run" / "model")))
    found = evaluate_model(config, plan, lambda name, at: None)
    assert found["heldout"].interval.n == 4
