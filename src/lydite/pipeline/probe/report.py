"""A probe's findings as a page to read, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from lydite.pipeline.probe.filtered import FILTERED, filters
from lydite.pipeline.probe.findings import Findings
from lydite.pipeline.probe.subject import Subject
from lydite.watch.intervals import Interval
from lydite.watch.probing import Lengths


def span(interval: Interval) -> str:
    """A share with its interval."""
    return f"{interval.mean:.1%} [{interval.lo:.1%}, {interval.hi:.1%}]"


def as_markdown(
    subject: Subject, found: Findings, changed: Mapping[str, Any], command: str, picture: str
) -> str:
    """The report; ``changed`` are the overrides, ``command`` runs the recipe with them."""
    stage, recipe = subject.stage, subject.recipe
    asked = len(found.every.tokens)
    problems, whole = len(subject.problems), len(subject.data.problems)
    lines = [
        f"# Probe of stage {stage.name} of {recipe.name}",
        "",
        f"{problems} of {whole} problems of `{stage.task}`, {asked} answers of the model that the "
        f"stage starts from, at temperature {stage.sampling.temperature:g} and at most "
        f"{stage.sampling.max_tokens} tokens. Intervals are 95%, over problems.",
        "",
        f"**{found.skill}.**",
        "",
        *_recommended(subject, found, changed, command),
        *(["", f"![probe]({picture})"] if picture else []),
        "",
        *_problems(found),
        "",
        *_curve(found),
        "",
        *_sizes(subject, found),
        "",
        *_band(subject, found),
        "",
        *_lengths(found),
    ]
    if found.notes:
        lines += ["", "## Notes", "", *(f"- {note}" for note in found.notes)]
    return "\n".join(lines) + "\n"


def _recommended(
    subject: Subject, found: Findings, changed: Mapping[str, Any], command: str
) -> list[str]:
    lines = ["## Recommended", ""]
    if not changed:
        return [*lines, "Nothing that the recipe does not have already."]
    for key, value in changed.items():
        if not isinstance(value, dict):
            lines.append(f"- `{key}={value}`")
    if filters(subject, found) and found.band is not None:
        lines.append(f"- the {len(found.band.kept)} problems of `{FILTERED}` in the task's place")
    return [*lines, "", "```", command, "```"]


def _problems(found: Findings) -> list[str]:
    rows = [
        ("right", found.accuracy),
        ("always right", found.shares.always),
        ("never right", found.shares.never),
        ("now and then, these can teach", found.shares.sometimes),
        *((f"right, tag {tag or 'none'}", interval) for tag, interval in found.tags),
    ]
    return [
        "## Problems",
        "",
        "| | share |",
        "| --- | --- |",
        *(f"| {name} | {span(interval)} |" for name, interval in rows),
    ]


def _curve(found: Findings) -> list[str]:
    return [
        "## pass@k",
        "",
        "Problems with at least one right answer among k. What RL can sharpen lies between the "
        "first row and the last.",
        "",
        "| k | pass@k |",
        "| --- | --- |",
        *(f"| {k} | {span(interval)} |" for k, interval in found.curve),
    ]


def _sizes(subject: Subject, found: Findings) -> list[str]:
    now = subject.stage.group_size
    chosen = None if found.choice is None else found.choice.size
    rows = []
    for each in found.sizes:
        marks = [*(["now"] if each.size == now else []),
                 *(["recommended"] if each.size == chosen else [])]  # fmt: skip
        cost = "none" if math.isinf(each.cost) else f"{each.cost:.1f}"
        rows.append(f"| {each.size} | {span(each.informative)} | {cost} | {', '.join(marks)} |")
    doubt = []
    if found.choice is not None and not found.choice.sure:
        doubt = ["", "A size beside it is as good within chance; probe more problems to be sure."]
    if chosen == max((each.size for each in found.sizes), default=None):
        doubt += ["", "It is the largest that was measured; more --samples show larger ones."]
    return [
        "## Group size",
        "",
        "Groups that have something to compare, and completions sampled for each of them. A "
        "doubled group is recommended while it raises the share by 1.41 or more; the present size "
        "stays where that gains less than 15%.",
        "",
        "| completions | informative groups | completions each | |",
        "| --- | --- | --- | --- |",
        *rows,
        *doubt,
    ]


def _band(subject: Subject, found: Findings) -> list[str]:
    lines = ["## Difficulty", ""]
    band = found.band
    if band is None:
        return [*lines, "No problem's answers differ: nothing here can teach."]
    said = (
        f"{len(band.kept)} of {len(found.tallies)} problems, with observed pass rates from "
        f"{band.lo:.0%} to {band.hi:.0%}, are worth sampling in groups of {band.size}: of their "
        f"groups {band.after:.0%} should be informative, of all problems' {band.before:.0%}."
    )
    if not filters(subject, found) and subject.whole and len(band.kept) < len(found.tallies):
        said += " They are too few to train on alone."
    return [*lines, said]


def _lengths(found: Findings) -> list[str]:
    def row(name: str, lengths: Lengths) -> str:
        if not lengths.tokens:
            return f"| {name} | 0 | | | | |"
        middle, high = lengths.within(0.5), lengths.within(0.99)
        return (
            f"| {name} | {len(lengths.tokens)} | {lengths.mean:.0f} | {middle} | {high} | "
            f"{lengths.truncated_share:.1%} |"
        )

    return [
        "## Length",
        "",
        "| answers | count | mean | median | 99% within | cut off |",
        "| --- | --- | --- | --- | --- | --- |",
        row("right", found.right),
        row("all", found.every),
        "",
        f"Limit: {found.limit.verdict} ({found.limit.tokens} tokens). {found.limit.why}.",
    ]


def as_json(subject: Subject, found: Findings, changed: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that was found."""
    band = found.band
    kept = set() if band is None else set(band.kept)
    return {
        "recipe": subject.recipe.name,
        "stage": subject.stage.name,
        "task": subject.stage.task,
        "problems": len(subject.problems),
        "of": len(subject.data.problems),
        "answers": len(found.every.tokens),
        "undecided": found.undecided,
        "skill": found.skill,
        "accuracy": asdict(found.accuracy),
        "tags": {tag: asdict(interval) for tag, interval in found.tags},
        "shares": asdict(found.shares),
        "pass_at": {str(k): asdict(interval) for k, interval in found.curve},
        "group_sizes": [
            {
                "size": each.size,
                "informative": asdict(each.informative),
                "cost": None if math.isinf(each.cost) else each.cost,
            }
            for each in found.sizes
        ],
        "group_size": None if found.choice is None else asdict(found.choice),
        "band": None if band is None else {**asdict(band), "kept": len(band.kept)},
        "lengths": {
            name: {
                "count": len(lengths.tokens),
                "mean": lengths.mean if lengths.tokens else None,
                "p50": lengths.within(0.5) if lengths.tokens else None,
                "p99": lengths.within(0.99) if lengths.tokens else None,
                "truncated": lengths.truncated_share,
            }
            for name, lengths in (("right", found.right), ("all", found.every))
        },
        "limit": asdict(found.limit),
        "overrides": dict(changed),
        "notes": list(found.notes),
        "pass_rates": [
            {
                "problem": t.problem_id,
                "right": t.right,
                "decided": t.decided,
                "lo": t.interval[0],
                "hi": t.interval[1],
                "kept": t.problem_id in kept,
            }
            for t in found.tallies
        ],
    }
