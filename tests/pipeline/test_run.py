"""What a finished run leaves, and what its parts agree on."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import yaml
from small_runs import MODEL, Kill, recipe, rl_stage, run_and_die, sft_stage, write
from transformers import AutoModelForCausalLM, AutoTokenizer

from lydite.config import UserError, validate
from lydite.model.loading import ModelConfig, load_policy
from lydite.model.render import render_prompt
from lydite.objective.objective import Objective
from lydite.pipeline.device import dtype_of
from lydite.pipeline.recipe import Recipe, load_recipe
from lydite.pipeline.runner import Given, run_recipe
from lydite.rollout.select import local_engine
from lydite.tasks.task import TaskConfig, load_task, task_of_rows
from lydite.train.learner import Learner, UpdateConfig
from lydite.train.optimizer import OptimizerConfig
from lydite.types import Request, SamplingParams, TrainBatch, TrainGroup, TrainSequence
from lydite.watch.events import Evaluated, StepDone, Warned, iterate_events, read_events


def test_the_recipe_is_written_out_and_reads_back_as_itself(plain_run: Any) -> None:
    written = yaml.safe_load((plain_run.folder / "recipe.yaml").read_text())
    assert written["stages"][2]["sampling"]["temperature"] == 1.0, "defaults are written out"
    again = load_recipe(plain_run.folder / "recipe.yaml")
    assert again == load_recipe(plain_run.file)


def test_the_log_has_every_step_of_every_stage(plain_run: Any) -> None:
    events = read_events(plain_run.folder / "events.jsonl")
    steps = {name: [e.step for e in events if isinstance(e, StepDone) and e.stage == name]
             for name in ("base", "cold", "rl")}  # fmt: skip
    assert steps == {"base": [1, 2, 3], "cold": [1, 2, 3], "rl": [1, 2, 3, 4]}
    kinds = [e.kind for e in events]
    assert kinds[0] == "run_started" and kinds[-1] == "run_done"
    assert kinds.count("stage_started") == kinds.count("stage_done") == 3


def test_every_rollout_is_on_disk(plain_run: Any) -> None:
    files = sorted((plain_run.folder / "samples/rl").iterdir())
    assert [file.name for file in files] == [f"step-{n:06d}.parquet" for n in (1, 2, 3, 4)]
    rows = pq.read_table(files[0]).to_pylist()
    assert len(rows) == 12
    for row in rows:
        right = row["completion"][:1].isdigit()
        assert row["reward"] == float(right)
        assert row["outcome"] == ("correct" if right else "wrong")
        assert row["prompt"].startswith("user: ")
    for problem in {row["problem_id"] for row in rows}:
        group = [row for row in rows if row["problem_id"] == problem]
        # Population deviation: k of 4 right gives √((4−k)/k) to each right one.
        right = sum(row["reward"] for row in group)
        for row in group:
            expected = 0.0 if right in (0, 4) else (row["reward"] - right / 4) / (
                right / 4 * (1 - right / 4)
            ) ** 0.5  # fmt: skip
            assert row["advantage"] == pytest.approx(expected, abs=1e-4)


def test_the_model_is_a_plain_hugging_face_folder(plain_run: Any) -> None:
    model = AutoModelForCausalLM.from_pretrained(plain_run.folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(plain_run.folder / "model")
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "add 1+2"}], tokenize=False, add_generation_prompt=True
    )
    ids = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
    with torch.no_grad():
        logits = model(ids).logits
    assert logits.shape == (*ids.shape, len(tokenizer)) and torch.isfinite(logits).all()
    policy = load_policy(ModelConfig(path=str(plain_run.folder / "stages/rl/model")))
    state = policy.model.state_dict()
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())


def test_the_summary_says_what_each_stage_took_and_changed(plain_run: Any) -> None:
    summary = json.loads((plain_run.folder / "summary.json").read_text())
    assert [(s["name"], s["kind"], s["steps"]) for s in summary["stages"]] == [
        ("base", "sft", 3), ("cold", "sft", 3), ("rl", "rl", 4),
    ]  # fmt: skip
    for stage in summary["stages"]:
        assert stage["seconds"] > 0
        score = stage["eval"]["heldout"]
        assert score["n"] == 4 and score["k"] == 1
        low, high = score["ci95"]
        assert 0 <= low <= score["avg"] <= high <= 1
    scores = [stage["eval"]["heldout"] for stage in summary["stages"]]
    assert [s["before"]["avg"] for s in scores[1:]] == [s["avg"] for s in scores[:-1]]
    assert [s.as_json() for s in plain_run.finished.stages] == summary["stages"]


def test_a_finished_run_given_again_changes_nothing(plain_run: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(plain_run.folder, folder)

    def state() -> dict[Path, int]:
        return {
            path: path.stat().st_mtime_ns
            for path in folder.rglob("*")
            if path.is_file() and path.name not in ("events.jsonl", "summary.json", ".lock")
        }

    before, summary = state(), (folder / "summary.json").read_bytes()
    again = run_recipe(load_recipe(plain_run.file), folder)
    assert again.stages == plain_run.finished.stages
    assert state() == before
    assert (folder / "summary.json").read_bytes() == summary
    steps = [e for e in iterate_events(folder / "events.jsonl") if e.kind == "step_done"]
    assert len(steps) == 10, "no step was done again"


def test_a_stage_can_start_from_an_earlier_one(tmp_path: Path) -> None:
    """And from the model itself, whose score is then measured anew."""
    stages = [
        sft_stage(name="a", steps=1), rl_stage(name="b", steps=1),
        sft_stage(name="c", steps=1, start_from="a"),
        sft_stage(name="d", steps=1, start_from="model"),
    ]  # fmt: skip
    run = run_recipe(validate(Recipe, recipe(stages, tmp_path)), tmp_path / "run")
    parents = {
        name: json.loads((tmp_path / f"run/stages/{name}/artifact.json").read_text())
        for name in "abcd"
    }
    assert parents["c"]["parent"] == parents["b"]["parent"] == parents["a"]["fingerprint"]
    assert parents["d"]["parent"] == parents["a"]["parent"]
    before = [stage.scores["heldout"].before.scores for stage in run.stages]
    assert before[3] == before[0] and before[2] == run.stages[0].scores["heldout"].after.scores


def test_a_stage_whose_problems_are_all_solved_ends_early(tmp_path: Path) -> None:
    easy = tmp_path / "easy.py"
    easy.write_text("def easy(completions, **columns):\n    return [1.0 for _ in completions]\n")
    stage = rl_stage(name="rl", steps=9, prompts_per_step=15, objective="grpo+retire_solved")
    values = recipe([stage, sft_stage(name="after", steps=1)], tmp_path)
    values["verifier"]["function"] = f"{easy}:easy"
    values["evaluation"]["every"] = values["checkpoint"]["every"] = 5
    file = write(values, tmp_path / "recipe.yaml")
    # 15 of 20 problems, and then 5 that are drawn three times: all right.
    for kill in (
        "lydite.pipeline.stages.training:save_policy",
        "lydite.pipeline.stages.training:save_artifact",
    ):
        run_and_die(file, tmp_path / "run", Kill("before", kill))
    finished = run_recipe(load_recipe(file), tmp_path / "run")
    events = read_events(tmp_path / "run/events.jsonl")
    rl = [e for e in events if e.stage == "rl"]
    assert [e.step for e in rl if isinstance(e, StepDone)] == [1, 2]
    assert [e.metrics["retired"] for e in rl if isinstance(e, StepDone)] == [15, 20]
    assert [e.code for e in rl if isinstance(e, Warned)] == ["few_left", "all_retired"]
    assert [e.step for e in rl if isinstance(e, Evaluated)] == [0, 2]
    assert [stage.steps for stage in finished.stages] == [2, 1]


def test_a_lora_run_leaves_a_plain_model_and_holds_to_the_base(lora_run: Any) -> None:
    model = AutoModelForCausalLM.from_pretrained(lora_run.folder / "model")
    assert not [name for name, _ in model.named_parameters() if "lora" in name]
    assert "adapter_config.json" not in os.listdir(lora_run.folder / "model")
    events = read_events(lora_run.folder / "events.jsonl")
    drift = [
        e.metrics["kl_reference"]
        for e in events
        if isinstance(e, StepDone) and e.stage == "rl" and "kl_reference" in e.metrics
    ]
    assert drift[0] == pytest.approx(0, abs=1e-6) and drift[-1] > 1e-6
    first = AutoModelForCausalLM.from_pretrained(lora_run.folder / "stages/sft/model")
    changed = [
        name
        for (name, a), (_, b) in zip(
            model.named_parameters(), first.named_parameters(), strict=True
        )
        if not torch.equal(a, b)
    ]
    assert changed and all("proj" in name for name in changed)


def test_bfloat16_runs_on_a_cpu_from_end_to_end(tmp_path: Path) -> None:
    values = recipe([sft_stage(), rl_stage(steps=2)], tmp_path)
    values["model"] = {**MODEL, "dtype": "bfloat16", "gradient_checkpointing": True}
    run = run_recipe(validate(Recipe, values), tmp_path / "run")
    model = AutoModelForCausalLM.from_pretrained(run.model)
    assert model.dtype == torch.bfloat16
    assert all(torch.isfinite(p).all() for p in model.parameters())
    events = read_events(tmp_path / "run/events.jsonl")
    losses = [e.metrics["loss"] for e in events if isinstance(e, StepDone) and e.stage == "sft"]
    assert losses[-1] < losses[0]


def small_policy(**changes: Any) -> Any:
    config = ModelConfig.model_validate({**MODEL, **changes})
    config.init["initializer_range"] = 0.3  # far from uniform, so that differences show
    return load_policy(config, seed=3)


def sampled(policy: Any, temperature: float) -> TrainBatch:
    """Groups as the engine samples them."""
    data = load_task("t", TaskConfig.model_validate({"generated": {"count": 5}}), 0)
    params = SamplingParams(max_tokens=20, temperature=temperature)
    engine = local_engine(policy, seed=1)
    prompts = [render_prompt(policy, problem) for problem in data.problems]
    found = engine.generate(
        [Request(p.id, ids, 4, params) for p, ids in zip(data.problems, prompts, strict=True)]
    )
    groups = [
        TrainGroup(
            completions[0].prompt_ids,
            [
                TrainSequence(c.token_ids, c.loss_mask, c.logprobs, float(i) - 1.5)
                for i, c in enumerate(completions)
            ],
        )
        for completions in found
    ]
    return TrainBatch(groups, temperature)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_engine_and_learner_agree_on_log_probabilities(temperature: float) -> None:
    policy = small_policy()
    batch = sampled(policy, temperature)
    learner = Learner(policy, OptimizerConfig(lr=1e-3), UpdateConfig())
    ours = learner.logprobs(batch)
    theirs = [torch.tensor(s.behaviour) for group in batch.groups for s in group.sequences]
    assert len(ours) == len(theirs) == 20
    assert max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True)) < 1e-4
    assert min(float(row.min()) for row in theirs) < -1, "a uniform model would prove nothing"
    other = TrainBatch(batch.groups, 1.3)
    wrong = learner.logprobs(other)
    assert max(float((a - b).abs().max()) for a, b in zip(wrong, theirs, strict=True)) > 1e-2


def test_gradient_checkpointing_gives_the_same_gradient() -> None:
    batch = sampled(small_policy(), 1.0)
    found = []
    for checkpointing in (False, True):
        policy = small_policy(gradient_checkpointing=checkpointing)
        assert policy.model.is_activation_checkpointing is checkpointing
        learner = Learner(policy, OptimizerConfig(lr=1e-3), UpdateConfig())
        learner._accumulate(batch, Objective.parse("grpo"), None, None)
        found.append({n: p.grad.clone() for n, p in policy.model.named_parameters()})
    plain, saved = found
    assert plain.keys() == saved.keys()
    for name, gradient in plain.items():
        assert gradient.abs().max() > 0, name
        torch.testing.assert_close(saved[name], gradient, rtol=1e-5, atol=1e-7)


def test_problems_that_changed_since_a_checkpoint_are_noticed(tmp_path: Path) -> None:
    """A run from Python names no file, so only the problems themselves can tell."""
    values = recipe([rl_stage(steps=3)], tmp_path)
    del values["tasks"]
    values["evaluation"] = {"tasks": []}
    values["checkpoint"] = {"every": 1}
    ours, theirs = (
        task_of_rows("train", [{"question": f"add {n}+{i}", "answer": "1"} for i in range(9)], {})
        for n in (1, 2)
    )

    def stop(event: Any) -> None:
        if event.kind == "step_done" and event.step == 2:
            raise KeyboardInterrupt

    run = validate(Recipe, values)
    with pytest.raises(KeyboardInterrupt):
        run_recipe(run, tmp_path / "run", Given({"train": ours}), [stop])
    with pytest.raises(UserError, match=r"would do again: rl \(data of train\); give --redo"):
        run_recipe(run, tmp_path / "run", Given({"train": theirs}))
    run_recipe(run, tmp_path / "run", Given({"train": ours}))
    with pytest.raises(UserError, match=r"would do again: rl \(data of train\); give --redo"):
        run_recipe(run, tmp_path / "run", Given({"train": theirs}))


def test_a_stage_whose_folders_are_deleted_is_done_again(tmp_path: Path, plain_run: Any) -> None:
    shutil.copytree(plain_run.folder, tmp_path / "run")
    for part in ("stages", "checkpoints"):
        shutil.rmtree(tmp_path / "run" / part / "rl")
    (tmp_path / "run/model/model.safetensors").write_bytes(b"stale")
    run_recipe(load_recipe(plain_run.file), tmp_path / "run")
    weights = "model/model.safetensors"
    assert (tmp_path / "run" / weights).read_bytes() == (plain_run.folder / weights).read_bytes()


def test_a_new_model_keeps_its_type_in_later_stages() -> None:
    """On a GPU a model from a folder would be bfloat16; one that began in float32 stays so."""
    assert dtype_of(ModelConfig(path="init:llama")) == "float32"
    assert dtype_of(ModelConfig(path="init:llama", dtype="bfloat16")) == "bfloat16"
    assert dtype_of(ModelConfig(path="some/model")) == "auto"


def test_threads_are_what_the_recipe_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    values = recipe([sft_stage(steps=1)], tmp_path, threads=3)
    run_recipe(validate(Recipe, values), tmp_path / "out")
    assert asked == [3]


def test_two_stages_cannot_share_a_samples_folder(tmp_path: Path) -> None:
    stages = [rl_stage(name="rl"), rl_stage(name="rl-heldout")]
    values = recipe(stages, tmp_path)
    values["evaluation"] = {**values.get("evaluation", {}), "tasks": ["heldout"]}
    with pytest.raises(UserError, match="'rl-heldout' is where held-out answers"):
        validate(Recipe, values)
