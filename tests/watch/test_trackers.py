"""Figures in other tools: what they are told, and that none of them can end a run."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from lydite.config import UserError
from lydite.watch.diagnosis.foreign import read_log
from lydite.watch.events import Evaluated, EventLog, StageStarted, StepDone, Warned, read_events
from lydite.watch.trackers import (
    Mlflow,
    TensorBoard,
    Tracking,
    Wandb,
    check_installed,
    figures_of,
    open_trackers,
    write_tensorboard,
)


class Told:
    """A tracker that remembers, and fails when it is told to."""

    def __init__(self, past: bool = False, fails: bool = False) -> None:
        self.past, self.fails = past, fails
        self.figures: list[tuple[str, int, dict[str, float]]] = []
        self.closed = False

    def log(self, prefix: str, step: int, figures: dict[str, float]) -> None:
        if self.fails:
            raise ConnectionError("no\nserver")
        self.figures.append((prefix, step, figures))

    def close(self) -> None:
        self.closed = True


def step(number: int, **metrics: float) -> StepDone:
    return StepDone(stage="rl", step=number, metrics=metrics)


def test_what_an_event_measures() -> None:
    assert figures_of(step(1, reward=0.5, length=float("nan"))) == ("rl", {"reward": 0.5})
    held = Evaluated(stage="rl", step=1, task="sums", avg=0.5, lo=0.4, metrics={"pass@4": 0.75})
    assert figures_of(held) == ("rl/sums", {"avg": 0.5, "lo": 0.4, "pass@4": 0.75})
    compared = Evaluated(stage="all", model="rl", task="sums", avg=1.0)
    assert figures_of(compared)[0] == "all/rl/sums"
    assert figures_of(StageStarted(stage="rl")) == ("rl", {})


def test_the_past_is_told_to_those_that_begin_anew(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        log.append(step(1, reward=0.1))
        anew, on = Told(past=True), Told()
        tracking = Tracking(log, {"anew": anew, "on": on})
        log.subscribe(tracking, replay=True)
        tracking.begin()
        log.append(step(2, reward=0.2))
        tracking.close()
    assert [s for _, s, _ in anew.figures] == [1, 2]
    assert on.figures == [("rl", 2, {"reward": 0.2})]
    assert anew.closed and on.closed


def test_one_that_fails_is_warned_of_once_and_the_others_go_on(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        good = Told()
        tracking = Tracking(log, {"bad": Told(fails=True), "good": good})
        log.subscribe(tracking, replay=True)
        tracking.begin()
        for number in (1, 2, 3):
            log.append(step(number, reward=0.1))
        tracking.close()
    (warning,) = (e for e in read_events(tmp_path / "events.jsonl") if isinstance(e, Warned))
    assert warning.message.startswith("report: bad failed") and "no server" in warning.message
    assert [s for _, s, _ in good.figures] == [1, 2, 3]


def test_tensorboards_files_read_back_with_each_step_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with EventLog(tmp_path / "events.jsonl") as log:
        log.append(StageStarted(stage="rl", stage_kind="rl"))
        for number in (1, 2, 3, 2, 3):  # a resumed run
            log.append(step(number, reward=number / 10))
        log.append(Evaluated(stage="rl", step=3, task="sums", avg=0.5))
    write_tensorboard(tmp_path / "events.jsonl", tmp_path / "tb")
    write_tensorboard(tmp_path / "events.jsonl", tmp_path / "tb")
    assert len(list((tmp_path / "tb").iterdir())) == 1
    (found,) = read_log(tmp_path / "tb", {"reward": "rl/reward", "accuracy": "rl/sums/avg"})
    assert found.steps == (1, 2, 3)
    assert found.metrics["reward"] == pytest.approx((0.1, 0.2, 0.3))
    assert found.metrics["accuracy"][-1] == pytest.approx(0.5)


def test_a_run_that_goes_on_writes_tensorboards_files_anew(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    for value in (1.0, 2.0):
        board = TensorBoard(tmp_path)
        board.log("rl", 1, {"reward": value})
        board.close()
    (found,) = read_log(tmp_path, {"reward": "rl/reward"})
    assert found.metrics["reward"] == (2.0,)


def fake(monkeypatch: pytest.MonkeyPatch, name: str, **calls: Any) -> Any:
    module = types.ModuleType(name)
    module.__dict__.update(calls)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def test_weights_and_biases(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    begun: list[dict[str, Any]] = []
    logged: list[dict[str, float]] = []
    defined: list[tuple[str, str]] = []
    fake(
        monkeypatch,
        "wandb",
        init=lambda **given: begun.append(given),
        log=logged.append,
        define_metric=lambda name, step_metric: defined.append((name, step_metric)),
        finish=lambda: logged.append({}),
    )
    for _ in range(2):
        tracker = Wandb("wandb", tmp_path, "quick", {"seed": 1})
    tracker.log("rl", 3, {"reward": 0.5})
    tracker.log("rl", 4, {"reward": 0.6})
    tracker.close()
    assert begun[0]["name"] == "quick" and begun[0]["config"] == {"seed": 1}
    assert begun[0]["id"] == begun[1]["id"] and begun[0]["resume"] == "allow"
    assert logged == [{"rl/step": 3, "rl/reward": 0.5}, {"rl/step": 4, "rl/reward": 0.6}, {}]
    assert defined == [("rl/*", "rl/step")]


def test_mlflow_goes_on_with_its_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str | None] = []
    logged: list[tuple[dict[str, float], int]] = []

    def start_run(run_id: str | None, run_name: str) -> Any:
        asked.append(run_id)
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="abc"))

    fake(
        monkeypatch,
        "mlflow",
        set_experiment=lambda name: None,
        start_run=start_run,
        log_metrics=lambda figures, step: logged.append((figures, step)),
        end_run=lambda: None,
    )
    for _ in range(2):
        tracker = Mlflow(tmp_path, "quick")
    tracker.log("rl", 3, {"pass@4": 0.5})
    tracker.close()
    assert asked == [None, "abc"]
    assert logged == [({"rl/pass_at_4": 0.5}, 3)]


def test_what_is_not_there_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("wandb", "trackio", "mlflow", "tensorboard.summary"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("wandb", "trackio", "mlflow"):
        with pytest.raises(UserError, match=rf"^report: {name} .*pip install {name}$"):
            open_trackers((name,), tmp_path, "quick", {})
    with pytest.raises(UserError, match=r"lydite\[tensorboard\]"):
        open_trackers(("tensorboard",), tmp_path, "quick", {})

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="report: mlflow is not installed"):
        check_installed(("mlflow",))
    check_installed(())

    def offline(**_: Any) -> None:
        raise ConnectionError("not\nsigned in")

    fake(monkeypatch, "trackio", init=offline)
    with pytest.raises(UserError, match="trackio cannot be started: not signed in"):
        open_trackers(("trackio",), tmp_path, "quick", {})
