"""Two engines on the same workers: the one with the newest weights goes first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Turns:
    """Who samples when. Evaluation, with the newest weights, goes before the rollouts that run
    beside training: these are told to give way, and go on after it.
    """

    def __init__(self, say: Callable[[str], None], every: float) -> None:
        """``say`` is told of a wait by its name, each time that ``every`` seconds have passed. A
        turn ends by the limits of what holds it.
        """
        self._say = say
        self._every = every
        self._changed = threading.Condition()
        self._held = False
        self._first = 0
        self.give_way: Callable[[], None] = lambda: None
        """Ends what samples behind, soon."""

    @contextmanager
    def first(self) -> Iterator[None]:
        """A turn that is next in any case."""
        with self._changed:
            self._first += 1
            if self._held:
                self.give_way()
            try:
                self._wait("evaluation", lambda: not self._held)
            finally:
                self._first -= 1
                self._changed.notify_all()
            self._held = True
        yield from self._hold()

    @contextmanager
    def behind(self) -> Iterator[None]:
        """A turn when nobody else wants one."""
        with self._changed:
            self._wait("rollouts that run ahead", lambda: not self._held and not self._first)
            self._held = True
        yield from self._hold()

    def _wait(self, who: str, free: Callable[[], bool]) -> None:
        began = time.monotonic()
        while not self._changed.wait_for(free, self._every):
            seconds = time.monotonic() - began
            self._say(f"waiting for the rollout workers: the turn of {who}, {seconds:.0f} s")

    def _hold(self) -> Iterator[None]:
        try:
            yield
        finally:
            with self._changed:
                self._held = False
                self._changed.notify_all()
