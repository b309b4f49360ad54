"""The host's side of one sandbox: starts it, talks to its first process, ends it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lydite.verify.sandbox import cgroups
from lydite.verify.sandbox.inside import HEAD, STDERR_TAIL, UNSETTLED
from lydite.verify.sandbox.program import Ended, How, Program, SandboxError, SandboxLimits
from lydite.verify.sandbox.runtime import inside_code

NONCE_BYTES = 16
FRAME_BYTES = 4
# Past a program's own limit: what the first process may take to end it and to report.
GRACE_SECONDS = 2.0
START_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Launch:
    """How a backend starts its first process: the command line, and what the process is told
    first.
    """

    command: Sequence[str]
    setup: dict[str, Any]


# From (control, channel, information) descriptors, which will be inherited, to a launch.
Plan = Callable[[tuple[int, int, int]], Launch]


class Lost(Exception):
    """The first process is gone, or does not keep to its protocol."""


class Late(Exception):
    """Nothing came before the deadline."""


class Box:
    """A started sandbox that waits for its program. Not thread-safe: it has one user at a time."""

    def __init__(self, plan: Plan, namespaced: bool) -> None:
        """Starts the sandbox without waiting for it.

        The thread that calls this must outlive the sandbox: the kernel kills it with the thread.

        Args:
            plan: how to start it.
            namespaced: whether the first process is named on the information pipe, and all others
                die with it.

        Raises:
            SandboxError: the system starts no process.
        """
        self.control, control = socket.socketpair()
        self.channel, channel = socket.socketpair()
        self._info, write = os.pipe()
        self._namespaced = namespaced
        self._then: list[Callable[[], object]] = []
        self._first: int | None = None
        self._pid = -1
        self._group: cgroups.Group | None = None
        self._kills = 0
        self._closing = threading.Lock()
        self._loaded = False
        ends = (control.fileno(), channel.fileno(), write)
        try:
            launch = plan(ends)
            self.process = subprocess.Popen(
                launch.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=ends,
                start_new_session=True,
                cwd="/",
                umask=0o022,
                # Sets are ordered alike each time, so verdicts are. Nothing else is inherited.
                env={"PYTHONHASHSEED": "0"},
            )
        except BaseException as error:
            self.control.close()
            self.channel.close()
            os.close(self._info)
            if isinstance(error, OSError):
                raise SandboxError(f"the sandbox does not start: {error}") from error
            raise
        finally:
            control.close()
            channel.close()
            os.close(write)
        self.control.setblocking(False)
        self.channel.setblocking(False)
        with contextlib.suppress(Lost, Late):
            self._greet(launch.setup)

    def _greet(self, setup: dict[str, Any]) -> None:
        deadline = time.monotonic() + START_SECONDS
        _write(self.control, inside_code(), deadline)
        self.send(setup, b"", deadline)

    def ready(self, seconds: float = START_SECONDS) -> None:
        """Waits until the first process waits for a program.

        Raises:
            SandboxError: it does not come up.
        """
        deadline = time.monotonic() + seconds
        try:
            if self._namespaced:
                self._pid, self._first = _first_process(self._info, deadline)
            self.receive(deadline, 0)
        except (Lost, Late, OSError, ValueError) as error:
            complaint = self._complaint(error)
            self.close()
            raise SandboxError(f"the sandbox does not start: {complaint}") from error

    def _complaint(self, error: Exception) -> str:
        stderr = self.process.stderr
        assert stderr is not None
        with contextlib.suppress(OSError, ValueError):
            os.set_blocking(stderr.fileno(), False)
            said = (stderr.read() or b"").decode("utf-8", "replace").strip()
            if said:
                return said[-500:]
        return str(error) or type(error).__name__

    def load(self, program: Program, processes: int = 1) -> None:
        """Hands over the program's files. What fails after this is the program's doing.

        Args:
            program: what will be run.
            processes: how many it may have at once; several are counted together from now on.

        Raises:
            SandboxError: the sandbox is gone.
        """
        header = {"op": "load", "files": [(n, len(c)) for n, c in program.files.items()]}
        deadline = time.monotonic() + START_SECONDS
        try:
            if self._loaded:
                self.send({"op": "done"}, b"", deadline)
            self._loaded = True
            if processes > 1 and self._group is None:
                self._group = cgroups.make(cgroups.find_place(), self._pid)
            self.send(header, b"".join(program.files.values()), deadline)
            self.receive(deadline, 0)
        except (Lost, Late, ValueError) as error:
            self.close()
            raise SandboxError(f"the sandbox ended before its program began: {error}") from error

    def run(self, argv: Sequence[str], stdin: bytes, limits: SandboxLimits) -> Ended:
        """Runs the loaded program once, from a fresh process and an empty folder.

        Raises:
            SandboxError: the program was not begun, since its rights could not be taken.
        """
        begun = time.monotonic()
        deadline = begun + limits.wall_seconds + GRACE_SECONDS
        try:
            self.order("run", argv, stdin, limits, deadline)
            return self.ended(deadline, limits)
        except Late:
            how: How = "timeout"
        except Lost:
            starved = self._group is not None and self._group.kills() > self._kills
            how = "memory" if starved else "killed"
        self.close()
        return Ended(how, seconds=time.monotonic() - begun)

    def order(
        self, what: str, argv: Sequence[str], body: bytes, limits: SandboxLimits, deadline: float
    ) -> None:
        """Tells the first process to start the program."""
        shared = self._group is not None
        if self._group is not None:
            try:
                self._group.limit(limits.memory_mb << 20, limits.processes + 2)
            except OSError:
                shared = False
        costs = limits.model_dump() | {"shared_memory": shared}
        self.send({"op": what, "argv": list(argv), "limits": costs}, body, deadline)

    def ended(self, deadline: float, limits: SandboxLimits) -> Ended:
        """The report on a program's end.

        Raises:
            SandboxError: the program was not begun, since its rights could not be taken.
        """
        most = (limits.output_kb << 10) + STDERR_TAIL
        header, body = self.receive(deadline, most)
        size, how = header["stdout"], header["how"]
        if how == UNSETTLED:
            self.close()
            said = body.decode("utf-8", "replace")
            raise SandboxError(f"the sandbox did not close around the program: {said}")
        if self._group is not None and self._group.kills() > self._kills:
            self._kills = self._group.kills()
            how = "memory"
        return Ended(how, body[:size], body[size:], header["code"], header["seconds"])

    def send(self, header: dict[str, Any], body: bytes, deadline: float) -> None:
        head = json.dumps(header).encode()
        _write(self.control, HEAD.pack(len(head), len(body)) + head + body, deadline)

    def receive(self, deadline: float, most: int) -> tuple[dict[str, Any], bytes]:
        """The next frame of the first process, its body no longer than ``most``."""
        head, size = HEAD.unpack(_read(self.control, HEAD.size, deadline))
        if head > 1 << 16 or size > most:
            raise Lost("the first process broke its protocol")
        return json.loads(_read(self.control, head, deadline)), _read(self.control, size, deadline)

    def close(self) -> None:
        """Kills everything in the sandbox and waits until it is gone. Again, and from another
        thread, it does nothing more.
        """
        if not self._closing.acquire(blocking=False):
            return
        # The first process before bubblewrap: once it is dead, so is all of its namespace.
        if self._namespaced and self._first is None:
            with contextlib.suppress(Lost, Late, OSError, ValueError):
                self._pid, self._first = _first_process(self._info, time.monotonic() + 1.0)
        if self._first is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(self._first, signal.SIGKILL)
            os.close(self._first)
        elif self._namespaced:
            self.process.kill()
        # Without a namespace, hanging up makes the first process end its program, then itself.
        with contextlib.suppress(OSError):
            self.control.shutdown(socket.SHUT_RDWR)
        try:
            self.process.wait(timeout=GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.control.close()
        self.channel.close()
        os.close(self._info)
        if self.process.stderr is not None:
            self.process.stderr.close()
        if self._group is not None:
            self._group.remove()
        for then in self._then:
            then()

    def on_close(self, then: Callable[[], object]) -> None:
        """Calls ``then`` once the sandbox is gone."""
        self._then.append(then)

    def __enter__(self) -> Box:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _first_process(info: int, deadline: float) -> tuple[int, int]:
    """The number and a descriptor of the process that bubblewrap names."""
    text = b""
    while not text.rstrip().endswith(b"}"):
        _wait(info, select.POLLIN, deadline)
        part = os.read(info, 4096)
        if not part:
            raise Lost("it ended at once")
        text += part
    pid = json.loads(text)["child-pid"]
    return pid, os.pidfd_open(pid)


def _wait(fd: int, event: int, deadline: float) -> None:
    if fd < 0:
        raise Lost("it was closed")
    poll = select.poll()
    poll.register(fd, event)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise Late


def _write(to: socket.socket, data: bytes, deadline: float) -> None:
    left = memoryview(data)
    while left:
        _wait(to.fileno(), select.POLLOUT, deadline)
        try:
            left = left[to.send(left) :]
        except BlockingIOError:
            continue
        except OSError as error:
            raise Lost("it hung up") from error


def _read(source: socket.socket, size: int, deadline: float) -> bytes:
    parts: list[bytes] = []
    while size > 0:
        _wait(source.fileno(), select.POLLIN, deadline)
        try:
            part = source.recv(min(size, 1 << 20))
        except BlockingIOError:
            continue
        except OSError as error:
            raise Lost("it hung up") from error
        if not part:
            raise Lost("it hung up")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


class Session:
    """A program in its sandbox that answers requests over a private descriptor until closed.

    Its descriptor 3 carries frames: 4 bytes of length (big-endian), then that many bytes: a nonce
    of 16 bytes and the payload. A reply carries the nonce of its request. What a program says is
    bytes and stays bytes: the host decides what they are worth.
    """

    def __init__(self, box: Box, argv: Sequence[str], limits: SandboxLimits) -> None:
        self._box = box
        self._limits = limits
        self._ended: Ended | None = None
        self._begun = time.monotonic()
        try:
            box.order("serve", argv, b"", limits, self._begun + START_SECONDS)
        except (Lost, Late):
            self._over("killed")

    def exchange(self, payload: bytes, seconds: float | None = None) -> bytes | Ended:
        """Sends a request and returns the reply to it, or how the program ended instead.

        Args:
            payload: what the program is handed.
            seconds: how long the reply may take; the limits' wall seconds by default. After a late
                one the program is dead.
        """
        if self._ended is not None:
            return self._ended
        nonce = secrets.token_bytes(NONCE_BYTES)
        deadline = time.monotonic() + (self._limits.wall_seconds if seconds is None else seconds)
        size = NONCE_BYTES + len(payload)
        channel = self._box.channel
        try:
            _write(channel, size.to_bytes(FRAME_BYTES, "big") + nonce + payload, deadline)
            size = int.from_bytes(_read(channel, FRAME_BYTES, deadline), "big")
            if size < NONCE_BYTES:
                return self._over("killed")
            if size > NONCE_BYTES + (self._limits.output_kb << 10):
                return self._over("output")
            reply = _read(channel, size, deadline)
        except Late:
            return self._over("timeout")
        except Lost:
            return self._report()
        if not secrets.compare_digest(reply[:NONCE_BYTES], nonce):
            return self._over("killed")
        return reply[NONCE_BYTES:]

    def _report(self) -> Ended:
        """The program hung up; the first process knows why."""
        try:
            self._ended = self._box.ended(time.monotonic() + GRACE_SECONDS, self._limits)
        except (Lost, Late):
            return self._over("killed")
        self._box.close()
        return self._ended

    def _over(self, how: Any) -> Ended:
        self._ended = Ended(how, seconds=time.monotonic() - self._begun)
        self._box.close()
        return self._ended

    def close(self) -> None:
        """Kills the program and all that it started."""
        self._box.close()
        if self._ended is None:
            self._ended = Ended("killed", seconds=time.monotonic() - self._begun)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
