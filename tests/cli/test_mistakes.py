"""What a user can get wrong: one clear line, exit code 2, and nothing written over."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_runs import REWARDS, rl_stage, sft_stage, write

SETTINGS = [
    (["seeed=1"], "unknown key 'seeed'; did you mean 'seed'?"),
    (["stages.1.stepps=3"], "unknown key 'stages.1.stepps'; did you mean 'steps'?"),
    (
        ["stages.1.sampling.max_tokns=3"],
        "unknown key 'stages.1.sampling.max_tokns'; did you mean 'max_tokens'?",
    ),
    (["verifier.correct_abov=1"], "unknown key 'verifier.correct_abov'; did you mean"),
    (["tasks.rl={generated: {cuont: 3}}"], "unknown key 'tasks.rl.generated.cuont'; did you mean"),
    (["stages.1.steps=many"], "stages.1.steps: Input should be a valid integer"),
    (["tasks.train={path: 5}"], "tasks.train.path: Input should be a valid string"),
    (["stages.1.steps=0"], "stages.1.steps: Input should be greater than or equal to 1"),
    (["stages=5"], "stages: write a list of stages"),
    (["stages=[]"], "stages: Tuple should have at least 1 item"),
    (["stages.1.kind=rll"], "stages.1: no kind 'rll'; did you mean 'rl'?"),
    (["stages.1.kind=dpo"], "stages.1: no kind 'dpo'; one of 'sft', 'rl'"),
    (["stages.rl.steps=3"], "items of a list go by number from 0, such as stages.0.steps=50"),
    (["stages.1.start_from=cold"], "start_from: no earlier stage 'cold'; one of model, sft"),
    (["stages.1.name=sft"], "stages.1.name: 'sft' is taken"),
    (["stages.0.epochs=2"], "stages.0: give one of steps and epochs"),
    (["stages.1.task=trian"], "stages.1.task: no task 'trian'; defined: heldout, train, worked"),
    (["evaluation.tasks=[held]"], "evaluation.tasks: no task 'held'; defined"),
    (["evaluation.tasks=[train]"], "evaluation.tasks: 'train' is trained on by stage 'rl'"),
    (["stages.1.objective=gpro"], "unknown name 'gpro'; did you mean"),
    (["stages.1.objective=grpo+leave_one_out+batch_std+no_std"], "contradict each other"),
    (["stages.1.group_size=1"], "group size: 1 leaves baseline group_mean nothing to compare"),
    (["stages.0.task=train"], "tasks.train.worked: 20 of 20 problems have no worked solution"),
    (["tasks.train={path: no.jsonl}"], "tasks.train.path: no file no.jsonl"),
    (["tasks.train={path: empty.jsonl}"], "empty.jsonl: empty"),
    (["tasks.train.generated=null"], "tasks.train: give one of path, hub, gym, generated"),
    (["tasks.train.path=???"], "tasks.train.path: not given; add tasks.train.path=VALUE"),
    (["seed"], "override 'seed': write key=value"),
    (["=3"], "override '=3': write key=value"),
    (["stages.7.steps=3"], "override 'stages.7.steps=3': list index out of range"),
    (["model.path.deeper=3"], "model.path"),
    (["seed=[1"], "override 'seed=[1': "),
    (["model.context=24"], "context"),
    (["stages.1.sampling.max_tokens=200"], "max_tokens"),
    (["model={path: ./nowhere}"], "model.path: no folder ./nowhere"),
    (["model.path=init:lama"], "did you mean init:llama?"),
    (["device=cuda"], "device: cuda was asked for and torch sees no GPU"),
    (["verifier=maths"], "verifier: no kind 'maths'; did you mean 'math'?"),
    (["verifier.function=rewards.py:nothing"], "rewards.py has no function 'nothing'"),
    (["verifier.function=gone.py:digit"], "no file gone.py"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "says"), SETTINGS, ids=lambda v: " ".join(v) if isinstance(v, list) else ""
)
def test_a_wrong_setting(
    overrides: list[str], says: str, cli: Any, file: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty.jsonl").touch()
    if "device=cuda" in overrides:
        import torch

        if torch.cuda.is_available():
            pytest.skip("there is a GPU here")
    line = refused(cli("run", file, *overrides, "--out", "out"))
    assert says in line
    assert not list(tmp_path.rglob("*.safetensors")), "something was trained first"


def refused(result: Any) -> str:
    """The one line on standard error."""
    assert result.exit_code == 2, (result.output, result.exception)
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("lydite: ")
    assert len(lines[0]) < 600
    return str(lines[0])


def test_no_such_recipe(cli: Any) -> None:
    assert "recipe: no file mine.yaml" in refused(cli("run", "mine.yaml"))
    assert "did you mean 'quickstart'?" in refused(cli("run", "quikstart"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [1", "recipe.yaml"),
        ("- a\n- b\n", "expected `key: value` lines"),
        ("", "required"),
        ("name: ${nowhere}\n", "nowhere"),
        ("name: \xff", "recipe.yaml"),
    ],
)
def test_a_recipe_that_is_none(text: str, says: str, cli: Any, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_bytes(text.encode("latin-1"))
    assert says in refused(cli("run", "recipe.yaml"))


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("short", "returned 1 rewards for 4 completions"),
        ("words", "returned 'good' for completion 0"),
        ("nan", "returned nan for completion 0"),
        ("broken", "ZeroDivisionError"),
    ],
)
@pytest.mark.parametrize("isolation", ["inline", "process"])
def test_a_reward_function_at_fault_keeps_the_run(
    function: str, says: str, isolation: str, cli: Any, file: Path, tmp_path: Path
) -> None:
    """It fails at the third step of RL; mended, the same command goes on after the second."""
    if isolation == "process" and function != "broken":
        pytest.skip("one of them is enough for the way back from a worker")
    values = yaml.safe_load(file.read_text())
    values["evaluation"] = {"tasks": []}
    values["verifier"] = {
        "kind": "function", "function": "mine.py:reward", "isolation": isolation,
        "name": "mine",
    }  # fmt: skip
    write(values, file)
    marker = tmp_path / "fails"
    (tmp_path / "mine.py").write_text(
        REWARDS
        + f"""
import os
calls = 0

def reward(completions, answer, **columns):
    if len(completions) == 4 and os.path.exists({str(marker)!r}):
        return {function}(completions=completions, answer=answer)
    return digit(completions)
"""
    )
    good = cli("run", file, "--out", "good")
    assert good.exit_code == 0, good.stderr

    class Stop(Exception):
        pass

    def fail_from_now_on(event: Any) -> None:
        if event.kind == "step_done" and event.stage == "rl" and event.step == 3:
            raise Stop

    from lydite.pipeline.recipe import load_recipe
    from lydite.pipeline.runner import run_recipe

    with pytest.raises(Stop):
        run_recipe(load_recipe(file), tmp_path / "out", listeners=[fail_from_now_on])
    marker.touch()
    line = refused(cli("run", file, "--out", "out"))
    assert says in line and "mine.py:reward" in line and "on problem " in line
    assert (tmp_path / "out/checkpoints/rl/step-000002/tensors.safetensors").is_file()
    events = [json.loads(t) for t in (tmp_path / "out/events.jsonl").read_text().splitlines()]
    assert events[-1]["kind"] == "run_failed" and says in events[-1]["message"]
    marker.unlink()
    assert cli("run", file, "--out", "out").exit_code == 0
    weights = "model/model.safetensors"
    assert (tmp_path / "out" / weights).read_bytes() == (tmp_path / "good" / weights).read_bytes()


@pytest.mark.parametrize("function", ["short", "words", "nan", "broken"])
def test_a_reward_function_at_fault_is_found_before_anything_trains(
    function: str, cli: Any, file: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(REWARDS)
    values = yaml.safe_load(file.read_text())
    values["verifier"] = f"mine.py:{function}"
    dry = cli("run", write(values, file), "--dry-run")
    assert dry.exit_code == 2 and f"mine.py:{function}" in dry.stdout
    assert dry.stdout.rstrip().endswith("failed: verifier")
    assert f"mine.py:{function}" in refused(cli("run", file, "--out", "out"))
    assert not (tmp_path / "out/stages").exists() and not (tmp_path / "out/checkpoints").exists()


def test_held_out_questions_that_are_trained_on(cli: Any, file: Path, tmp_path: Path) -> None:
    rows = [{"question": f"add {n}+1", "answer": str(n + 1)} for n in range(10, 20)]
    for name, part in (("a", rows), ("b", rows[9:])):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(json.dumps(row) for row in part))
    values = yaml.safe_load(file.read_text())
    values["tasks"] |= {"train": {"path": "a.jsonl"}, "heldout": {"path": "b.jsonl"}}
    line = refused(cli("run", write(values, file), "--out", "out"))
    assert "1 held-out questions are also trained on, such as 'add 19+1'" in line
    assert not (tmp_path / "out").exists()


def test_a_bad_row_is_named(cli: Any, file: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"question": "add 1+1", "answer": "2"}\n{"question": 3}\n')
    values = yaml.safe_load(file.read_text())
    values["tasks"]["train"] = {"path": "a.jsonl"}
    assert "a.jsonl:2" in refused(cli("run", write(values, file), "--out", "out"))


def content(folder: Path) -> dict[str, Any]:
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("stages.1.steps=5", "do again: rl (stage.steps: 4, 5); give --redo"),
        ("seed=1", "do again: sft (seed: 0, 1 and 1 more), rl (it follows from sft);"),
        ("model.context=90", "do again: sft (model.context: 80, 90 and 1 more), rl"),
    ],
)
def test_a_run_of_another_recipe(
    override: str, says: str, cli: Any, finished: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path / "out")
    before = content(tmp_path / "out")
    line = refused(cli("run", finished.parent / "recipe.yaml", override, "--out", "out"))
    assert says in line
    assert content(tmp_path / "out") == before


def test_what_is_done_stays_when_stages_are_added_and_redo_does_the_rest(
    cli: Any, finished: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path / "out")
    values = yaml.safe_load((finished.parent / "recipe.yaml").read_text())
    values["stages"] = [sft_stage(), rl_stage(), sft_stage(name="more", steps=1)]
    done = cli("run", write(values, tmp_path / "r.yaml"), "--out", "out")
    assert done.exit_code == 0 and "skipped rl: done before, from the same inputs" in done.stdout
    values["stages"][1]["steps"] = 1
    assert "more (it follows from rl)" in refused(
        cli("run", write(values, tmp_path / "r.yaml"), "--out", "out")
    )
    assert cli("run", tmp_path / "r.yaml", "--out", "out", "--redo").exit_code == 0
    assert (tmp_path / "out/superseded/1/stages/rl/model/model.safetensors").is_file()


def test_a_folder_that_is_no_run(cli: Any, file: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.tex").write_text("years of work")
    assert "holds files but no recipe.yaml" in refused(cli("run", file, "--out", "out"))
    assert content(tmp_path / "out") == {str(tmp_path / "out/thesis.tex"): b"years of work"}
    assert "is a file; choose a folder" in refused(cli("run", file, "--out", "out/thesis.tex"))


def test_somebody_elses_recipe_yaml(cli: Any, file: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/recipe.yaml").write_text("flour: 500 g\n")
    (tmp_path / "out/cake.txt").write_text("x")
    refused(cli("run", file, "--out", "out"))
    assert (tmp_path / "out/recipe.yaml").read_text() == "flour: 500 g\n"


def test_a_recipe_that_never_trained_can_be_mended_in_place(cli: Any, file: Path) -> None:
    """The first try of a newcomer: a typo in the verifier must not cost the folder."""
    refused(cli("run", file, "verifier.function=rewards.py:nothing", "--out", "out"))
    assert cli("run", file, "--out", "out").exit_code == 0


def test_a_place_that_cannot_be_written(cli: Any, file: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "--out file/out" in refused(cli("run", file, "--out", "file/out"))
    assert "--out /proc/out" in refused(cli("run", file, "--out", "/proc/out"))
