"""``lydite run``."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer


def run(
    recipe: Annotated[
        str,
        typer.Argument(help="A recipe file, or the name of one that ships (see `lydite recipes`)."),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings to change, by dotted key."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the run. [default: runs/NAME]")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check everything that can be checked, and train nothing."),
    ] = False,
    redo: Annotated[
        bool,
        typer.Option(
            "--redo",
            help="Do stages again whose inputs have changed; what they had left is kept under "
            "superseded/ in the run's folder.",
        ),
    ] = False,
) -> None:
    """Runs a recipe, stage after stage; given again after a stop, goes on where it was. Stages that
    are done from the same inputs are skipped.

    [bold]Examples[/]

    lydite run recipes/quickstart.yaml

    lydite run recipes/quickstart.yaml seed=3 stages.2.objective=dapo --out runs/dapo

    lydite run recipes/gsm8k.yaml model.path=./my-model --dry-run

    The folder then holds recipe.yaml (every setting), events.jsonl (every step), samples/ (every
    rollout, Parquet), checkpoints/, model/ (a Hugging Face folder) and summary.json.
    """
    # Imported here so that --help does not wait for torch.
    from lydite.cli.starting import importing

    with importing():
        from lydite.pipeline.catalogue import find_recipe
        from lydite.pipeline.recipe import load_recipe
        from lydite.pipeline.runner import run_recipe
        from lydite.watch.console import ConsoleView

    loaded = load_recipe(find_recipe(recipe), overrides or [])
    folder = out or Path("runs") / loaded.name
    _say_what_is_tried(loaded)
    if dry_run:
        _dry_run(loaded, folder, redo)
        return
    view = ConsoleView()
    with view, _Interrupt() as interrupt:
        run_recipe(loaded, folder, listeners=[view, interrupt], redo=redo)


class _Interrupt:
    """Control-C, heard for sure. The exception that it raises is lost where Python cannot pass it
    on, as in a destructor; so it is raised again at the next event.
    """

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> _Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._before)

    def _hear(self, *_: object) -> None:
        self.asked = True
        raise KeyboardInterrupt

    def __call__(self, event: object) -> None:
        if self.asked:
            raise KeyboardInterrupt


def _say_what_is_tried(recipe: object) -> None:
    """One line where references are run, since many of them keep the screen empty for a while."""
    from lydite.pipeline.recipe import Recipe
    from lydite.verify.settings import all_rewards

    assert isinstance(recipe, Recipe)
    verifiers = [recipe.verifier, recipe.evaluation.verifier]
    kinds = {r.kind for v in verifiers if v is not None for r in all_rewards(v.rewards)}
    run = sorted(kinds & {"code", "sql"})
    if run:
        typer.echo(f"running the references of {' and '.join(run)} first", err=True)


def _dry_run(recipe: object, folder: Path, redo: bool) -> None:
    from rich.console import Console
    from rich.markup import escape

    from lydite.pipeline.dry_run import Mark, check_recipe
    from lydite.pipeline.recipe import Recipe

    assert isinstance(recipe, Recipe)
    console = Console(highlight=False, emoji=False)
    marks = {
        Mark.OK: "[green]ok[/]     ",
        Mark.SKIPPED: "[yellow]skipped[/]",
        Mark.FAILED: "[red]failed[/] ",
    }
    failed = []
    for check in check_recipe(recipe, folder, redo):
        if check.mark is Mark.FAILED:
            failed.append(check.name)
        console.print(f"{marks[check.mark]}  [bold]{check.name}[/]  {escape(check.text)}")
        for line in check.lines:
            console.print(f"           {escape(line)}", soft_wrap=True)
    console.print("nothing was trained and nothing was written")
    if failed:
        console.print(f"[red]failed[/]: {escape(', '.join(failed))}")
        raise typer.Exit(2)
