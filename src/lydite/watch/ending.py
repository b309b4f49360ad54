"""What a run is left with on the screen: scores before and after, the same problems answered twice,
its files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from lydite.watch.events import Answer, Evaluated
from lydite.watch.intervals import paired_difference
from lydite.watch.progress import RunProgress
from lydite.watch.stages import stage_tables
from lydite.watch.words import duration, printable, score, selection, share, shortened

WHOLE_RUN = "whole run"
_SHOWN_PROBLEMS = 3
_SHOWN_CHARACTERS = 600


@dataclass(frozen=True, slots=True)
class Change:
    """Two evaluations of one task; ``before`` is missing where there was none."""

    stage: str
    task: str
    before: Evaluated | None
    after: Evaluated


def changes(progress: RunProgress) -> list[Change]:
    """For each task, what each stage did to it, and the whole run where several stages did
    something.

    A stage starts from its own evaluation at step 0, or else from where the stage before it ended.
    """
    found: list[Change] = []
    for task in progress.tasks:
        rows: list[Change] = []
        earlier: Evaluated | None = None
        for stage in progress.stages.values():
            own = [e for e in stage.evaluations if e.task == task and not e.model]
            if not own:
                continue
            before = own[0] if own[0].step == 0 else earlier
            if own[-1].step > 0:
                rows.append(Change(stage.name, task, before, own[-1]))
            earlier = own[-1]
        first, last = progress.first(task), _result(progress, task)
        if len(rows) > 1 and first is not None and last is not None:
            rows.append(Change(WHOLE_RUN, task, first, last))
        found += [*rows, *_compared(progress, task)]
    return found


def _result(progress: RunProgress, task: str) -> Evaluated | None:
    """The last evaluation of the run's model: with branches, that is not the last one of all."""
    result = progress.stages.get(progress.done.result) if progress.done is not None else None
    own = [e for e in result.evaluations if e.task == task] if result is not None else []
    return own[-1] if own else progress.last(task)


def _compared(progress: RunProgress, task: str) -> list[Change]:
    """Of stages that measure several models: the first of them, and each of the others beside
    it.
    """
    rows = []
    for stage in progress.stages.values():
        own = [e for e in stage.evaluations if e.task == task and e.model]
        for event in own[1:]:
            rows.append(Change(f"{own[0].model} → {event.model}", task, own[0], event))
        if len(own) == 1:
            rows.append(Change(f"{stage.name}: {own[0].model}", task, None, own[0]))
    return rows


def ending(progress: RunProgress) -> RenderableType:
    """The table, the problems and the paths, one below the other."""
    parts: list[RenderableType] = []
    rows = changes(progress)
    for table in changes_tables(rows):
        parts += [Text(), table]
    asked = [row for row in rows if "obedience" in row.after.metrics]
    if asked:
        parts += [Text(), obedience_table([row for row in asked if row.stage == asked[-1].stage])]
    for table in stage_tables(progress):
        parts += [Text(), table]
    datasets = [stage.dataset for stage in progress.stages.values() if stage.dataset is not None]
    if datasets:
        parts += [Text(), *(Text(f"{made.stage}: {selection(made)}") for made in datasets)]
    twice = answered_twice(progress)
    if twice:
        last = _last_measured(progress)
        parts += [Text(), Text(f"The same problems, before and after {last}", style="bold")]
        parts += [_side_by_side(before, after) for before, after in twice]
    if progress.done is not None and progress.done.files:
        parts += [Text(), *_files(progress)]
    if progress.warnings:
        parts += [Text(), *_warnings(progress)]
    return Group(*parts)


def _warnings(progress: RunProgress) -> list[RenderableType]:
    """The last of each subject, and how often it was warned of."""
    lines: list[RenderableType] = []
    for warning in {w.subject: w for w in progress.warnings}.values():
        count = progress.warned(warning.subject)
        at = f" at {warning.stage} step {warning.step}" if warning.stage else ""
        times = f", {count} times, the last{at}" if count > 1 else at
        lines.append(Text(f"Warning{times}: {shortened(printable(warning.message), 300)}"))
    return lines


def changes_tables(rows: Sequence[Change]) -> list[Table]:
    """Held-out scores before and after with 95% intervals, a table for each task; the change is of
    the same problems, in pairs.
    """
    # 80 columns hold the numbers unbroken only without a column for the task.
    tasks = list(dict.fromkeys(row.task for row in rows))
    return [_changes_table(task, [row for row in rows if row.task == task]) for task in tasks]


def _changes_table(task: str, rows: Sequence[Change]) -> Table:
    title = f"Scores with 95% intervals ({task}: {_size(rows, task)})"
    table = Table(title=Text(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("stage")
    for name in ("before", "after", "change"):
        table.add_column(name, justify="right")
    for row in rows:
        before = score(row.before) if row.before is not None else "-"
        style = "bold" if row.stage == WHOLE_RUN else None
        table.add_row(Text(row.stage), before, score(row.after), _change(row), style=style)
    return table


def obedience_table(rows: Sequence[Change]) -> Table:
    """The modes that a model was asked to think in: what they cost, and whether it obeyed."""
    stage = "the run" if rows[0].stage == WHOLE_RUN else rows[0].stage
    title = f"Thinking as asked, before and after {stage}"
    table = Table(title=Text(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("task")
    for name in ("accuracy", "tokens", "obeyed before", "after"):
        table.add_column(name, justify="right")
    for row in rows:
        before = row.before.metrics.get("obedience") if row.before is not None else None
        table.add_row(
            Text(row.task),
            share(row.after.avg),
            f"{row.after.metrics['length']:.1f}",
            "-" if before is None else share(before),
            share(row.after.metrics["obedience"]),
        )
    return table


def _size(rows: Sequence[Change], task: str) -> str:
    after = next(row.after for row in reversed(rows) if row.task == task)
    samples = f", {after.k} samples each" if after.k > 1 else ""
    return f"{after.n} problems{samples}"


def _change(row: Change) -> str:
    if row.before is None:
        return "-"
    if row.before.scores and row.after.scores:
        paired = paired_difference(row.before.scores, row.after.scores)
        if paired.n:
            return f"{100 * paired.mean:+.1f} [{100 * paired.lo:+.1f}, {100 * paired.hi:+.1f}]"
    return f"{100 * (row.after.avg - row.before.avg):+.1f}"


def answered_twice(progress: RunProgress) -> list[tuple[Answer, Answer]]:
    """Up to three problems with their answers before and after the last stage that was evaluated.

    The last stage, not the run: what a model that starts from nothing writes at first says little;
    nor a stage that compares models, none of which is what became of another.

    The choice is by what happened and told by the titles: one that became right first, then one
    that stayed as it was, then one that became wrong, so that the three do not show progress alone;
    then whatever there is.
    """
    pairs: list[tuple[Answer, Answer]] = []
    stage = _last_measured(progress)
    for change in changes(progress):
        if change.stage == stage and change.before is not None and not change.after.model:
            after = {answer.problem_id: answer for answer in change.after.answers}
            before = change.before.answers
            pairs += [(a, after[a.problem_id]) for a in before if a.problem_id in after]
    chosen: list[tuple[Answer, Answer]] = []
    for wanted in ((False, True), (False, False), (True, False), (True, True)):
        chosen += [p for p in pairs if (p[0].correct, p[1].correct) == wanted][:1]
    chosen += [p for p in pairs if p not in chosen]
    return chosen[:_SHOWN_PROBLEMS]


def _last_measured(progress: RunProgress) -> str:
    """The last stage with answers after it, those that compare models left out."""
    found = {
        change.stage
        for change in changes(progress)
        if change.stage != WHOLE_RUN and change.after.answers and not change.after.model
    }
    return next((name for name in reversed(progress.stages) if name in found), "")


def _side_by_side(before: Answer, after: Answer) -> RenderableType:
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(ratio=1)
    grid.add_column(ratio=1)
    grid.add_row(_answer("before", before), _answer("after", after))
    question = Text(shortened(printable(before.prompt).strip(), _SHOWN_CHARACTERS))
    title = Text(printable(before.problem_id), style="dim")
    return Panel(Group(question, Text(), grid), title=title, title_align="left", border_style="dim")


def _answer(when: str, answer: Answer) -> Text:
    mark, style = ("right", "green") if answer.correct else ("wrong", "red")
    written = shortened(printable(answer.completion).strip(), _SHOWN_CHARACTERS) or "(nothing)"
    # Folded, for a model need not write spaces where a terminal could break a line.
    return Text.assemble((f"{when}: {mark}\n", f"bold {style}"), written, overflow="fold")


def _files(progress: RunProgress) -> list[RenderableType]:
    assert progress.done is not None
    title = Text(f"Done in {duration(progress.done.seconds)}. What it left:", style="bold")
    grid = Table.grid(padding=(0, 2))
    for what, path in progress.done.files.items():
        of = f" ({progress.done.result})" if what == "model" and progress.done.result else ""
        grid.add_row(Text(what + of), Text(path, style="cyan", overflow="fold"))
    return [title, grid]
