"""The first process inside a sandbox: it starts programs, feeds and watches them.

It is sent to a fresh interpreter as bytecode and uses the standard library alone, so nothing of
Lydite or of the host has to be visible in there. It is trusted but holds no secret: the host
compares, the host keeps the expected output. Programs are forked from it, give up their rights
for good and only then run; it never reads what they write other than as bytes to pass on.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import json
import os
import resource
import select
import signal
import struct
import sys
import time
from typing import Any, NoReturn

from lydite.verify.sandbox.folder import Folder
from lydite.verify.sandbox.script import run_script
from lydite.verify.sandbox.settle import (
    adopt_orphans,
    apart,
    die_with_parent,
    drop_capabilities,
    install_filter,
    keep_only,
    landlock_restrict,
    landlock_rules,
    limit,
    no_new_privileges,
    raised,
    reopen_library,
)

HEAD = struct.Struct(">II")
STDERR_TAIL = 8192
CHANNEL = 3
SETTLED, UNSETTLED = b"settled", "unsettled"
# Imported once here, so that a program that is run on many inputs does not pay for them each time.
PRELOADED = ("bisect", "collections", "functools", "heapq", "itertools", "math", "random", "re",
             "string", "typing")  # fmt: skip

GIVEN: list[str] = []
RUNNING: list[int] = []
ALONE: list[bool] = []
# Threads of a program whatever its processes; an interpreter that starts more has lost its way.
THREADS = 64


def serve(control: int, channel: int) -> None:
    """Answers the host's requests until it hangs up."""
    control, channel = apart(control), apart(channel)
    setup, _ = receive(control)
    os.environ.clear()
    for name in PRELOADED:
        __import__(name)
    for name in ("exit", "quit"):  # what `site` adds, which is not loaded
        setattr(builtins, name, sys.exit)
    if setup["preload"]:
        exec(compile(setup["preload"], "<preload>", "exec", dont_inherit=True), {})
    # Programs start as copies of this process: what is not moved or counted is not copied.
    gc.freeze()
    if not setup["own_files"]:
        os.mkdir(setup["folder"], 0o755)
        GIVEN.append(setup["folder"])
    rules = enter(setup)
    send(control, {"ready": True})
    if os.getpid() == 1:
        ALONE.append(True)
    while True:
        request, size = receive_head(control)
        # What a program is and says passes through another process, which goes with it: nothing of
        # it is in the memory that the next program is a copy of.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
        keeper = os.fork()
        if keeper == 0:
            keep(setup, (control, channel, rules), request, size)
        RUNNING.append(keeper)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
        if channel >= 0:  # so that the host sees when a program that serves is gone
            os.close(channel)
            channel = -1
        ended, status = 0, 0
        while ended != keeper:
            ended, status = os.waitpid(-1, 0)
        RUNNING.remove(keeper)
        if status != 0:
            leave()


def keep(setup: dict[str, Any], fds: tuple[int, int, int], request: dict[str, Any], size: int
         ) -> NoReturn:  # fmt: skip
    """In a process of its own: answers the requests for one program, until the next is due."""
    status = 1
    try:
        GIVEN.clear()
        RUNNING.clear()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
        die_with_parent()
        adopt_orphans()
        control = fds[0]
        folder = Folder(setup["folder"], setup["own_files"])
        while request["op"] != "done":
            body = read(control, size)
            if request["op"] == "load":
                files = {}
                for name, length in request["files"]:
                    files[name], body = body[:length], body[length:]
                folder.files = files
                send(control, {"loaded": True})
            else:
                answer(setup, request, body, folder, fds)
            request, size = receive_head(control)
        folder.leave()
        status = 0
    finally:
        os._exit(status)


def answer(setup: dict[str, Any], request: dict[str, Any], body: bytes, folder: Folder,
           fds: tuple[int, int, int]) -> None:  # fmt: skip
    """Runs the program once and reports."""
    try:
        folder.prepare(request["argv"][0], request["limits"]["file_mb"] << 20)
    except OSError as error:
        reply = {"how": "killed", "code": None, "seconds": 0.0, "stdout": 0}
        send(fds[0], reply, f"the sandbox has no working folder: {error}".encode())
        return
    run = Run(setup, request, folder.files, fds)
    reply, out, err = run.watch(body)
    if run.settled != SETTLED:
        reply, out, err = {**reply, "how": UNSETTLED}, b"", run.settled[-STDERR_TAIL:]
    send(fds[0], {**reply, "stdout": len(out)}, out + err)


def enter(setup: dict[str, Any]) -> int:
    """Measures that hold for this process and for all that it starts. Returns a descriptor of the
    Landlock rules, or -1.
    """
    # Hanging up ends it too; but who inherited the host's end may hold on longer than the host.
    if setup["own_files"]:
        die_with_parent()
    else:  # There is a folder to remove first, and no program that could send this signal.
        signal.signal(signal.SIGTERM, lambda *_: leave())
        die_with_parent(signal.SIGTERM)
    for name, value in (("CORE", 0), ("NICE", 0), ("RTPRIO", 0), ("MSGQUEUE", 0), ("MEMLOCK", 0)):
        limit(getattr(resource, f"RLIMIT_{name}"), value)
    if setup["landlock"] is None:
        return -1
    reopen_library(setup["stdlib"], setup["uid"] is not None)
    return landlock_rules(setup["landlock"])


class Run:
    """One program on one input, or one program that serves the host over the channel."""

    def __init__(self, setup: dict[str, Any], request: dict[str, Any], files: dict[str, bytes],
                 fds: tuple[int, int, int]) -> None:  # fmt: skip
        self.setup = setup
        self.request = request
        self.limits = request["limits"]
        self.files = files
        self.control, self.channel, self.rules = fds
        self.serves = request["op"] == "serve"
        inside, self.stdin = os.pipe()
        self.stdout, out = os.pipe()
        self.stderr, err = os.pipe()
        said, saying = os.pipe()
        self.begun = time.monotonic()
        self.parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            self.become((inside, out, err), raised(saying, 90))
        RUNNING.append(self.pid)
        for end in (inside, out, err, saying):
            os.close(end)
        # The program begins once the other end is closed, so none of this can be its saying.
        self.settled = read_all(said)
        if self.serves:
            os.close(self.channel)  # so that the host sees when the program is gone

    def become(self, ends: tuple[int, int, int], saying: int) -> NoReturn:
        """In the new process: gives up every right, says so, then runs the program."""
        try:
            self.settle(ends, saying)
            os.write(saying, SETTLED)
            os.close(saying)
        except BaseException as error:
            os.write(saying, repr(error).encode())
            os._exit(127)
        argv = self.request["argv"]
        if argv[0] == "python":
            run_script(argv[1:], self.files[argv[1]])
        try:
            os.execve(argv[0], argv, {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": os.getcwd()})
        except OSError as error:
            os.write(2, f"{argv[0]}: {error.strerror}".encode())
            os._exit(127)

    def settle(self, ends: tuple[int, int, int], saying: int) -> None:
        """From trusted to untrusted; in this order, each step needs what the next gives up."""
        setup, limits = self.setup, self.limits
        kept = [*ends, self.channel] if self.serves else list(ends)
        keep_only(kept, (self.rules, saying))
        limit(resource.RLIMIT_NOFILE, 64)
        limit(resource.RLIMIT_FSIZE, limits["file_mb"] << 20)
        limit(resource.RLIMIT_CPU, limits["cpu_seconds"], limits["cpu_seconds"] + 1)
        limit(resource.RLIMIT_AS, (limits["memory_mb"] << 20) // self.sharers())
        if setup["uid"] is not None:
            os.setgroups([])
            os.setresgid(setup["uid"], setup["uid"], setup["uid"])
            os.setresuid(setup["uid"], setup["uid"], setup["uid"])
        tasks = THREADS if limits["processes"] == 1 else limits["processes"]
        limit(resource.RLIMIT_NPROC, tasks + setup["tasks"])
        drop_capabilities()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with_parent()
        if os.getppid() != self.parent:
            os._exit(0)
        no_new_privileges()
        if self.rules >= 0:
            landlock_restrict(self.rules)
        install_filter(setup["filters"]["alone" if limits["processes"] == 1 else "many"])

    def sharers(self) -> int:
        """Among how many the memory is divided: a limit of each process is none of their sum."""
        return 1 if self.limits["shared_memory"] else int(self.limits["processes"])

    def watch(self, stdin: bytes) -> tuple[dict[str, Any], bytes, bytes]:
        """Feeds and drains the program until it ends or is ended."""
        cap = self.limits["output_kb"] << 10
        deadline = None if self.serves else self.begun + self.limits["wall_seconds"]
        child = os.pidfd_open(self.pid)
        out, err, how = bytearray(), bytearray(), ""
        poll = select.poll()
        for fd in (child, self.stdout, self.stderr):
            poll.register(fd, select.POLLIN)
        poll.register(self.control, 0 if not self.serves else select.POLLIN)
        os.set_blocking(self.stdin, False)
        left = memoryview(stdin)
        if left:
            poll.register(self.stdin, select.POLLOUT)
        else:
            os.close(self.stdin)
        while not how:
            wait = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
            events = poll.poll(wait)
            if not events:
                how = "timeout"
            for fd, _ in events:
                if fd == self.control:
                    leave()
                elif fd == self.stdin:
                    left = feed(fd, left)
                    if not left:
                        poll.unregister(fd)
                        os.close(fd)
                elif fd == child:
                    how = "exited"
                elif not drain(fd, out if fd == self.stdout else err, self.serves):
                    poll.unregister(fd)
            del err[:-STDERR_TAIL]
            if len(out) > cap:
                how = "output"
        return self.finish(how, child, out, err, left)

    def finish(self, how: str, child: int, out: bytearray, err: bytearray, left: memoryview
               ) -> tuple[dict[str, Any], bytes, bytes]:  # fmt: skip
        """Ends what is left of the program and says how it went."""
        seconds = time.monotonic() - self.begun
        if how != "exited":
            os.kill(self.pid, signal.SIGKILL)
        _, status, usage = os.wait4(self.pid, 0)
        RUNNING.clear()
        clear()
        cap = self.limits["output_kb"] << 10
        for fd, into in ((self.stdout, out), (self.stderr, err)):
            os.set_blocking(fd, False)
            while len(out) <= cap and drain(fd, into, self.serves):
                del err[:-STDERR_TAIL]
            os.close(fd)
        if left:
            os.close(self.stdin)
        os.close(child)
        if how == "exited" and len(out) > cap:
            how = "output"
        code = os.waitstatus_to_exitcode(status)
        if how == "exited":
            how = self.cause(code, usage.ru_utime + usage.ru_stime, bytes(err))
        reply = {"how": how, "code": code, "seconds": seconds}
        return reply, bytes(out[:cap]), bytes(err)

    def cause(self, code: int, cpu: float, err: bytes) -> str:
        if code == -signal.SIGXCPU or (
            code == -signal.SIGKILL and cpu >= self.limits["cpu_seconds"]
        ):
            return "cpu"
        last = err.strip().rpartition(b"\n")[2]
        if code != 0 and (last.startswith(b"MemoryError") or b"std::bad_alloc" in err):
            return "memory"
        return "killed" if code < 0 else "exited"


def clear() -> None:
    """Ends whatever the program left running in the namespace, which hits neither this process
    nor the first.
    """
    if ALONE:
        try:
            os.kill(-1, signal.SIGKILL)
            while True:
                os.waitpid(-1, 0)
        except (ChildProcessError, ProcessLookupError):
            return


def feed(fd: int, left: memoryview) -> memoryview:
    try:
        return left[os.write(fd, left[: 1 << 16]) :]
    except BlockingIOError:
        return left
    except BrokenPipeError:
        return left[:0]


def read_all(fd: int) -> bytes:
    parts = []
    while part := os.read(fd, 1 << 16):
        parts.append(part)
    os.close(fd)
    return b"".join(parts)


def drain(fd: int, into: bytearray, discard: bool) -> bool:
    """Takes what is there; False at the end."""
    try:
        part = os.read(fd, 1 << 16)
    except BlockingIOError:
        return False
    into += part
    if discard:
        del into[:-STDERR_TAIL]
    return bool(part)


def leave() -> NoReturn:
    """The host has hung up, or is dead, or what it asked for cannot be done."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # both can happen, one while the other is heard
    for pid in RUNNING:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    for folder in GIVEN:
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                os.unlink(os.path.join(folder, name))
            os.rmdir(folder)
    os._exit(0)


def receive(fd: int) -> tuple[dict[str, Any], bytes]:
    request, size = receive_head(fd)
    return request, read(fd, size)


def receive_head(fd: int) -> tuple[dict[str, Any], int]:
    """A request and how many bytes of it are still to be read."""
    head, size = HEAD.unpack(read(fd, HEAD.size))
    request: dict[str, Any] = json.loads(read(fd, head))
    return request, size


def read(fd: int, size: int) -> bytes:
    parts = []
    while size > 0:
        try:
            part = os.read(fd, min(size, 1 << 20))
        except OSError:  # hung up before it read all that was sent to it
            leave()
        if not part:
            leave()
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def send(fd: int, header: dict[str, Any], body: bytes = b"") -> None:
    head = json.dumps(header).encode()
    left = memoryview(HEAD.pack(len(head), len(body)) + head + body)
    try:
        while left:
            left = left[os.write(fd, left) :]
    except OSError:
        leave()
