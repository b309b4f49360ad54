"""What every process of a cluster is: one thread that works, and others that answer how it is.

Loads without ray: these classes become actors where they are started
(:mod:`lydite.cluster.processes`).
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lydite.config import UserError

KEPT_LINES = 1000
"""Lines of a process that wait to be fetched; older ones are only in its log file."""


@dataclass(frozen=True, slots=True)
class Where:
    """A process: its id, when it began in ticks of its machine's clock (ids are used again), and
    the machine, by Ray's name of it and its address.
    """

    pid: int
    born: str
    node: str
    address: str


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life: what the process is at, for how many seconds, and what it has said."""

    phase: str
    seconds: float
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a call: its value, or ``mistake``, one line for the user, or ``error``, a
    traceback.
    """

    value: Any = None
    mistake: str = ""
    error: str = ""


class Actor:
    """Base of the processes of a cluster."""

    def __init__(self, role: str, logs: str, threads: int) -> None:
        """``logs`` is a folder for its output, used where it is there; ``threads`` are those of
        tensor work.
        """
        self.role = role
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._phase, self._since = "idle", time.monotonic()
        # The number of threads is one thread's own setting.
        self._work = ThreadPoolExecutor(1, "work", initializer=_use_threads, initargs=(threads,))
        folder = Path(logs)
        log = (folder / f"{role}.log").open("ab", buffering=0) if folder.is_dir() else None
        _Tee(role, self._lines, log).begin()

    def hello(self) -> Where:
        """Where it runs."""
        import ray

        node = ray.get_runtime_context().get_node_id()
        pid = os.getpid()
        return Where(pid, born_at(pid), node, ray.util.get_node_ip_address())

    def beat(self) -> Beat:
        """See :class:`Beat`."""
        lines = []
        while self._lines:
            lines.append(self._lines.popleft())
        return Beat(self._phase, time.monotonic() - self._since, tuple(lines))

    def work(self, name: str, *arguments: Any) -> Answer:
        """Calls a method in the one thread that works, and waits for it."""
        return self._work.submit(self._doing, name, *arguments).result()

    def ask(self, name: str, *arguments: Any) -> Answer:
        """Calls a method in the thread of the call, beside the work."""
        return answered(getattr(self, name), *arguments)

    def _doing(self, name: str, *arguments: Any) -> Answer:
        self.enter(name)
        try:
            return answered(getattr(self, name), *arguments)
        finally:
            self.enter("idle")

    def enter(self, phase: str) -> None:
        """What it is at from now on."""
        self._phase, self._since = phase, time.monotonic()

    def die(self) -> None:
        """At once, without goodbye: for tests of what follows."""
        os._exit(1)


def _use_threads(count: int) -> None:
    import torch

    torch.set_num_threads(count)


def answered(call: Callable[..., Any], *arguments: Any) -> Answer:
    """What comes of a call, whatever it is."""
    try:
        return Answer(call(*arguments))
    except UserError as error:
        return Answer(mistake=str(error))
    except Exception:  # whoever asked must hear of it
        text = traceback.format_exc()
        print(text, file=sys.stderr)
        return Answer(error=text)


def born_at(pid: int) -> str:
    """When a process of this machine began, in ticks since the machine did; empty where there is
    none, or the system does not say.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("", 0))
        return int(found.getsockname()[1])


class _Tee:
    """Takes what a process and its children write, line by line: to its log and to who asks, with
    the role in front, and to where it would have gone.
    """

    def __init__(self, role: str, lines: deque[str], log: Any) -> None:
        self._role = role
        self._lines = lines
        self._log = log

    def begin(self) -> None:
        self._own = os.dup(1)
        source, sink = os.pipe()
        for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
            stream.flush()
            os.dup2(sink, number)
        os.close(sink)
        # What Python still holds back at a crash would be lost.
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(line_buffering=True)
        threading.Thread(target=self._read, args=(source,), daemon=True, name="lines").start()

    def _read(self, source: int) -> None:
        with os.fdopen(source, "rb") as lines:
            for raw in lines:
                line = f"{self._role} | {raw.decode('utf-8', 'replace').rstrip()}"
                self._lines.append(line)
                data = line.encode("utf-8", "backslashreplace") + b"\n"
                for write in (
                    lambda data: os.write(self._own, data),
                    *((self._log.write,) if self._log is not None else ()),
                ):
                    try:
                        write(data)
                    except OSError:  # a full disk must not end the process
                        continue
