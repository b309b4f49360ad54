"""What goes wrong on a cluster. Loads without ray."""

from __future__ import annotations


class Lost(RuntimeError):
    """A process is gone, or must be given up: ``role``, what it was at, and why."""

    def __init__(self, role: str, phase: str, why: str) -> None:
        super().__init__(f"{role} was lost while {phase}: {why}")


class TooFew(RuntimeError):
    """Fewer rollout workers than can go on have come in time."""


class LearnerLost(Lost):
    """A learner rank is gone. A step cannot be taken without it: all ranks start again from the
    last checkpoint.
    """
