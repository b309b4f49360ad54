"""``lydite verify``: a verifier tried on answers that are already there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from lydite.verify.settings import VerifierConfig
    from lydite.verify.table import VerifyReport


def verify(
    verifier: Annotated[
        str,
        typer.Option(
            help="A kind, such as `math`, `choice`, `code`, `sql`, `json` or `format`; a reward "
            "function as `module:function` or `file.py:function`; or a YAML file: a recipe, or "
            "what a recipe has under `verifier:`."
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
    negatives are counted, with their line numbers; lines with `contested: true` are left out of
    that. Every other key is a column for the verifier.

    A number:

        echo '{"gold": "3/4", "completion": "So \\\\boxed{0.75}.", "expected": true}' >
        answers.jsonl

        lydite verify --verifier math --input answers.jsonl --output verdicts.jsonl

    A program: `tests` hold input and output, or `entry_point` names a function, with `cases` or
    `test_code`:

        {"completion": "print(int(input()) + 1)", "tests": [{"input": "1", "output": "2"}]}

        {"completion": "def inc(x): return x + 1", "entry_point": "inc", "cases": [{"args": [1],
        "expected": 2}]}

        lydite verify --verifier code --input programs.jsonl

    An SQL query: `gold` is the right one; `schema` and `rows`, or `database` (a file, or a folder
    of them), is what both are asked of:

        {"gold": "select count(*) from t", "completion": "select 2", "expected": false,
        "schema": "create table t(a int)", "rows": {"t": [[1], [2]]}}

        lydite verify --verifier sql --input queries.jsonl

    Settings other than the defaults go into a YAML file, such as `{kind: sql, columns: any}`, and
    so do rewards that are put together; docs/verifiers.md has them all:

        lydite verify --verifier settings.yaml --input queries.jsonl

    Each line of the output has `outcome` (correct, wrong, unparseable, timeout; crashed and
    ungradable when the verifier could not decide), `reward`, `answer` (what was read), `parts` and
    `detail`.
    """
    # Imported here and below so that --help of the command line waits for none of it.
    from rich.console import Console

    from lydite.cli.bars import progress_bars
    from lydite.verify.table import verify_file

    console = Console()
    config = _config(verifier, seconds, workers)
    with progress_bars() as tell:
        report = verify_file(input, config, output, partial(tell, "checking answers"))
    _show(console, report)
    if output is not None:
        console.print(f"verdicts: {output}", soft_wrap=True)


def _config(verifier: str, seconds: float | None, workers: int | None) -> VerifierConfig:
    from lydite.config import validate
    from lydite.verify.settings import VerifierConfig

    values: Mapping[str, object] = {"rewards": verifier}
    if verifier.endswith((".yaml", ".yml")):
        values = _section(Path(verifier))
    limits = {
        key: value
        for key, value in (("seconds", seconds), ("workers", workers))
        if value is not None
    }
    given = values.get("limits", {})
    if limits and isinstance(given, dict):
        values = {**values, "limits": {**given, **limits}}
    return validate(VerifierConfig, values, source="--verifier")


def _section(path: Path) -> Mapping[str, object]:
    """What a file says of the verifier: under ``verifier:`` in a recipe, or by itself."""
    from lydite.config import UserError, load_yaml

    loaded = load_yaml(path, list_key="verifier")
    if "verifier" not in loaded and "stages" in loaded:
        raise UserError(
            f"--verifier {path}: the recipe has no `verifier:`, so it uses math; "
            "give --verifier math"
        )
    inner = loaded.get("verifier", loaded)
    if not isinstance(inner, dict) or "kind" not in inner:
        return inner if isinstance(inner, dict) else {"rewards": inner}
    reward = {key: value for key, value in inner.items() if key != "limits"}
    return {"rewards": reward, **({"limits": inner["limits"]} if "limits" in inner else {})}


def _show(console: Console, report: VerifyReport) -> None:
    from rich.table import Table

    from lydite.types import Outcome

    table = Table(title=f"{report.total} answers", title_justify="left")
    table.add_column("outcome")
    table.add_column("count", justify="right")
    table.add_column("share", justify="right")
    for outcome in Outcome:
        count = report.outcomes.get(outcome, 0)
        if count:
            table.add_row(outcome.value, str(count), f"{count / report.total:.1%}")
    console.print(table)
    _show_tables(console, report)
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
    for line, detail in report.unsure:
        _say(console, f"no verdict on line {line}: {detail}")
    unsure = report.outcomes.get(Outcome.CRASHED, 0) + report.outcomes.get(Outcome.UNGRADABLE, 0)
    if unsure > len(report.unsure):
        _say(console, f"no verdict on {unsure - len(report.unsure)} more lines")
    if report.total > 1 and len(report.rewards) == 1:
        _say(console, f"every answer was paid {report.rewards[0]:g}: nothing is told apart here")
    console.print(
        f"time an answer: median {1000 * report.median_seconds:.2f} ms, p95 "
        f"{1000 * report.p95_seconds:.2f} ms"
    )


def _show_tables(console: Console, report: VerifyReport) -> None:
    from rich import box
    from rich.table import Table

    for found in report.tables:
        table = Table(title=found.title, title_justify="left", box=box.SIMPLE_HEAD)
        for number, name in enumerate(found.header):
            table.add_column(name, justify="right" if number else "left")
        for row in found.rows:
            table.add_row(*row)
        console.print(table)
        if found.note:
            _say(console, found.note)


def _say(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, markup=False, highlight=False)


def _lines(numbers: Sequence[int]) -> str:
    """Where to look: the first lines that were judged wrongly."""
    if not numbers:
        return ""
    more = ", …" if len(numbers) > 10 else ""
    return f" (lines {', '.join(str(number) for number in numbers[:10])}{more})"
