"""How a process in a sandbox gives up its rights, for itself and for all that it starts.

Runs inside, like :mod:`lydite.verify.sandbox.inside`, with the standard library alone.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
import struct
import sys
from typing import Any

PR_SET_CHILD_SUBREAPER = 36
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 1, 22, 38, 2
CAPABILITY_VERSION_3 = 0x20080522

libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(by: int = signal.SIGKILL) -> None:
    libc.prctl(PR_SET_PDEATHSIG, by, 0, 0, 0)


def adopt_orphans() -> None:
    """Makes this process, and not the namespace's first, the parent of what its children leave."""
    check(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "child_subreaper")


def limit(kind: int, soft: int, hard: int | None = None) -> None:
    """Lowers a limit; one that is lower already stays."""
    _, most = resource.getrlimit(kind)
    wanted = soft if hard is None else hard
    if most != resource.RLIM_INFINITY:
        wanted = min(wanted, most)
    resource.setrlimit(kind, (min(soft, wanted), wanted))


class Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


def drop_capabilities() -> None:
    nothing = (ctypes.c_uint32 * 6)()
    header = Header(CAPABILITY_VERSION_3, 0)
    check(libc.capset(ctypes.byref(header), ctypes.byref(nothing)), "capset")


def keep_only(ends: list[int], others: tuple[int, ...]) -> None:
    """Leaves the program its three standard streams and, if it serves, the channel; and for the
    time until it begins ``others``.
    """
    ends = [os.dup2(end, 100 + n) for n, end in enumerate(ends)]
    for number, end in enumerate(ends):
        os.dup2(end, number)
    kept = sorted(fd for fd in (*others, *LIBRARY_FDS) if fd >= len(ends))
    low = len(ends)
    for fd in [*kept, 1 << 16]:
        os.closerange(low, fd)
        low = fd + 1


def apart(fd: int) -> int:
    """The descriptor at a number that nothing below takes, whatever the host's number for it is."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 400)
    os.close(fd)
    return moved


def raised(fd: int, number: int) -> int:
    """The descriptor out of the way of a program's streams and channel."""
    high = os.dup2(fd, 200 + number, inheritable=False)
    os.close(fd)
    return high


class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]


def install_filter(code: str) -> None:
    raw = bytes.fromhex(code)
    program = Filter(len(raw) // 8, raw)
    failed = libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0)
    check(failed, "seccomp")


LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
LANDLOCK_RULE_PATH_BENEATH = 1
PATH_BENEATH = struct.Struct("=Qi")
LIBRARY_FDS: list[int] = []


def landlock_rules(landlock: dict[str, Any]) -> int:
    """Builds the rules while their paths can still be opened."""
    handled = landlock["handled"]
    attributes = struct.pack(f"={len(handled)}Q", *handled)
    rules: int = libc.syscall(LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)
    if rules < 0:
        raise OSError(ctypes.get_errno(), "landlock_create_ruleset")
    rules = raised(rules, 99)
    for path, access in landlock["rules"]:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        rule = PATH_BENEATH.pack(access, fd)
        failed = libc.syscall(LANDLOCK_ADD_RULE, rules, LANDLOCK_RULE_PATH_BENEATH, rule, 0)
        check(failed, f"landlock_add_rule {path}")
        os.close(fd)
    return rules


def landlock_restrict(rules: int) -> None:
    check(libc.syscall(LANDLOCK_RESTRICT_SELF, rules, 0), "landlock_restrict_self")
    os.close(rules)


def no_new_privileges() -> None:
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def reopen_library(stdlib: str, other_user: bool) -> None:
    """Keeps the standard library importable where programs may neither list its folder (it holds
    the installed packages too) nor, as another user, walk down to it.
    """
    for path in (stdlib, os.path.join(stdlib, "lib-dynload")):
        name = path
        if other_user:
            fd = raised(os.open(path, os.O_PATH | os.O_DIRECTORY), len(LIBRARY_FDS))
            LIBRARY_FDS.append(fd)
            name = f"/proc/self/fd/{fd}"
            sys.path[:] = [name if entry == path else entry for entry in sys.path]
            for module in list(sys.modules.values()):
                places = getattr(module, "__path__", None)
                if isinstance(places, list):
                    start = path + os.sep
                    places[:] = [
                        f"{name}/{p[len(start) :]}" if p.startswith(start) else p for p in places
                    ]
        # A finder that has listed its folder lists it again only when it changes.
        finder = sys.path_hooks[-1](name)
        finder.find_spec("no_such_module")
        sys.path_importer_cache[name] = finder


def check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
