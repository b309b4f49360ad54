"""Limits on a sandbox as a whole, where this user may make control groups (root, or a delegated
subtree).

A program of one process is held by its own limits. Several share their memory only if the kernel
counts it for all of them; without control groups each gets its share of the limit instead.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import time
from dataclasses import dataclass
from pathlib import Path

PREFIX = "lydite-sandbox-"
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Place:
    """Where groups can be made: one folder (version 2), or one for each of memory and processes
    (version 1).
    """

    version: int
    memory: Path
    pids: Path


class Group:
    """One sandbox's group."""

    def __init__(self, place: Place) -> None:
        self._place = place
        name = f"{PREFIX}{os.getpid()}-{next(_numbers)}"
        self._folders = [folder / name for folder in dict.fromkeys((place.memory, place.pids))]
        self._memory, self._pids = place.memory / name, place.pids / name
        for folder in self._folders:
            folder.mkdir()

    def add(self, pid: int) -> None:
        """Puts a process, and with it all that it will start, into the group."""
        for folder in self._folders:
            (folder / "cgroup.procs").write_text(str(pid))

    def limit(self, memory: int, tasks: int) -> None:
        """Sets the bytes and the number of tasks that all in the group may have together."""
        if self._place.version == 2:
            (self._memory / "memory.max").write_text(str(memory))
            with contextlib.suppress(OSError):
                (self._memory / "memory.swap.max").write_text("0")
        else:
            limit, with_swap = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
            # The larger of the two must never be below the smaller.
            for name in (limit, with_swap, limit):
                with contextlib.suppress(OSError):
                    (self._memory / name).write_text(str(memory))
            if int((self._memory / limit).read_text()) > memory:
                raise OSError(f"{self._memory}: no limit can be set")
        (self._pids / "pids.max").write_text(str(tasks))

    def kills(self) -> int:
        """How many processes the kernel ended because the group had no memory left."""
        name = "memory.events" if self._place.version == 2 else "memory.oom_control"
        with contextlib.suppress(OSError):
            for line in (self._memory / name).read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
        return 0

    def remove(self) -> None:
        """Removes the group once its processes are dead."""
        for folder in self._folders:
            for _ in range(100):
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    pass
                except OSError:
                    time.sleep(0.01)
                    continue
                break


def make(place: Place | None, pid: int) -> Group | None:
    """A group that holds ``pid``, or ``None`` where none can be made."""
    if place is None:
        return None
    try:
        group = Group(place)
    except OSError:
        return None
    try:
        group.add(pid)
    except OSError:
        group.remove()
        return None
    return group


@functools.cache
def find_place() -> Place | None:
    """Where this user can make groups, found by making one; ``None`` if nowhere."""
    for place in _candidates():
        try:
            _sweep(place)
            group = Group(place)
        except OSError:
            continue
        try:
            group.limit(1 << 30, 64)
            return place
        except OSError:
            continue
        finally:
            group.remove()
    return None


def _candidates() -> list[Place]:
    """Version 2: this process's group or the one above, if it hands its controllers down."""
    mounts, own = _mounts(), _own_groups()
    found: list[Place] = []
    if "" in mounts and "" in own:
        here = _inside(*mounts[""], own[""])
        for folder in (here, here.parent):
            with contextlib.suppress(OSError):
                handed = (folder / "cgroup.subtree_control").read_text().split()
                if {"memory", "pids"} <= set(handed):
                    found.append(Place(2, folder, folder))
    if {"memory", "pids"} <= set(mounts) and {"memory", "pids"} <= set(own):
        memory, pids = (_inside(*mounts[name], own[name]) for name in ("memory", "pids"))
        found.append(Place(1, memory, pids))
    return found


def _inside(mount: Path, root: str, group: str) -> Path:
    """The folder of a group in a mount that shows the hierarchy from ``root``."""
    return mount / os.path.relpath(group, root) if group.startswith(root) else mount


def _mounts() -> dict[str, tuple[Path, str]]:
    """Mount point and root by controller; version 2 under the empty name."""
    found: dict[str, tuple[Path, str]] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            before, _, after = line.partition(" - ")
            kind, _, options = after.split(" ", 2)
            root, point = before.split()[3:5]
            if kind == "cgroup2":
                found.setdefault("", (Path(point), root))
            elif kind == "cgroup":
                for name in options.split(","):
                    found.setdefault(name, (Path(point), root))
    return found


def _own_groups() -> dict[str, str]:
    """The groups of this process by controller."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            found |= dict.fromkeys(controllers.split(","), path)
    return found


def _sweep(place: Place) -> None:
    """Removes what hosts that were killed have left."""
    for folder in {place.memory, place.pids}:
        for left in folder.glob(f"{PREFIX}*"):
            pid = left.name.removeprefix(PREFIX).partition("-")[0]
            if not Path(f"/proc/{pid}").exists():
                with contextlib.suppress(OSError):
                    left.rmdir()
