"""How long the phases of a step take."""

from __future__ import annotations

import time


class Clock:
    """Seconds by phase, under the names that step metrics have: ``seconds_sample``, …

    ``with clock("sample"): …``; phases follow each other, and a second round of one adds to it.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._phase = ""
        self._began = 0.0

    def __call__(self, phase: str) -> Clock:
        self._phase = f"seconds_{phase}"
        return self

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds[self._phase] = (
            self.seconds.get(self._phase, 0.0) + time.perf_counter() - self._began
        )
