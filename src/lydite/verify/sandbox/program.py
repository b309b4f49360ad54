"""What runs in a sandbox, what it may cost, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from lydite.config import Config

How = Literal["exited", "timeout", "cpu", "memory", "output", "killed"]


class SandboxLimits(Config):
    """What one run of an untrusted program may cost before it is killed."""

    wall_seconds: float = Field(
        default=10.0, gt=0, description="Wall-clock seconds that a program may take."
    )
    cpu_seconds: int = Field(
        default=10, ge=1, description="Seconds of processor time that a program may take."
    )
    memory_mb: int = Field(
        default=512,
        ge=64,
        description="Mebibytes of memory of a program, all of its processes together; the "
        "interpreter's own are part of it.",
    )
    processes: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Processes that a program may have at once. 1 forbids it to start any; its "
        "threads are limited by themselves.",
    )
    file_mb: int = Field(
        default=16,
        ge=1,
        description="Mebibytes of all the files that a program may write, in a folder of its own "
        "that vanishes with it.",
    )
    output_kb: int = Field(
        default=1024,
        ge=1,
        description="Kibibytes that a program may write to standard output, or in one reply.",
    )


@dataclass(frozen=True, slots=True)
class Program:
    """A command and the files it finds in its working folder.

    Args:
        argv: the command. ``python`` is the interpreter that is already running in the sandbox:
            ``("python", "main.py", ...)`` runs ``main.py`` as a script. Anything else is executed;
            a name in ``files`` is made executable.
        files: contents by name, placed read-only in the working folder. No folders.
        visible: paths of this machine that the program sees read-only besides the interpreter,
            such as ``/usr`` for a compiler. Such a sandbox is started cold.
        preload: trusted Python source that the sandbox's first process runs once, before it
            forks any program: what it imports, programs find imported. Such a one too.
    """

    argv: tuple[str, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)
    visible: tuple[str, ...] = ()
    preload: str = ""

    def __post_init__(self) -> None:
        assert self.argv, "a program has a command"
        for name in self.files:
            assert name not in ("", ".", "..") and "/" not in name and "\0" not in name, name


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended. None of it is proof of anything: ``exited`` with code 0 is something
    that every program can do.

    ``exited``: by itself, with ``code``. ``timeout``: past its wall limit. ``cpu``: past its
    processor time. ``memory``: it asked for more than its limit. ``output``: it wrote more than
    its limit. ``killed``: by a signal (``code`` is minus its number), or with its sandbox.
    """

    how: How
    stdout: bytes = b""
    stderr: bytes = b""
    code: int | None = None
    seconds: float = 0.0


class SandboxError(Exception):
    """A sandbox could not be started: no fault of the program's."""
