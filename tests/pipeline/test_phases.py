"""An RL stage whose problems and rewards change on the way, in a run that is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_runs import Kill, recipe, rl_stage, run_and_die, write

from lydite.config import UserError
from lydite.pipeline.dry_run import Mark, check_recipe
from lydite.pipeline.recipe import load_recipe
from lydite.pipeline.runner import run_recipe
from lydite.tasks import courtesy
from lydite.watch.events import StepDone, read_events
from lydite.watch.samples import read_samples


def values(folder: Path) -> dict[str, Any]:
    made = recipe([], folder)
    late = [made["verifier"], {"kind": "format", "thinking": "optional", "weight": 0.5}]
    phases = [{"last_steps": 2, "task": "other", "verifier": late}]
    made["tasks"]["other"] = {"courtesy": {"count": 12, "seed": 0}}
    words = ["greet ", "thank ", "invite ", "warn ", " about "]
    names = [*courtesy.NAMES, *courtesy.TOPICS]
    made["model"] = {
        **made["model"], "vocabulary": [*made["model"]["vocabulary"], *words, *names],
    }  # fmt: skip
    made["checkpoint"] = {"every": 1}
    made["stages"] = [rl_stage(phases=phases)]
    return made


def weights(folder: Path) -> bytes:
    return (folder / "stages/rl/model/model.safetensors").read_bytes()


def test_each_phase_has_its_problems_and_rewards_and_a_kill_changes_nothing(tmp_path: Path) -> None:
    file = write(values(tmp_path), tmp_path / "recipe.yaml")
    assert not [c for c in check_recipe(load_recipe(file), tmp_path / "x") if c.mark is Mark.FAILED]
    whole = run_recipe(load_recipe(file), tmp_path / "whole").folder
    steps = [e.metrics for e in read_events(whole / "events.jsonl") if isinstance(e, StepDone)]
    assert [m["phase"] for m in steps] == [0, 0, 1, 1]
    assert ["reward_format" in m for m in steps] == [False, False, True, True]
    asked = [
        {row.problem_id.split("-")[0] for row in read_samples(path)}
        for path in sorted((whole / "samples/rl").glob("step-*.parquet"))
    ]
    assert asked == [{"train"}, {"train"}, {"courtesy"}, {"courtesy"}]
    run_and_die(file, tmp_path / "killed", Kill("event", "step_done rl 3"))
    run_recipe(load_recipe(file), tmp_path / "killed")
    assert weights(tmp_path / "killed") == weights(whole)


def test_what_a_later_phase_asks_must_fit_and_be_defined(tmp_path: Path) -> None:
    made = values(tmp_path)
    del made["tasks"]["other"]
    with pytest.raises(UserError, match=r"stages\.0\.task: no task 'other'; defined: "):
        run_recipe(load_recipe(write(made, tmp_path / "recipe.yaml")), tmp_path / "run")
