"""The command line: each command parses, calls and prints; the rest lives in the rooms below."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import lydite
from lydite.cli.audit import audit
from lydite.cli.compare import compare
from lydite.cli.diagnose import diagnose
from lydite.cli.doctor import doctor
from lydite.cli.evaluate import evaluate
from lydite.cli.lineage import lineage
from lydite.cli.objective import objective
from lydite.cli.probe import probe
from lydite.cli.recipes import recipes
from lydite.cli.report import report
from lydite.cli.run import run
from lydite.cli.serve import serve
from lydite.cli.verify import verify

HELP = """Trains reasoning language models with GRPO and rewards that can be checked.

Start with [bold]lydite run quickstart[/]: a small model learns to reason in minutes on two cores.
Then copy a recipe, point [bold]tasks[/] at your own problems, and look first with
[bold]--dry-run[/].
"""


class _Commands(TyperGroup):
    """Prints what a user can mend as one line and exits with 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ValueError as error:
            from lydite.config import UserError  # here: --help waits for no settings

            if not isinstance(error, UserError):
                raise
            _say(str(error))
            raise typer.Exit(2) from None
        except BrokenPipeError:
            raise
        except OSError as error:
            # A file or disk that will not do: the system's own words say which and why.
            place = f"{error.filename}: " if error.filename else ""
            _say(f"{place}{error.strerror or error}")
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            goes_on = {
                "run": "; the same command goes on from the last checkpoint",
                "probe": "; the same command goes on, and samples nothing again",
            }
            _say(f"stopped{goes_on.get(ctx.invoked_subcommand, '')}")
            sys.exit(130)


def _say(message: str) -> None:
    """One line on standard error, whatever the message holds."""
    typer.echo(f"lydite: {' '.join(message.split())}", err=True)


app = typer.Typer(
    cls=_Commands,
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(lydite.__version__)
        raise typer.Exit


@app.callback(help=HELP)
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """What holds for every command."""


app.command()(run)
app.command()(probe)
app.command("eval")(evaluate)
app.command()(verify)
app.command()(audit)
app.command()(objective)
app.command()(diagnose)
app.command()(compare)
app.command()(report)
app.command()(lineage)
app.command()(recipes)
app.command()(serve)
app.command()(doctor)
