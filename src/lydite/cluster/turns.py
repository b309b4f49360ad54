"""Two engines on the same workers: the one with the newest weights goes first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Turns:
    """Who samples when. Evaluation, with the newest weights, goes before the rollouts that run
    beside training: these are told to give way, and go on after it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held = False
        self._first = 0
        self.give_way: Callable[[], None] = lambda: None
        """Ends what samples behind, soon."""

    @contextmanager
    def first(self) -> Iterator[None]:
        """A turn that is next in any case. What holds it has limits of its own for every wait."""
        with self._changed:
            self._first += 1
            if self._held:
                self.give_way()
            self._changed.wait_for(lambda: not self._held)
            self._first -= 1
            self._held = True
        yield from self._hold()

    @contextmanager
    def behind(self) -> Iterator[None]:
        """A turn when nobody else wants one."""
        with self._changed:
            self._changed.wait_for(lambda: not self._held and not self._first)
            self._held = True
        yield from self._hold()

    def _hold(self) -> Iterator[None]:
        try:
            yield
        finally:
            with self._changed:
                self._held = False
                self._changed.notify_all()
