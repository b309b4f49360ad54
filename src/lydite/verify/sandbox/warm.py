"""Sandboxes, started ahead of their programs."""

from __future__ import annotations

import os
from collections.abc import Sequence

from lydite.verify.sandbox import bubblewrap
from lydite.verify.sandbox.box import Box, Launch, Session
from lydite.verify.sandbox.program import Ended, Program, SandboxLimits
from lydite.verify.sandbox.runtime import find_runtime


class Runner:
    """One program in one sandbox, run on one input after another, each time from nothing: a fresh
    process, an empty folder, no process left of the run before.
    """

    def __init__(self, box: Box, program: Program, limits: SandboxLimits) -> None:
        self._box = box
        self._argv = program.argv
        self._limits = limits
        box.load(program)

    def run(self, stdin: bytes = b"") -> Ended:
        """Runs the program once."""
        return self._box.run(self._argv, stdin, self._limits)

    def close(self) -> None:
        self._box.close()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Sandbox:
    """Where programs are run. Safe to use from any thread.

    Args:
        backend: ``bubblewrap``, ``landlock``, or ``auto``: the first of them that works here.
        slots: how many programs may run at once.

    Raises:
        UserError: none works on this machine.
    """

    def __init__(self, backend: str = "auto", slots: int = 2) -> None:
        self._runtime = find_runtime()

    def run(
        self, program: Program, stdin: bytes = b"", limits: SandboxLimits | None = None
    ) -> Ended:
        """Runs a program once, from nothing.

        Raises:
            SandboxError: no sandbox could be started.
        """
        with self.runner(program, limits) as runner:
            return runner.run(stdin)

    def runner(self, program: Program, limits: SandboxLimits | None = None) -> Runner:
        """A sandbox in which ``program`` can be run on many inputs. Close it."""
        return Runner(self._box(program.visible), program, limits or SandboxLimits())

    def start(self, program: Program, limits: SandboxLimits | None = None) -> Session:
        """Starts a program that serves requests; see :class:`Session`. Close it.

        The processor time of the limits is for all requests together, the wall time for each.
        """
        box = self._box(program.visible)
        box.load(program)
        return Session(box, program.argv, limits or SandboxLimits())

    def _box(self, visible: Sequence[str]) -> Box:
        def launch(control: int, channel: int, info: int) -> Launch:
            line = bubblewrap.command(self._runtime, tuple(visible), (control, channel), info)
            return Launch(line, {"uid": 61200 if os.geteuid() == 0 else None})

        box = Box(launch)
        box.ready()
        return box

    def close(self) -> None:
        """Ends everything that it started."""

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
