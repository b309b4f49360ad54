"""What each stage made of the model, as a table: accuracy, readability, length, reward."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from lydite.watch.events import Evaluated
from lydite.watch.intervals import paired_difference
from lydite.watch.progress import RunProgress
from lydite.watch.words import duration, score, selection, share

START = "start"

Row = tuple[str, Evaluated, Evaluated | None]
"""A stage's name, its last evaluation, and that which it started from."""

_FIGURES: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "well_formed": ("well-formed", share),
    "mixing": ("mixing", share),
    "obedience": ("obedience", share),
    "length": ("tokens", lambda value: f"{value:.1f}"),
    "cut_off": ("cut off", share),
    "reward": ("reward", lambda value: f"{value:.3f}"),
}
"""Metrics of an evaluation that have a column, where any evaluation has them."""


def stage_rows(progress: RunProgress, task: str) -> list[Row]:
    """The first evaluation of a task, and then each stage's last; of a stage that measures models,
    each of them.
    """
    rows: list[Row] = []
    for stage in progress.stages.values():
        compared = [e for e in stage.evaluations if e.task == task and e.model]
        rows += [(f"{stage.name}: {e.model}", e, None) for e in compared]
        if compared:
            continue
        own = sorted((e for e in stage.evaluations if e.task == task), key=lambda e: e.step)
        if not own:
            continue
        first = own[0] if own[0].step == 0 else None
        if not rows and first is not None:
            rows.append((START, first, None))
        if own[-1].step > 0:
            rows.append((stage.name, own[-1], first))
    return rows


def stage_cells(rows: Sequence[Row]) -> list[list[str]]:
    """The rows as text, the headings first; a column that no row fills is left out."""
    names = [name for name in _FIGURES if any(name in e.metrics for _, e, _ in rows)]
    # Of as many samples as there are: those of fewer are in the log.
    several = dict.fromkeys(
        name for _, e, _ in rows for name in (f"pass@{e.k}", f"maj@{e.k}") if name in e.metrics
    )
    shown = {**{n: (n, share) for n in several}, **{n: _FIGURES[n] for n in names}}
    cells = [["stage", "accuracy [95%]", "change", *(head for head, _ in shown.values())]]
    for stage, evaluation, before in rows:
        figures = [
            spelt(value) if math.isfinite(value := evaluation.metrics.get(name, math.nan)) else "-"
            for name, (_, spelt) in shown.items()
        ]
        cells.append([stage, score(evaluation), _change(before, evaluation), *figures])
    return cells


def stage_tables(progress: RunProgress) -> list[Table]:
    """One for each task whose readability was measured."""
    tables = []
    for task in progress.tasks:
        rows = stage_rows(progress, task)
        if not any("well_formed" in evaluation.metrics for _, evaluation, _ in rows):
            continue
        heads, *lines = stage_cells(rows)
        table = Table(
            title=Text(f"{task}, stage by stage"), title_justify="left", title_style="bold",
            box=box.SIMPLE_HEAD,
        )  # fmt: skip
        # The change stands in the table of scores, and 80 columns do not hold all the others.
        kept = [i for i, head in enumerate(heads) if head not in ("change", "cut off")]
        for i in kept:
            table.add_column(heads[i], justify="left" if i == 0 else "right", no_wrap=i == 1)
        for line in lines:
            table.add_row(*(Text(line[i]) for i in kept))
        tables.append(table)
    return tables


def report(progress: RunProgress) -> str:
    """The run as a page of Markdown: each task stage by stage, what was kept, what it took."""
    parts = [f"# {progress.name or 'run'}, stage by stage"]
    for task in progress.tasks:
        rows = stage_rows(progress, task)
        if rows:
            size = rows[-1][1]
            each = f", {size.k} samples each" if size.k > 1 else ""
            parts += [f"## {task} ({size.n} problems{each})", _markdown(stage_cells(rows))]
    made = [s.dataset for s in progress.stages.values() if s.dataset is not None]
    if made:
        parts += ["## Datasets", "\n".join(f"- {m.stage}: {selection(m)}" for m in made)]
    took = [
        [s.name, s.kind, str(s.step), "-" if s.seconds is None else duration(s.seconds)]
        for s in progress.stages.values()
    ]
    parts += ["## Stages", _markdown([["stage", "kind", "steps", "took"], *took])]
    return "\n\n".join(parts) + "\n"


def _change(before: Evaluated | None, after: Evaluated) -> str:
    """Of the same problems, in pairs, in percentage points."""
    if before is None:
        return "-"
    paired = paired_difference(before.scores, after.scores)
    if not paired.n:
        return "-"
    return f"{100 * paired.mean:+.1f} [{100 * paired.lo:+.1f}, {100 * paired.hi:+.1f}]"


def _markdown(cells: Sequence[Sequence[str]]) -> str:
    """A table; its first row are the headings. What a name holds cannot end a cell."""
    lines = ["| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in cells]
    lines.insert(1, "|" + " --- |" * len(cells[0]))
    return "\n".join(lines)
