"""The sandbox where namespaces are not to be had: Landlock, a narrower system-call filter, limits.

Programs share the machine's process numbers and network, so what the namespaces would hide is
refused by the filter instead: they start no process, send no signal, open no socket and change no
file, not even one of their own. They can find out that a file exists, and not read it.
"""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

from lydite.verify.sandbox.box import Launch
from lydite.verify.sandbox.runtime import Runtime
from lydite.verify.sandbox.seccomp import program_filter

_CREATE_RULESET = 444
_VERSION = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
# From which version of Landlock how many rights on files are known.
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_TCP_BIND_AND_CONNECT = 0b11
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11
# Room for what the user starts meanwhile: the kernel counts all of a user's tasks.
_OTHER_TASKS = 512


def version() -> int:
    """The version of Landlock's interface in the running kernel; 0 without it."""
    try:
        call = ctypes.CDLL(None, use_errno=True).syscall
    except (OSError, AttributeError):
        return 0
    return max(0, int(call(_CREATE_RULESET, None, 0, _VERSION)))


def launch(
    runtime: Runtime,
    visible: tuple[str, ...],
    user: int | None,
    ends: tuple[int, int, int],
    folder: str,
) -> Launch:
    """How to start one sandbox.

    Args:
        runtime: the interpreter.
        visible: further paths that programs may read.
        user: as root: who programs run as.
        ends: descriptors of the first process's control and channel; the third is not used.
        folder: a folder for this sandbox alone, for the program's files.
    """
    abi = version()
    allow = program_filter(
        own_files=False, own_processes=False, forks=False, may_truncate=abi >= 3
    ).hex()
    own = (folder, _READ_FILE | _READ_DIR | _EXECUTE)
    setup = {
        "uid": user,
        "folder": folder,
        "own_files": False,
        "landlock": {"handled": _handled(abi), "rules": [*_rules(runtime, visible, abi), own]},
        "stdlib": runtime.stdlib,
        "tasks": 0 if user is not None else _tasks_of_user() + _OTHER_TASKS,
        "filters": {"alone": allow, "many": allow},
    }
    return Launch(runtime.command(ends[0], ends[1]), setup)


def _handled(abi: int) -> list[int]:
    """What is refused unless a rule allows it: the fields of ``landlock_ruleset_attr``."""
    fields = [(1 << _FILE_RIGHTS[min(abi, max(_FILE_RIGHTS))]) - 1]
    if abi >= 4:
        fields.append(_TCP_BIND_AND_CONNECT)
    if abi >= 6:
        fields.append(_ABSTRACT_SOCKETS_AND_SIGNALS)
    return fields


@functools.cache
def _rules(runtime: Runtime, visible: tuple[str, ...], abi: int) -> list[tuple[str, int]]:
    """Which paths may be used how."""
    hidden = {os.path.basename(path) for path in runtime.hidden}
    library = [entry for entry in os.scandir(runtime.stdlib) if entry.name not in hidden]
    rules = [(entry.path, _access(entry.path, 0)) for entry in library]
    rules += [(path, _READ_FILE | _EXECUTE) for path in (*runtime.libraries, runtime.python)]
    rules += [(path, _access(path, _EXECUTE)) for path in visible]
    rules += [(path, _READ_FILE) for path in ("/etc/ld.so.cache", "/dev/zero", "/dev/urandom")]
    write = _WRITE_FILE | (_TRUNCATE if abi >= 3 else 0)
    rules += [("/dev/random", _READ_FILE), ("/dev/null", _READ_FILE | write)]
    return rules


def _access(path: str, more: int) -> int:
    return _READ_FILE | more | (_READ_DIR if os.path.isdir(path) else 0)


def _tasks_of_user() -> int:
    """The threads of all of this user's processes."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.stat().st_uid == os.getuid():
                count += len(os.listdir(process / "task"))
        except OSError:
            continue
    return count
