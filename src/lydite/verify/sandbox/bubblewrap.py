"""The sandbox by bubblewrap: a view of the system that holds an interpreter and nothing else.

The first process keeps, within its namespaces, the rights to mount and to change its user; each
program that it forks gets its own small file system, gives up these rights and runs as a user who
owns nothing. As root that is another user of the machine (a kernel does not count root's
processes); otherwise a user namespace makes the first process no more than the user.
"""

from __future__ import annotations

import functools
import os
import shutil
from pathlib import PurePosixPath

from lydite.verify.sandbox.box import Launch
from lydite.verify.sandbox.runtime import Runtime
from lydite.verify.sandbox.seccomp import program_filter

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def launch(
    runtime: Runtime, visible: tuple[str, ...], user: int | None, ends: tuple[int, int, int]
) -> Launch:
    """How to start one sandbox.

    Args:
        runtime: the interpreter.
        visible: further paths to show read-only.
        user: as root: who programs run as.
        ends: descriptors of the first process's control and channel, and the one on which
            bubblewrap names that process.
    """
    control, channel, info = ends
    line = [shutil.which("bwrap") or "bwrap"]
    line += ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    line += ["--unshare-cgroup-try", "--hostname", "sandbox", "--info-fd", str(info)]
    line += ["--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL"]
    line += ["--cap-add", "CAP_SYS_ADMIN"]
    if user is None:
        line += ["--unshare-user", "--uid", "1000", "--gid", "1000"]
    else:
        for right in ("CAP_SETUID", "CAP_SETGID", "CAP_KILL"):
            line += ["--cap-add", right]
    line += _view(runtime, visible)
    setup = {
        "uid": user,
        "folder": _work(runtime, visible),
        "own_files": True,
        "landlock": None,
        "stdlib": runtime.stdlib,
        # In a user namespace of its own, the first process is counted with its programs.
        "tasks": 2 if user is None else 0,
        "filters": {
            name: program_filter(own_files=True, own_processes=True, forks=forks).hex()
            for name, forks in (("alone", False), ("many", True))
        },
    }
    return Launch([*line, "--", *runtime.command(control, channel)], setup)


def _shown(runtime: Runtime, visible: tuple[str, ...]) -> list[str]:
    paths = [*runtime.libraries, runtime.python, runtime.stdlib, "/etc/ld.so.cache", *visible]
    return list(dict.fromkeys(path for path in paths if os.path.exists(path)))


def _work(runtime: Runtime, visible: tuple[str, ...]) -> str:
    """Where programs work: ``/tmp``, unless what they must see lies there and would be covered."""
    covered = any(PurePosixPath(p).is_relative_to("/tmp") for p in _shown(runtime, visible))
    return "/work" if covered else "/tmp"


@functools.cache
def _view(runtime: Runtime, visible: tuple[str, ...]) -> tuple[str, ...]:
    """The file system: what is named here, read-only, and nothing else."""
    line: list[str] = []
    shown = _shown(runtime, visible)
    for folder in _folders([*shown, *DEVICES, f"{_work(runtime, visible)}/files"]):
        line += ["--perms", "0755", "--dir", folder]
    for path in shown:
        line += ["--ro-bind", path, path]
    for path in runtime.hidden:
        if any(PurePosixPath(each).is_relative_to(path) for each in visible):
            continue
        line += ["--perms", "0555", "--size", "4096", "--tmpfs", path, "--remount-ro", path]
    for path in DEVICES:
        line += ["--dev-bind", path, path]
    return (*line, "--remount-ro", "/", "--chdir", "/")


def _folders(paths: list[str]) -> list[str]:
    """All folders above, outermost first. Bubblewrap would make them, closed to other users."""
    found = {str(parent) for path in paths for parent in PurePosixPath(path).parents}
    return sorted(found - {"/"}, key=lambda folder: (folder.count("/"), folder))
