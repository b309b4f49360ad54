"""A run's figures in the tools that people watch runs with: TensorBoard, Weights & Biases, trackio,
MLflow. Each is a listener of the event log; the log itself stays the record of the run.

A figure is named ``STAGE/name`` and stands at the stage's step; held-out ones are
``STAGE/TASK/name``. A tracker that fails is warned of once and left out: no run ends for want of a
picture of it.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from lydite.config import UserError
from lydite.watch.events import Evaluated, Event, EventLog, StepDone, Warned, read_events

TrackerName = Literal["tensorboard", "wandb", "trackio", "mlflow"]

FOLDER = "tensorboard"
"""Where TensorBoard's files go, in the run's folder."""


class Tracker(Protocol):
    """Takes figures in."""

    past: bool
    """Whether it is told again what earlier attempts at the run measured."""

    def log(self, prefix: str, step: int, figures: Mapping[str, float]) -> None:
        """Finite figures of a step, named within ``prefix``."""
        ...

    def close(self) -> None: ...


def figures_of(event: Event) -> tuple[str, dict[str, float]]:
    """Prefix and figures of an event; none for one that measures nothing."""
    found: dict[str, float] = {}
    prefix = event.stage
    if isinstance(event, StepDone):
        found = dict(event.metrics)
    elif isinstance(event, Evaluated):
        prefix = "/".join(filter(None, (event.stage, event.model, event.task)))
        found = {"avg": event.avg, "lo": event.lo, "hi": event.hi, **event.metrics}
    return prefix, {name: value for name, value in found.items() if math.isfinite(value)}


class Tracking:
    """Subscribe it to the log with ``replay``, then :meth:`begin`."""

    def __init__(self, log: EventLog, trackers: Mapping[str, Tracker]) -> None:
        self._log = log
        self._trackers = dict(trackers)
        self._live = False

    def begin(self) -> None:
        """From now on events are new."""
        self._live = True

    def __call__(self, event: Event) -> None:
        prefix, figures = figures_of(event)
        if not figures:
            return
        for name, tracker in list(self._trackers.items()):
            if self._live or tracker.past:
                self._try(name, partial(tracker.log, prefix, event.step, figures))

    def close(self) -> None:
        """Ends all of them."""
        for name, tracker in list(self._trackers.items()):
            self._try(name, tracker.close)

    def _try(self, name: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # whatever a tool's client makes of its server's day
            del self._trackers[name]
            reason = " ".join(str(error).split())[:200]
            self._log.append(
                Warned(
                    code="tracker",
                    message=f"report: {name} failed and hears no more of this run "
                    f"({type(error).__name__}: {reason}); every figure is in {self._log.path}",
                )
            )


class TensorBoard:
    """Event files under a folder, written anew at each attempt, so that steps which a resumed run
    did again stand there once.
    """

    past = True

    def __init__(self, folder: Path) -> None:
        """
        Raises:
            UserError: the extra `tensorboard` is not installed.
        """
        try:
            from tensorboard.summary import Writer
        except ImportError as error:
            raise UserError(
                "report: tensorboard is not installed; pip install 'lydite[tensorboard]'"
            ) from error
        for old in folder.glob("**/events.out.tfevents.*"):
            old.unlink()
        self._writer = Writer(str(folder))

    def log(self, prefix: str, step: int, figures: Mapping[str, float]) -> None:
        """See :class:`Tracker`."""
        for name, value in figures.items():
            self._writer.add_scalar(f"{prefix}/{name}", value, step=step)

    def close(self) -> None:
        """Writes what is not on disk yet."""
        self._writer.close()


class Wandb:
    """A run of Weights & Biases, or of trackio, which has the same interface. A run that goes on is
    the same run there.
    """

    past = False

    def __init__(self, package: str, run: Path, name: str, settings: Mapping[str, Any]) -> None:
        """
        Raises:
            UserError: the package is not installed, or cannot be signed in to.
        """
        client = _imported(package)
        more: dict[str, Any] = {}
        if package == "wandb":
            digest = hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:16]
            more = {"id": digest, "dir": str(run)}
        try:
            self._run = client.init(
                project="lydite", name=name, config=dict(settings), resume="allow", **more
            )
            self._defined: set[str] = set()
            self._client = client
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"report: {package} cannot be started: {reason}") from error

    def log(self, prefix: str, step: int, figures: Mapping[str, float]) -> None:
        """See :class:`Tracker`. Each prefix counts steps by itself."""
        counter = f"{prefix}/step"
        if prefix not in self._defined and hasattr(self._client, "define_metric"):
            self._client.define_metric(f"{prefix}/*", step_metric=counter)
        self._defined.add(prefix)
        self._client.log({counter: step, **{f"{prefix}/{n}": v for n, v in figures.items()}})

    def close(self) -> None:
        """Waits until the server has it all."""
        self._client.finish()


class Mlflow:
    """A run of MLflow, wherever `MLFLOW_TRACKING_URI` points."""

    past = False

    def __init__(self, run: Path, name: str) -> None:
        """
        Raises:
            UserError: the package is not installed, or its server cannot be reached.
        """
        self._client = _imported("mlflow")
        kept = run / "mlflow_run"
        try:
            self._client.set_experiment("lydite")
            known = kept.read_text(encoding="utf-8").strip() if kept.is_file() else None
            begun = self._client.start_run(run_id=known, run_name=name)
            kept.write_text(begun.info.run_id, encoding="utf-8")
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"report: mlflow cannot be started: {reason}") from error

    def log(self, prefix: str, step: int, figures: Mapping[str, float]) -> None:
        """See :class:`Tracker`. MLflow allows no @ in names."""
        named = {f"{prefix}/{n}".replace("@", "_at_"): v for n, v in figures.items()}
        self._client.log_metrics(named, step=step)

    def close(self) -> None:
        self._client.end_run()


def check_installed(names: Sequence[TrackerName]) -> None:
    """Whether what is reported to is there, to be known before anything starts.

    Raises:
        UserError: one is not.
    """
    for name in names:
        if importlib.util.find_spec(name) is None:
            package = "'lydite[tensorboard]'" if name == "tensorboard" else name
            raise UserError(f"report: {name} is not installed; pip install {package}")


def _imported(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UserError(f"report: {package} is not installed; pip install {package}") from error


def open_trackers(
    names: tuple[TrackerName, ...], run: Path, name: str, settings: Mapping[str, Any]
) -> dict[str, Tracker]:
    """Those that are named; ``settings`` are the recipe's, for tools that show them.

    Raises:
        UserError: one is not installed, or cannot be started.
    """
    found: dict[str, Tracker] = {}
    for each in dict.fromkeys(names):
        if each == "tensorboard":
            found[each] = TensorBoard(run / FOLDER)
        elif each == "mlflow":
            found[each] = Mlflow(run, name)
        else:
            found[each] = Wandb(each, run, name, settings)
    return found


def write_tensorboard(events: Path, folder: Path) -> None:
    """A log as TensorBoard's event files; others in the folder go.

    Raises:
        UserError: the extra `tensorboard` is not installed.
    """
    board = TensorBoard(folder)
    for event in read_events(events):
        prefix, figures = figures_of(event)
        if figures:
            board.log(prefix, event.step, figures)
    board.close()
