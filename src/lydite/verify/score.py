"""What one reward says of one completion, and what a reward is to the composition of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from lydite.types import Outcome, Problem


@dataclass(frozen=True, slots=True)
class Score:
    """Unweighted. ``reward`` is ``None`` when it could not be decided; ``seconds`` is its cost."""

    outcome: Outcome
    reward: float | None
    answer: str | None = None
    detail: str = ""
    seconds: float = 0.0


class Reward(Protocol):
    """One of the rewards that a verifier adds up.

    ``decides`` ranks its claim to say whether the completion is correct: 2 compares with the
    reference, 1 is a user's function, 0 looks at form only.
    """

    name: str
    weight: float
    decides: int

    def score(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Score]:
        """One score per pair, in order. Safe to call from any thread."""
        ...

    def check_golds(self, problems: Sequence[Problem]) -> list[str | None]:
        """For each problem why its reference cannot be used, or ``None`` if it can."""
        ...


@dataclass(frozen=True, slots=True)
class Table:
    """Something for a person to read beside the verdicts. ``rows`` are parallel to ``header``."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@runtime_checkable
class Reports(Protocol):
    """A reward that has something to say about its problems, once it has scored."""

    def tables(self) -> list[Table]:
        """What it has found out so far."""
        ...
