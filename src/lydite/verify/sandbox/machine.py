"""What this machine has for sandboxes, each line tried and not guessed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lydite.verify.sandbox import cgroups, landlock, seccomp
from lydite.verify.sandbox.backends import BACKENDS, INSTALL, fault_of

State = Literal["ok", "missing", "optional"]
_NEW_USER_NAMESPACE = "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare(0x10000000) != 0)"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. ``missing``: something does not work for want of it.
    ``optional``: everything works without it.
    """

    name: str
    state: State
    detail: str
    remedy: str = ""


def sandbox_checks() -> list[Check]:
    """The sandbox that will be used, the two kinds, and what they are made of."""
    faults = {name: fault_of(name) for name in BACKENDS}
    used = next((name for name in BACKENDS if faults[name] is None), None)
    checks = [
        Check("sandbox", "ok", f"{used} will be used for untrusted programs")
        if used
        else Check("sandbox", "missing", "no kind of sandbox works: verifier code refuses", INSTALL)
    ]
    for name in BACKENDS:
        fault = faults[name]
        if fault is None:
            detail = f"{_version(name)}, a trial program in it did what it should and no more"
            checks.append(Check(name, "ok", f"{detail} ({_milliseconds(name):.0f} ms)"))
        else:
            state: State = "optional" if used else "missing"
            remedy = INSTALL if name == "bubblewrap" else ""
            checks.append(Check(name, state, fault, remedy))
    return [*checks, _user_namespaces(), _seccomp(), _control_groups()]


def _version(name: Literal["bubblewrap", "landlock"]) -> str:
    if name == "landlock":
        return f"version {landlock.version()} of its interface"
    done = subprocess.run(
        [shutil.which("bwrap") or "bwrap", "--version"], capture_output=True, text=True, check=False
    )
    found = re.search(r"[\d.]+", done.stdout)
    return f"version {found[0]}" if found else "version unknown"


def _milliseconds(name: Literal["bubblewrap", "landlock"]) -> float:
    """What a trial costs once everything is in memory."""
    begun = time.monotonic()
    fault_of.__wrapped__(name)
    return (time.monotonic() - begun) * 1000


def _user_namespaces() -> Check:
    done = subprocess.run([sys.executable, "-S", "-c", _NEW_USER_NAMESPACE], check=False)
    if done.returncode == 0:
        return Check("user namespaces", "ok", "can be made")
    return Check(
        "user namespaces",
        "optional",
        "cannot be made; bubblewrap needs them unless it runs as root",
        _namespace_remedy(),
    )


def _namespace_remedy() -> str:
    restricted = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    if restricted.exists() and restricted.read_text().strip() == "1":
        return "sysctl kernel.apparmor_restrict_unprivileged_userns=0, or a profile for bwrap"
    if Path("/.dockerenv").exists():
        return "start the container with --security-opt seccomp=unconfined, or rely on landlock"
    return "sysctl user.max_user_namespaces=15000"


def _seccomp() -> Check:
    actions = Path("/proc/sys/kernel/seccomp/actions_avail")
    if not seccomp.supported():
        return Check("seccomp", "missing", "system calls of this machine are not known by number")
    if not actions.exists():
        return Check("seccomp", "optional", f"{actions} does not say; the trials above do")
    return Check("seccomp", "ok", "system calls are filtered by a list of those allowed")


def _control_groups() -> Check:
    place = cgroups.find_place()
    if place is None:
        return Check(
            "control groups",
            "optional",
            "cannot be made; programs of several processes get each a share of the memory",
        )
    return Check("control groups", "ok", f"version {place.version}, at {place.memory}")
