"""The rollout workers: started, given the newest weights, replaced when they are lost, more taken
when machines join.

Each worker has a placement group of its own, so that losing one machine takes nothing from the
others. A worker that is asked for and finds no room waits in Ray's queue, and joins when there is.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lydite.cluster.config import ClusterConfig
from lydite.cluster.faults import Lost, TooFew
from lydite.cluster.processes import (
    Calls,
    Journal,
    Process,
    Watch,
    bundle,
    reason,
    spawn,
)
from lydite.cluster.sampling import EngineSpec, RolloutWorker
from lydite.config import UserError


@dataclass(frozen=True, slots=True)
class Weights:
    """The newest weights in the object store (:func:`lydite.cluster.packing.buckets`), and their
    version.
    """

    objects: Sequence[Any]
    version: int


class Hands(Protocol):
    """Processes that sample, whatever else they do."""

    def ready(self) -> list[Process]:
        """Those that have the newest weights."""
        ...

    def wait_ready(self) -> None:
        """Waits until enough of them are ready. Raises ``UserError``, ``TooFew`` or ``Lost``."""
        ...

    def lost(self, process: Process, why: str) -> None:
        """Gives up one of them."""
        ...

    def worked(self, process: Process) -> None:
        """Says that something has come of its work."""
        ...


@dataclass(eq=False, slots=True)
class _Slot:
    """A place for a worker: the process that holds it, where it is on its way, and the version of
    the weights that it has (-1: those that it was loaded with). ``losses`` are those in a row.
    """

    role: str
    process: Process | None = None
    group: Any = None
    step: str = ""
    call: Any = None
    since: float = 0.0
    version: int = -1
    losses: int = 0


class Pool:
    """Keeps as many rollout workers as the settings ask for and the cluster has room for."""

    def __init__(
        self, config: ClusterConfig, spec: EngineSpec, calls: Calls, watch: Watch, journal: Journal
    ) -> None:
        self._config = config
        self._spec = spec
        self._calls = calls
        self._watch = watch
        self._journal = journal
        self._changed = threading.Condition(threading.RLock())
        self._slots = [_Slot(f"rollout-{number}") for number in range(config.most)]
        self._weights: Weights | None = None
        self._failure: UserError | None = None
        self._closed = False
        watch.on_loss(self._hear)
        watch.regularly(self._tend)
        self._tend()

    def ready(self) -> list[Process]:
        """See :class:`Hands`."""
        with self._changed:
            return [s.process for s in self._slots if s.step == "ready" and s.process is not None]

    def wait_ready(self) -> None:
        """See :class:`Hands`."""
        self._wait_for(self._config.fewest)

    def start(self) -> None:
        """Waits for the workers that the settings begin with; where they do not all come in time,
        for as many as can go on.
        """
        try:
            self._wait_for(self._config.workers)
        except TooFew:
            if len(self.ready()) < self._config.fewest:
                raise
            self._journal.warn(
                "rollout_workers",
                f"{len(self.ready())} of {self._config.workers} rollout workers have come in "
                f"{self._config.timeouts.start:g} s; going on with them, others join when there is "
                "room",
            )

    def _wait_for(self, count: int) -> None:
        began = said = time.monotonic()
        with self._changed:
            while len(self.ready()) < count:
                self._check()
                now = time.monotonic()
                here = f"{len(self.ready())} of {count} are there"
                if now - began > self._config.timeouts.start:
                    raise TooFew(
                        f"waited {now - began:.0f} s for rollout workers (timeouts.start), and "
                        f"{here}; other processes may have the cluster's resources"
                    )
                if now - said > self._config.timeouts.say:
                    said = now
                    self._journal.say(
                        f"waiting for rollout workers: starting, {now - began:.0f} s; {here}"
                    )
                self._advance()
                self._changed.wait(0.05)

    def _check(self) -> None:
        """Raises what stands in the way of going on."""
        if self._failure is not None:
            raise self._failure

    def load(self, weights: Weights) -> None:
        """Every worker samples with these from now on; those that join later too. Nothing is done
        where they are those that it has.

        Raises:
            UserError: too many workers were lost.
            TooFew: too few of them have the weights in time.
        """
        with self._changed:
            if self._weights is weights:
                return
            self._weights = weights
            for slot in self._slots:
                if slot.step == "ready":
                    self._load(slot)
        limit = self._config.timeouts.weights
        began = said = time.monotonic()
        with self._changed:
            while loading := [s for s in self._slots if s.step == "weights"]:
                self._check()
                now = time.monotonic()
                for slot in loading:
                    if now - slot.since > limit and slot.process is not None:
                        self._watch.lost(slot.process, f"weights took longer than {limit:g} s")
                if now - said > self._config.timeouts.say:
                    said = now
                    roles = ", ".join(slot.role for slot in loading)
                    self._journal.say(f"waiting for {roles}: weights, {now - began:.0f} s")
                self._advance()
                self._changed.wait(0.01)
        self.wait_ready()

    def lost(self, process: Process, why: str) -> None:
        """See :class:`Hands`."""
        self._watch.lost(process, why)

    def worked(self, process: Process) -> None:
        """See :class:`Hands`."""
        with self._changed:
            for slot in self._slots:
                if slot.process is process:
                    slot.losses = 0

    def close(self) -> None:
        """Ends every worker."""
        with self._changed:
            self._closed = True
            slots, self._slots = self._slots, []
        for slot in slots:
            if slot.process is not None:
                self._watch.forget(slot.process)
            self._give_back(slot)

    def _hear(self, process: Process) -> None:
        """Of a loss, from any thread: its place is free again."""
        with self._changed:
            for slot in self._slots:
                if slot.process is process:
                    self._vacate(slot)
                    slot.losses += 1
                    if slot.losses > self._config.restarts:
                        self._failure = UserError(
                            f"cluster: {process.role} was lost {slot.losses} times in a row, now "
                            f"while {process.phase}: {process.gone}; see {self._journal.folder}, "
                            "mend that and give the same command again"
                        )
            self._changed.notify_all()

    def _vacate(self, slot: _Slot) -> None:
        self._give_back(slot)
        slot.process, slot.call, slot.step, slot.version = None, None, "", -1

    def _give_back(self, slot: _Slot) -> None:
        if slot.group is not None:
            from ray.util import remove_placement_group

            with contextlib.suppress(Exception):
                remove_placement_group(slot.group)
            slot.group = None

    def _tend(self) -> None:
        """Fills free places, and takes those that are on their way a step further."""
        with self._changed:
            if self._closed or self._failure is not None:
                return
            for slot in self._slots:
                if slot.process is None:
                    self._begin(slot)
            self._advance()

    def _begin(self, slot: _Slot) -> None:
        from ray.util import placement_group

        rollout = self._config.rollout
        slot.group = placement_group([bundle(rollout)])
        slot.process = spawn(RolloutWorker, slot.role, rollout, self._journal, (slot.group, 0))
        slot.call = slot.process.actor.hello.remote()
        slot.step, slot.since = "placed", time.monotonic()

    def _advance(self) -> None:
        """Takes every worker whose call has ended to its next step."""
        import ray

        waiting = {slot.call: slot for slot in self._slots if slot.call is not None}
        if not waiting:
            return
        done, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
        for reference in done:
            slot = waiting[reference]
            if slot.call is reference and slot.process is not None:
                self._next(slot, slot.process)
        limit = self._config.timeouts.start
        for slot in list(waiting.values()):
            late = slot.step == "build" and time.monotonic() - slot.since > limit
            if late and slot.process is not None:
                self._watch.lost(slot.process, f"loading its model took longer than {limit:g} s")

    def _next(self, slot: _Slot, process: Process) -> None:
        """What follows on a call that has ended."""
        import ray

        reference, slot.call = slot.call, None
        if slot.step == "placed":
            try:
                process.where = ray.get(reference)
            except ray.exceptions.RayError as error:
                self._watch.lost(process, reason(error))
                return
            self._watch.add(process)
            self._journal.placed(process)
            slot.step, slot.since = "build", time.monotonic()
            slot.call = process.work("build", self._spec)
            return
        try:
            value = self._calls.value(reference, process, slot.step)
        except UserError as error:
            self._failure = error
            self._changed.notify_all()
            return
        except Lost:
            return
        if slot.step == "weights":
            slot.version = value
        if self._weights is not None and slot.version != self._weights.version:
            self._load(slot)
            return
        slot.step = "ready"
        self._changed.notify_all()

    def _load(self, slot: _Slot) -> None:
        assert self._weights is not None and slot.process is not None
        slot.step, slot.since = "weights", time.monotonic()
        slot.call = slot.process.work("load", list(self._weights.objects), self._weights.version)
