"""Sandboxes, started ahead of their programs and each used for one.

Starting an interpreter in its namespaces takes longer than most checks. One thread starts them, so
that a checker finds one waiting; that thread lives as long as they do, because the kernel kills a
sandbox with the thread that started it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
import weakref
from collections.abc import Callable

from lydite.verify.sandbox.backends import BackendName, Starter, choose
from lydite.verify.sandbox.box import Box, Session
from lydite.verify.sandbox.program import Ended, Program, SandboxError, SandboxLimits

START_ATTEMPTS = 3


class Runner:
    """One program in one sandbox, run on one input after another, each time from nothing: a fresh
    process, the same files and no others, no process left of the run before.
    """

    def __init__(self, box: Box, program: Program, limits: SandboxLimits) -> None:
        self._box = box
        self._argv = program.argv
        self._limits = limits

    def load(self, program: Program) -> None:
        """Takes another program in the place of the one before. What it may see of the machine
        stays as it was.

        Raises:
            SandboxError: the sandbox is gone.
        """
        self._argv = program.argv
        self._box.load(program, self._limits.processes)

    def run(self, stdin: bytes = b"", output_kb: int = 0) -> Ended:
        """Runs the program once; it may write ``output_kb`` where that is more than its limit."""
        limits = self._limits
        if output_kb > limits.output_kb:
            limits = limits.model_copy(update={"output_kb": output_kb})
        return self._box.run(self._argv, stdin, limits)

    def close(self) -> None:
        """Ends the sandbox."""
        self._box.close()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Sandbox:
    """Where programs are run. Safe to use from any thread; the threads of a forked process get
    sandboxes of their own.

    Args:
        backend: ``bubblewrap``, ``landlock``, or ``auto``: the first of them that works here.
        slots: how many programs may run at once; further callers wait. As many sandboxes are
            kept waiting for a program.

    Raises:
        UserError: none works on this machine.
    """

    def __init__(self, backend: BackendName = "auto", slots: int = 2) -> None:
        self._starter: Starter = choose(backend)
        self.backend = self._starter.name
        self._count = slots
        self._closed = threading.Event()
        self._reset()
        _OPEN.add(self)

    def _reset(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(self._count)
        self._waiting: queue.SimpleQueue[Box | SandboxError] = queue.SimpleQueue()
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._boxes: set[Box] = set()
        self._thread: threading.Thread | None = None

    def run(
        self, program: Program, stdin: bytes = b"", limits: SandboxLimits | None = None
    ) -> Ended:
        """Runs a program once, from nothing.

        Raises:
            SandboxError: no sandbox could be started.
        """
        with self.runner(program, limits) as runner:
            return runner.run(stdin)

    def runner(self, program: Program, limits: SandboxLimits | None = None) -> Runner:
        """A sandbox in which ``program`` can be run on many inputs. Close it.

        Raises:
            SandboxError: no sandbox could be started.
        """
        limits = self._checked(limits)
        return Runner(self._take(program, limits), program, limits)

    def start(self, program: Program, limits: SandboxLimits | None = None) -> Session:
        """Starts a program that serves requests; see :class:`Session`. Close it.

        The processor time of the limits is for all requests together, the wall time for each.

        Raises:
            SandboxError: no sandbox could be started.
        """
        limits = self._checked(limits)
        return Session(self._take(program, limits), program.argv, limits)

    def warm(self) -> None:
        """Starts sandboxes now, so that the first programs do not wait for them."""
        self._spawner()

    def _checked(self, limits: SandboxLimits | None) -> SandboxLimits:
        limits = limits or SandboxLimits()
        return self._starter.check(limits)

    def _take(self, program: Program, limits: SandboxLimits) -> Box:
        """A sandbox that holds the program. It gives its slot back when it is closed."""
        spawner = self._spawner()
        self._slots.acquire()
        fault: SandboxError | None = None
        for _ in range(START_ATTEMPTS):
            answer = (
                self._order(program, spawner)
                if program.visible or program.preload
                else self._next(spawner)
            )
            if isinstance(answer, SandboxError):
                fault = answer
                continue
            try:
                answer.ready()
                answer.load(program, limits.processes)
            except SandboxError as error:
                fault = error
                continue
            answer.on_close(self._slots.release)
            return answer
        self._slots.release()
        assert fault is not None
        raise fault

    def _next(self, spawner: queue.SimpleQueue[Callable[[], None] | None]) -> Box | SandboxError:
        """One from the stock, which is filled up meanwhile."""
        spawner.put(lambda: self._waiting.put(self._start(())))
        return self._waiting.get()

    def _order(
        self, program: Program, spawner: queue.SimpleQueue[Callable[[], None] | None]
    ) -> Box | SandboxError:
        """One started for this program."""
        ordered: queue.SimpleQueue[Box | SandboxError] = queue.SimpleQueue()
        spawner.put(lambda: ordered.put(self._start(program.visible, program.preload)))
        return ordered.get()

    def _spawner(self) -> queue.SimpleQueue[Callable[[], None] | None]:
        """Where to order sandboxes; the thread that starts them is started with the first call."""
        if self._owner != os.getpid():
            self._reset()
        with self._lock:
            if self._closed.is_set():
                raise SandboxError("the sandbox is closed")
            if self._thread is None:
                for _ in range(self._count):
                    self._orders.put(lambda: self._waiting.put(self._start(())))
                self._thread = threading.Thread(
                    target=self._serve, args=(self._orders,), daemon=True, name="sandbox"
                )
                self._thread.start()
            return self._orders

    def _serve(self, orders: queue.SimpleQueue[Callable[[], None] | None]) -> None:
        while (order := orders.get()) is not None:
            order()

    def _start(self, visible: tuple[str, ...], preload: str = "") -> Box | SandboxError:
        if self._closed.is_set():
            return SandboxError("the sandbox is closed")
        try:
            box = self._starter.start(visible, preload)
        except SandboxError as error:
            return error
        box.on_close(lambda: self._boxes.discard(box))
        with self._lock:
            self._boxes.add(box)
            late = self._closed.is_set()
        if late:
            box.close()
        return box

    def close(self) -> None:
        """Ends every program and every sandbox. Nothing of them is left afterwards."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            if self._owner != os.getpid():
                return
            boxes, thread = list(self._boxes), self._thread
        for box in boxes:
            box.close()
        if thread is not None and thread is not threading.current_thread():
            self._orders.put(None)
            thread.join(timeout=10.0)
            with contextlib.suppress(queue.Empty):
                while True:
                    left = self._waiting.get_nowait()
                    if isinstance(left, Box):
                        left.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_OPEN: weakref.WeakSet[Sandbox] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for sandbox in list(_OPEN):
        sandbox.close()
