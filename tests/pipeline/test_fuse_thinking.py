"""Fusion as a stage, in runs of seconds, and what is left in the model's folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import small_runs
from transformers import AutoTokenizer

from lydite.config import UserError, validate
from lydite.model.loading import ModelConfig, load_prompting
from lydite.pipeline.catalogue import find_recipe
from lydite.pipeline.dry_run import Mark, check_recipe
from lydite.pipeline.evaluation import describe, evaluate_model, load_measurement, modes_of
from lydite.pipeline.recipe import Recipe, load_recipe
from lydite.pipeline.runner import run_recipe
from lydite.types import Message, Problem
from lydite.watch.events import Evaluated, Warned, read_events
from lydite.watch.samples import read_samples

SWITCH = [" /think", " /no_think", "\n\n"]
FUSE = {
    "kind": "fuse_thinking",
    "task": "cold",
    "steps": 3,
    "batch_size": 8,
    "optimizer": {"lr": 3e-3},
    "multi_turn": 0.3,
}
ANSWERS = {"kind": "exact", "answer": "tag"}


def recipe(folder: Path, *stages: dict[str, Any], **changes: Any) -> Recipe:
    values = small_runs.recipe(list(stages), folder, **changes)
    values["model"]["vocabulary"] = [*values["model"]["vocabulary"], *SWITCH]
    values["tasks"]["cold"] = {"generated": {"count": 40, "worked": "cold_start"}}
    return validate(Recipe, values)


def evaluated(**changes: Any) -> dict[str, Any]:
    return {"tasks": ["heldout"], "sampling": {"max_tokens": 6}, **changes}


def test_a_fused_model_carries_the_switch_and_is_measured_in_every_mode(tmp_path: Path) -> None:
    modes = ["think", "no_think", "last_no_think", "hard_no_think"]
    made = recipe(
        tmp_path, small_runs.sft_stage(task="cold"), FUSE, evaluation=evaluated(modes=modes)
    )
    with pytest.raises(UserError, match="hard_no_think has no effect"):
        run_recipe(made, tmp_path / "refused")

    changes = {"evaluation": evaluated(modes=modes), "verifier": ANSWERS}
    made = recipe(tmp_path, small_runs.sft_stage(task="cold"), FUSE, **changes)
    model = made.model.model_copy(update={"thinking_switch": "strip"})
    made = made.model_copy(update={"model": model})
    checks = list(check_recipe(made, tmp_path / "run"))
    assert not [c for c in checks if c.mark is Mark.FAILED]
    (rows,) = [c for c in checks if c.name == "rows of fuse_thinking"]
    assert rows.text.startswith("40 rows: 20 think, 6 of them without a flag")
    finished = run_recipe(made, tmp_path / "run")
    summary = json.loads((finished.folder / "summary.json").read_text())
    scores = summary["stages"][-1]["eval"]
    assert list(scores) == [f"heldout.{mode}" for mode in modes]
    for score in scores.values():
        assert 0 <= score["obedience"] <= 1 and score["length"] > 0
        assert "obedience" in score["before"]
    assert len(read_samples(tmp_path / "run/samples/fuse_thinking-heldout.no_think")) == 4
    events = list(read_events(finished.folder / "events.jsonl"))
    (told,) = [e for e in events if isinstance(e, Warned) and e.code == "fused"]
    assert told.message.startswith("40 rows: 20 think, 6 of them without a flag; 20 answer at once")
    # What is the same model on the same prompts is measured once.
    starts = [e for e in events if isinstance(e, Evaluated) and e.step == 0]
    assert [e.metrics["seconds"] == 0 for e in starts] == [False] * 4 + [True] * 4


def test_the_stage_gives_a_template_the_switch_and_the_base_stays_as_it_was(
    tmp_path: Path,
) -> None:
    made = recipe(tmp_path, small_runs.sft_stage(task="cold"), FUSE, evaluation={})
    finished = run_recipe(made, tmp_path / "run")
    before = AutoTokenizer.from_pretrained(tmp_path / "run/stages/sft/model")
    after = AutoTokenizer.from_pretrained(finished.model)
    turns = [
        {"role": "user", "content": "add 1+1 /think"},
        {"role": "assistant", "content": "<think>1+1=2</think><answer>2</answer>"},
        {"role": "user", "content": "add 2+2 /no_think"},
    ]
    settings = {"tokenize": False, "add_generation_prompt": True, "enable_thinking": False}
    assert before.apply_chat_template(turns, **settings).endswith("/no_think<assistant>")
    shown = after.apply_chat_template(turns, **settings)
    assert shown == (
        "<bos><user>add 1+1 /think<assistant><answer>2</answer><eos>"
        "<user>add 2+2 /no_think<assistant><think>\n\n</think>\n\n"
    )


def test_a_measured_model_obeys_or_not(tmp_path: Path) -> None:
    made = recipe(tmp_path, FUSE, evaluation={})
    finished = run_recipe(made, tmp_path / "run")
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "add 1+1", "answer": 2}\n{"question": "add 1+2", "answer": 3}\n')
    plan = load_measurement([str(rows)], None, {}, "exact", 0).with_sampling(1, None, 6)
    plan = replace(plan, modes=modes_of(["both", "think"]))
    found = evaluate_model(ModelConfig(path=str(finished.model)), plan, lambda *_: None)
    assert list(found) == ["rows.hard_think", "rows.hard_no_think", "rows.think"]
    assert all(e.obedience is not None for e in found.values())
    table = describe(found, plan)
    assert table.columns[-1].header == "obeys" and table.row_count == 3


def test_modes_by_name() -> None:
    assert modes_of(["both", "hard_think"]) == ("hard_think", "hard_no_think")
    assert len(modes_of(["all"])) == 7
    with pytest.raises(UserError, match="--thinking: no mode 'on'; one of both, all, unflagged"):
        modes_of(["on"])


@pytest.mark.parametrize(
    ("stage", "model", "reason"),
    [
        ({"think_share": 1.0, "task": "loose"}, {}, "think_share: 40 of 40 rows are to think"),
        ({}, {"thinking": False}, "stages.fuse_thinking: model.thinking turns thinking off"),
        ({}, {"chat": False}, "stages.fuse_thinking: the switch is the chat template's"),
        ({}, {"vocabulary": small_runs.VOCABULARY}, "the tokenizer has no token for ' /"),
        ({"task": "train"}, {}, "tasks.train.worked: 20 of 20 problems have no worked"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, stage: dict[str, Any], model: dict[str, Any], reason: str
) -> None:
    values = small_runs.recipe([{**FUSE, **stage}], tmp_path)
    values["model"]["vocabulary"] = [*values["model"]["vocabulary"], *SWITCH]
    values["model"].update(model)
    values["tasks"]["cold"] = {"generated": {"count": 40, "worked": "cold_start"}}
    values["tasks"]["loose"] = {
        "generated": {"count": 40, "worked": {"styles": {"clean": 1}, "tagged": False}}
    }
    with pytest.raises(UserError, match=reason):
        run_recipe(validate(Recipe, values), tmp_path / "run")


def test_a_conversation_is_learned_by_a_recipe(tmp_path: Path) -> None:
    talk = [
        {"role": "user", "content": "add 1+1"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "add 2+2"},
        {"role": "assistant", "content": "4"},
    ]
    rows = tmp_path / "chats.jsonl"
    rows.write_text(json.dumps({"messages": talk}) + "\n")
    stage = small_runs.sft_stage(task="chats", batch_size=1)
    values = small_runs.recipe([stage], tmp_path, evaluation={})
    values["tasks"] = {"chats": {"path": str(rows), "conversation": "messages"}}
    finished = run_recipe(validate(Recipe, values), tmp_path / "run")
    assert finished.stages[0].steps == 3


def test_the_shipped_recipe_in_small(tmp_path: Path) -> None:
    """All of its stages on a model that is small and rows that are few; accuracy plays no part."""
    small = [
        "model.init.hidden_size=32",
        "model.init.intermediate_size=64",
        "model.init.num_hidden_layers=1",
        "evaluation.sampling.max_tokens=8",
        "tasks.heldout.generated.count=4",
        *(
            f"tasks.{name}.generated.count=40"
            for name in (
                "plain",
                "word",
                "other_word",
                "cold_start",
                "bare",
                "slow",
                "fast",
                "hard",
            )
        ),
        "tasks.train.generated.count=8",
        "tasks.queries.generated.count=8",
        *(f"stages.{n}.steps=2" for n in (0, 1, 2, 5)),
        *(f"stages.{n}.batch_size=8" for n in (0, 1, 4)),
        *(f"stages.{n}.prompts_per_step=2" for n in (2, 5)),
        *(f"stages.{n}.group_size=2" for n in (2, 5)),
        *(f"stages.{n}.sampling.max_tokens=8" for n in (2, 3, 5)),
        "stages.3.filters.correct=false",
        "stages.3.filters.cut_off=false",
        "stages.3.filters.format=null",
        "stages.4.task=cold_start",  # What so small a model writes may leave a thought open.
    ]
    made = load_recipe(find_recipe("qwen3_tiny"), small)
    assert [stage.kind for stage in made.stages] == [
        "sft", "sft", "rl", "rejection_sampling", "fuse_thinking", "rl",
    ]  # fmt: skip
    finished = run_recipe(made, tmp_path / "run")
    assert [len(stage.scores) for stage in finished.stages] == [6, 6, 6, 0, 6, 6]


def test_a_model_that_cannot_have_the_switch_is_refused_before_the_first_step(
    tmp_path: Path,
) -> None:
    """Though the rows to fuse are not there yet."""
    sample = {
        "kind": "rejection_sampling",
        "name": "sample",
        "samples": 1,
        "sampling": {"max_tokens": 6},
        "filters": {"correct": False, "cut_off": False},
    }
    stages = [small_runs.sft_stage(), sample, {**FUSE, "task": "kept"}]
    values = small_runs.recipe(stages, tmp_path)
    values["tasks"]["kept"] = {"from_stage": "sample"}
    with pytest.raises(UserError, match=r"stages\.fuse_thinking, the switch: the tokenizer has no"):
        run_recipe(validate(Recipe, values), tmp_path / "run")
    assert not (tmp_path / "run/stages/sft/artifact.json").exists()
    checks = check_recipe(validate(Recipe, values), tmp_path / "other")
    failed = [check for check in checks if check.mark is Mark.FAILED]
    assert [check.name for check in failed] == ["models of fuse_thinking"]


def test_a_part_of_the_rows_fits_whatever_the_others_are(tmp_path: Path) -> None:
    """Large tasks are tried slice by slice, and a slice may be without any thought."""
    made = recipe(tmp_path, FUSE)
    policy = load_prompting(made.model)
    turns = (Message("user", "add 1+1"),)
    plain = [Problem(str(n), "add 1+1", turns, worked="<answer>2</answer>") for n in range(3)]
    thinks = Problem("t", "add 1+1", turns, worked="<think>1+1=2</think><answer>2</answer>")
    stage = made.stages[0]
    #  <bos><user>add 1+1 /think /no_think<assistant>, an empty block, <answer>2</answer><eos>
    assert stage.fit(policy, plain) == 9 + 4 + 4
    assert stage.fit(policy, [thinks]) == 9 + 7 + 4
    with pytest.raises(UserError, match=r"stages\.fuse_thinking: problem t: .* leaves its thought"):
        stage.fit(policy, [replace(thinks, worked="<think>1")])
