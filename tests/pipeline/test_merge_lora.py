"""Adapters kept as adapters along a run, and merged where a stage says so."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from small_runs import Kill, recipe, rl_stage, run_and_die, sft_stage, write

from lydite.config import UserError, validate
from lydite.model.loading import ModelConfig, load_frozen
from lydite.pipeline.dry_run import Mark, check_recipe
from lydite.pipeline.recipe import Recipe, load_recipe
from lydite.pipeline.runner import run_recipe
from lydite.watch.events import Warned, read_events

peft = pytest.importorskip("peft")
WEIGHTS = "model/model.safetensors"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("base")
    run = run_recipe(validate(Recipe, recipe([sft_stage(steps=1)], place)), place / "run")
    return run.model


def lora(place: Path, base: Path, save: str, *more: dict[str, Any]) -> dict[str, Any]:
    stages = [sft_stage(steps=2), rl_stage(steps=2), *more]
    values = recipe(stages, place)
    values["model"] = {"path": str(base), "lora": {"rank": 2, "save": save}}
    return values


def test_adapters_kept_and_merged_at_the_end_are_the_run_that_merged_all_along(
    base: Path, tmp_path: Path
) -> None:
    merge = {"kind": "merge_lora", "name": "plain"}
    export = {"kind": "export", "card": False}
    kept = lora(tmp_path, base, "adapter", merge, export)
    file = write(kept, tmp_path / "kept.yaml")
    whole = run_recipe(validate(Recipe, lora(tmp_path, base, "merged")), tmp_path / "whole")
    out = tmp_path / "run"
    run_and_die(file, out, Kill("before", "lydite.pipeline.stages.merge_lora:save_artifact"))
    run = run_recipe(load_recipe(file), out)
    for stage in ("sft", "rl"):
        assert (out / f"stages/{stage}/model/adapter_model.safetensors").is_file()
        assert not (out / "stages" / stage / WEIGHTS).exists()
    plain = (out / "stages/plain" / WEIGHTS).read_bytes()
    assert plain == (whole.folder / "stages/rl" / WEIGHTS).read_bytes()
    assert plain == (run.model / "model.safetensors").read_bytes()
    assert plain == (out / "stages/export" / WEIGHTS).read_bytes()
    assert not [e for e in read_events(out / "events.jsonl") if isinstance(e, Warned)]


def test_the_run_moves_with_its_adapters(base: Path, tmp_path: Path) -> None:
    values = lora(tmp_path, base, "adapter")
    run_recipe(validate(Recipe, values), tmp_path / "run")
    shutil.move(tmp_path / "run", tmp_path / "moved")
    load_frozen(ModelConfig(path=str(tmp_path / "moved/model")))
    values["stages"].append({"kind": "merge_lora", "start_from": "rl"})
    run = run_recipe(validate(Recipe, values), tmp_path / "moved")
    assert (run.model / "model.safetensors").is_file()


def test_a_peft_folder_is_merged_and_measured(base: Path, tmp_path: Path) -> None:
    trained = run_recipe(validate(Recipe, lora(tmp_path, base, "adapter")), tmp_path / "other")
    outside = trained.folder / "stages/sft/model"
    values = recipe([{"kind": "merge_lora", "adapter": str(outside)}], tmp_path)
    values["model"] = {"path": str(base)}
    run = run_recipe(validate(Recipe, values), tmp_path / "run")
    score = run.stages[0].scores["heldout"]
    assert score.before.scores == trained.stages[0].scores["heldout"].before.scores
    assert score.after.scores == trained.stages[0].scores["heldout"].after.scores
    (outside / "adapter_model.safetensors").write_bytes(b"other")
    with pytest.raises(UserError, match=r"merge_lora \(data of adapter .*--redo"):
        run_recipe(validate(Recipe, values), tmp_path / "run")
    values["stages"][0]["adapter"] = str(tmp_path)
    checks = {c.name: c for c in check_recipe(validate(Recipe, values), tmp_path / "new")}
    assert checks["adapters of merge_lora"].mark is Mark.FAILED
    with pytest.raises(UserError, match=r"^stages\.merge_lora\.adapter: .* no folder with adapter"):
        run_recipe(validate(Recipe, values), tmp_path / "new")


def test_nothing_to_merge_is_said(base: Path, tmp_path: Path) -> None:
    values = recipe([{"kind": "merge_lora"}], tmp_path)
    values["model"] = {"path": str(base)}
    run = run_recipe(validate(Recipe, values), tmp_path / "run")
    said = [e.message for e in read_events(run.folder / "events.jsonl") if isinstance(e, Warned)]
    assert said == ["merge_lora: nothing to merge: the model it starts from has no adapters of its "
                    "own"]  # fmt: skip
    assert (run.model / "model.safetensors").read_bytes() == (
        base / "model.safetensors"
    ).read_bytes()
