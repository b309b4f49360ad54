"""The problems that are worth sampling as a file, and the overrides that a run takes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lydite.pipeline.probe.findings import Findings
from lydite.pipeline.probe.subject import Subject
from lydite.tasks.task import RowsConfig
from lydite.types import Message, Problem
from lydite.watch.probing import Tally

FILTERED = "problems.jsonl"
ENOUGH_PROMPTS = 4
"""Steps that a filtered task must have prompts for, to be recommended."""


def rows_of(
    problems: Sequence[Problem], tallies: Mapping[str, Tally], config: RowsConfig
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows that read as the same problems, ids kept, and the settings of a task to read them by.
    ``config`` is how the task shows them; of a mix, whose parts may differ in that, rows have what
    is shown.
    """
    taken = {name for problem in problems for name in problem.fields}
    names = {
        name: name if name not in taken else f"probe_{name}"
        for name in ("id", "prompt", "reference", "tag", "worked", "pass_rate", "completions")
    }
    mixed = getattr(config, "mix", None) is not None
    rows = []
    for problem in problems:
        tally = tallies[problem.id]
        own: dict[str, Any] = {
            "id": problem.id,
            "prompt": _prompt(problem, mixed, config.system),
            "pass_rate": tally.rate,
            "completions": tally.decided,
        }
        optional = {"reference": problem.reference, "tag": problem.tag, "worked": problem.worked}
        own |= {name: value for name, value in optional.items() if value not in (None, "")}
        rows.append({**problem.fields, **{names[name]: value for name, value in own.items()}})
    settings: dict[str, Any] = {"id": names["id"], "prompt": names["prompt"]}
    for name in ("reference", "tag", "worked"):
        if all(names[name] in row for row in rows):
            settings[name] = names[name]
    settings.setdefault("reference", None)
    shown = {"template": config.template, "system": config.system, "thinking": config.thinking}
    if mixed:
        switches = {problem.thinking for problem in problems}
        shown = {"thinking": switches.pop() if len(switches) == 1 else None}
    for name, value in shown.items():
        if value != RowsConfig.model_fields[name].default:
            settings[name] = value
    return rows, settings


def _prompt(problem: Problem, as_shown: bool, system: str | None) -> str | list[dict[str, str]]:
    """The question, or the turns with it in place of the last where there are several."""
    *before, last = problem.messages
    if not as_shown:
        last = Message(last.role, problem.question)
    if not as_shown and system is not None:
        before = [turn for turn in before if turn.role != "system"]
    if not before:
        return last.content
    return [{"role": turn.role, "content": turn.content} for turn in (*before, last)]


def write_filtered(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """One row a line."""
    text = "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


def overrides_of(subject: Subject, found: Findings, file: Path) -> dict[str, Any]:
    """By dotted key, what is recommended to be otherwise than in the recipe. A step samples about
    as much as before.
    """
    stage, place = subject.stage, f"stages.{subject.index}"
    changed: dict[str, Any] = {}
    if found.choice is not None and found.choice.size != stage.group_size:
        changed[f"{place}.group_size"] = found.choice.size
        whole = stage.prompts_per_step * stage.group_size
        changed[f"{place}.prompts_per_step"] = max(1, round(whole / found.choice.size))
    if found.limit.tokens != stage.sampling.max_tokens:
        changed[f"{place}.sampling.max_tokens"] = found.limit.tokens
    if filters(subject, found):
        problems = _kept(subject, found)
        tallies = {t.problem_id: t for t in found.tallies}
        _, settings = rows_of(problems, tallies, subject.recipe.tasks[stage.task])
        name = f"{stage.task}_probed"
        changed[f"tasks.{name}"] = {"path": str(file), **settings}
        changed[f"{place}.task"] = name
    return changed


def filters(subject: Subject, found: Findings) -> bool:
    """Whether the filtered file should take the task's place: all of it was probed, something is
    left out, and enough is left for some steps without a problem that comes twice.
    """
    if found.band is None or not subject.whole:
        return False
    kept = len(found.band.kept)
    enough = ENOUGH_PROMPTS * subject.stage.prompts_per_step
    return enough <= kept < len(subject.problems)


def _kept(subject: Subject, found: Findings) -> list[Problem]:
    kept = set(found.band.kept) if found.band is not None else set()
    return [problem for problem in subject.problems if problem.id in kept]


def filtered_rows(subject: Subject, found: Findings) -> list[dict[str, Any]]:
    """The rows of the problems in the band."""
    tallies = {t.problem_id: t for t in found.tallies}
    config = subject.recipe.tasks[subject.stage.task]
    return rows_of(_kept(subject, found), tallies, config)[0]


def as_yaml(changed: Mapping[str, Any], about: str) -> str:
    """Overrides as a file that a command takes as ``@FILE``: JSON values are YAML too."""
    head = f"# {about}\n"
    if not changed:
        return f"{head}{{}}\n"
    lines = (f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in changed.items())
    return head + "".join(lines)
