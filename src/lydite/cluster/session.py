"""Ray for as long as a run needs it: started on this machine or connected to, and left behind
without a process.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from lydite.cluster.config import ClusterConfig
from lydite.cluster.faults import LearnerLost, Lost, TooFew
from lydite.cluster.placement import check_room, total
from lydite.cluster.processes import Journal
from lydite.config import UserError

T = TypeVar("T")

LOGS = "logs"
"""Folder of a run with what its processes said: ``ROLE.log`` each, and ``cluster.log`` of what
happened to them.
"""


class Session:
    """Opens Ray when it is first needed. What of it was there before stays."""

    def __init__(self, config: ClusterConfig, run: Path, warn: Callable[[str, str], None]) -> None:
        """``run`` is the run's folder; ``warn`` is given a short name and a line that a person
        should read.
        """
        self.config = config
        self.journal = Journal(run / LOGS, warn)
        self._open = False
        self._ours = False
        self.losses = 0
        """Learner ranks lost in a row without a step in between."""

    def open(self) -> None:
        """
        Raises:
            UserError: Ray is not installed, cannot be reached, or has no room for the fewest
                processes that can go on.
        """
        if self._open:
            return
        ray = import_ray()
        self.journal.folder.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        self._ours = not ray.is_initialized()
        if self._ours:
            self._connect(ray)
            self._heed_sigterm()
        self._open = True
        nodes = {
            node["NodeID"]: (
                float(node["Resources"].get("CPU", 0)),
                float(node["Resources"].get("GPU", 0)),
            )
            for node in ray.nodes()
            if node["Alive"]
        }
        later = check_room(self.config, nodes, self._where)
        if later is not None:
            self.journal.warn("cluster_room", later)

    @property
    def _where(self) -> str:
        address = self.config.address
        return "this machine" if address is None else f"the cluster at {address}"

    def _connect(self, ray: Any) -> None:
        config = self.config
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": True}
        if config.address is not None:
            try:
                ray.init(address=config.address, **quiet)
            except (ConnectionError, RuntimeError, ValueError, OSError) as error:
                raise UserError(
                    f"cluster.address: no Ray at {config.address} ({_line(error)}); start it there "
                    "with `ray start --head`, or leave the address out to start one here"
                ) from error
            return
        cores = os.cpu_count() or 1
        store = config.object_store_gb
        try:
            ray.init(
                address="local",  # never one that something else has started here
                # Processes on a CPU may share cores: that is slow, and a way to try a recipe.
                num_cpus=max(cores, -int(-total(config)[0] // 1)),
                include_dashboard=False,
                object_store_memory=None if store is None else int(store * 1e9),
                **quiet,
            )
        except (RuntimeError, ValueError, OSError) as error:
            raise UserError(f"cluster: Ray did not start here: {_line(error)}") from error
        if total(config)[0] > cores:
            self.journal.say(
                f"{total(config)[0]:g} CPUs are asked for on a machine of {cores}: they share"
            )

    def _heed_sigterm(self) -> None:
        """Ends in good order when it is told to: Ray would have this process aborted."""
        if threading.current_thread() is threading.main_thread():

            def leave(*_: object) -> None:
                raise SystemExit(128 + signal.SIGTERM)

            signal.signal(signal.SIGTERM, leave)

    def persist(self, attempt: Callable[[], T]) -> T:
        """What comes of an attempt, which is made again where a learner rank was lost: it goes on
        from the last checkpoint, as after a new start of the run.

        Raises:
            UserError: too many were lost in a row, or a process that was needed has not come.
        """
        while True:
            try:
                return attempt()
            except LearnerLost as error:
                self.losses += 1
                if self.losses > self.config.restarts:
                    raise UserError(
                        f"cluster: {self.losses} learner ranks were lost in a row, now {error}; "
                        f"see {self.journal.folder}, mend that and give the same command again"
                    ) from error
                message = f"{error}; all ranks start again from the last checkpoint"
                self.journal.warn("learner_lost", message)
            except (Lost, TooFew) as error:
                raise UserError(
                    f"cluster: {error}; see {self.journal.folder}, mend that and give the same "
                    "command again"
                ) from error

    def close(self) -> None:
        """Leaves Ray; one that was started here ends, and all of its processes."""
        if not self._open:
            return
        self._open = False
        if self._ours:
            ray = import_ray()
            with contextlib.suppress(Exception):
                ray.shutdown()
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, signal.SIG_DFL)


def import_ray() -> Any:
    """
    Raises:
        UserError: it is not installed.
    """
    check_installed()
    return importlib.import_module("ray")


def check_installed() -> None:
    """Raises ``UserError`` where Ray is not."""
    if importlib.util.find_spec("ray") is None:
        raise UserError("cluster: Ray is not installed; pip install 'lydite[cluster]'")


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
