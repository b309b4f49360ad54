"""The two ways to build a sandbox, and which of them works here: found out by trying."""

from __future__ import annotations

import functools
import itertools
import os
import platform
import shutil
import tempfile
from dataclasses import dataclass
from typing import Literal

from lydite.config import UserError
from lydite.verify.sandbox import bubblewrap, landlock, seccomp
from lydite.verify.sandbox.box import Box, Launch
from lydite.verify.sandbox.program import Program, SandboxError, SandboxLimits
from lydite.verify.sandbox.runtime import find_runtime

BackendName = Literal["auto", "bubblewrap", "landlock"]
BACKENDS: tuple[Literal["bubblewrap", "landlock"], ...] = ("bubblewrap", "landlock")
INSTALL = (
    "install bubblewrap (Debian, Ubuntu: apt-get install bubblewrap; Fedora: "
    "dnf install bubblewrap)"
)

# Users whom nobody is, by custom the range for services' passing users: as root, each sandbox's
# programs run as another, so that the kernel counts and limits them apart.
_FIRST_USER, _USERS = 61184, 4096
_numbers = itertools.count(os.getpid() * 97)


@dataclass(frozen=True, slots=True)
class Starter:
    """Starts sandboxes of one kind."""

    name: Literal["bubblewrap", "landlock"]

    def check(self, limits: SandboxLimits) -> SandboxLimits:
        """The limits, if this kind can hold them.

        Raises:
            UserError: it cannot.
        """
        if limits.processes > 1 and self.name == "landlock":
            raise UserError(
                "sandbox: processes above 1 need bubblewrap, and this machine's sandbox is "
                f"Landlock; {INSTALL}, or set processes: 1"
            )
        return limits

    def start(self, visible: tuple[str, ...] = (), preload: str = "") -> Box:
        """Starts one without waiting for it; see :class:`Box` about the calling thread.

        Args:
            visible, preload: as a :class:`Program` has them.

        Raises:
            SandboxError: the system starts no process.
        """
        number = next(_numbers)
        user = _FIRST_USER + number % _USERS if os.geteuid() == 0 else None
        runtime = find_runtime()

        def with_preload(launch: Launch) -> Launch:
            return Launch(launch.command, {**launch.setup, "preload": preload})

        if self.name == "bubblewrap":

            def wrapped(ends: tuple[int, int, int]) -> Launch:
                return with_preload(bubblewrap.launch(runtime, visible, user, ends))

            return Box(wrapped, namespaced=True)
        # Programs that run as another user must get there.
        place = tempfile.gettempdir() if user is None else "/tmp"
        folder = os.path.join(place, f"lydite-sandbox-{os.getpid()}-{number}")

        def locked(ends: tuple[int, int, int]) -> Launch:
            return with_preload(landlock.launch(runtime, visible, user, ends, folder))

        box = Box(locked, namespaced=False)
        box.on_close(lambda: shutil.rmtree(folder, ignore_errors=True))
        return box


_TRIAL = b"""
import ctypes, os, socket, sys, threading
faults = []
def refused(what, act):
    try:
        act()
    except OSError:
        return
    faults.append(what)
refused("reads files of this machine", lambda: open(sys.argv[1]).read())
refused("opens network sockets", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
refused("opens local sockets", lambda: socket.socket(socket.AF_UNIX))
refused("starts processes", os.fork)
if os.environ: faults.append("sees the environment")
if os.getuid() == 0: faults.append("runs as root")
thread = threading.Thread(target=len, args=("",))
thread.start(); thread.join()
sys.stdout.write("; ".join(faults) or "closed")
"""


@functools.cache
def fault_of(name: Literal["bubblewrap", "landlock"]) -> str | None:
    """Why a kind of sandbox does not work on this machine; ``None`` if a trial run went well."""
    missing = _missing(name)
    if missing is not None:
        return missing
    try:
        with tempfile.NamedTemporaryFile() as secret, Starter(name).start() as box:
            os.chmod(secret.name, 0o644)
            box.ready()
            box.load(Program(("python", "trial.py"), {"trial.py": _TRIAL}))
            ended = box.run(("python", "trial.py", secret.name), b"", SandboxLimits())
    except (SandboxError, UserError) as error:
        return str(error)
    if ended.how != "exited" or ended.code != 0:
        return f"a trial program did not run: {ended.stderr.decode('utf-8', 'replace')[-300:]}"
    found = ended.stdout.decode("utf-8", "replace")
    return None if found == "closed" else f"a trial program {found[:300]}"


def _missing(name: Literal["bubblewrap", "landlock"]) -> str | None:
    if platform.system() != "Linux":
        return f"needs Linux, and this is {platform.system()}"
    if not seccomp.supported():
        return f"system calls of {platform.machine()} are not known to its filter"
    if name == "bubblewrap" and shutil.which("bwrap") is None:
        return "bwrap is not installed"
    if name == "landlock" and landlock.version() == 0:
        return "the kernel has no Landlock (needs Linux 5.13 or newer, with Landlock enabled)"
    return None


def choose(name: BackendName = "auto") -> Starter:
    """The kind that was asked for, or the first that works here.

    Raises:
        UserError: it, or none, works on this machine.
    """
    wanted = BACKENDS if name == "auto" else (name,)
    faults = []
    for candidate in wanted:
        fault = fault_of(candidate)
        if fault is None:
            return Starter(candidate)
        faults.append(f"{candidate}: {fault}")
    raise UserError(
        f"sandbox: untrusted programs cannot be run here ({'; '.join(faults)}); {INSTALL}; "
        "`lydite doctor` says what this machine has"
    )
