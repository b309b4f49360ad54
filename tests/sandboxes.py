"""What the sandbox's tests share."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from lydite.verify.sandbox import Sandbox
from lydite.verify.sandbox.backends import BACKENDS, fault_of

__all__ = ["BACKENDS", "Inhabitant", "alive", "firsts", "inhabitants", "usable"]

MARK = b"marshal.loads(take("


@dataclass(frozen=True)
class Inhabitant:
    pid: int
    parent: int


def usable(backend: str, slots: int = 2) -> Sandbox:
    """A sandbox of this kind; the test is skipped on a machine that cannot have one."""
    fault = fault_of(backend)  # type: ignore[arg-type]
    if fault is not None:
        pytest.skip(f"no {backend} sandbox here: {fault}")
    return Sandbox(backend, slots)  # type: ignore[arg-type]


def inhabitants() -> list[Inhabitant]:
    """The processes inside sandboxes that this process started, and those that nobody owns."""
    parents: dict[int, int] = {}
    marked: set[int] = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            if stat[0] in "ZX":
                continue
            parents[int(entry.name)] = int(stat[1])
            line = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if MARK in line and not line.split(b"\0")[0].endswith(b"bwrap"):
            marked.add(int(entry.name))
    return [
        Inhabitant(pid, parents[pid])
        for pid in sorted(marked)
        if parents[pid] == 1 or _descends(pid, os.getpid(), parents)
    ]


def firsts() -> set[int]:
    """The first process of every sandbox."""
    found = inhabitants()
    pids = {process.pid for process in found}
    return {process.pid for process in found if process.parent not in pids}


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid > 1:
        pid = parents.get(pid, 0)
        if pid == ancestor:
            return True
    return False


def alive(pid: int) -> bool:
    try:
        return (Path(f"/proc/{pid}/stat")).read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
