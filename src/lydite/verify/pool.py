"""Worker processes that can be killed: the only safe place for code whose cost a model chooses.

The host sets the wall limit of every item and enforces it itself, with SIGKILL: no signal alarm,
no thread to interrupt, so it works from any thread and against C code that never returns. One item
is in flight per worker and its result comes back by itself, so a stuck one costs its own limit and
none of its neighbours. Workers also carry their own CPU and memory limits and die with the host,
even when that is killed with ``kill -9``.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import select
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal

import cloudpickle

from lydite.config import UserError

Status = Literal["done", "timeout", "died", "failed", "memory", "refused"]
HEADER = struct.Struct(">I")
MAX_REPLY_BYTES = 64 * 2**20
START_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Handler:
    """Code that workers run. ``target`` is ``module:factory``; ``factory(setup)`` imports and
    warms whatever it needs and returns the function from an item's payload to a JSON value.
    """

    target: str
    setup: object = None


@dataclass(frozen=True, slots=True)
class Item:
    """One piece of work: the number of its handler, what to hand it, and how many seconds it may
    take.
    """

    handler: int
    payload: object
    seconds: float


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of an item.

    ``done``: ``value`` is the handler's. ``timeout``: it passed its wall or CPU limit and was
    killed. ``memory``: it passed the memory limit. ``died``: the worker ended. ``failed``: the
    handler raised. ``refused``: the handler raised a :class:`UserError`, whose line is ``detail``.
    ``seconds`` is the wall time.
    """

    status: Status
    value: Any = None
    detail: str = ""
    seconds: float = 0.0


_CLOSED = Reply("died", detail="the pool was closed")


class StartError(Exception):
    """A worker ended or stalled before it was ready."""


class Pool:
    """``workers`` processes, started at the first item. Safe to use from any thread at the same
    time.

    Args:
        handlers: what items can ask for, by position.
        workers: how many processes.
        memory_mb: mebibytes that an item may use on top of what its worker took to start.
        start_seconds: how long a worker may take to import and warm up; not counted against any
        item.
    """

    def __init__(
        self,
        handlers: Sequence[Handler],
        workers: int = 2,
        memory_mb: int = 2048,
        start_seconds: float = 120.0,
    ) -> None:
        self._setup = cloudpickle.dumps({"handlers": list(handlers), "memory_mb": memory_mb})
        self._count = workers
        self._start_seconds = start_seconds
        self._lock = threading.Lock()
        self._closed = False
        self._reset()
        _OPEN_POOLS.add(self)

    def _reset(self) -> None:
        self._owner = os.getpid()
        self._waiting: queue.SimpleQueue[tuple[Item, Future[Reply]] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._workers: dict[int, _Worker] = {}
        self._failed_starts = 0
        self._start_fault = ""
        self._refusal: UserError | None = None

    def run(self, items: Sequence[Item]) -> list[Reply]:
        """The replies in the order of the items.

        Raises:
            UserError: a handler refused an item, or could not be set up, for something the user
            can mend.
        """
        futures = [self.submit(item) for item in items]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def submit(self, item: Item) -> Future[Reply]:
        """Queues one item."""
        future: Future[Reply] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("the pool is closed")
            if self._owner != os.getpid():
                self._reset()
            if len(self._threads) < self._count:
                self._start_thread()
            self._waiting.put((item, future))
        return future

    def warm(self) -> None:
        """Starts every worker now, so that the first items do not wait for imports."""
        with self._lock:
            if self._closed or self._owner != os.getpid():
                return
            while len(self._threads) < self._count:
                self._start_thread()

    def _start_thread(self) -> None:
        slot = len(self._threads)
        thread = threading.Thread(
            target=self._serve, args=(slot,), daemon=True, name=f"verify-{slot}"
        )
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """Kills the workers. Items still waiting are answered ``died``."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._owner != os.getpid():
                return
            workers, threads = list(self._workers.values()), list(self._threads)
        for _ in threads:
            self._waiting.put(None)
        for worker in workers:
            worker.kill()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(timeout=5.0)
        with contextlib.suppress(queue.Empty):
            while True:
                left = self._waiting.get_nowait()
                if left is not None and left[1].set_running_or_notify_cancel():
                    left[1].set_result(_CLOSED)

    def _serve(self, slot: int) -> None:
        """One worker's life in the host: started before its first item, replaced when lost."""
        with contextlib.suppress(StartError, UserError):
            if not self._closed:
                self._ready(slot)
        while (job := self._waiting.get()) is not None:
            item, future = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(self._answer(slot, item))
            except BaseException as error:  # the waiting caller must hear of it, whatever it is
                future.set_exception(error)
        worker = self._workers.pop(slot, None)
        if worker is not None:
            worker.kill()

    def _answer(self, slot: int, item: Item) -> Reply:
        while True:
            if self._closed:
                return _CLOSED
            if self._refusal is not None:
                raise self._refusal
            if self._failed_starts >= START_ATTEMPTS:
                return Reply(
                    "died",
                    detail=f"no worker process could be started in {START_ATTEMPTS} attempts: "
                    f"{self._start_fault}",
                )
            try:
                worker = self._ready(slot)
                break
            except StartError as error:
                self._failed_starts += 1
                self._start_fault = str(error)
        reply = worker.ask(item)
        if reply.status in ("timeout", "died", "memory"):
            worker.kill()
            del self._workers[slot]
        if reply.status == "refused":
            raise UserError(reply.detail)
        return reply

    def _ready(self, slot: int) -> _Worker:
        worker = self._workers.get(slot)
        if worker is None:
            try:
                worker = _Worker()
            except OSError as error:  # no process or descriptor left: others may free some
                raise StartError(f"the system starts no worker process: {error}") from error
            self._workers[slot] = worker
            try:
                worker.start(self._setup, self._start_seconds)
            except (StartError, UserError) as error:
                worker.kill()
                del self._workers[slot]
                self._refusal = error if isinstance(error, UserError) else None
                raise
            self._failed_starts = 0
            if self._closed:
                worker.kill()
        return worker


_OPEN_POOLS: weakref.WeakSet[Pool] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for pool in list(_OPEN_POOLS):
        pool.close()


class _Worker:
    """One process and the two pipes to it. Frames are a 4-byte length and a body: pickle towards
    the worker (the host is trusted), JSON from it (the worker is not).
    """

    def __init__(self) -> None:
        to_worker, self._to = os.pipe()
        try:
            self._from, from_worker = os.pipe()
        except OSError:
            os.close(to_worker)
            raise
        try:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "lydite.verify.worker",
                    str(to_worker),
                    str(from_worker),
                    str(os.getpid()),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=(to_worker, from_worker),
                start_new_session=True,
                env=_environment(),
            )
        finally:
            os.close(to_worker)
            os.close(from_worker)
        self._number = 0

    def start(self, setup: bytes, seconds: float) -> None:
        """Waits until the worker is ready.

        Raises:
            StartError: it ended, or was not ready in time.
            UserError: what it should run cannot be set up.
        """
        try:
            self._send(setup)
            first = self._receive(time.monotonic() + seconds)
        except (OSError, EOFError, ValueError) as error:
            raise StartError("the worker process ended while starting") from error
        if first is None:
            raise StartError(f"the worker process was not ready after {seconds:.0f} s")
        if "refused" in first:
            raise UserError(str(first["refused"]))

    def ask(self, item: Item) -> Reply:
        """Hands over one item and waits for its reply, no longer than its limit."""
        begun = time.monotonic()
        self._number += 1
        try:
            self._send(cloudpickle.dumps((self._number, item.handler, item.payload, item.seconds)))
            reply = self._receive(begun + item.seconds)
        except (OSError, EOFError, ValueError, RecursionError):
            return self._lost(time.monotonic() - begun, item)
        seconds = time.monotonic() - begun
        if reply is None:
            return Reply("timeout", detail=f"no result after {item.seconds:g} s", seconds=seconds)
        if reply.get("number") != self._number:
            return Reply("died", detail="the worker process broke its protocol", seconds=seconds)
        status = reply.get("status")
        if status not in ("done", "failed", "memory", "refused"):
            return Reply("died", detail="the worker process broke its protocol", seconds=seconds)
        return Reply(status, reply.get("value"), str(reply.get("detail", "")), seconds)

    def _lost(self, seconds: float, item: Item) -> Reply:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(timeout=2.0)
            if code == -signal.SIGXCPU:
                return Reply(
                    "timeout",
                    detail=f"more than {item.seconds:g} s of processor time",
                    seconds=seconds,
                )
            how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            return Reply("died", detail=f"the worker process {how}", seconds=seconds)
        return Reply("died", detail="the worker process closed its pipe", seconds=seconds)

    def _send(self, body: bytes) -> None:
        view = memoryview(HEADER.pack(len(body)) + body)
        while view:
            view = view[os.write(self._to, view) :]

    def _receive(self, deadline: float) -> dict[str, Any] | None:
        """The next frame, or ``None`` at the deadline. EOFError when the worker is gone."""
        head = self._read(HEADER.size, deadline)
        if head is None:
            return None
        (size,) = HEADER.unpack(head)
        if size > MAX_REPLY_BYTES:
            raise ValueError("reply too large")
        body = self._read(size, deadline)
        if body is None:
            return None
        frame = json.loads(body)
        if not isinstance(frame, dict):
            raise ValueError("reply is not an object")
        return frame

    def _read(self, size: int, deadline: float) -> bytes | None:
        poll = select.poll()
        poll.register(self._from, select.POLLIN)
        parts: list[bytes] = []
        while size > 0:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return None
            part = os.read(self._from, min(size, 1 << 16))
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def kill(self) -> None:
        """Ends the process and whatever it started. The pipes are closed by the thread that reads
        them.
        """
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5.0)

    def __del__(self) -> None:
        for pipe in (getattr(self, "_to", None), getattr(self, "_from", None)):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    os.close(pipe)


def _environment() -> dict[str, str]:
    """The host's, with its import path (a test runner or notebook may have changed it) and one
    thread a worker.
    """
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {
        **os.environ,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
