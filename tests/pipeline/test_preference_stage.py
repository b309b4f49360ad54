"""The stage ``preference`` in a run: its pairs, what it leaves, and what it refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from small_runs import MODEL, preference_stage, recipe, sft_stage, write

from lydite.config import UserError, validate
from lydite.model.loading import ModelConfig, load_policy
from lydite.pipeline.dry_run import Check, Mark, check_recipe
from lydite.pipeline.pairs import CUT, SampledPairs, StagePairs, sampled_pairs, stage_pairs
from lydite.pipeline.recipe import Recipe, load_recipe
from lydite.pipeline.runner import Finished, run_recipe
from lydite.train.evaluate import Prompt
from lydite.types import (
    Completion,
    Message,
    Outcome,
    Problem,
    Request,
    ThinkingBudget,
    Thought,
    Verdict,
)
from lydite.watch.events import Evaluated, StepDone, Warned, read_events
from lydite.watch.samples import read_samples


def pairs_of(folder: Path, stage: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(
        folder / "stages" / stage / "pairs.parquet"
    ).to_pylist()
    return rows


@pytest.mark.parametrize("stage", ["dpo", "ipo"])
def test_pairs_are_right_and_wrong_answers_to_one_problem(preference_run: Any, stage: str) -> None:
    rows = pairs_of(preference_run.folder, stage)
    rollouts = read_samples(preference_run.folder / "samples" / {"dpo": "rl"}.get(stage, stage))
    said = {(row.problem_id, row.completion): row.outcome for row in rollouts}
    assert rows
    for row in rows:
        assert said[row["problem_id"], row["chosen"]] == "correct" == row["chosen_outcome"]
        assert said[row["problem_id"], row["rejected"]] == "wrong" == row["rejected_outcome"]
        assert row["chosen_source"].startswith({"dpo": "rl step "}.get(stage, "ipo sample "))
    problems = [row["problem_id"] for row in rows]
    most = 2 if stage == "dpo" else 1
    assert max(problems.count(problem) for problem in problems) == most


def test_sampled_answers_are_trained_on_as_they_were_sampled(preference_run: Any) -> None:
    """Their tokens are taken as they are, so their numbers agree with what the engine said."""
    lengths = {
        (row.problem_id, row.completion): row.tokens
        for row in read_samples(preference_run.folder / "samples/ipo")
    }
    for row in pairs_of(preference_run.folder, "ipo"):
        for side in ("chosen", "rejected"):
            assert len(row[f"{side}_ids"]) == lengths[row["problem_id"], row[side]]


def test_every_step_is_logged_and_both_ends_are_evaluated(preference_run: Any) -> None:
    events = [e for e in read_events(preference_run.folder / "events.jsonl") if e.stage == "dpo"]
    steps = [e.metrics for e in events if isinstance(e, StepDone)]
    assert len(steps) == 4
    names = {
        "loss", "reward_chosen", "reward_rejected", "reward_margin", "reward_accuracy",
        "logprob_chosen", "logprob_rejected", "grad_norm", "lr", "tokens", "seconds",
    }  # fmt: skip
    assert all(names <= set(metrics) and metrics["grad_norm"] > 0 for metrics in steps)
    assert [e.step for e in events if isinstance(e, Evaluated)] == [0, 2, 4]
    told = [e.message for e in events if isinstance(e, Warned) and e.code == "pairs"]
    count = len(pairs_of(preference_run.folder, "dpo"))
    assert len(told) == 1 and told[0].startswith(f"{count} pairs of ") and "dropped: " in told[0]


def test_the_lineage_names_the_rollouts(preference_run: Any) -> None:
    record = json.loads((preference_run.folder / "stages/dpo/artifact.json").read_text())
    assert record["kind"] == "preference" and set(record["data"]) == {"train", "rollouts of rl"}


ROWS = [
    {"q": "add 1+2", "good": "3", "bad": "4"},
    {"q": "add 1+2", "good": "3", "bad": "5"},
    {"q": "add 2+2", "good": [{"role": "user", "content": "add 2+2"},
                              {"role": "assistant", "content": "4"}], "bad": "22"},
    {"q": "add 4+4", "good": "8", "bad": "8"},
]  # fmt: skip


def of_file(place: Path, rows: list[dict[str, Any]], **changes: Any) -> Path:
    """A recipe of one stage, on the pairs of a file."""
    path = place / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    stage = preference_stage(task="given", batch_size=2, pairs={"kind": "task"}, **changes)
    values = recipe([stage], place)
    columns = {"prompt": "q", "reference": None, "worked": "good", "rejected": "bad"}
    values["tasks"]["given"] = {"path": str(path), **columns}
    return write(values, place / "recipe.yaml")


def run(file: Path) -> Finished:
    return run_recipe(load_recipe(file), file.parent / "run")


def test_pairs_of_a_file(tmp_path: Path) -> None:
    """Two pairs of one question are both kept; chat messages are read as TRL writes them."""
    finished = run(of_file(tmp_path, ROWS, steps=None, epochs=2))
    rows = pairs_of(finished.folder, "preference")
    assert [(r["chosen"], r["rejected"]) for r in rows] == [("3", "4"), ("3", "5"), ("4", "22")]
    events = read_events(finished.folder / "events.jsonl")
    told = [e.message for e in events if isinstance(e, Warned) and e.code == "pairs"]
    assert told == ["3 pairs of 3 problems; dropped: 1 pairs of two equal answers"]
    assert finished.stages[0].steps == 3  # two passes over three pairs, two at a time


def test_half_a_pair_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    file = of_file(tmp_path, ROWS)
    values = json.loads(load_recipe(file).model_dump_json())
    values["tasks"]["given"]["rejected"] = None
    with pytest.raises(UserError, match=r"^tasks\.given\.rejected: 3 of 3 problems have none"):
        run_recipe(validate(Recipe, values), tmp_path / "run")


def test_no_pair_at_all_says_why(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^stages\.preference\.pairs: 0 pairs .* equal answers; "):
        run(of_file(tmp_path, ROWS[3:]))


def from_run(preference_run: Any, place: Path, **changes: Any) -> Path:
    """A recipe whose pairs are those of a copy of another run."""
    other = place / "other"
    if not other.exists():
        shutil.copytree(preference_run.folder / "samples/rl", other / "samples/rl")
    pairs = {"kind": "stage", "stage": "rl", "run": str(other), "allow_cut_off": True, **changes}
    stages = [sft_stage(steps=1), preference_stage(steps=1, pairs=pairs)]
    return write(recipe(stages, place), place / "recipe.yaml")


def test_pairs_of_another_run(preference_run: Any, tmp_path: Path) -> None:
    finished = run(from_run(preference_run, tmp_path, from_step=2))
    sources = [row["chosen_source"] for row in pairs_of(finished.folder, "preference")]
    assert sources and all(source.startswith(("rl step 2", "rl step 3")) for source in sources)
    more = tmp_path / "other/samples/rl/step-000009.parquet"
    shutil.copy(tmp_path / "other/samples/rl/step-000003.parquet", more)
    with pytest.raises(UserError, match=r"would do again: preference \(data of rollouts of rl\)"):
        run(tmp_path / "recipe.yaml")


def test_another_run_without_rollouts_is_refused_at_once(
    preference_run: Any, tmp_path: Path
) -> None:
    file = from_run(preference_run, tmp_path)
    shutil.rmtree(tmp_path / "other")
    with pytest.raises(UserError, match=r"^stages\.preference\.pairs: no rollouts in "):
        run(file)
    assert not (tmp_path / "run/stages").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pairs": {"kind": "stage", "stage": "sft"}}, "no earlier stage 'sft' that samples"),
        ({"task": "worked"}, "give task: train"),
        ({"pairs": {"kind": "guess"}}, "no kind 'guess'"),
        ({"pairs": {"kind": "sampled", "sampling": {"temperature": 0}}}, "makes no pair"),
        ({"pairs": {"kind": "sampled", "samples": 1}}, "pairs.samples"),
        ({"loss": "ipo", "label_smoothing": 0.1}, "label_smoothing"),
        ({"epochs": 1}, "one of steps and epochs"),
        ({"betta": 1}, "did you mean 'beta'"),
        (
            {"pairs": {"kind": "stage", "stage": "rl", "per_problems": 1}},
            "did you mean 'per_problem'",
        ),
    ],
)
def test_a_stage_that_cannot_be_is_refused_in_one_line(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    rl = {"kind": "rl", "steps": 1, "sampling": {"max_tokens": 6}}
    stages = [sft_stage(), rl, preference_stage(**changes)]
    with pytest.raises(UserError) as error:
        validate(Recipe, recipe(stages, tmp_path), "recipe.yaml")
    assert said in str(error.value) and "\n" not in str(error.value)


def checks(file: Path) -> dict[str, Check]:
    return {c.name: c for c in check_recipe(load_recipe(file), file.parent / "run")}


def test_a_dry_run_says_where_pairs_come_from(preference_run: Any, tmp_path: Path) -> None:
    found = checks(preference_run.file)
    assert "mined from the rollouts of rl, random: at most 40, in 4" in found["pairs of dpo"].text
    assert "mined from 6 answers to each of 20 problems" in found["pairs of ipo"].text
    found = checks(of_file(tmp_path, ROWS))
    assert found["pairs of preference"].text == "4 of the task, in 4 steps"
    assert {check.mark for check in found.values()} == {Mark.OK}


def test_a_dry_run_finds_what_is_missing(preference_run: Any, tmp_path: Path) -> None:
    file = from_run(preference_run, tmp_path, stage="rl2")
    check = checks(file)["pairs of preference"]
    assert check.mark is Mark.FAILED and "no rollouts" in check.text


def test_pairs_of_what_a_rejection_sampling_stage_drew(tmp_path: Path) -> None:
    """Its wrong answers too, which its own dataset leaves out."""
    draw = {"kind": "rejection_sampling", "samples": 6, "sampling": {"max_tokens": 6}}
    filters = {"cut_off": False}
    pairs = {"kind": "stage", "stage": "draw", "allow_cut_off": True}
    fresh = {"kind": "sampled", "samples": 6, "sampling": {"max_tokens": 6}, "allow_cut_off": True}
    stages = [
        {**draw, "name": "draw", "filters": filters},
        preference_stage(name="first", steps=1, pairs=pairs),
        preference_stage(name="second", steps=1, pairs=fresh, start_from="model"),
    ]
    finished = run(write(recipe(stages, tmp_path), tmp_path / "recipe.yaml"))
    rows = pairs_of(finished.folder, "first")
    assert rows and all(row["chosen_source"].startswith("draw step 1 ") for row in rows)
    drawn, again = (
        [row.completion for row in read_samples(finished.folder / "samples" / stage)]
        for stage in ("draw", "second")
    )
    assert len(drawn) == len(again) and drawn != again, "two stages draw with noise of their own"


def test_answers_that_a_budget_cut_are_in_no_pair(tmp_path: Path) -> None:
    """Sampled now, and read back from the rollouts of a stage."""
    problem = Problem("p", "add 1+2", (Message("user", "add 1+2"),), reference="3")

    class Engine:
        version = 0

        def generate(self, requests: Sequence[Request]) -> list[list[Completion]]:
            assert [r.params.thinking for r in requests] == [ThinkingBudget((2,))]
            return [[self.one(i) for i in range(4)]]

        def one(self, i: int) -> Completion:
            """Two right ones and two wrong ones, the first of each cut."""
            mask = (1, 0, 1) if i % 2 == 0 else (1, 1, 1)
            return Completion(
                "p", i, (1,), (10 + i,) * 3, (-1.0,) * 3, mask, "stop", f"{i}{i}",
                thought=Thought(2, 2, cut=i % 2 == 0),
            )  # fmt: skip

    class Judge:
        def verify(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Verdict]:
            return [
                Verdict(Outcome.CORRECT, 1.0) if int(t) < 20 else Verdict(Outcome.WRONG, 0.0)
                for t in texts
            ]

        def close(self) -> None: ...

    pairs = validate(
        SampledPairs, {"kind": "sampled", "samples": 4, "per_problem": 4,
                       "sampling": {"thinking_budget": 2}},
    )  # fmt: skip
    place = (tmp_path, "dpo", 0)
    mined = sampled_pairs([Prompt(problem, (1,))], (Engine(), Judge()), pairs, place, 0, 0.5)
    assert [(p.better.text, p.worse.text) for p in mined.pairs] == [("11", "33")]
    assert mined.dropped[CUT] == 2
    stage = validate(StagePairs, {"kind": "stage", "stage": "dpo", "per_problem": 4})
    policy = load_policy(validate(ModelConfig, MODEL))
    read = stage_pairs(policy, [problem], stage, sorted(tmp_path.rglob("*.parquet")), 0)
    assert [(p.better.text, p.worse.text) for p in read.pairs] == [("11", "33")]
    assert read.dropped[CUT] == 2
