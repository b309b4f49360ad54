from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from lydite.watch.console import ConsoleView, RunConsole, frame
from lydite.watch.ending import answered_twice, changes, ending
from lydite.watch.events import (
    Answer,
    DatasetMade,
    Evaluated,
    Event,
    RunDone,
    RunFailed,
    RunResumed,
    RunStarted,
    StageDone,
    StageStarted,
    StepDone,
    Warned,
    from_json,
    to_json,
)
from lydite.watch.progress import RunProgress
from lydite.watch.words import duration, printable, score, share, shortened, sparkline

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> str:
    return (START + timedelta(seconds=seconds)).isoformat()


def step(number: int, seconds: float = 0, **metrics: float) -> StepDone:
    return StepDone(stage="rl", step=number, time=at(seconds), metrics=metrics)


def evaluated(stage: str, number: int, avg: float, task: str = "sums", **more: object) -> Evaluated:
    return replace(
        Evaluated(stage=stage, step=number, task=task, avg=avg, lo=avg / 2, hi=1.0, n=4), **more
    )


def answer(problem: str, correct: bool, text: str = "words") -> Answer:
    return Answer(problem_id=problem, prompt=f"{problem}?", completion=text, correct=correct)


def folded(*events: Event) -> RunProgress:
    progress = RunProgress()
    for event in events:
        progress.advance(event)
    return progress


def printed(renderable: object, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def log_of(events: list[Event], tick: float = 1.0) -> list[str]:
    now = iter(range(10**6))
    console = RunConsole(file=io.StringIO(), width=80, force_terminal=False)
    with ConsoleView(console, clock=lambda: next(now) * tick, since="") as view:
        for event in events:
            view(event)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_a_log_gets_a_step_line_every_ten_seconds_and_all_else_at_once() -> None:
    steps = [step(i, i, reward=0.5, tokens_per_second=1234.0) for i in range(1, 31)]
    lines = log_of(
        [
            RunStarted(name="quick", stages=("rl",), directory="runs/q"),
            StageStarted(stage="rl", stage_kind="rl", steps=30, time=at(0)),
            *steps,
            evaluated("rl", 30, 0.5),
            Warned(stage="rl", step=30, message="no signal"),
            StageDone(stage="rl", step=30, steps=30, seconds=61),
        ]
    )
    assert lines[0].endswith("quick: rl; into runs/q")
    shown = [line for line in lines if line.startswith("step")]
    assert [line.split()[2] for line in shown] == ["1/30", "11/30", "21/30"]
    assert "reward 0.50" in shown[0] and "1,234 tokens/s" in shown[0]
    # Ten steps a ten seconds: 9 more seconds for the last nine.
    assert shown[2].endswith("9s left")
    assert lines[-3:] == [
        "eval    rl step 30: sums 50.0% [25.0, 100.0] (4 problems)",
        "warning rl step 30: no signal",
        "done    rl: 30 steps in 1m01s, held-out 50.0% [25.0, 100.0]",
    ]


def test_several_tasks_are_told_apart_in_step_lines() -> None:
    both = [replace(evaluated("rl", 2, avg), task=f"sums.{mode}", k=8, metrics=more)
            for mode, avg, more in (("think", 0.75, {"pass@8": 0.9, "maj@8": 0.8}),
                                    ("no_think", 0.5, {}))]  # fmt: skip
    events = [StageStarted(stage="rl", steps=9), evaluated("rl", 0, 0.1), *both]
    lines = log_of([*events, step(3, 3, reward=0.5)])
    assert (
        "eval    rl step 2: sums.think 75.0% [37.5, 100.0], pass@8 90.0%, maj@8 80.0%" in lines[2]
    )
    assert "held-out sums 10.0%, sums.think 75.0%, sums.no_think 50.0%" in lines[-1]
    done = StageDone(stage="rl", step=3, steps=3, seconds=1)
    last = log_of([*events[:1], *both, done])[-1]
    assert last.endswith(
        "held-out sums.think 75.0% [37.5, 100.0], sums.no_think 50.0% [25.0, 100.0]"
    )
    more = [replace(evaluated("rl", 2, 0.5), task=f"t{n}") for n in range(5)]
    assert "t2 50.0% and 2 more" in log_of([*events[:1], *more, step(3, 3, reward=0.5)])[-1]


def test_what_filters_dropped_is_told_at_once_and_at_the_end() -> None:
    dropped = {"incorrect": 50, "near_duplicate": 6}
    made = DatasetMade(stage="pick", step=3, sampled=96, dropped=dropped, kept=40, problems=12)
    told = "40 of 96 samples kept, of 12 problems; dropped: 50 incorrect, 6 near duplicate"
    assert log_of([made]) == [f"data    pick: {told}"]
    assert f"pick: {told}" in printed(ending(folded(made)))
    assert from_json(to_json(made)) == made


def test_a_warning_of_every_step_is_told_once_and_counted() -> None:
    def few(number: int) -> Warned:
        return Warned(stage="rl", step=number, code="few", message=f"{number} groups")

    notes = [Warned(code="task", message="one note"), Warned(code="task", message="another")]
    warned = [event for i in range(1, 5) for event in (few(i), step(i, i, reward=0.5))]
    lines = log_of([StageStarted(stage="rl", steps=9), *notes, *warned], tick=10)
    assert [line for line in lines if line.startswith("warning")] == [
        "warning one note",
        "warning another",
        "warning rl step 1: 1 groups",
    ]
    assert "warnings" not in next(line for line in lines if line.startswith("step"))
    assert lines[-1].startswith("step     rl 4/9  reward 0.50  4 warnings")
    progress = folded(*notes, *warned)
    text = printed(ending(progress))
    assert "Warning: one note" in text and "Warning: another" in text
    assert "Warning, 4 times, the last at rl step 4: 4 groups" in text
    # A resumed run counts the steps that it does again once.
    progress.advance(RunResumed(stage="rl", step=2))
    assert progress.warned(few(1).subject) == progress.stages["rl"].warnings == 2


def test_a_long_line_of_a_log_is_not_broken() -> None:
    message = "word " * 60
    lines = log_of([Warned(stage="rl", message=message)])
    assert len(lines) == 1
    assert message.strip() in lines[0]


def test_a_resumed_run_does_not_tell_its_past_again() -> None:
    console = RunConsole(file=io.StringIO(), force_terminal=False)
    with ConsoleView(console) as view:
        view(StageStarted(stage="rl", stage_kind="rl", steps=3, time=at(0)))
        view(step(1, 5, reward=0.5))
        view(RunDone(seconds=9, time=at(9)))
        assert isinstance(console.file, io.StringIO) and console.file.getvalue() == ""
        view(RunResumed(stage="rl", step=1))
        view(StepDone(stage="rl", step=2, metrics={"reward": 0.5}))
    lines = console.file.getvalue().splitlines()
    assert lines[0] == "run     goes on from rl step 1"
    assert lines[1].startswith("step     rl 2/3  reward 0.50")
    assert len(lines) == 2


def test_a_live_terminal_shows_the_frame_and_leaves_the_ending() -> None:
    console = RunConsole(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    seconds = iter(range(100))
    with ConsoleView(console, clock=lambda: next(seconds), since="") as view:
        view(RunStarted(name="quick", stages=("sft", "rl")))
        view(StageStarted(stage="rl", stage_kind="rl", steps=4))
        view(evaluated("rl", 0, 0.25))
        view(step(1, reward=0.125, length=43.0, entropy=0.5))
        view(evaluated("rl", 4, 0.75))
        view(RunDone(seconds=5, files={"model": "runs/q/model"}))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "reward 0.12  held-out 25.0%  length 43  entropy 0.50" in text
    assert "1/4" in text
    assert "75.0% [37.5, 100.0]" in text
    assert "runs/q/model" in text


def test_a_terminal_that_goes_away_does_not_stop_the_run() -> None:
    class Gone(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    with ConsoleView(RunConsole(file=Gone(), force_terminal=False)) as view:
        view(Warned(message="x"))
        view(Warned(message="y"))
    assert len(view.progress.warnings) == 2


def test_an_ascii_log_takes_every_sign() -> None:
    raw = io.BytesIO()
    console = RunConsole(file=io.TextIOWrapper(raw, encoding="ascii"), force_terminal=False)
    with ConsoleView(console) as view:
        view(Warned(message="σ → 0"))
        view(evaluated("rl", 0, 0.25))
        view(evaluated("rl", 4, 0.75))
        view(RunDone(seconds=5))
    console.file.flush()
    assert b"? ? 0" in raw.getvalue()


def test_time_left_follows_the_pace_and_not_the_pause_before_a_resume() -> None:
    started = StageStarted(stage="rl", steps=10, time=at(0))
    assert folded(started).seconds_left is None
    assert folded(started, step(1, 2), step(2, 4)).seconds_left == 16.0
    resumed = folded(
        started,
        step(1, 2),
        step(2, 4),
        step(3, 6),
        RunResumed(stage="rl", step=2, time=at(9000)),
        step(3, 9005),
    )
    assert resumed.seconds_left == 35.0
    assert folded(StageStarted(stage="rl", steps=0), step(1, 2), step(2, 4)).seconds_left is None


def test_a_resume_takes_back_what_came_after_the_checkpoint() -> None:
    progress = folded(
        StageStarted(stage="rl", steps=5),
        evaluated("rl", 0, 0.1),
        step(1, reward=0.1),
        step(2, reward=0.2),
        evaluated("rl", 2, 0.2),
        step(3, reward=0.3),
        RunFailed(message="killed"),
        RunResumed(stage="rl", step=1),
        step(2, reward=0.4),
    )
    stage = progress.stages["rl"]
    assert stage.rewards == [0.1, 0.4]
    assert [e.step for e in stage.evaluations] == [0]
    assert progress.failure == ""


def test_a_stage_that_begins_again_has_each_step_once() -> None:
    started = StageStarted(stage="rl", steps=5)
    progress = folded(started, step(1, reward=0.1), step(2, reward=0.2), started)
    progress.advance(step(1, reward=0.3))
    assert progress.stages["rl"].rewards == [0.3]


def test_each_stage_starts_from_its_own_evaluation_or_the_one_before() -> None:
    progress = folded(
        evaluated("base", 40, 0.1),
        evaluated("sft", 20, 0.4),
        evaluated("rl", 0, 0.45),
        evaluated("rl", 50, 0.6),
        evaluated("rl", 99, 0.9),
        evaluated("rl", 99, 0.5, task="other"),
    )
    rows = [(c.stage, c.task, c.before and c.before.avg, c.after.avg) for c in changes(progress)]
    assert rows == [
        ("base", "sums", None, 0.1),
        ("sft", "sums", 0.1, 0.4),
        ("rl", "sums", 0.45, 0.9),
        ("whole run", "sums", 0.1, 0.9),
        ("rl", "other", None, 0.5),
    ]


def test_the_change_is_of_the_same_problems_in_pairs() -> None:
    before = evaluated("rl", 0, 0.25, scores={str(i): float(i == 0) for i in range(4)})
    after = evaluated("rl", 9, 0.75, scores={str(i): float(i != 3) for i in range(4)})
    text = printed(ending(folded(before, after)))
    assert "25.0% [12.5, 100.0]" in text and "75.0% [37.5, 100.0]" in text
    # Differences 0, 1, 1, 0, by hand in test_intervals: 50.0 ± 91.9, kept at 100.
    assert "+50.0 [-41." in text and "+100.0]" in text
    assert "(sums: 4 problems)" in text


def test_the_table_keeps_its_numbers_unbroken_in_80_columns() -> None:
    scores = {str(i): float(i % 2) for i in range(40)}
    events = [
        evaluated(stage, number, avg, scores=scores)
        for stage, number, avg in (("base", 1, 0.125), ("sft", 1, 0.375), ("grpo", 1, 0.875))
    ]
    text = printed(ending(folded(*events)), width=80)
    assert "87.5% [43.8, 100.0]" in text
    assert max(map(len, text.splitlines())) <= 80


def test_three_problems_are_shown_for_what_happened_and_not_for_progress_alone() -> None:
    before = (
        answer("a", False),
        answer("b", False),
        answer("c", False),
        answer("d", True),
        answer("e", True),
        answer("lost", True),
    )
    after = (
        answer("a", True),
        answer("b", True),
        answer("c", False),
        answer("d", False),
        answer("e", True),
    )
    progress = folded(
        evaluated("rl", 0, 0.1, answers=before), evaluated("rl", 9, 0.9, answers=after)
    )
    assert [pair[0].problem_id for pair in answered_twice(progress)] == ["a", "c", "d"]
    assert answered_twice(folded(evaluated("rl", 0, 0.1, answers=before))) == []


def test_a_models_text_is_shown_and_never_obeyed() -> None:
    hostile = "\x1b]0;owned\x07[red]x[/red]\u202e\r\ud800"
    progress = folded(
        evaluated("rl", 0, 0.1, answers=(answer("[bold]p", False, hostile),)),
        evaluated("rl", 9, 0.9, answers=(answer("[bold]p", True, "[/] fine"),)),
        RunDone(seconds=3, files={"model": "runs/[x]/model"}),
    )
    text = printed(ending(progress))
    assert "[red]x[/red]" in text and "[/] fine" in text and "[bold]p" in text
    assert "runs/[x]/model" in text
    assert not set("\x1b\x07\u202e\r\ud800") & set(text)


def test_an_empty_run_has_a_frame_and_an_ending() -> None:
    assert "run" in printed(frame(RunProgress(), 80))
    printed(ending(RunProgress()))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59.4, "59s"), (59.6, "1m00s"), (112, "1m52s"), (7500, "2h05m"), (273600, "3d04h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_shares_and_scores() -> None:
    assert share(0.613) == "61.3%"
    assert share(float("nan")) == "-"
    assert score(Evaluated(avg=0.5, lo=0.25, hi=0.75)) == "50.0% [25.0, 75.0]"
    assert score(Evaluated(avg=0.5)) == "50.0%"


def test_sparklines() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    # Halves: means 0.5 and 6.5.
    assert sparkline([0, 1, 6, 7], 2) == "▁█"
    assert sparkline([3, 3, 3], 9) == "▄▄▄"
    assert sparkline([0, float("nan"), 1], 3) == "▁ █"
    assert sparkline([float("nan")], 3) == " "
    assert sparkline([], 5) == sparkline([1], 0) == ""


def test_long_text_loses_its_middle_and_says_so() -> None:
    text = "a" * 500 + "z" * 500
    short = shortened(text, 100)
    assert len(short) <= 110
    assert short.startswith("aaa") and short.endswith("zzz") and "more…" in short
    assert shortened("fits", 100) == "fits"
    assert printable("a\tb\nc") == "a   b\nc"


def test_obedience_is_told_with_its_evaluation_and_at_the_end() -> None:
    def modes(stage: str, number: int, obeyed: float) -> list[Event]:
        metrics = {"length": 20.25, "obedience": obeyed}
        return [
            evaluated(stage, number, 0.5, task, metrics=metrics)
            for task in ("sums.think", "sums.no_think")
        ]

    events = [*modes("sft", 0, 0.1), *modes("sft", 9, 0.2), *modes("rl", 0, 0.2)]
    progress = folded(*events, *modes("rl", 5, 0.983))
    shown = printed(ending(progress), 80)
    assert "Thinking as asked, before and after the run" in shown
    row = next(line for line in shown.splitlines() if line.split()[:1] == ["sums.no_think"])
    assert row.split() == ["sums.no_think", "50.0%", "20.2", "10.0%", "98.3%"]
    stream = io.StringIO()
    with ConsoleView(RunConsole(file=stream, width=200), since="") as view:
        for event in events:
            view(event)
    assert "sums.think 50.0% [25.0, 100.0], obeys 10.0% (4 problems)" in stream.getvalue()
    assert "obeys" not in printed(ending(folded(evaluated("sft", 3, 0.5))))


def test_answers_of_compared_models_are_no_stages_before_and_after() -> None:
    progress = folded(
        evaluated("rl", 0, 0.1, answers=(answer("a", False),)),
        evaluated("rl", 9, 0.9, answers=(answer("a", True),)),
        evaluated("pick", 0, 0.9, answers=(answer("a", True),), model="rl"),
        evaluated("pick", 1, 0.1, answers=(answer("a", False),), model="other"),
        StageStarted(stage="out", stage_kind="export"),
    )
    [(before, after)] = answered_twice(progress)
    assert (before.correct, after.correct) == (False, True)
    assert "before and after rl" in printed(ending(progress))


def test_scores_of_several_tasks_stand_in_tables_that_80_columns_hold() -> None:
    events = [
        evaluated(stage, number, avg, task=task, lo=avg - 0.05, hi=avg + 0.05, k=4, n=300)
        for task in ("heldout.last_no_think", "requests")
        for stage in ("cold_start", "fuse_thinking")
        for number, avg in ((0, 0.5), (9, 0.8))
    ]
    text = printed(ending(folded(*events)), width=80)
    assert "Scores with 95% intervals (requests: 300 problems, 4 samples each)" in text
    rows = [line for line in text.splitlines() if "fuse_thinking" in line]
    assert len(rows) == 2 and all("50.0% [45.0, 55.0]" in row for row in rows)
    assert all("80.0% [75.0, 85.0]" in row and "+30.0" in row for row in rows)
