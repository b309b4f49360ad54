"""The run in the terminal: a live view where there is one, a plain line now and then where output
is a file.

A subscriber of the event log like any other; a terminal that goes away ends the view and not the
run.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from contextlib import suppress

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lydite.watch.ending import ending
from lydite.watch.events import (
    DatasetMade,
    Evaluated,
    Event,
    RunDone,
    RunFailed,
    RunResumed,
    RunStarted,
    StageDone,
    StageSkipped,
    StageStarted,
    StepDone,
    Warned,
    now,
)
from lydite.watch.progress import RunProgress, StageProgress
from lydite.watch.words import duration, printable, repeated, score, selection, share, sparkline

_FRAME_SECONDS = 0.2
_SHOWN_TASKS = 3


class RunConsole(Console):
    """Falls silent when its reader goes away (``| head``, a closed terminal); Rich's own would
    exit.
    """

    def on_broken_pipe(self) -> None:
        self.quiet = True
        with suppress(OSError, ValueError):
            # The interpreter's last flush of standard output would fail again.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.file.fileno())
            os.close(null)


class ConsoleView:
    """Shows events as they come: ``log.subscribe(view, replay=True)``, inside ``with view:``.

    With a terminal the view is redrawn in place; without one, a step line is printed at most every
    ``plain_seconds``, and a line for each stage, evaluation and warning. A warning that comes step
    after step is told once and then counted. ``clock`` is in seconds.
    Events from before ``since`` (UTC, ISO 8601; the opening when not given) are taken in and not
    shown, so that a resumed run does not tell its past again.
    """

    def __init__(
        self,
        console: RunConsole | None = None,
        plain_seconds: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
        since: str | None = None,
    ) -> None:
        self.console = console or RunConsole(highlight=False)
        self.progress = RunProgress()
        self._plain_seconds = plain_seconds
        self._clock = clock
        self._shown_at = -math.inf
        self._live: Live | None = None
        self._open = False
        self._since = since
        reconfigure = getattr(self.console.file, "reconfigure", None)
        if reconfigure is not None:
            # A log file in an ASCII locale must not end a run over a bar of the sparkline.
            reconfigure(errors="replace")

    def __enter__(self) -> ConsoleView:
        self._open = True
        if self._since is None:
            self._since = now()
        if self.console.is_terminal and not self.console.is_dumb_terminal:
            self._live = Live(console=self.console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._open = False
        self._stop_live()

    def __call__(self, event: Event) -> None:
        """Takes an event in and shows what changed."""
        self.progress.advance(event)
        if isinstance(event, Warned) and self.progress.warned(event.subject) > 1:
            return
        if not self._open or (self._since is not None and event.time < self._since):
            return
        try:
            self._show(event)
        except OSError:
            self._open = False

    def _show(self, event: Event) -> None:
        if isinstance(event, RunDone | RunFailed):
            self._stop_live()
        if self._live is None:
            self._plain(event)
        else:
            self._redraw(event)
        if isinstance(event, RunDone):
            self.console.print(ending(self.progress))

    def _stop_live(self) -> None:
        if self._live is not None:
            live, self._live = self._live, None
            live.update(frame(self.progress, self.console.width), refresh=True)
            live.stop()

    def _redraw(self, event: Event) -> None:
        assert self._live is not None
        if isinstance(event, Warned | DatasetMade | StageDone):
            self.console.print(Text(plain_line(event, self.progress)))
        seconds = self._clock()
        if not isinstance(event, StepDone) or seconds - self._shown_at >= _FRAME_SECONDS:
            self._shown_at = seconds
            self._live.update(frame(self.progress, self.console.width), refresh=True)

    def _plain(self, event: Event) -> None:
        if isinstance(event, StepDone):
            seconds = self._clock()
            if seconds - self._shown_at < self._plain_seconds:
                return
            self._shown_at = seconds
        line = plain_line(event, self.progress)
        if line:
            self.console.print(Text(line), soft_wrap=True)


def plain_line(event: Event, progress: RunProgress) -> str:
    """An event as one line of a log; empty for what needs none."""
    match event:
        case RunStarted():
            line = f"run     {event.name}: {', then '.join(event.stages)}; into {event.directory}"
            return "\n".join([line, *(f"        recipe: {each}" for each in event.changed)])
        case RunResumed():
            at = f"{event.stage} step {event.step}" if event.stage else "the start"
            return f"run     goes on from {at}"
        case StageStarted():
            steps = f", {event.steps} steps" if event.steps else ""
            start = f", from {event.start}" if event.start else ""
            return f"stage   {event.stage} ({event.stage_kind}{steps}{start})"
        case StageSkipped():
            return f"skipped {event.stage}: done before, from the same inputs"
        case StepDone():
            stage = progress.stages[event.stage]
            return "  ".join(["step   ", _position(stage), *_facts(stage), *_left(progress)])
        case Evaluated():
            problems = f"{event.n} problems" + (f", {event.k} samples each" if event.k > 1 else "")
            obeyed = event.metrics.get("obedience")
            obeys = "" if obeyed is None else f", obeys {share(obeyed)}"
            what = event.model or f"step {event.step}"
            found = f"{event.task} {score(event)}{repeated(event)}{obeys} ({problems})"
            return f"eval    {event.stage} {what}: {found}"
        case DatasetMade():
            return f"data    {event.stage}: {selection(event)}"
        case StageDone():
            found = held_out(progress.stages[event.stage], score)
            measured = f", {found}" if found else ""
            return (
                f"done    {event.stage}: {event.steps} steps in {duration(event.seconds)}{measured}"
            )
        case Warned():
            at = f"{event.stage} step {event.step}: " if event.stage else ""
            return f"warning {at}{printable(event.message)}"
        case RunFailed():
            return f"failed  {printable(event.message)}"
        case RunDone():
            return f"done    {progress.name or 'run'} in {duration(event.seconds)}"
    return ""


def frame(progress: RunProgress, width: int) -> RenderableType:
    """The live view: the stages, the current one's bar, its numbers, the course of its reward."""
    stage = progress.current
    lines: list[RenderableType] = [_stages(progress)]
    if stage is None:
        return Group(*lines)
    bar = Table.grid(padding=(0, 1), expand=False)
    left = "".join(_left(progress))
    bar.add_row(
        Text(stage.name, style="bold cyan"),
        ProgressBar(
            total=stage.steps or 1, completed=stage.step, width=max(10, min(40, width - 40))
        ),
        Text(f"{stage.step}/{stage.steps or '?'}"),
        Text(left, style="dim"),
    )
    lines.append(bar)
    facts = _facts(stage)
    if facts:
        lines.append(Text("  ".join(facts)))
    if len(stage.rewards) > 1:
        course = sparkline(stage.rewards, max(10, min(60, width - 30)))
        recent = stage.rewards[-1]
        lines.append(
            Text.assemble(
                ("reward ", "dim"), (course, "green"), f"  {stage.rewards[0]:.2f} → {recent:.2f}"
            )
        )
    return Group(*lines)


def _stages(progress: RunProgress) -> Text:
    line = Text(progress.name or "run", style="bold")
    names = progress.planned or tuple(progress.stages)
    for index, name in enumerate(names):
        stage = progress.stages.get(name)
        line.append("   " if index == 0 else " → ", style="dim")
        if stage is not None and stage.seconds is not None:
            line.append(f"{name} ✓", style="green")
        elif stage is not None and stage is progress.current:
            line.append(name, style="bold cyan")
        else:
            line.append(name, style="dim")
    return line


def _position(stage: StageProgress) -> str:
    return f"{stage.name} {stage.step}/{stage.steps or '?'}"


def _left(progress: RunProgress) -> list[str]:
    seconds = progress.seconds_left
    return [] if seconds is None else [f"{duration(seconds)} left"]


def held_out(stage: StageProgress, spelt: Callable[[Evaluated], str]) -> str:
    """The latest score of each task (and mode); named where there are several, those past
    :data:`_SHOWN_TASKS` counted.
    """
    latest = {event.task: event for event in stage.evaluations}
    if len(latest) < 2:
        return "".join(f"held-out {spelt(event)}" for event in latest.values())
    shown = [f"{task} {spelt(event)}" for task, event in list(latest.items())[:_SHOWN_TASKS]]
    more = len(latest) - len(shown)
    return f"held-out {', '.join(shown)}{f' and {more} more' if more else ''}"


def _facts(stage: StageProgress) -> list[str]:
    """The stage's latest numbers, those it has."""
    metrics = {key: value for key, value in stage.metrics.items() if math.isfinite(value)}
    shown = []
    if "reward" in metrics:
        shown.append(f"reward {metrics['reward']:.2f}")
    elif "loss" in metrics:
        shown.append(f"loss {metrics['loss']:.3f}")
    if "accuracy" in metrics:
        shown.append(f"accuracy {share(metrics['accuracy'])}")
    if "kl_teacher" in metrics:
        shown.append(f"KL to the teacher {metrics['kl_teacher']:.3f}")
    if "reward_accuracy" in metrics:
        shown.append(f"prefers the better {share(metrics['reward_accuracy'])}")
    if stage.evaluations:
        shown.append(held_out(stage, lambda evaluation: share(evaluation.avg)))
    if "length" in metrics:
        shown.append(f"length {metrics['length']:.0f}")
    if "budget_hits" in metrics:
        shown.append(f"budget hits {share(metrics['budget_hits'])}")
    if "entropy" in metrics:
        shown.append(f"entropy {metrics['entropy']:.2f}")
    if "tokens_per_second" in metrics:
        shown.append(f"{metrics['tokens_per_second']:,.0f} tokens/s")
    if stage.warnings > 1:
        shown.append(f"{stage.warnings} warnings")
    return shown
