"""The kind of stage that docs/pipeline.md shows is one class, and does what every kind does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from small_runs import recipe, sft_stage

from lydite.config import UserError, validate
from lydite.pipeline.runner import run_recipe
from lydite.watch.events import StageSkipped, read_events

PAGE = Path(__file__).parents[2] / "docs/pipeline.md"


def test_the_kind_in_the_docs_runs_is_skipped_and_follows_from_what_it_reads(
    tmp_path: Path,
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 32
    space: dict[str, Any] = {"__name__": "own"}
    exec(compile(code, str(PAGE), "exec", dont_inherit=True), space)
    ours = space["MyRecipe"]

    def made(steps: int) -> dict[str, Any]:
        stages = [
            sft_stage(name="base", steps=1),
            sft_stage(name="a", steps=2),
            sft_stage(name="b", steps=steps, start_from="base"),
            {"kind": "average", "of": ["a", "b"], "start_from": "a"},
        ]
        return recipe(stages, tmp_path)

    out = tmp_path / "run"
    run = run_recipe(validate(ours, made(1)), out)
    a, b, mean = (
        load_file(out / f"stages/{name}/model/model.safetensors") for name in ("a", "b", "average")
    )
    assert any(not a[name].equal(b[name]) for name in a)
    for name, weight in mean.items():
        assert weight.sub((a[name] + b[name]) / 2).abs().max() < 1e-6, name
    assert (run.model / "model.safetensors").read_bytes() == (
        out / "stages/average/model/model.safetensors"
    ).read_bytes()
    run_recipe(validate(ours, made(1)), out)
    events = read_events(out / "events.jsonl")
    skipped = [e.stage for e in events if isinstance(e, StageSkipped)]
    assert skipped == ["base", "a", "b", "average"]
    said = r"do again: b \(stage\.steps: 1, 2\), average \(data of model b\)"
    with pytest.raises(UserError, match=said):
        run_recipe(validate(ours, made(2)), out)
    record = json.loads((out / "stages/average/artifact.json").read_text())
    assert set(record["data"]) == {"model a", "model b"}
