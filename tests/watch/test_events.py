from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lydite.config import UserError
from lydite.watch.events import (
    EVENTS,
    Answer,
    Evaluated,
    EventLog,
    RunDone,
    RunResumed,
    RunStarted,
    StageDone,
    StageStarted,
    StepDone,
    Warned,
    from_json,
    iterate_events,
    read_events,
    to_json,
)


def step(number: int, reward: float, stage: str = "rl") -> StepDone:
    return StepDone(stage=stage, step=number, metrics={"reward": reward})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "events.jsonl"


@pytest.mark.parametrize(
    "event",
    [
        RunStarted(name="q", seed=3, stages=("sft", "rl"), directory="runs/q", versions={"a": "1"}),
        RunResumed(stage="rl", step=4),
        StageStarted(stage="rl", stage_kind="rl", steps=9),
        step(1, 0.5),
        Evaluated(
            stage="rl",
            step=2,
            task="sums",
            avg=0.5,
            lo=0.25,
            hi=0.75,
            n=8,
            scores={"p": 1.0},
            answers=(Answer(problem_id="p", prompt="1+1?", completion="2\n\u2028é", correct=True),),
        ),
        Warned(stage="rl", step=2, message="all groups agree", code="no_signal"),
        StageDone(stage="rl", step=9, seconds=1.5, steps=9, artifact="m"),
        RunDone(seconds=2.0, files={"model": "runs/q/model"}),
    ],
    ids=lambda event: event.kind,
)
def test_comes_back_as_written(event, path: Path) -> None:
    with EventLog(path) as log:
        log.append(event)
    assert read_events(path) == [event]


def test_one_json_object_a_line_with_kind_and_utc_time(path: Path) -> None:
    with EventLog(path) as log:
        log.append(step(1, 0.5))
        log.append(step(2, 0.75))
    lines = path.read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]
    assert json.loads(lines[0])["kind"] == "step_done"
    assert json.loads(lines[0])["time"].endswith("+00:00")


def test_every_kind_is_known_once() -> None:
    assert len(EVENTS) == 11
    assert all(kind == event.kind for kind, event in EVENTS.items())


def test_json_is_strict_and_nan_comes_back(path: Path) -> None:
    line = to_json(StepDone(step=1, metrics={"a": math.nan, "b": math.inf, "c": 1.0}))
    assert json.loads(line, parse_constant=pytest.fail)["metrics"] == {"a": None, "b": None, "c": 1}
    back = from_json(line)
    assert isinstance(back, StepDone)
    assert math.isnan(back.metrics["a"]) and math.isnan(back.metrics["b"])


def test_lone_surrogates_do_not_stop_a_run(path: Path) -> None:
    with EventLog(path) as log:
        log.append(Warned(message="odd \ud800 text"))
    (event,) = read_events(path)
    assert isinstance(event, Warned) and event.message == "odd \ud800 text"


def test_a_torn_last_line_is_ended_and_skipped(path: Path) -> None:
    with EventLog(path) as log:
        log.append(step(1, 0.1))
        log.append(step(2, 0.2))
    torn = path.read_bytes()[:-9]
    path.write_bytes(torn)
    with EventLog(path) as log:
        log.append(step(2, 0.3))
    assert path.read_bytes().startswith(torn + b"\n")
    assert [e.metrics["reward"] for e in read_events(path)] == [0.1, 0.3]


def test_a_line_that_lacks_only_its_newline_still_counts(path: Path) -> None:
    with EventLog(path) as log:
        log.append(step(1, 0.1))
    path.write_bytes(path.read_bytes()[:-1])
    with EventLog(path) as log:
        log.append(step(2, 0.2))
    assert [e.step for e in read_events(path)] == [1, 2]


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"[]", b"null", b'{"kind": 3}', b'{"kind": "from_the_future"}', b"\xff\xfe",
     b"[" * 9999, b'{"kind": "evaluated", "answers": [{"no": 1}]}',
     b'{"kind": []}', b'{"kind": "step_done", "metrics": [1]}', b'{"kind": "warned", "code": []}'],
)  # fmt: skip
def test_foreign_lines_are_skipped(line: bytes, path: Path) -> None:
    with EventLog(path) as log:
        log.append(step(1, 0.1))
    with path.open("ab") as file:
        file.write(line + b"\n")
    assert [e.step for e in read_events(path)] == [1]


def test_unknown_fields_of_a_newer_version_are_left_out() -> None:
    line = '{"kind": "step_done", "step": 4, "time": "t", "new": 1}'
    assert from_json(line) == StepDone(step=4, time="t")


def test_repeated_steps_of_a_resumed_run_count_once_and_the_last_holds(path: Path) -> None:
    with EventLog(path) as log:
        for event in (
            step(1, 0.1),
            step(2, 0.2),
            Evaluated(stage="rl", step=2, task="a", avg=0.2),
            Evaluated(stage="rl", step=2, task="b", avg=0.5),
            step(3, 0.3),
            RunResumed(stage="rl", step=1),
            step(2, 0.25),
            Evaluated(stage="rl", step=2, task="a", avg=0.3),
            step(2, 0.9, stage="other"),
            RunResumed(stage="rl", step=1),
        ):
            log.append(event)
    events = read_events(path)
    rewards = {(e.stage, e.step): e.metrics["reward"] for e in events if isinstance(e, StepDone)}
    assert rewards == {("rl", 1): 0.1, ("rl", 2): 0.25, ("rl", 3): 0.3, ("other", 2): 0.9}
    scores = {e.task: e.avg for e in events if isinstance(e, Evaluated)}
    assert scores == {"a": 0.3, "b": 0.5}
    assert sum(isinstance(e, RunResumed) for e in events) >= 1
    assert len(list(iterate_events(path))) == 10


def test_two_warnings_of_one_step_are_both_kept(path: Path) -> None:
    with EventLog(path) as log:
        log.append(Warned(stage="rl", step=1, code="a", message="x"))
        log.append(Warned(stage="rl", step=1, code="b", message="y"))
    assert len(read_events(path)) == 2


def test_listeners_hear_new_events_and_with_replay_old_ones_first(path: Path) -> None:
    with EventLog(path) as log:
        log.append(step(1, 0.1))
        new, all_of_them = [], []
        log.subscribe(new.append)
        log.subscribe(all_of_them.append, replay=True)
        log.append(step(2, 0.2))
    assert [e.step for e in new] == [2]
    assert [e.step for e in all_of_them] == [1, 2]


def test_the_line_is_on_disk_before_a_listener_hears_of_it(path: Path) -> None:
    seen = []
    with EventLog(path) as log:
        log.subscribe(lambda _: seen.append(len(read_events(path))))
        log.append(step(1, 0.1))
    assert seen == [1]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_is_one_line_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.symlink_to("/dev/full")
    with (
        EventLog(path) as log,
        pytest.raises(UserError, match=r"no space left.*events\.jsonl") as e,
    ):
        log.append(step(1, 0.1))
    assert "\n" not in str(e.value)


def test_kill_9_loses_no_line_that_was_appended(path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from lydite.watch.events import *\n"
        "log = EventLog(Path(sys.argv[1]))\n"
        "for i in range(1, 10**6):\n"
        "    log.append(StepDone(step=i, metrics={'reward': i}))\n"
        "    print(i, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    for _ in range(200):
        told = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert [e.step for e in read_events(path)][:told] == list(range(1, told + 1))
    with EventLog(path) as log:
        log.append(RunResumed(stage="", step=told))
    assert isinstance(read_events(path)[-1], RunResumed)


def test_no_file_reads_as_no_events(tmp_path: Path) -> None:
    assert read_events(tmp_path / "none.jsonl") == []
