"""Processes of a cluster as the driver sees them: started in a place of their own, watched, called
with a limit on every wait, and ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lydite.cluster.actor import Actor, Answer, Beat, Where, born_at
from lydite.cluster.config import ClusterConfig, Resources
from lydite.cluster.faults import Lost
from lydite.config import UserError

SLICE_SECONDS = 1.0
"""How long a wait goes on before it looks whether what it waits for has been given up."""
CALLS = 8
"""Calls of a process under way at a time: one works, the others ask how it is."""


@dataclass(eq=False)
class Process:
    """One process. ``gone`` says why it was given up, empty while it is not."""

    role: str
    actor: Any
    where: Where | None = None
    gone: str = ""
    beat: Any = None
    asked: float = 0.0
    phase: str = "starting"

    def work(self, name: str, *arguments: Any) -> Any:
        """Has it work; a reference to its :class:`lydite.cluster.actor.Answer`."""
        return self.actor.work.remote(name, *arguments)

    def ask(self, name: str, *arguments: Any) -> Any:
        """Asks beside its work."""
        return self.actor.ask.remote(name, *arguments)

    def kill(self) -> None:
        """Ends it, a stopped one too."""
        import ray

        with contextlib.suppress(Exception):
            ray.kill(self.actor)
        if self.where is not None:
            with contextlib.suppress(Exception):
                _end(self.where)


def _end(where: Where) -> None:
    """By a signal on its own machine: one that is stopped hears nothing else."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    if where.node == ray.get_runtime_context().get_node_id():
        end_process(where.pid, where.born)
        return
    there = NodeAffinitySchedulingStrategy(where.node, soft=False)
    task = ray.remote(end_process).options(num_cpus=0, scheduling_strategy=there, max_retries=0)
    task.remote(where.pid, where.born)


def end_process(pid: int, born: str) -> None:
    """Ends a process of this machine, unless its id is another's by now."""
    if born and born_at(pid) == born:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


@dataclass
class Journal:
    """Where a cluster's processes and what happens to them are told. ``folder`` is for their logs;
    ``warn`` is given a short name and a line that a person should read.
    """

    folder: Path
    warn: Callable[[str, str], None] = lambda code, message: None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def say(self, line: str) -> None:
        """On the screen, and in ``cluster.log``."""
        with self._lock:
            with contextlib.suppress(OSError, ValueError):
                print(f"cluster | {line}", file=sys.stderr, flush=True)
            with contextlib.suppress(OSError), (self.folder / "cluster.log").open("a") as log:
                stamp = time.strftime("%Y-%m-%d %H:%M:%S")
                log.write(f"{stamp} {line}\n")

    def placed(self, process: Process) -> None:
        """Where a process runs."""
        where = process.where
        assert where is not None, "it has said so"
        self.say(f"{process.role} is process {where.pid} on {where.address}")

    def show(self, lines: Sequence[str]) -> None:
        """What a process said, its role in front already; its log file has it."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            for line in lines:
                print(line, file=sys.stderr)


class Watch:
    """Asks every process for a sign of life, and gives up those that are gone or frozen; what waits
    for one of them then hears of it.
    """

    def __init__(self, config: ClusterConfig, journal: Journal) -> None:
        self._limit = config.timeouts.heartbeat
        self._every = config.heartbeat_every
        self._journal = journal
        self._watched: list[Process] = []
        self._hear: list[Callable[[Process], None]] = []
        self._regular: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="watch")
        self._thread.start()

    def add(self, process: Process) -> None:
        """Watches a process that has begun."""
        with self._lock:
            self._watched.append(process)

    def on_loss(self, hear: Callable[[Process], None]) -> None:
        """Calls ``hear`` with each process that is lost from now on."""
        self._hear.append(hear)

    def regularly(self, call: Callable[[], None]) -> None:
        """Calls it at every round."""
        self._regular.append(call)

    def lost(self, process: Process, why: str) -> None:
        """Gives up a process, once."""
        with self._lock:
            if process.gone:
                return
            process.gone = why
            if process in self._watched:
                self._watched.remove(process)
        self._journal.say(f"{process.role} lost while {process.phase}: {why}")
        process.kill()
        for hear in self._hear:
            hear(process)

    def forget(self, process: Process) -> None:
        """Watches it no more, and ends it."""
        with self._lock:
            process.gone = process.gone or "ended"
            if process in self._watched:
                self._watched.remove(process)
        process.kill()

    def close(self) -> None:
        """Ends the watch and everything watched."""
        self._ended.set()
        self._thread.join(10 * SLICE_SECONDS)
        for process in list(self._watched):
            self.forget(process)

    def _run(self) -> None:
        while not self._ended.is_set():
            began = time.monotonic()
            try:
                self._round(began)
                for call in self._regular:
                    call()
            except Exception as error:  # the watch must outlive what it sees
                if self._ended.is_set():
                    return
                self._journal.say(f"watch: {type(error).__name__}: {error}")
            pause = max(0.0, min(self._every, SLICE_SECONDS) - (time.monotonic() - began))
            self._ended.wait(pause)

    def _round(self, now: float) -> None:
        import ray

        with self._lock:
            watched = list(self._watched)
        for process in watched:
            if process.beat is None and now - process.asked >= self._every:
                process.beat, process.asked = process.actor.beat.remote(), now
        open_ = {process.beat: process for process in watched if process.beat is not None}
        if not open_:
            return
        done, _ = ray.wait(list(open_), num_returns=len(open_), timeout=min(1.0, self._every))
        for reference in done:
            process = open_.pop(reference)
            try:
                beat: Beat = ray.get(reference)
            except Exception as error:  # whatever Ray says: it does not answer
                self.lost(process, reason(error))
                continue
            process.beat, process.phase = None, beat.phase
            self._journal.show(beat.lines)
        for process in open_.values():
            if time.monotonic() - process.asked > self._limit:
                self.lost(process, f"no sign of life for {self._limit:g} s")


def reason(error: BaseException) -> str:
    """What Ray says of a process that does not answer, in one line."""
    text = " ".join(str(error).split())
    for sign, said in (
        ("node has died", "its machine is gone"),
        ("node died", "its machine is gone"),
        ("low on memory", "it was ended for want of memory"),
        ("died", "it ended"),
        ("unavailable", "it cannot be reached"),
    ):
        if sign in text.lower():
            return f"{said} ({type(error).__name__})"
    return f"{type(error).__name__}: {text[:200]}"


class Calls:
    """Waits for answers: each has a name and a limit, is said when it is long, and ends when what
    it waits for is given up.
    """

    def __init__(self, config: ClusterConfig, watch: Watch, journal: Journal) -> None:
        self._say_every = config.timeouts.say
        self._watch = watch
        self._journal = journal

    def all(
        self,
        calls: Mapping[Any, Process],
        phase: str,
        limit: float,
        failed: type[Lost] = Lost,
    ) -> list[Any]:
        """The values of these answers, in order.

        Raises:
            UserError: what a process says that the user can mend.
            Lost: a process is gone, went wrong, or takes longer than ``limit`` seconds; as
                ``failed``.
        """
        import ray

        found: dict[Any, Any] = {}
        left = dict(calls)
        began = said = time.monotonic()
        while left:
            done, _ = ray.wait(list(left), num_returns=1, timeout=SLICE_SECONDS)
            for reference in done:
                process = left.pop(reference)
                found[reference] = self.value(reference, process, phase, failed)
            now = time.monotonic()
            for process in left.values():
                if process.gone:
                    raise failed(process.role, phase, process.gone)
            if left and now - began > limit:
                process = next(iter(left.values()))
                self._watch.lost(process, f"{phase} took longer than {limit:g} s")
                raise failed(process.role, phase, f"it took longer than {limit:g} s")
            if left and now - said > self._say_every:
                said = now
                roles = ", ".join(process.role for process in left.values())
                self._journal.say(f"waiting for {roles}: {phase}, {now - began:.0f} s")
        return [found[reference] for reference in calls]

    def value(self, reference: Any, process: Process, phase: str, failed: type[Lost] = Lost) -> Any:
        """The value of an answer that is there. Raises as :meth:`all` does."""
        import ray

        try:
            answer: Answer = ray.get(reference)
        except ray.exceptions.RayError as error:
            self._watch.lost(process, reason(error))
            raise failed(process.role, phase, process.gone) from None
        if answer.mistake:
            raise UserError(answer.mistake)
        if answer.error:
            last = answer.error.strip().splitlines()[-1]
            self._watch.lost(process, last)
            raise failed(process.role, phase, last)
        return answer.value


def spawn(
    kind: type[Actor], role: str, resources: Resources, journal: Journal, place: tuple[Any, int]
) -> Process:
    """Starts a process in a bundle of a placement group; ``place`` is the group and the bundle."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    actor = (
        ray.remote(kind)
        .options(
            num_cpus=resources.cpus,
            num_gpus=resources.gpus,
            max_concurrency=CALLS,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(place[0], place[1]),
        )
        .remote(role, str(journal.folder.resolve()), max(1, int(resources.cpus)))
    )
    return Process(role, actor)


def bundle(resources: Resources) -> dict[str, float]:
    """What a process takes, as a placement group names it."""
    return {"CPU": resources.cpus, **({"GPU": resources.gpus} if resources.gpus else {})}
