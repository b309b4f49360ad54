"""``lydite audit``: a reward attacked before it trains anything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from lydite.pipeline.audit.report import Rate, Report


def audit(
    reward: Annotated[
        str,
        typer.Argument(
            help="A verifier (`math`, `code`, `sql`, `exact` …), a reward function as "
            "`module:function` or `file.py:function`, a YAML file of verifier settings, or a "
            "recipe."
        ),
    ],
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            "--tasks",
            "-t",
            help="A file of problems (.jsonl, .json, .parquet) or a task of the recipe. "
            "\\[default: the recipe's, else built-in problems]",
        ),
    ] = None,
    rollouts: Annotated[
        Path | None,
        typer.Option(help="Samples of a run, `runs/NAME/samples`: where do two graders disagree?"),
    ] = None,
    against: Annotated[
        str, typer.Option(help="The other grader: a verifier, a function or a YAML file.")
    ] = "math",
    prompt: Annotated[
        str, typer.Option(help="Column with the question, or a template of columns.")
    ] = "question",
    reference: Annotated[str, typer.Option(help="Column with the gold answer.")] = "answer",
    marker: Annotated[
        str | None,
        typer.Option(help="The gold answer is what follows the last one of these, such as ####."),
    ] = None,
    worked: Annotated[
        str | None, typer.Option(help="Column with right solutions, which must be accepted.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, help="Problems that are attacked. \\[default: 20, or all built-in ones]"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Chooses the problems.")] = 0,
    seconds: Annotated[float | None, typer.Option(help="Wall-clock limit of one answer.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes.")] = None,
    show: Annotated[int, typer.Option(min=0, help="Worst cases that are printed.")] = 12,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write everything found here, as JSON.")
    ] = None,
    pytest_file: Annotated[
        Path | None,
        typer.Option("--pytest", help="Write the failures here, as tests that fail until mended."),
    ] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", help="Write the report here, as one page.")
    ] = None,
    max_false_accept: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Exit with 1 past this share of wrong answers accepted."),
    ] = None,
    max_false_refuse: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Exit with 1 past this share of right answers refused."),
    ] = None,
) -> None:
    """Attacks a reward and shows what it pays for that it should not.

    Wrong answers in every disguise must be refused, right ones in every form accepted; and the
    reward must behave: the same for the same, in any order, in time. An answer counts as accepted
    when its reward is nearer to that of a right answer than to that of a wrong one.

    [bold]Examples[/]

    lydite audit my_rewards.py:score --html audit.html --pytest test_score.py

    lydite audit math --tasks gsm8k_test.jsonl --marker '####' --limit 50

    lydite audit recipes/quickstart.yaml --max-false-accept 0 --max-false-refuse 0.02

    lydite audit my_rewards.py:score --rollouts runs/mine/samples --against math
    """
    # Imported here so that --help does not wait.
    from rich.console import Console

    from lydite.cli.bars import progress_bars
    from lydite.pipeline.audit.plan import Files, audit_reward
    from lydite.pipeline.audit.subject import Request

    columns = {
        "prompt": prompt,
        "reference": reference,
        "reference_marker": marker,
        "worked": worked,
    }
    request = Request(reward, tuple(tasks or ()), columns, limit, seed, seconds, workers)
    files = Files(json_file, pytest_file, html_file)
    files.check()
    console = Console(highlight=False, emoji=False)
    with progress_bars() as tell:
        report = audit_reward(request, rollouts, against, tell)
    _show(console, report, show)
    for path in files.write(report):
        console.print(f"written: {path}", soft_wrap=True, markup=False)
    why = report.past(max_false_accept, max_false_refuse)
    for reason in why:
        console.print(f"[red]failed[/]: {_escaped(reason)}", soft_wrap=True)
    if why:
        raise typer.Exit(1)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _show(console: Console, report: Report, most: int) -> None:
    from rich import box
    from rich.table import Table

    from lydite.pipeline.audit.report import mean_share

    good = report.grade in "AB"
    console.print(
        f"[bold]{_escaped(report.subject.name)}[/]: grade "
        f"[bold {'green' if good else 'red'}]{report.grade}[/]"
    )
    for note in report.notes:
        console.print(_escaped(note), style="dim", soft_wrap=True)
    for title, verb, whole, rates in (
        ("Must be refused", "accepted", report.false_accept, report.accepts),
        ("Must be accepted", "refused", report.false_refuse, report.refusals),
    ):
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
        table.add_column("family")
        for name in (verb, "of", "share", "95% interval"):
            table.add_column(name, justify="right")
        for rate in [*rates, whole]:
            table.add_row(*_row(rate), style="bold" if rate is whole else "")
        table.add_row("mean of families", "", "", f"{mean_share(rates):.1%}", "")
        console.print(table)
    _show_worst(console, report, most)
    failed = report.failed
    passed = [each.name for each in report.behaviours if each.passed]
    console.print(f"behaviour: {len(passed)} of {len(report.behaviours)} checks passed")
    for each in failed:
        console.print(f"  [red]failed[/] {each.name}: {_escaped(each.detail)}", soft_wrap=True)
    _show_disagreements(console, report, most)


def _row(rate: Rate) -> Sequence[str]:
    colour = "red" if rate.wrong else "green"
    return (
        rate.family,
        f"[{colour}]{rate.wrong}[/]",
        str(rate.total),
        f"{rate.share:.1%}",
        f"{rate.lo:.1%} to {rate.hi:.1%}",
    )


def _show_worst(console: Console, report: Report, most: int) -> None:
    from lydite.pipeline.audit.report import shown

    if not report.worst or not most:
        return
    console.print("Worst cases", style="italic")
    for each in report.worst[:most]:
        case, trial = each.finding.case, each.finding.trial
        verb = "accepted" if each.want == "refuse" else "refused"
        paid = "nothing" if trial.reward is None else f"{trial.reward:g}"
        console.print(
            f"  [red]{verb}[/] {each.wrong} of {each.total}  {_escaped(each.attack)} "
            f"[dim]({_escaped(each.family)}; reward {paid})[/]",
            soft_wrap=True,
        )
        console.print(f"      reference {_escaped(shown(case.problem.reference or 'none', 60))}  "
                      f"completion {_escaped(shown(case.text))!s}", soft_wrap=True)  # fmt: skip
    left = len(report.worst) - most
    if left > 0:
        console.print(f"  and {left} more; --show {len(report.worst)}", style="dim")


def _show_disagreements(console: Console, report: Report, most: int) -> None:
    from lydite.pipeline.audit.report import shown

    found = report.disagreements
    if found is None:
        return
    console.print(
        f"rollouts: {found.total}; both accept {found.both}, neither {found.neither}; "
        f"{len(found.pairs)} different answers divide the reward and {_escaped(found.against)}"
    )
    if found.changed:
        console.print(f"  {found.changed} rewards are not what the run recorded")
    for each in found.pairs[:most]:
        who = "this reward only" if each.accepted else f"{found.against} only"
        console.print(
            f"  [red]{_escaped(who)}[/] {each.times} times  reference "
            f"{_escaped(shown(each.reference or '', 60))}  completion "
            f"{_escaped(shown(each.completion))}",
            soft_wrap=True,
        )
