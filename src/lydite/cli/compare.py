"""``lydite compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compare(
    first: Annotated[Path, typer.Argument(help="A run's folder, or a file of samples.")],
    second: Annotated[Path, typer.Argument(help="Another one, measured on the same problems.")],
    stages: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--stages",
            metavar="FIRST SECOND",
            help="Stages whose scores are compared; the last measured ones otherwise. Both runs "
            "may be the same.",
        ),
    ] = None,
    tags: Annotated[bool, typer.Option("--tags/--no-tags", help="Compare each tag, too.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """Says whether one run is better than another, or whether the difference may be chance.

    Scores are compared problem by problem (2411.00640): that shows much smaller differences than
    two intervals side by side.

    [bold]Examples[/]

    lydite compare runs/grpo runs/dapo

    lydite compare runs/quickstart runs/quickstart --stages cold_start rl
    """
    import json
    from dataclasses import asdict

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from lydite.watch.compare import compare as compared
    from lydite.watch.compare import read_scores
    from lydite.watch.intervals import Interval

    names = stages or (None, None)
    found = compared(read_scores(first, names[0]), read_scores(second, names[1]), tags)
    if as_json:
        rows = [{**asdict(each), "sentence": each.sentence} for each in found]
        typer.echo(json.dumps(rows, indent=2))
        return

    def shown(interval: Interval, sign: str = "") -> str:
        lo, hi = (format(100 * value, f"{sign}.1f") for value in (interval.lo, interval.hi))
        return f"{100 * interval.mean:{sign}.1f} [{lo}, {hi}]"

    table = Table(box=None, pad_edge=False)
    for heading in ("task", "problems", "first %", "second %", "second less first", "better on"):
        table.add_column(heading, justify="left" if heading == "task" else "right", no_wrap=True)
    for each in found:
        table.add_row(
            Text(each.task),
            str(each.difference.n),
            shown(each.first),
            shown(each.second),
            shown(each.difference, "+"),
            f"{each.only_first} / {each.only_second}",
        )
    console = Console(highlight=False, emoji=False)
    # Numbers are not cut: on a narrower screen the lines run over.
    wide = console.options.update(max_width=1000)
    console.width = max(console.width, console.measure(table, options=wide).maximum)
    console.print(table)
    called = [str(path) for path in (first, second)]
    if stages is not None:
        called = (
            list(stages)
            if first == second
            else [f"{p}:{s}" for p, s in zip(called, stages, strict=True)]
        )
    if called[0] == called[1]:
        called = ["the first", "the second"]
    for each in found:
        console.print(f"{each.task}: {each.told(*called)}.", markup=False)
