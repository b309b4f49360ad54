"""``summary.json``: what each stage took and what it changed, read back from the event log."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from lydite.watch.events import DatasetMade, Evaluated, Event, StageDone, StageStarted, StepDone
from lydite.watch.intervals import Interval, paired_difference

FIGURES = ("length", "cut_off", "reward", "well_formed", "mixing", "obedience")
"""Metrics of an evaluation that stand in the summary, beside pass@k and maj@k."""
REPEATED = ("pass@", "maj@")


@dataclass(frozen=True, slots=True)
class TaskScore:
    """A task before and after a stage, and the change over the problems that both have."""

    before: Evaluated
    after: Evaluated

    @property
    def change(self) -> Interval:
        """Paired difference, with its 95% interval."""
        return paired_difference(self.before.scores, self.after.scores)

    def as_json(self) -> dict[str, Any]:
        """``avg``, ``ci95``, ``n``, ``k`` after the stage; ``before`` likewise; ``change`` with its
        interval.
        """
        change = self.change
        return {
            **score_of(self.after),
            "before": score_of(self.before),
            "change": {"mean": change.mean, "ci95": [change.lo, change.hi]},
        }


@dataclass(frozen=True, slots=True)
class StageSummary:
    """One stage. ``scores`` is empty when nothing is held out, and where a stage leaves the model
    as it is; ``dataset`` is what such a stage made. ``flops`` are those of its steps, evaluation
    left out; 0 where they were not counted.
    """

    name: str
    kind: str
    seconds: float
    steps: int
    scores: dict[str, TaskScore]
    dataset: DatasetMade | None = None
    flops: float = 0.0
    compared: Mapping[str, Any] | None = None
    start: str = ""

    def as_json(self) -> dict[str, Any]:
        """As in ``summary.json``."""
        return {
            "name": self.name,
            "kind": self.kind,
            **({"start": self.start} if self.start else {}),
            "seconds": round(self.seconds, 2),
            "steps": self.steps,
            **({"flops": self.flops} if self.flops else {}),
            "eval": {task: score.as_json() for task, score in self.scores.items()},
            **({} if self.dataset is None else {"dataset": _dataset(self.dataset)}),
            **({} if self.compared is None else {"compared": self.compared}),
        }


def score_of(event: Evaluated) -> dict[str, Any]:
    """An evaluation as ``summary.json`` has it."""
    return {
        "avg": event.avg,
        "ci95": [event.lo, event.hi],
        "n": event.n,
        "k": event.k,
        **{name: event.metrics[name] for name in FIGURES if _known(event, name)},
        **{name: value for name, value in event.metrics.items() if name.startswith(REPEATED)},
    }


def _known(event: Evaluated, name: str) -> bool:
    return math.isfinite(event.metrics.get(name, math.nan))


def compared(events: Sequence[Evaluated]) -> dict[str, Any]:
    """What a stage that measures several models found: ``scores`` by task and model, and
    ``differences``: of each two models on a task, over the problems that both answered, with a 95%
    interval.
    """
    tasks = list(dict.fromkeys(event.task for event in events))
    by_task = {task: [event for event in events if event.task == task] for task in tasks}
    differences = []
    for task, found in by_task.items():
        for before, after in combinations(found, 2):
            change = paired_difference(before.scores, after.scores)
            differences.append(
                {
                    "task": task,
                    "from": before.model,
                    "to": after.model,
                    "mean": change.mean,
                    "ci95": [change.lo, change.hi],
                    "n": change.n,
                }
            )
    return {
        "scores": {
            task: {event.model: {**score_of(event), **_more(event)} for event in found}
            for task, found in by_task.items()
        },
        "differences": differences,
    }


def _more(event: Evaluated) -> dict[str, float]:
    found = event.metrics.items()
    return {key: value for key, value in found if key != "seconds" and math.isfinite(value)}


def _dataset(event: DatasetMade) -> dict[str, Any]:
    return {
        "sampled": event.sampled,
        "dropped": dict(event.dropped),
        "kept": event.kept,
        "problems": event.problems,
    }


def summarise(events: Iterable[Event]) -> tuple[StageSummary, ...]:
    """One record per stage that has begun, in order."""
    found = list(events)
    starts = {e.stage: e for e in found if isinstance(e, StageStarted)}
    return tuple(
        _stage(start, [e for e in found if e.stage == name]) for name, start in starts.items()
    )


def _stage(start: StageStarted, events: list[Event]) -> StageSummary:
    done = next((e for e in events if isinstance(e, StageDone)), None)
    steps = [e for e in events if isinstance(e, StepDone)]
    every = [e for e in events if isinstance(e, Evaluated)]
    seen = [e for e in every if not e.model]
    tasks = dict.fromkeys(e.task for e in seen)
    scores = {}
    for task in tasks:
        ordered = sorted((e for e in seen if e.task == task), key=lambda e: e.step)
        scores[task] = TaskScore(ordered[0], ordered[-1])
    seconds = done.seconds if done else sum(e.metrics.get("seconds", 0.0) for e in steps)
    dataset = next((e for e in events if isinstance(e, DatasetMade)), None)
    models = compared([e for e in every if e.model]) if len(every) > len(seen) else None
    last = max((e.step for e in steps), default=0)
    # A step that a resumed run did again counts once.
    flops = sum({e.step: e.metrics.get("flops", 0.0) for e in steps}.values())
    return StageSummary(
        start.stage, start.stage_kind, seconds, last, scores, dataset, flops, models, start.start
    )
