"""Where a run stands, folded from its events: what any view of a run shows."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from lydite.watch.events import (
    DatasetMade,
    Evaluated,
    Event,
    RunDone,
    RunFailed,
    RunResumed,
    RunStarted,
    StageDone,
    StageStarted,
    StepDone,
    Warned,
)

# Long enough to average over evaluations between steps, short enough to follow completions that
# grow longer.
_PACE_STEPS = 30


@dataclass(slots=True)
class StageProgress:
    """One stage. ``evaluations`` holds all of them by step; ``metrics`` the latest of each
    step metric.
    """

    name: str
    kind: str = ""
    steps: int = 0
    step: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    rewards: list[float] = field(default_factory=list)
    evaluations: list[Evaluated] = field(default_factory=list)
    seconds: float | None = None
    artifact: str = ""
    warnings: int = 0
    dataset: DatasetMade | None = None


@dataclass(slots=True)
class RunProgress:
    """The whole run. Feed it every event, the replayed ones of an earlier process included."""

    name: str = ""
    planned: tuple[str, ...] = ()
    directory: str = ""
    stages: dict[str, StageProgress] = field(default_factory=dict)
    current: StageProgress | None = None
    warnings: list[Warned] = field(default_factory=list)
    failure: str = ""
    done: RunDone | None = None
    resumed: bool = False
    _pace: deque[tuple[int, datetime]] = field(default_factory=lambda: deque(maxlen=_PACE_STEPS))

    def advance(self, event: Event) -> None:
        """Takes one event in."""
        match event:
            case RunStarted():
                self.name, self.planned, self.directory = event.name, event.stages, event.directory
                self.failure, self.done = "", None
            case RunResumed():
                self._resume(event)
            case StageStarted():
                self._start_stage(event)
            case StepDone():
                self._step(event)
            case Evaluated():
                stage = self._stage(event.stage)
                stage.evaluations = [e for e in stage.evaluations if e.identity != event.identity]
                # A resumed run may measure its start again, by new settings.
                stage.evaluations = sorted([*stage.evaluations, event], key=lambda e: e.step)
            case Warned():
                self.warnings.append(event)
                if event.stage:
                    self._stage(event.stage).warnings += 1
            case DatasetMade():
                self._stage(event.stage).dataset = event
            case StageDone():
                stage = self._stage(event.stage)
                stage.seconds, stage.artifact = event.seconds, event.artifact
            case RunFailed():
                self.failure = event.message
            case RunDone():
                self.done = event

    def _stage(self, name: str) -> StageProgress:
        return self.stages.setdefault(name, StageProgress(name))

    def _start_stage(self, event: StageStarted) -> None:
        stage = self._stage(event.stage)
        stage.kind, stage.steps = event.stage_kind, event.steps
        self.current = stage
        self._pace.clear()
        self._pace.append((stage.step, datetime.fromisoformat(event.time)))

    def _resume(self, event: RunResumed) -> None:
        """Steps after the checkpoint will be done again, and the time that the run lay still counts
        for nothing.
        """
        self.resumed, self.failure, self.done = True, "", None
        self._pace.clear()
        if event.stage:
            stage = self._stage(event.stage)
            stage.step = min(stage.step, event.step)
            del stage.rewards[stage.step :]
            stage.evaluations = [e for e in stage.evaluations if e.step <= event.step]
            later = [w for w in self.warnings if w.stage == stage.name and w.step > event.step]
            self.warnings = [w for w in self.warnings if w not in later]
            stage.warnings -= len(later)
            self._pace.append((stage.step, datetime.fromisoformat(event.time)))

    def _step(self, event: StepDone) -> None:
        stage = self._stage(event.stage)
        if self.current is not stage:
            self.current = stage
            self._pace.clear()
        stage.step = event.step
        stage.metrics.update(event.metrics)
        if "reward" in event.metrics:
            # A stage that was killed before its first checkpoint begins again.
            del stage.rewards[max(0, event.step - 1) :]
            stage.rewards.append(event.metrics["reward"])
        self._pace.append((event.step, datetime.fromisoformat(event.time)))

    def warned(self, subject: tuple[str, str]) -> int:
        """How often this was warned of (:attr:`lydite.watch.events.Warned.subject`)."""
        return sum(warning.subject == subject for warning in self.warnings)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the current stage ends at the recent pace, or ``None`` while that is not
        known.
        """
        stage = self.current
        if stage is None or not stage.steps or len(self._pace) < 2:
            return None
        (first, start), (last, end) = self._pace[0], self._pace[-1]
        if last <= first:
            return None
        pace = (end - start).total_seconds() / (last - first)
        return pace * max(0, stage.steps - stage.step)

    @property
    def tasks(self) -> list[str]:
        """The tasks evaluated so far, in the order they first were."""
        return list(dict.fromkeys(e.task for s in self.stages.values() for e in s.evaluations))

    def first(self, task: str) -> Evaluated | None:
        """The first evaluation on ``task`` in the run."""
        return next(self._of(task), None)

    def last(self, task: str) -> Evaluated | None:
        """The latest evaluation on ``task``."""
        return next(iter(reversed(list(self._of(task)))), None)

    def _of(self, task: str) -> Iterator[Evaluated]:
        found = (e for s in self.stages.values() for e in s.evaluations if e.task == task)
        return (e for e in found if not e.model)
