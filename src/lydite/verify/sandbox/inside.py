"""The first process inside a sandbox: it starts programs, feeds and watches them.

It is sent to a fresh interpreter as bytecode and uses the standard library alone, so nothing of
Lydite or of the host has to be visible in there. It is trusted but holds no secret: the host
compares, the host keeps the expected output. Programs are forked from it, give up their rights
for good and only then run; it never reads what they write other than as bytes to pass on.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import struct
import sys
import time
import types
from typing import Any, NoReturn

HEAD = struct.Struct(">II")
STDERR_TAIL = 8192
CHANNEL = 3
WORK = "/tmp"
# Imported once here, so that a program that is run on many inputs does not pay for them each time.
PRELOADED = ("bisect", "collections", "functools", "heapq", "itertools", "math", "random", "re",
             "string", "typing")  # fmt: skip

CLONE_NEWNS = 0x20000
MS_NOSUID, MS_NODEV = 2, 4
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
CAPABILITY_VERSION_3 = 0x20080522

libc = ctypes.CDLL(None, use_errno=True)


def serve(control: int, channel: int) -> None:
    """Answers the host's requests until it hangs up."""
    setup, _ = receive(control)
    os.environ.clear()
    for name in PRELOADED:
        __import__(name)
    sys.modules["random"].seed(0)
    enter(setup)
    send(control, {"ready": True})
    files: dict[str, bytes] = {}
    while True:
        request, body = receive(control)
        if request["op"] == "load":
            files = {}
            for name, size in request["files"]:
                files[name], body = body[:size], body[size:]
            continue
        run = Run(setup, request, files, control, channel)
        reply, out, err = run.watch(body)
        send(control, {**reply, "stdout": len(out)}, out + err)


def enter(setup: dict[str, Any]) -> None:
    """Measures that hold for this process and for all that it starts."""
    die_with_parent()
    for name, value in (("CORE", 0), ("NICE", 0), ("RTPRIO", 0), ("MSGQUEUE", 0), ("MEMLOCK", 0)):
        limit(getattr(resource, f"RLIMIT_{name}"), value)


def die_with_parent() -> None:
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def limit(kind: int, soft: int, hard: int | None = None) -> None:
    """Lowers a limit; one that is lower already stays."""
    _, most = resource.getrlimit(kind)
    wanted = soft if hard is None else hard
    if most != resource.RLIM_INFINITY:
        wanted = min(wanted, most)
    resource.setrlimit(kind, (min(soft, wanted), wanted))


class Run:
    """One program on one input, or one program that serves the host over the channel."""

    def __init__(self, setup: dict[str, Any], request: dict[str, Any], files: dict[str, bytes],
                 control: int, channel: int) -> None:  # fmt: skip
        self.setup = setup
        self.request = request
        self.limits = request["limits"]
        self.files = files
        self.control = control
        self.serves = request["op"] == "serve"
        inside, self.stdin = os.pipe()
        self.stdout, out = os.pipe()
        self.stderr, err = os.pipe()
        self.begun = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            self.become((inside, out, err), channel)
        for end in (inside, out, err):
            os.close(end)

    def become(self, ends: tuple[int, int, int], channel: int) -> NoReturn:
        """In the new process: gives up every right, then runs the program."""
        kept = os.dup(channel) if self.serves else -1
        for number, end in enumerate(ends):
            os.dup2(end, number)
        if self.serves:
            os.dup2(kept, CHANNEL)
            os.set_inheritable(CHANNEL, True)
        os.closerange(CHANNEL + self.serves, 1 << 16)
        try:
            self.settle()
        except BaseException as error:
            os.write(2, f"the sandbox did not close: {error!r}".encode())
            os._exit(127)
        argv = self.request["argv"]
        if argv[0] == "python":
            run_script(argv[1:], self.files[argv[1]])
        try:
            os.execve(argv[0], argv, {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": WORK})
        except OSError as error:
            os.write(2, f"{argv[0]}: {error}".encode())
            os._exit(127)

    def settle(self) -> None:
        """From trusted to untrusted; in this order, each step needs what the next gives up."""
        setup, limits = self.setup, self.limits
        size = limits["file_mb"] << 20
        check(libc.unshare(CLONE_NEWNS), "unshare")
        options = f"size={size},nr_inodes=1024,mode=1777".encode()
        check(libc.mount(b"tmpfs", WORK.encode(), b"tmpfs", MS_NOSUID | MS_NODEV, options), "mount")
        os.chdir(WORK)
        for name, content in self.files.items():
            mode = 0o555 if self.request["argv"][0] in (name, f"./{name}") else 0o444
            with open(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(content)
        limit(resource.RLIMIT_NOFILE, 64)
        limit(resource.RLIMIT_FSIZE, size)
        limit(resource.RLIMIT_CPU, limits["cpu_seconds"], limits["cpu_seconds"] + 1)
        limit(resource.RLIMIT_AS, limits["memory_mb"] << 20)
        if setup["uid"] is not None:
            os.setgroups([])
            os.setresgid(setup["uid"], setup["uid"], setup["uid"])
            os.setresuid(setup["uid"], setup["uid"], setup["uid"])
        limit(resource.RLIMIT_NPROC, limits["processes"] + 64)
        drop_capabilities()
        die_with_parent()

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
            for fd, event in events:
                if fd == self.control:
                    os._exit(0)
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
        if code == -signal.SIGXCPU or (code == -signal.SIGKILL and cpu >= self.limits["cpu_seconds"]):
            return "cpu"
        last = err.strip().rpartition(b"\n")[2]
        if code != 0 and (last.startswith(b"MemoryError") or b"std::bad_alloc" in err):
            return "memory"
        return "killed" if code < 0 else "exited"


def clear() -> None:
    """Ends whatever the program left running. As the first process of its namespace this one
    cannot be hit.
    """
    if os.getpid() == 1:
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


class Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


def drop_capabilities() -> None:
    nothing = (ctypes.c_uint32 * 6)()
    header = Header(CAPABILITY_VERSION_3, 0)
    check(libc.capset(ctypes.byref(header), ctypes.byref(nothing)), "capset")


def check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def run_script(argv: list[str], source: bytes) -> NoReturn:
    """The program as ``__main__`` of this interpreter, which then ends as interpreters do."""
    main = types.ModuleType("__main__")
    main.__file__ = argv[0]
    sys.modules["__main__"] = main
    sys.argv = argv
    # After the standard library: no file of the program's can stand in for a module of it.
    sys.path.append(WORK)
    try:
        exec(compile(source, argv[0], "exec", dont_inherit=True), main.__dict__)
    except SystemExit:
        raise
    except BaseException:
        import traceback

        kind, error, trace = sys.exc_info()
        traceback.print_exception(kind, error, trace.tb_next if trace else None)
        sys.exit(1)
    sys.exit(0)


def receive(fd: int) -> tuple[dict[str, Any], bytes]:
    head, size = HEAD.unpack(read(fd, HEAD.size))
    request = json.loads(read(fd, head))
    return request, read(fd, size)


def read(fd: int, size: int) -> bytes:
    parts = []
    while size > 0:
        part = os.read(fd, min(size, 1 << 20))
        if not part:
            os._exit(0)
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
        os._exit(0)
