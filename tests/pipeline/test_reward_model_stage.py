"""A reward model that a recipe trains and a later stage asks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import Kill, recipe, rl_stage, run_and_die, sft_stage, write
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from lydite.config import UserError, validate
from lydite.pipeline.dry_run import Mark, check_recipe
from lydite.pipeline.lineage import read_lineage
from lydite.pipeline.recipe import Recipe, load_recipe
from lydite.pipeline.runner import Finished, run_recipe
from lydite.tasks import courtesy
from lydite.tasks.task import load_task
from lydite.verify import VerifierConfig, build
from lydite.verify.spoken import part_of
from lydite.watch.events import Evaluated, StepDone, read_events

WORDS = ["first ", " then ", "先 ", " 再 ", *courtesy.vocabulary()]


def reward_stage(**changes: Any) -> dict[str, Any]:
    return {
        "name": "helpful", "kind": "reward_model", "task": "pairs", "steps": 4, "batch_size": 8,
        "optimizer": {"lr": 3e-3}, "held_out": 0.3, **changes,
    }  # fmt: skip


def asks(**changes: Any) -> list[dict[str, Any]]:
    reward = {"kind": "reward_model", "from_stage": "helpful", **changes}
    return [{"kind": "format", "thinking": "optional"}, reward]


def values(folder: Path, stages: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    made = recipe(stages or [sft_stage(steps=2), reward_stage(), rl_stage(verifier=asks())], folder)
    made["tasks"]["pairs"] = {"courtesy": {"count": 40, "pairs": "helpful", "seed": 0}}
    made["model"] = {**made["model"], "vocabulary": [*made["model"]["vocabulary"], *WORDS]}
    return made


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    place = tmp_path_factory.mktemp("reward")
    return run_recipe(load_recipe(write(values(place), place / "recipe.yaml")), place / "run")


def test_the_next_stage_starts_from_the_model_before_it(run: Finished) -> None:
    records = {
        name: json.loads((run.folder / "stages" / name / "artifact.json").read_text())
        for name in ("sft", "helpful", "rl")
    }
    assert records["helpful"]["parent"] == records["rl"]["parent"] == records["sft"]["fingerprint"]
    assert records["rl"]["data"]["reward model helpful"] == records["helpful"]["fingerprint"]
    assert "reward model helpful" not in records["sft"]["data"]
    assert records["rl"]["settings"]["verifier"]["rewards"][1]["from_stage"] == "helpful"
    root = read_lineage(run.folder)
    assert [child.name for child in root.children[0].children] == ["helpful", "rl"]


def test_pairs_are_measured_before_and_after(run: Finished) -> None:
    events = [e for e in read_events(run.folder / "events.jsonl") if e.stage == "helpful"]
    measured = [e for e in events if isinstance(e, Evaluated)]
    assert [e.step for e in measured] == [0, 2, 4]
    assert {e.task for e in measured} == {"pairs of helpful"} and 0 < measured[0].n < 40
    steps = [e.metrics for e in events if isinstance(e, StepDone)]
    assert len(steps) == 4 and all(
        {"loss", "reward_margin", "reward_accuracy", "lr", "grad_norm"} <= set(m) for m in steps
    )
    summary = json.loads((run.folder / "summary.json").read_text())
    assert "pairs of helpful" in summary["stages"][1]["eval"]


def test_the_reward_is_what_the_saved_model_says(run: Finished) -> None:
    """Beside Transformers alone, on the chat template, by hand."""
    folder = run.folder / "stages/helpful/model"
    verifier = build(VerifierConfig.model_validate({"kind": "reward_model", "model": str(folder)}))
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    problems = courtesy.generate(6, 1, "train", pairs="helpful")
    texts = [p.worked or "" for p in problems]
    found = [verdict.reward for verdict in verifier.verify(problems, texts)]
    for problem, text, reward in zip(problems, texts, found, strict=True):
        shown = part_of(text, "answer")
        whole = f"<bos><user>{problem.question}<assistant>{shown}<eos>"
        ids = tokenizer(whole, add_special_tokens=False, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            assert reward == pytest.approx(float(model(ids).logits[0, 0]), abs=1e-5)
    verifier.close()


def test_the_rewards_of_the_run_are_that_models(run: Finished) -> None:
    import pyarrow.parquet as pq

    folder = run.folder / "stages/helpful/model"
    verifier = build(VerifierConfig.model_validate({"kind": "reward_model", "model": str(folder)}))
    rows = pq.read_table(run.folder / "samples/rl/step-000001.parquet").to_pylist()
    config = load_recipe(run.folder / "recipe.yaml").tasks["train"]
    known = {problem.id: problem for problem in load_task("train", config, 0).problems}
    problems = [known[row["problem_id"]] for row in rows]
    again = verifier.verify(problems, [row["completion"] for row in rows])
    for row, verdict in zip(rows, again, strict=True):
        parts = json.loads(row["parts"]) if isinstance(row["parts"], str) else dict(row["parts"])
        assert parts["reward_model"] == pytest.approx(verdict.reward, abs=1e-4)
    verifier.close()


@pytest.mark.parametrize(
    "kill",
    [
        Kill("event", "step_done helpful 3"),
        Kill("before", "lydite.pipeline.stages.reward_model:save_scorer"),
        Kill("before", "lydite.pipeline.stages.reward_model:save_artifact"),
    ],
    ids=str,
)
def test_a_killed_stage_ends_in_the_same_weights(run: Finished, tmp_path: Path, kill: Kill) -> None:
    made = values(tmp_path, [sft_stage(steps=2), reward_stage()])
    file = write(made, tmp_path / "recipe.yaml")
    run_and_die(file, tmp_path / "run", kill)
    run_recipe(load_recipe(file), tmp_path / "run")
    weights = "stages/helpful/model/model.safetensors"
    assert (tmp_path / "run" / weights).read_bytes() == (run.folder / weights).read_bytes()


def test_a_dry_run_knows_what_waits(tmp_path: Path) -> None:
    checks = list(check_recipe(validate(Recipe, values(tmp_path), "r"), tmp_path / "run"))
    assert not [c for c in checks if c.mark is Mark.FAILED]
    verifier = next(c for c in checks if c.name == "verifier")
    assert "rl: reward_model" in verifier.lines and "digit (function)" in verifier.lines


@pytest.mark.parametrize(
    ("stages", "changes", "said"),
    [
        (
            [rl_stage(verifier=asks()), reward_stage()],
            {},
            r"stages\.0\.verifier: reward_model\.from_stage: no reward_model stage 'helpful'",
        ),
        (
            [reward_stage(), rl_stage(verifier=asks(sees="whole"))],
            {},
            r"learned from 'answer', here it would be shown 'whole'; say sees: answer",
        ),
        (
            [reward_stage(), rl_stage()],
            {"evaluation": {"tasks": ["heldout"], "verifier": asks()}},
            r"evaluation\.verifier: held-out answers are scored from the start",
        ),
        (
            [reward_stage(), rl_stage(start_from="helpful")],
            {},
            r"stages\.1\.start_from: stage 'helpful' leaves a reward model, not a language model",
        ),
    ],
)
def test_what_cannot_be_is_refused(
    tmp_path: Path, stages: list[dict[str, Any]], changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        validate(Recipe, {**values(tmp_path, stages), **changes}, "r")
