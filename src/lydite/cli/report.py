"""``lydite report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[
        Path,
        typer.Argument(help="Folder of a run, live or finished, or another trainer's log."),
    ],
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", help="Write the page here. \\[default: report.html in the run's folder]"
        ),
    ] = None,
    png: Annotated[
        Path | None, typer.Option("--png", help="Write the curves as a picture instead.")
    ] = None,
    tensorboard: Annotated[
        Path | None,
        typer.Option("--tensorboard", help="Write TensorBoard's event files here instead."),
    ] = None,
    stage: Annotated[
        list[str] | None, typer.Option("--stage", help="Only this stage. May be repeated.")
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="OURS=THEIRS", help="As for lydite diagnose."),
    ] = None,
) -> None:
    """Shows a run as one page: scores stage by stage, what the diagnosis says, and the curves.

    [bold]Examples[/]

    lydite report runs/quickstart

    lydite report runs/quickstart --png curves.png --stage rl

    lydite report runs/quickstart --tensorboard tb/

    lydite report outputs/checkpoint-500/trainer_state.json --html page.html
    """
    from lydite.config import UserError
    from lydite.watch.diagnosis.foreign import read_log, renamed
    from lydite.watch.diagnosis.own import read_run
    from lydite.watch.files import write_atomic
    from lydite.watch.report.page import page, run_page
    from lydite.watch.report.picture import check_drawable, save_png
    from lydite.watch.trackers import write_tensorboard

    named = renamed(columns or ())
    own = (run / "events.jsonl").is_file() and not named
    if tensorboard is not None:
        if not own:
            raise UserError(f"--tensorboard: {run} is no run; only runs are written as event files")
        write_tensorboard(run / "events.jsonl", tensorboard)
        typer.echo(f"event files: {tensorboard}")
    stages = read_run(run) if own else read_log(run, named)
    known = [curves.stage for curves in stages]
    for name in stage or ():
        if name not in known:
            raise UserError(f"--stage {name}: no such stage; there is {', '.join(known) or 'none'}")
    stages = [curves for curves in stages if not stage or curves.stage in stage]
    if png is not None:
        save_png(stages, png)
        typer.echo(f"picture: {png}")
    if html is None and (png is not None or tensorboard is not None):
        return
    if html is None and not own:
        raise UserError("--html: name the file, for there is no run's folder to put it in")
    check_drawable()
    target = html or run / "report.html"
    text = run_page(run, stages) if own else page(run.name, stages)
    write_atomic(target, text.encode("utf-8", "replace"))
    typer.echo(f"page: {target}")
