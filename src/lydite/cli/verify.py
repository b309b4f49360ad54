"""``lydite verify``: a verifier tried on answers that are already there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from lydite.config import load_yaml, validate
from lydite.types import Outcome
from lydite.verify.settings import VerifierConfig
from lydite.verify.table import VerifyReport, verify_file


def verify(
    verifier: Annotated[
        str,
        typer.Option(
            help="`math`, `exact`, `format`, a reward function as `module:function` or "
            "`file.py:function`, "
            "or a YAML file with what a recipe has under `verifier:`."
        ),
    ],
    input: Annotated[Path, typer.Option(help="JSONL file, one answer a line.")],
    output: Annotated[
        Path | None, typer.Option(help="JSONL file for the verdicts, in the order of the input.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="Wall-clock limit of one item.")] = None,
    workers: Annotated[int | None, typer.Option(help="Worker processes.")] = None,
) -> None:
    """Try a verifier on answers you have, before it trains anything.

    Each line of the input is a JSON object with `gold` (the reference) and `completion` (what a
    model wrote). With `expected` (true or false: should it be accepted) the false positives and
    negatives are counted; lines with `contested: true` are left out of that. Every other key is a
    column for reward functions.

    Example:

        echo '{"gold": "3/4", "completion": "So \\\\boxed{0.75}.", "expected": true}' >
        answers.jsonl

        lydite verify --verifier math --input answers.jsonl --output verdicts.jsonl

    Each line of the output has `outcome` (correct, wrong, unparseable, timeout; crashed and
    ungradable when the verifier could not decide), `reward`, `answer` (what was read), `parts` and
    `detail`.
    """
    console = Console()
    config = _config(verifier, seconds, workers)
    columns = (
        TextColumn("checking answers"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    bars = Console(stderr=True)
    with Progress(*columns, console=bars, transient=True, disable=not bars.is_terminal) as bar:
        task = bar.add_task("", total=None)
        report = verify_file(
            input, config, output, lambda done, total: bar.update(task, completed=done, total=total)
        )
    _show(console, report)
    if output is not None:
        console.print(f"verdicts: {output}", soft_wrap=True)


def _config(verifier: str, seconds: float | None, workers: int | None) -> VerifierConfig:
    values: dict[str, object] = {"rewards": verifier}
    if verifier.endswith((".yaml", ".yml")):
        loaded = load_yaml(Path(verifier))
        inner = loaded.get("verifier", loaded) if len(loaded) == 1 else loaded
        values = inner if isinstance(inner, dict) and "kind" not in inner else {"rewards": inner}
    limits = {
        key: value
        for key, value in (("seconds", seconds), ("workers", workers))
        if value is not None
    }
    given = values.get("limits", {})
    if limits and isinstance(given, dict):
        values = {**values, "limits": {**given, **limits}}
    return validate(VerifierConfig, values, source="--verifier")


def _show(console: Console, report: VerifyReport) -> None:
    table = Table(title=f"{report.total} answers", title_justify="left")
    table.add_column("outcome")
    table.add_column("count", justify="right")
    table.add_column("share", justify="right")
    for outcome in Outcome:
        count = report.outcomes.get(outcome, 0)
        if count:
            table.add_row(outcome.value, str(count), f"{count / report.total:.1%}")
    console.print(table)
    if report.judged:
        console.print(
            f"false positives: {len(report.false_positives)} of "
            f"{report.judged}{_lines(report.false_positives)}"
        )
        console.print(
            f"false negatives: {len(report.false_negatives)} of "
            f"{report.judged}{_lines(report.false_negatives)}"
        )
    if report.contested or report.undecided:
        console.print(f"left out: {report.contested} contested, {report.undecided} undecided")
    if report.open_line is not None:
        console.print(
            f"no verdict on line {report.open_line}: {report.open_detail}",
            soft_wrap=True,
            markup=False,
            highlight=False,
        )
    console.print(
        f"time an answer: median {1000 * report.median_seconds:.2f} ms, p95 "
        f"{1000 * report.p95_seconds:.2f} ms"
    )


def _lines(numbers: object) -> str:
    """Where to look: the first lines that were judged wrongly."""
    assert isinstance(numbers, list | tuple)
    if not numbers:
        return ""
    more = ", …" if len(numbers) > 10 else ""
    return f" (lines {', '.join(str(number) for number in numbers[:10])}{more})"
