"""The run's append-only log: one JSON object a line in ``events.jsonl``.

Whoever shows, tracks or diagnoses a run reads this and nothing else. A line is written whole by one
system call, so only ``kill -9`` or a full disk can tear one; the next opening ends a torn line and
readers skip it. JSON is strict: NaN and infinities are written as ``null`` and read back as NaN.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from lydite.watch.files import full_disk_explained

Listener = Callable[["Event"], None]


def now() -> str:
    """The time as events carry it: UTC, ISO 8601, so that later times sort later."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """``stage`` is the stage's name in the recipe, ``step`` its policy step (0 before the first
    update).
    """

    kind: ClassVar[str] = ""
    durable: ClassVar[bool] = False
    """Fsynced at once: losing it to a power cut would lose more than a step."""

    stage: str = ""
    step: int = 0
    time: str = field(default_factory=now)
    """UTC, ISO 8601."""

    @property
    def identity(self) -> tuple[object, ...]:
        """What this record is about. Of two records with one identity, the later one holds."""
        return (self.kind, self.stage, self.step)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """``stages`` are the names of the stages to come, in order; ``changed`` what the recipe now has
    otherwise than at the last attempt, as ``key: then, now``.
    """

    kind: ClassVar[str] = "run_started"
    durable: ClassVar[bool] = True

    name: str = ""
    seed: int = 0
    stages: tuple[str, ...] = ()
    directory: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResumed(Event):
    """``stage`` and ``step`` are where the run goes on; that stage's later steps are done again."""

    kind: ClassVar[str] = "run_resumed"
    durable: ClassVar[bool] = True

    @property
    def identity(self) -> tuple[object, ...]:
        return (self.kind, self.stage, self.step, self.time)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStarted(Event):
    """``stage_kind`` is ``sft``, ``rl``, …; ``steps`` how many optimiser steps it will take, 0 if
    not known; ``start`` the stage or model that it starts from.
    """

    kind: ClassVar[str] = "stage_started"

    stage_kind: str = ""
    steps: int = 0
    start: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSkipped(Event):
    """The stage was done before, from the same inputs; ``artifact`` is the folder that it left."""

    kind: ClassVar[str] = "stage_skipped"

    artifact: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone(Event):
    """One optimiser step. ``metrics`` uses ``reward``, ``accuracy``, ``length`` (tokens),
    ``entropy`` (nats), ``tokens_per_second``, ``loss``, ``lr``, ``grad_norm``,
    ``informative_groups``, ``seconds``, ``budget_hits``, and what else a stage measures.
    """

    kind: ClassVar[str] = "step_done"

    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One problem as answered at an evaluation, shown to people."""

    problem_id: str
    prompt: str
    completion: str
    correct: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated(Event):
    """``n`` problems of ``task`` with ``k`` samples each: their mean score and its 95% interval.

    ``scores`` is each problem's mean over its samples, by problem id; with it, two evaluations
    compare in pairs. ``of`` is a digest of the weights and of all that they were measured with;
    empty where the weights were on the way. ``model`` is the stage whose model it was, where one
    stage measures several; ``step`` then counts them.
    """

    kind: ClassVar[str] = "evaluated"
    durable: ClassVar[bool] = True

    task: str = ""
    avg: float = math.nan
    lo: float = math.nan
    hi: float = math.nan
    n: int = 0
    k: int = 1
    metrics: Mapping[str, float] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)
    of: str = ""
    model: str = ""
    answers: tuple[Answer, ...] = ()

    @property
    def identity(self) -> tuple[object, ...]:
        return (self.kind, self.stage, self.step, self.task)


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned(Event):
    """``message`` is one plain line with its remedy; ``code`` a short stable name to search for."""

    kind: ClassVar[str] = "warned"

    message: str = ""
    code: str = ""

    @property
    def identity(self) -> tuple[object, ...]:
        return (self.kind, self.stage, self.step, self.code, self.message)

    @property
    def subject(self) -> tuple[str, str]:
        """What it is about, step after step: of one subject the first is told, the rest counted."""
        return (self.stage, self.code if self.stage and self.code else self.message)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetMade(Event):
    """A stage's dataset: of ``sampled`` completions each filter in turn dropped so many, and
    ``kept`` were left, of ``problems`` problems. ``path`` is the file.
    """

    kind: ClassVar[str] = "dataset_made"
    durable: ClassVar[bool] = True

    sampled: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    kept: int = 0
    problems: int = 0
    path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDone(Event):
    """``seconds`` of work, resumed parts included; ``artifact`` is the folder that it left."""

    kind: ClassVar[str] = "stage_done"
    durable: ClassVar[bool] = True

    seconds: float = 0.0
    steps: int = 0
    artifact: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailed(Event):
    """The run stopped by an error; the same command goes on from the last checkpoint."""

    kind: ClassVar[str] = "run_failed"
    durable: ClassVar[bool] = True

    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDone(Event):
    """``files`` is where everything lies: what it is → its path. ``result`` is the stage whose
    model is the run's.
    """

    kind: ClassVar[str] = "run_done"
    durable: ClassVar[bool] = True

    seconds: float = 0.0
    files: Mapping[str, str] = field(default_factory=dict)
    result: str = ""


EVENTS: Mapping[str, type[Event]] = {
    event.kind: event
    for event in (
        RunStarted,
        RunResumed,
        StageStarted,
        StageSkipped,
        StepDone,
        Evaluated,
        Warned,
        DatasetMade,
        StageDone,
        RunFailed,
        RunDone,
    )
}


class EventLog:
    """Appends events to a file and hands each to its listeners. Safe to call from any thread.

    ``path`` is made, with its folder, when it does not exist. A torn last line is ended first.

    Raises:
        UserError: from :meth:`append`, when the disk is full.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._listeners: list[Listener] = []
        self._lock = threading.Lock()
        self._torn = _ends_torn(path)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def subscribe(self, listener: Listener, replay: bool = False) -> None:
        """Calls ``listener`` with every event from now on; with ``replay``, with those already
        written first.
        """
        if replay:
            for event in read_events(self.path):
                listener(event)
        self._listeners.append(listener)

    def append(self, event: Event) -> None:
        """Writes one line (on disk before this returns if the event is durable), then tells the
        listeners.
        """
        line = to_json(event).encode("utf-8", "backslashreplace") + b"\n"
        with self._lock, full_disk_explained(self.path):
            self._write(b"\n" + line if self._torn else line)
            if event.durable:
                os.fsync(self._file)
        for listener in self._listeners:
            listener(event)

    def _write(self, line: bytes) -> None:
        self._torn = True
        while line:
            line = line[os.write(self._file, line) :]
        self._torn = False

    def close(self) -> None:
        """Closes the file; listeners hear nothing of it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _ends_torn(path: Path) -> bool:
    if not path.is_file() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def read_events(path: Path) -> list[Event]:
    """The events of a run in order, each once.

    Torn lines, and kinds that this version does not know, are skipped. Where a resumed run did
    steps again, the last record of an identity (:attr:`Event.identity`) holds, at its own place. No
    file reads as no events.
    """
    latest: dict[tuple[object, ...], Event] = {}
    for event in iterate_events(path):
        latest.pop(event.identity, None)
        latest[event.identity] = event
    return list(latest.values())


def iterate_events(path: Path) -> Iterator[Event]:
    """Every readable record as it was written, repeated steps included."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        for line in file:
            event = from_json(line)
            if event is not None:
                yield event


def to_json(event: Event) -> str:
    """One strict JSON object on one line, ``kind`` first."""
    return json.dumps(
        {"kind": event.kind, **_finite(asdict(event))}, ensure_ascii=False, allow_nan=False
    )


def from_json(line: bytes | str) -> Event | None:
    """The event on a line, or ``None`` for a torn or foreign one."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    kind = record.get("kind") if isinstance(record, dict) else None
    event = EVENTS.get(kind) if isinstance(kind, str) else None
    if event is None:
        return None
    try:
        found = event(
            **{f.name: _restore(f.name, record) for f in fields(event) if f.name in record}
        )
        hash(found.identity)
    except (TypeError, ValueError, AttributeError):
        return None
    return found


def _restore(name: str, record: Mapping[str, Any]) -> Any:
    value = record[name]
    if name == "answers":
        return tuple(Answer(**answer) for answer in value)
    if name in ("stages", "changed"):
        return tuple(value)
    if name in ("metrics", "scores"):
        return {key: math.nan if number is None else number for key, number in value.items()}
    return math.nan if value is None else value


def _finite(value: Any) -> Any:
    """``value`` with NaN and infinities replaced by ``None`` and tuples by lists."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(item) for item in value]
    return value
