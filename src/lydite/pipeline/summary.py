"""``summary.json``: what each stage took and what it changed, read back from the event log."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lydite.watch.events import DatasetMade, Evaluated, Event, StageDone, StageStarted, StepDone
from lydite.watch.intervals import Interval, paired_difference

FIGURES = ("length", "cut_off", "reward", "well_formed", "mixing", "obedience")
"""Metrics of an evaluation that stand in the summary."""


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
            **_score(self.after),
            "before": _score(self.before),
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

    def as_json(self) -> dict[str, Any]:
        """As in ``summary.json``."""
        return {
            "name": self.name,
            "kind": self.kind,
            "seconds": round(self.seconds, 2),
            "steps": self.steps,
            **({"flops": self.flops} if self.flops else {}),
            "eval": {task: score.as_json() for task, score in self.scores.items()},
            **({} if self.dataset is None else {"dataset": _dataset(self.dataset)}),
        }


def _score(event: Evaluated) -> dict[str, Any]:
    return {
        "avg": event.avg,
        "ci95": [event.lo, event.hi],
        "n": event.n,
        "k": event.k,
        **{name: event.metrics[name] for name in FIGURES if _known(event, name)},
    }


def _known(event: Evaluated, name: str) -> bool:
    return math.isfinite(event.metrics.get(name, math.nan))


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
    seen = [e for e in events if isinstance(e, Evaluated)]
    tasks = dict.fromkeys(e.task for e in seen)
    scores = {}
    for task in tasks:
        ordered = sorted((e for e in seen if e.task == task), key=lambda e: e.step)
        scores[task] = TaskScore(ordered[0], ordered[-1])
    seconds = done.seconds if done else sum(e.metrics.get("seconds", 0.0) for e in steps)
    dataset = next((e for e in events if isinstance(e, DatasetMade)), None)
    last = max((e.step for e in steps), default=0)
    # A step that a resumed run did again counts once.
    flops = sum({e.step: e.metrics.get("flops", 0.0) for e in steps}.values())
    return StageSummary(start.stage, start.stage_kind, seconds, last, scores, dataset, flops)
