"""Lydite from Python: the same runs as from a recipe."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from small_runs import MODEL
from transformers import AutoModelForCausalLM

import lydite
from lydite.watch.events import StepDone, read_events
from lydite.watch.samples import read_samples

EXAMPLE = Path(__file__).parents[1] / "examples" / "python_api.py"
ROWS = [{"question": f"add {n}+1", "answer": n + 1, "first": n // 10} for n in range(10, 30)]
SETTINGS = {
    "steps": 3, "prompts_per_step": 3, "group_size": 4,
    "sampling": {"max_tokens": 6}, "optimizer": {"lr": 1e-3},
}  # fmt: skip


def trainer(out: Path, reward: Any, **changes: Any) -> lydite.Trainer:
    recipe = {"evaluation": {"sampling": {"max_tokens": 6}}, "checkpoint": {"every": 1}}
    arguments: dict[str, Any] = {
        "model": MODEL, "problems": ROWS[:15], "reward": reward, "heldout": ROWS[15:],
        "objective": {"preset": "grpo", "patches": ["token_mean"], "clip_high": 0.28},
        "settings": SETTINGS, "recipe": recipe, "out": out,
    }  # fmt: skip
    return lydite.Trainer(**{**arguments, **changes})


def closure(bonus: float) -> Any:
    """A reward that only exists here."""

    def reward(prompts: Any, completions: Any, answer: Any, first: Any, **columns: Any) -> Any:
        assert len(prompts) == len(completions) == len(answer) == len(first)
        assert all(isinstance(gold, str) for gold in answer) and prompts[0].startswith("add ")
        return [bonus * (str(f) in text) for f, text in zip(first, completions, strict=True)]

    return reward


def test_rows_a_closure_and_an_objective_by_mapping(tmp_path: Path) -> None:
    finished = trainer(tmp_path / "run", closure(2.0)).run()
    assert finished.folder == tmp_path / "run"
    (stage,) = finished.stages
    assert (stage.kind, stage.steps) == ("rl", 3)
    assert stage.scores["heldout"].after.n == 5
    rows = read_samples(tmp_path / "run/samples/rl")
    firsts = {f"user: {row['question']}": str(row["first"]) for row in ROWS}
    assert len(rows) == 3 * 3 * 4
    assert all(row.reward == 2.0 * (firsts[row.prompt] in row.completion) for row in rows)
    assert {row.reward for row in rows} == {0.0, 2.0}
    AutoModelForCausalLM.from_pretrained(finished.model)
    assert json.loads((tmp_path / "run/summary.json").read_text())["stages"] == [stage.as_json()]


def test_run_again_goes_on_where_it_stopped(tmp_path: Path) -> None:
    whole = trainer(tmp_path / "whole", closure(1.0)).run()

    def stop(event: Any) -> None:
        if isinstance(event, StepDone) and event.step == 2:
            raise KeyboardInterrupt

    cut = trainer(tmp_path / "cut", closure(1.0))
    with pytest.raises(KeyboardInterrupt):
        cut.run([stop])
    again = cut.run()
    name = "model.safetensors"
    assert (again.model / name).read_bytes() == (whole.model / name).read_bytes()
    assert (
        again.stages[0].scores["heldout"].after.avg == whole.stages[0].scores["heldout"].after.avg
    )
    steps = [e.step for e in read_events(tmp_path / "cut/events.jsonl") if isinstance(e, StepDone)]
    assert steps == [1, 2, 3]
    assert cut.run() == again


def test_problems_from_a_file_with_columns_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps({"q": r["question"], "a": "1"}) + "\n" for r in ROWS[:9]))
    settings = {**SETTINGS, "steps": 1}
    columns = {"prompt": "q", "reference": "a"}
    run = trainer(
        tmp_path / "run", "exact", problems=path, heldout=None, columns=columns, settings=settings
    ).run()
    assert run.stages[0].scores == {}
    assert {row.reference for row in read_samples(tmp_path / "run/samples/rl")} == {"1"}


def test_an_async_reward_and_several_rewards(tmp_path: Path) -> None:
    async def good(completions: Any, **columns: Any) -> Any:
        return [float(len(text)) for text in completions]

    rewards = [
        {"kind": "function", "function": good, "weight": 0.5, "isolation": "inline"},
        {"kind": "format", "weight": 2.0},
    ]
    trainer(tmp_path / "run", rewards, settings={**SETTINGS, "steps": 1}, heldout=None).run()
    for row in read_samples(tmp_path / "run/samples/rl"):
        assert row.parts["good"] == len(row.completion)
        assert row.reward == 0.5 * row.parts["good"] + 2.0 * (row.parts["format"] or 0)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"settings": {"stepps": 3}}, "unknown key 'stages.0.stepps'; did you mean 'steps'?"),
        ({"objective": "gropo"}, "unknown name 'gropo'; did you mean 'grpo'?"),
        ({"problems": []}, "train: no problems in it"),
        ({"problems": [{"question": "x", "answer": {1, 2}}]}, "rows must hold text, numbers"),
        ({"problems": [{"text": "x", "answer": "1"}]}, "train: row 1: no column 'question'"),
        ({"problems": "gone.jsonl"}, "no file gone.jsonl"),
        ({"heldout": ROWS[:3]}, "3 held-out questions are also trained on"),
        ({"model": "./gone"}, "model.path: no folder ./gone"),
        ({"reward": "maths"}, "reward"),
        ({"reward": lambda completions: [1]}, "returned 1 rewards for"),
        ({"columns": {"promt": "q"}}, "unknown key 'promt'; did you mean 'prompt'?"),
    ],
)
def test_mistakes_are_one_line(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(lydite.UserError) as found:
        trainer(tmp_path / "run", **{"reward": "exact", **changes}).run()
    assert says in str(found.value) and "\n" not in str(found.value)


def test_names_are_found_when_asked_for() -> None:
    assert {"Trainer", "Objective", "UserError"} <= set(lydite.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Traner'"):
        lydite.Traner  # noqa: B018


def test_the_example_learns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("python_api", EXAMPLE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    finished = module.main(str(tmp_path / "run"), steps=110)
    score = finished.stages[0].scores["heldout"]
    assert score.before.avg < 0.1 and score.after.avg > 0.3
    said = capsys.readouterr().out
    assert f"after:  {score.after.avg:.0%}" in said
