"""``lydite diagnose``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lydite.watch.diagnosis.rule import Finding

SHOWN_CHARACTERS = 400


def diagnose(
    run: Annotated[
        Path,
        typer.Argument(
            help="Folder of a run, or another trainer's log: a trainer_state.json or a folder of "
            "checkpoints (TRL), JSON lines (verl's file logger), CSV, TensorBoard event files."
        ),
    ],
    columns: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="OURS=THEIRS",
            help="What the log calls a figure, where its name is not known: reward=my/score. May "
            "be given several times.",
        ),
    ] = None,
    notes: Annotated[
        bool, typer.Option("--notes/--no-notes", help="Say what is normal, too.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """Says what is wrong with a run, why, and which setting to change.

    Reads the figures that a run leaves, live or finished, and knows the common faults: groups that
    are all alike, entropy collapse, answers that shorten, a verifier that is gamed, truncation,
    mismatch of sampler and trainer, and others. Exits with 1 when it found a problem.

    [bold]Examples[/]

    lydite diagnose runs/quickstart

    lydite diagnose outputs/checkpoint-500/trainer_state.json

    lydite diagnose log.csv --map reward=score/train --map length=tokens
    """
    import json
    from dataclasses import asdict

    from rich.console import Console

    from lydite.watch.diagnosis.diagnose import diagnose as judge
    from lydite.watch.diagnosis.foreign import read_log, renamed
    from lydite.watch.diagnosis.own import read_run

    named = renamed(columns or ())
    own = (run / "events.jsonl").is_file() and not named
    stages = read_run(run) if own else read_log(run, named)
    found = [f for f in judge(stages) if notes or f.severity == "problem"]
    problems = [finding for finding in found if finding.severity == "problem"]
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in found], indent=2, ensure_ascii=False))
    else:
        console = Console(highlight=False, emoji=False)
        steps = sum(len(stage.steps) for stage in stages)
        read = ", ".join(f"{s.stage} ({len(s.steps)} steps)" for s in stages) or "no stage"
        console.print(f"Read: {read}", markup=False)
        if not own:
            known = ", ".join(sorted(name for s in stages for name in s.metrics))
            console.print(f"Figures: {known}", markup=False)
        for finding in found:
            console.print(_shown(finding))
        if not problems and steps:
            console.print("No problem found.")
    if problems:
        raise typer.Exit(1)


def _shown(finding: Finding) -> RenderableType:
    """A finding as paragraphs."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    from lydite.watch.words import printable, shortened

    problem = finding.severity == "problem"
    head = Text.assemble(
        "\n",
        (finding.symptom, "bold yellow" if problem else "bold"),
        (f"  {finding.stage}: {finding.rule}, {finding.confidence} confidence", "dim"),
    )
    lines = [Text(f"• {printable(line)}") for line in finding.evidence]
    lines += [Text(f"Why: {finding.cause}"), Text(f"Do: {finding.remedy}")]
    lines += [Text(f"    {override}", style="cyan") for override in finding.overrides]
    if finding.source:
        lines.append(Text(f"See: {finding.source}", style="dim"))
    for row in finding.examples:
        paid = "undecided" if row.reward is None else f"reward {row.reward:g}"
        text = shortened(printable(row.completion), SHOWN_CHARACTERS)
        lines.append(Text(f"  step {row.step}, {row.problem_id}, {paid}: {text}", style="dim"))
        if row.detail:
            lines.append(Text(f"    {shortened(printable(row.detail), 200)}", style="dim"))
    return Group(head, Padding(Group(*lines), (0, 0, 0, 2)))
