"""The table of stages: on the screen and as Markdown."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from lydite.watch.ending import changes, ending
from lydite.watch.events import (
    DatasetMade,
    Evaluated,
    Event,
    RunStarted,
    StageDone,
    StageStarted,
    StepDone,
)
from lydite.watch.progress import RunProgress
from lydite.watch.stages import report, stage_cells, stage_rows


def measured(stage: str, step: int, right: int, **metrics: float) -> Evaluated:
    scores = {str(n): float(n < right) for n in range(10)}
    return Evaluated(
        stage=stage, step=step, task="sums", avg=right / 10, lo=right / 10 - 0.1,
        hi=right / 10 + 0.1, n=10, scores=scores, metrics={"length": 12.25, **metrics},
    )  # fmt: skip


def folded(events: list[Event]) -> RunProgress:
    progress = RunProgress()
    for event in events:
        progress.advance(event)
    return progress


def run() -> RunProgress:
    return folded(
        [
            RunStarted(name="tiny", stages=("base", "sample", "rl")),
            StageStarted(stage="base", stage_kind="sft", steps=2),
            measured("base", 0, 0, well_formed=0.0),
            StepDone(stage="base", step=2),
            measured("base", 2, 4, well_formed=0.5, mixing=0.25),
            StageDone(stage="base", seconds=61.0),
            StageStarted(stage="sample", stage_kind="rejection_sampling", steps=1),
            DatasetMade(stage="sample", sampled=8, kept=3, problems=2, dropped={"format": 5}),
            StageStarted(stage="rl", stage_kind="rl", steps=2),
            measured("rl", 0, 4, well_formed=0.5, mixing=0.25),
            measured("rl", 1, 5, well_formed=0.6, mixing=0.2),
            measured("rl", 2, 8, well_formed=1.0, mixing=0.0),
        ]
    )


def test_each_stage_stands_as_it_ended_behind_the_start() -> None:
    rows = stage_rows(run(), "sums")
    assert [(name, e.step, e.avg) for name, e, _ in rows] == [
        ("start", 0, 0.0), ("base", 2, 0.4), ("rl", 2, 0.8),
    ]  # fmt: skip
    cells = stage_cells(rows)
    assert cells[0] == ["stage", "accuracy [95%]", "change", "well-formed", "mixing", "tokens"]
    assert cells[1][2:] == ["-", "0.0%", "-", "12.2"]
    assert cells[3][:2] == ["rl", "80.0% [70.0, 90.0]"] and cells[3][2].startswith("+40.0 [")
    assert cells[3][3:] == ["100.0%", "0.0%", "12.2"]


def test_a_page_of_markdown() -> None:
    page = report(run())
    assert page.startswith("# tiny, stage by stage\n\n## sums (10 problems)\n\n| stage | ")
    assert "- sample: 3 of 8 samples kept, of 2 problems; dropped: 5 format" in page
    assert "| base | sft | 2 | 1m01s |" in page and "| rl | rl | 0 | - |" in page
    table = [line for line in page.splitlines() if line.startswith("|")]
    assert all(line.count("|") == 7 for line in table[:5])


def test_the_screen_shows_it_where_readability_was_measured() -> None:
    def shown(progress: RunProgress) -> str:
        console = Console(width=80, file=io.StringIO())
        console.print(ending(progress))
        return console.file.getvalue()

    assert "sums, stage by stage" in shown(run()) and "well-formed" in shown(run())
    table = shown(run()).partition("sums, stage by stage")[2]
    assert "80.0% [70.0, 90.0]" in table  # unbroken, in 80 columns
    plain = [measured("rl", 0, 4), measured("rl", 2, 8)]
    assert "stage by stage" not in shown(folded([*plain]))


def test_nothing_measured_is_no_table() -> None:
    page = report(folded([StageStarted(stage="a|b", stage_kind="sft", steps=1)]))
    assert "## Stages" in page and "accuracy" not in page and "| a\\|b | sft |" in page


def test_a_start_that_was_measured_again_stays_the_start() -> None:
    first, middle, last = measured("rl", 0, 2), measured("rl", 5, 4), measured("rl", 9, 7)
    again = measured("rl", 0, 3)
    for events in ([first, middle, again, last], [first, middle, last, again]):
        progress = folded([StageStarted(stage="rl", stage_kind="rl", steps=9), *events])
        assert [row[0] for row in stage_rows(progress, "sums")] == ["start", "rl"]
        (change,) = changes(progress)
        assert change.before is again and change.after is last
        assert progress.last("sums") is last


def test_a_stage_that_compares_models_has_a_row_for_each_and_no_change() -> None:
    events = [measured("base", 0, 0), measured("base", 2, 4)]
    for place, (model, right) in enumerate((("base", 4), ("student", 1))):
        events.append(replace(measured("pick", place, right), model=model))
    rows = stage_rows(folded([*events, measured("rl", 2, 8)]), "sums")
    assert [(name, e.avg, before) for name, e, before in rows] == [
        ("start", 0.0, None), ("base", 0.4, events[0]),
        ("pick: base", 0.4, None), ("pick: student", 0.1, None), ("rl", 0.8, None),
    ]  # fmt: skip
    alone = folded([replace(measured("pick", 0, 4), model="base")])
    assert [name for name, *_ in stage_rows(alone, "sums")] == ["pick: base"]
