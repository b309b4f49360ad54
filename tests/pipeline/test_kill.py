"""``kill -9`` at any instant, the same command again, and the run is the one that was never
killed.
"""

from __future__ import annotations

import contextlib
import json
import math
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from small_runs import Kill, attempt, recipe, rl_stage, run_and_die, start, write

from lydite.pipeline.recipe import load_recipe
from lydite.pipeline.runner import run_recipe
from lydite.train.checkpoint import load_checkpoint
from lydite.watch.events import Evaluated, StageDone, StepDone, iterate_events, read_events
from lydite.watch.samples import read_samples

CHECKPOINT = "lydite.train.checkpoint"
RUNNER = "lydite.pipeline.runner"
TRAINING = "lydite.pipeline.stages.training"
HELD_OUT = "lydite.pipeline.heldout"

PLAIN = [
    Kill("before", "lydite.pipeline.heldout:evaluate"),
    Kill("event", "evaluated base 0"),
    Kill("event", "step_done base 1"),
    Kill("after", f"{CHECKPOINT}:save_file"),
    Kill("event", "step_done base 3"),
    Kill("before", "lydite.model.saving:_replace"),
    Kill("before", f"{TRAINING}:save_artifact"),
    Kill("after", f"{TRAINING}:save_artifact"),
    Kill("event", "step_done cold 2"),
    Kill("after", "lydite.train.rl:RLTrainer.step", 1),
    Kill("before", "lydite.watch.files:os.fsync", 2),
    Kill("after", "lydite.train.loop:save_checkpoint"),
    Kill("event", "step_done rl 3"),
    Kill("after", "lydite.pipeline.heldout:evaluate"),
    Kill("before", f"{RUNNER}:_copy_model"),
    Kill("after", "shutil:copytree"),
]
OTHERS = [
    Kill("event", "step_done sft 1"),
    Kill("event", "step_done rl 1"),
    Kill("before", "lydite.train.optimizer:Optimizer.step", 3),
    Kill("after", f"{CHECKPOINT}:save_file"),
    Kill("event", "step_done rl 3"),
    Kill("event", "step_done rl 5"),  # Goes on from step 4, the first with a renewed reference.
    Kill("before", f"{TRAINING}:save_policy"),
]
CRITIC = [
    Kill("after", "lydite.train.critic:Critic.update", 3),
    Kill("event", "step_done rl 3"),
    Kill("after", "lydite.train.learner:Learner.judge"),
    Kill("event", "step_done head 3"),
]
PREFERENCE = [
    Kill("before", "lydite.pipeline.prefer:save_pairs"),
    Kill("after", "lydite.pipeline.prefer:save_pairs"),
    Kill("event", "step_done dpo 3"),
    Kill("after", "lydite.pipeline.pairs:write_samples"),
    Kill("event", "step_done ipo 3"),
]


@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        ("plain_run", PLAIN),
        ("dynamic_run", OTHERS),
        ("lora_run", OTHERS),
        ("critic_run", CRITIC),
        ("preference_run", PREFERENCE),
    ],
)
def test_a_run_killed_again_and_again_ends_as_if_it_never_was(
    kind: str, kills: list[Kill], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    whole = request.getfixturevalue(kind)
    out = tmp_path / "run"
    for kill in kills:
        run_and_die(whole.file, out, kill)
        read_events(out / "events.jsonl")
    run_recipe(load_recipe(whole.file), out)

    for stage in load_recipe(whole.file).stages:
        weights = f"stages/{stage.name}/model/model.safetensors"
        assert (out / weights).read_bytes() == (whole.folder / weights).read_bytes(), stage.name
    assert (out / "model/model.safetensors").read_bytes() == (
        whole.folder / "model/model.safetensors"
    ).read_bytes()
    assert figures(out) == figures(whole.folder)
    assert without_seconds(summary(out)) == without_seconds(summary(whole.folder))
    assert samples(out) == samples(whole.folder)
    assert pairs(out) == pairs(whole.folder)
    assert left_over(out) == []


def test_the_runs_above_do_learn_something(plain_run: Any, dynamic_run: Any, lora_run: Any) -> None:
    """Else equal weights would say nothing."""
    for run in (plain_run, dynamic_run, lora_run):
        steps = [e for e in read_events(run.folder / "events.jsonl") if isinstance(e, StepDone)]
        assert all(e.metrics["grad_norm"] > 0 for e in steps)
    steps = [
        e.metrics
        for e in read_events(dynamic_run.folder / "events.jsonl")
        if isinstance(e, StepDone) and e.stage == "rl"
    ]
    assert max(m["rounds"] for m in steps) > 1, "dynamic sampling never drew again"
    assert 0 < steps[3]["retired"] < 20
    assert [m["entropy_bonus"] for m in steps] == [0, 0.002, 0.004, 0.005, 0.005]
    for run in (dynamic_run, lora_run):
        saved = load_checkpoint(run.folder / "checkpoints/rl")
        assert saved is not None and any(name.startswith("reference.") for name in saved.tensors)


def test_killed_from_outside_its_workers_end_too(tmp_path: Path) -> None:
    values = recipe([rl_stage(steps=30)], tmp_path)
    values["verifier"]["isolation"] = "process"
    values["checkpoint"] = {"every": 5}
    file = write(values, tmp_path / "recipe.yaml")
    process = start(attempt, (file, tmp_path / "run", None, tmp_path / "said"))
    steps = tmp_path / "run/samples/rl/step-000007.parquet"
    wait_for(steps.exists)
    assert process.pid is not None
    assert workers_of(process.pid)
    process.kill()
    process.join(20)
    assert process.exitcode == -signal.SIGKILL
    wait_for(lambda: not workers_of(process.pid))
    found = load_checkpoint(tmp_path / "run/checkpoints/rl")
    assert found is not None and found.step >= 5


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def workers_of(host: int | None) -> list[str]:
    """Process ids of the verifier workers that the process started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_text().split("\0")
            if "lydite.verify.worker" in words and str(host) in words:
                found.append(path.parent.name)
    return found


def test_a_line_torn_by_the_kill_is_passed_over(plain_run: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run_and_die(plain_run.file, out, Kill("event", "step_done base 2"))
    with (out / "events.jsonl").open("ab") as file:
        file.write(b'{"kind": "step_done", "stage": "base", "ste')
    run_recipe(load_recipe(plain_run.file), out)
    assert figures(out) == figures(plain_run.folder)


def figures(folder: Path) -> list[tuple[Any, ...]]:
    """Every step, evaluation and end of a stage, but for what depends on the clock."""
    found: list[tuple[Any, ...]] = []
    for event in read_events(folder / "events.jsonl"):
        if isinstance(event, StepDone):
            timeless = {
                key: None if math.isnan(value) else value
                for key, value in event.metrics.items()
                if "second" not in key and "memory" not in key
            }
            found.append((event.stage, event.step, "step", timeless))
        elif isinstance(event, Evaluated):
            answers = [answer.completion for answer in event.answers]
            found.append((event.stage, event.step, event.task, event.avg, event.scores, answers))
        elif isinstance(event, StageDone):
            found.append((event.stage, event.step, "done", event.steps))
    assert len({entry[:3] for entry in found}) == len(found)
    return sorted(found, key=lambda entry: entry[:3])


def summary(folder: Path) -> Any:
    return json.loads((folder / "summary.json").read_text())


def without_seconds(tree: Any) -> Any:
    return {**tree, "stages": [{**stage, "seconds": None} for stage in tree["stages"]]}


def samples(folder: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(folder)): read_samples(path)
        for path in sorted((folder / "samples").rglob("*.parquet"))
    }


def pairs(folder: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(folder)): pq.read_table(path).to_pylist()
        for path in sorted(folder.rglob("pairs.parquet"))
    }


def left_over(folder: Path) -> list[str]:
    """What a killed process was writing."""
    return [str(p) for p in folder.rglob(".*") if p.name != ".lock" and p.is_relative_to(folder)]


def test_the_log_tells_of_every_attempt(plain_run: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run_and_die(plain_run.file, out, Kill("event", "step_done cold 2"))
    run_recipe(load_recipe(plain_run.file), out)
    kinds = [event.kind for event in iterate_events(out / "events.jsonl")]
    assert kinds.count("run_started") == 2
    steps = [e.step for e in iterate_events(out / "events.jsonl") if e.kind == "step_done"]
    assert steps == [1, 2, 3, 1, 2, 1, 2, 3, 1, 2, 3, 4]
