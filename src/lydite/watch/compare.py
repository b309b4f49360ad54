"""Two runs, or two evaluations, on the same problems: is one better, or is it noise?"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lydite.config import UserError
from lydite.watch.events import Evaluated, read_events
from lydite.watch.intervals import Interval, accuracy_interval, paired_difference
from lydite.watch.samples import read_samples


@dataclass(frozen=True, slots=True)
class Scores:
    """Each problem's mean score by id, and the tag of each where it is known."""

    where: str
    by_problem: Mapping[str, float]
    tags: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A task (or one tag of it) in both: scores over the problems that both have, and the paired
    difference second less first.
    """

    task: str
    first: Interval
    second: Interval
    difference: Interval
    only_first: int
    only_second: int

    @property
    def sentence(self) -> str:
        """What it comes to, in plain words."""
        return self.told("the first", "the second")

    def told(self, first: str, second: str) -> str:
        """:attr:`sentence`, with what the two are called."""
        change, half = self.difference, (self.difference.hi - self.difference.lo) / 2
        points = f"{100 * abs(change.mean):.1f} points"
        if change.excludes_zero:
            better, worse = (second, first) if change.mean > 0 else (first, second)
            return f"{better} is better than {worse} by {points}, more than chance explains"
        if change.mean == 0:
            return "no difference was seen"
        needed = math.ceil(change.n * (half / abs(change.mean)) ** 2)
        return (
            f"a difference of {points} that may be chance; about {needed} problems like these "
            "would tell"
        )


def compare(
    first: Mapping[str, Scores], second: Mapping[str, Scores], tags: bool = True
) -> list[Comparison]:
    """Every task that both have, and each tag of those with several.

    Raises:
        UserError: they have no task in common, or no problem of one.
    """
    shared = [task for task in first if task in second]
    if not shared:
        raise UserError(
            f"they have no held-out task in common: {_names(first)} and {_names(second)}; measure "
            "both on the same one (`lydite eval`)"
        )
    found = []
    for task in shared:
        a, b = first[task], second[task]
        common = sorted(a.by_problem.keys() & b.by_problem.keys())
        if not common:
            raise UserError(
                f"{task}: they have no problem in common; measure both on the same file"
            )
        found.append(_compared(task, a, b, common))
        by_tag: dict[str, list[str]] = defaultdict(list)
        for problem in common:
            by_tag[a.tags.get(problem, "")].append(problem)
        if tags and len(by_tag) > 1:
            found += [
                _compared(f"{task}: {t or 'no tag'}", a, b, by_tag[t]) for t in sorted(by_tag)
            ]
    return found


def _compared(task: str, a: Scores, b: Scores, problems: Sequence[str]) -> Comparison:
    x, y = ({p: each.by_problem[p] for p in problems} for each in (a, b))
    return Comparison(
        task,
        accuracy_interval([[value] for value in x.values()]),
        accuracy_interval([[value] for value in y.values()]),
        paired_difference(x, y),
        sum(x[p] > y[p] for p in problems),
        sum(y[p] > x[p] for p in problems),
    )


def _names(scores: Mapping[str, Scores]) -> str:
    return ", ".join(scores) or "none"


def read_scores(path: Path, stage: str | None = None) -> dict[str, Scores]:
    """The last held-out scores of a run by task (of one stage, if named), or those of a file of
    samples, whose task is the file's name.

    Raises:
        UserError: it is neither, or holds no held-out scores.
    """
    if path.is_file():
        return {path.stem: _of_file(path)}
    if not (path / "events.jsonl").is_file():
        raise UserError(
            f"{path}: is no folder of a run and no file of samples (as `lydite eval --out` writes)"
        )
    events = [
        event
        for event in read_events(path / "events.jsonl")
        if isinstance(event, Evaluated) and event.scores and stage in (None, event.stage)
    ]
    if not events:
        which = f"stage {stage!r} has" if stage else "it has"
        raise UserError(f"{path}: {which} no held-out scores; name a task under evaluation.tasks")
    # By stage and step: a resumed run may measure its start again, by new settings.
    order = list(dict.fromkeys(event.stage for event in events))
    events.sort(key=lambda event: (order.index(event.stage), event.step))
    latest = {event.task: event for event in events}
    return {task: _of_event(path, event) for task, event in latest.items()}


def _of_event(run: Path, event: Evaluated) -> Scores:
    folder = run / "samples" / f"{event.stage}-{event.task}"
    files = sorted(folder.glob("step-*.parquet"))
    tags = {row.problem_id: row.tag for row in read_samples(files[-1])} if files else {}
    return Scores(f"{event.stage} step {event.step}", event.scores, tags)


def _of_file(path: Path) -> Scores:
    try:
        rows = read_samples(path)
    except Exception as error:  # whatever a Parquet reader makes of another file
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path}: is no file of samples: {reason}") from error
    scores: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.outcome not in ("crashed", "ungradable"):
            scores[row.problem_id].append(float(row.outcome == "correct"))
    means = {problem: sum(each) / len(each) for problem, each in scores.items()}
    return Scores(path.name, means, {row.problem_id: row.tag for row in rows})
