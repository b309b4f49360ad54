"""A changed recipe in a run's folder: what is done stays, what changed is done again when asked,
and nothing that was there is lost.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from small_runs import Kill, recipe, rl_stage, run_and_die, sft_stage, write
from test_kill import figures, left_over, samples

from lydite.config import UserError, validate
from lydite.pipeline.dry_run import Mark, check_recipe
from lydite.pipeline.recipe import Recipe, load_recipe
from lydite.pipeline.runner import run_recipe
from lydite.watch.events import (
    Evaluated,
    EventLog,
    RunStarted,
    StageSkipped,
    StageStarted,
    StepDone,
    Warned,
    iterate_events,
    read_events,
)

WEIGHTS = "model/model.safetensors"


def changed(plain_run: Any, **changes: Any) -> Recipe:
    """The plain run's recipe with other values at dotted keys."""
    values = yaml.safe_load(plain_run.file.read_text())
    for key, value in changes.items():
        *path, last = key.split("__")
        inside: Any = values
        for part in path:
            inside = inside[int(part)] if part.isdigit() else inside.setdefault(part, {})
        inside[last] = value
    return validate(Recipe, values)


@pytest.fixture
def copy(plain_run: Any, tmp_path: Path) -> Path:
    shutil.copytree(plain_run.folder, tmp_path / "run")
    return tmp_path / "run"


def skipped(folder: Path) -> list[str]:
    return [e.stage for e in read_events(folder / "events.jsonl") if isinstance(e, StageSkipped)]


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_what_changes_no_weight_makes_nothing_be_done_again(plain_run: Any, copy: Path) -> None:
    """Names, evaluation, checkpoints, memory: a finished run stays as it is, and the log says what
    became of the recipe.
    """
    before = {k: v for k, v in tree(copy).items() if k.startswith(("stages", "samples", "model"))}
    other = changed(
        plain_run, name="other", threads=1, checkpoint__every=1, evaluation__samples=3,
        model__gradient_checkpointing=True, stages__0__tokens_per_micro_batch=64,
        stages__2__update={"tokens_per_micro_batch": 128}, stages__1__start_from="base",
    )  # fmt: skip
    run_recipe(other, copy)
    after = {k: v for k, v in tree(copy).items() if k.startswith(("stages", "samples", "model"))}
    assert after == before
    assert skipped(copy) == ["base", "cold", "rl"]
    starts = [e for e in iterate_events(copy / "events.jsonl") if isinstance(e, RunStarted)]
    assert starts[0].changed == ()
    assert "checkpoint.every: 2, 1" in starts[1].changed
    assert load_recipe(copy / "recipe.yaml") == other


def test_a_changed_stage_is_refused_without_a_trace_and_named_with_its_reason(
    plain_run: Any, copy: Path
) -> None:
    before = tree(copy)
    with pytest.raises(UserError) as error:
        run_recipe(changed(plain_run, stages__2__steps=3), copy)
    said = str(error.value)
    assert "would do again: rl (stage.steps: 4, 3); give --redo" in said
    assert str(copy / "superseded") in said and "\n" not in said
    assert tree(copy) == before


@pytest.mark.parametrize(
    ("change", "again"),
    [
        ({"stages__2__steps": 3}, ["rl"]),
        ({"stages__1__steps": 2}, ["cold", "rl"]),
        ({"verifier__name": "other"}, ["rl"]),  # What sft learns has been judged by nobody.
        ({"seed": 1}, ["base", "cold", "rl"]),
        ({"model__context": 79}, ["base", "cold", "rl"]),
        ({"stages__2__start_from": "base"}, ["rl"]),
    ],
)
def test_only_what_follows_from_the_change_would_be_done_again(
    plain_run: Any, copy: Path, change: dict[str, Any], again: list[str]
) -> None:
    if "verifier__name" in change:
        rewards = plain_run.file.with_name("rewards.py")
        other = {"kind": "function", "function": f"{rewards}:short", "isolation": "inline"}
        change = {"verifier": other}
    checks = {c.name: c for c in check_recipe(changed(plain_run, **change), copy)}
    assert checks["stages"].mark is Mark.FAILED
    text = checks["stages"].text
    assert [name for name in ("base", "cold", "rl") if f"{name} (" in text] == again
    checks = {c.name: c for c in check_recipe(changed(plain_run, **change), copy, redo=True)}
    assert checks["stages"].mark is Mark.OK


REDO = "lydite.pipeline.supersede"
KILLS = [
    Kill("before", f"{REDO}:write_json"),
    Kill("after", f"{REDO}:write_json"),
    Kill("after", f"{REDO}:write_atomic", 2),
    Kill("after", f"{REDO}:fsync_directory"),
    Kill("before", f"{REDO}:_forget"),
    Kill("after", f"{REDO}:_forget"),
    Kill("event", "step_done rl 3"),
]


def test_done_again_it_is_the_run_of_the_new_recipe_and_the_old_one_is_kept(
    plain_run: Any, copy: Path, tmp_path: Path
) -> None:
    """Killed at every moment of it."""
    other = changed(plain_run, stages__2__steps=3, stages__2__group_size=3)
    file = write(json.loads(other.model_dump_json()), tmp_path / "other.yaml")
    whole = run_recipe(load_recipe(file), tmp_path / "whole").folder
    first = tree(copy)
    stamp = (copy / "stages/cold" / WEIGHTS).stat().st_mtime_ns
    for kill in KILLS:
        run_and_die(file, copy, kill, redo=True)
    run_recipe(load_recipe(file), copy)

    assert (copy / "stages/cold" / WEIGHTS).stat().st_mtime_ns == stamp
    for name in ("model/model.safetensors", f"stages/rl/{WEIGHTS}"):
        assert (copy / name).read_bytes() == (whole / name).read_bytes()
    assert figures(copy) == figures(whole) and left_over(copy) == []
    kept = copy / "superseded"
    assert [path.name for path in kept.iterdir()] == ["1"]
    ours = {k: v for k, v in samples(copy).items() if not k.startswith("superseded")}
    assert ours == samples(whole)
    old = tree(kept / "1")
    moved = ("checkpoints/rl/", "stages/rl/", "samples/rl/", "samples/rl-heldout/")
    for name, content in first.items():
        if name.startswith(moved) or name in ("recipe.yaml", "events.jsonl", "summary.json"):
            assert old[name] == content, name
    assert all(name.startswith(moved) or "/" not in name for name in old)
    run_recipe(load_recipe(file), copy)
    assert skipped(copy) == ["base", "cold", "rl"]


def test_what_was_said_of_the_recipe_before_is_not_said_of_the_new_one(
    plain_run: Any, copy: Path
) -> None:
    with EventLog(copy / "events.jsonl") as log:
        log.append(Warned(code="task", message="train: the first 20 of 40 problems are used"))
        log.append(Warned(stage="base", step=1, code="few", message="of a stage that stays"))
    run_recipe(changed(plain_run, stages__2__optimizer__lr=1e-4), copy, redo=True)
    kept = [e for e in read_events(copy / "events.jsonl") if isinstance(e, Warned)]
    assert [(e.stage, e.code) for e in kept] == [("base", "few")]


def test_stages_are_added_at_the_end_and_as_a_branch(plain_run: Any, copy: Path) -> None:
    values = yaml.safe_load(plain_run.file.read_text())
    values["stages"] += [sft_stage(name="more", steps=1)]
    values["stages"].insert(1, sft_stage(name="branch", steps=1, start_from="model"))
    values["stages"][2]["start_from"] = "base"
    run = run_recipe(validate(Recipe, values), copy)
    assert skipped(copy) == ["base", "cold", "rl"]
    steps = [e.stage for e in read_events(copy / "events.jsonl") if isinstance(e, StepDone)]
    assert steps.count("more") == steps.count("branch") == 1
    assert (run.model / "model.safetensors").read_bytes() == (
        copy / "stages/more" / WEIGHTS
    ).read_bytes()
    scores = {s.name: s.scores["heldout"] for s in run.stages}
    # What each starts from was measured before, on the same problems.
    assert scores["more"].before.scores == scores["rl"].after.scores
    assert scores["branch"].before.scores == scores["base"].before.scores
    for name in ("more", "branch"):
        assert scores[name].before.metrics["seconds"] == 0


def test_a_stage_that_the_recipe_has_no_more_is_put_away_when_asked(
    plain_run: Any, copy: Path
) -> None:
    values = yaml.safe_load(plain_run.file.read_text())
    del values["stages"][2]
    shorter = validate(Recipe, values)
    with pytest.raises(UserError, match=r"has no stage rl any more; give --redo"):
        run_recipe(shorter, copy)
    run = run_recipe(shorter, copy, redo=True)
    assert [stage.name for stage in run.stages] == ["base", "cold"]
    assert (copy / "superseded/1/stages/rl" / WEIGHTS).is_file()
    assert (copy / WEIGHTS).read_bytes() == (copy / "stages/cold" / WEIGHTS).read_bytes()
    # And back: what was put away is not taken for done.
    run_recipe(load_recipe(plain_run.file), copy)
    assert (copy / WEIGHTS).read_bytes() == (plain_run.folder / WEIGHTS).read_bytes()


def test_a_half_done_stage_goes_on_with_less_memory_and_another_evaluation(
    plain_run: Any, tmp_path: Path
) -> None:
    """Whose starting model is then measured again, so that before and after compare."""
    out = tmp_path / "run"
    run_and_die(plain_run.file, out, Kill("event", "step_done rl 3"))
    other = changed(
        plain_run, evaluation__samples=2, evaluation__sampling={"max_tokens": 5, "temperature": 1},
        stages__2__update={"tokens_per_micro_batch": 128},
    )  # fmt: skip
    run = run_recipe(other, out)
    steps = [e.step for e in iterate_events(out / "events.jsonl")
             if isinstance(e, StepDone) and e.stage == "rl"]  # fmt: skip
    assert steps == [1, 2, 3, 3, 4]
    score = run.stages[2].scores["heldout"]
    assert score.before.k == score.after.k == 2
    assert run.stages[1].scores["heldout"].after.k == 1


def drawn(**changes: Any) -> dict[str, Any]:
    loose = {"cut_off": False, "near_duplicates": None, "per_problem": 2, **changes}
    return {
        "kind": "rejection_sampling", "name": "sample", "samples": 3, "prompts_per_step": 8,
        "sampling": {"max_tokens": 6}, "filters": loose,
    }  # fmt: skip


def test_other_filters_take_from_the_samples_that_are_there(tmp_path: Path) -> None:
    def made(**filters: Any) -> Recipe:
        last = sft_stage(name="last", task="kept", steps=1)
        values = recipe([sft_stage(name="base"), drawn(**filters), last], tmp_path)
        values["tasks"]["kept"] = {"from_stage": "sample"}
        return validate(Recipe, values)

    run_recipe(made(), tmp_path / "run")
    whole = run_recipe(made(per_problem=1), tmp_path / "whole").folder
    times = {p: p.stat().st_mtime_ns for p in (tmp_path / "run/samples/sample").iterdir()}
    with pytest.raises(UserError, match=r"sample \(stage.filters.per_problem: 2, 1\), last"):
        run_recipe(made(per_problem=1), tmp_path / "run")
    run_recipe(made(per_problem=1), tmp_path / "run", redo=True)
    assert {p: p.stat().st_mtime_ns for p in times} == times
    out = tmp_path / "run"
    events = list(iterate_events(out / "events.jsonl"))
    drawn_steps = [e for e in events if isinstance(e, StepDone) and e.stage == "sample"]
    assert len(drawn_steps) == 3, "nothing was sampled again"
    dataset = "stages/sample/dataset.parquet"
    assert (out / dataset).read_bytes() == (whole / dataset).read_bytes()
    assert pq.read_metadata(out / dataset).num_rows < (
        pq.read_metadata(out / "superseded/1" / dataset).num_rows
    )
    last = f"stages/last/{WEIGHTS}"
    assert (out / last).read_bytes() == (whole / last).read_bytes()
    assert figures(out) == figures(whole)


def test_every_stage_is_measured_before_and_after_wherever_it_starts(tmp_path: Path) -> None:
    """Branches from the base, from the start and from a dataset's parent: each from the figures of
    the weights that it starts from, which nobody measures twice.
    """
    stages = [
        sft_stage(name="base", steps=1),
        rl_stage(name="a", steps=1),
        rl_stage(name="b", steps=1, start_from="base"),
        sft_stage(name="c", steps=1, start_from="model"),
    ]
    run = run_recipe(validate(Recipe, recipe(stages, tmp_path)), tmp_path / "run")
    scores = {stage.name: stage.scores["heldout"] for stage in run.stages}
    assert list(scores) == ["base", "a", "b", "c"]
    assert scores["a"].before.answers == scores["base"].after.answers
    assert scores["b"].before.answers == scores["base"].after.answers
    assert scores["c"].before.answers == scores["base"].before.answers
    events = read_events(run.folder / "events.jsonl")
    measured = [e for e in events if isinstance(e, Evaluated)]
    assert sum(e.metrics["seconds"] > 0 for e in measured) == 5  # Once for each of the weights.
    kinds = [e.kind for e in events if e.stage == "c" and not isinstance(e, StageStarted)]
    assert kinds[0] == "evaluated"
