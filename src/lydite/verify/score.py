"""What one reward says of one completion, and what a reward is to the composition of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from lydite.types import Outcome, Problem, Unit


@dataclass(frozen=True, slots=True)
class Score:
    """Unweighted. ``reward`` is ``None`` when it could not be decided; ``seconds`` is its cost.

    ``applies`` is false where the reward has nothing to say of this problem: it is left out of the
    sum, and that is no failure. ``parts`` are the rewards inside this one, by name, ``None`` where
    one was not asked or could not decide.
    """

    outcome: Outcome
    reward: float | None
    answer: str | None = None
    detail: str = ""
    seconds: float = 0.0
    applies: bool = True
    parts: Mapping[str, float | None] = field(default_factory=dict)


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


@runtime_checkable
class Compares(Protocol):
    """A reward that compares a completion with the others of its problem. It is asked after all
    others, and told what they came to.
    """

    def compare(
        self, problems: Sequence[Problem], texts: Sequence[str], outcomes: Sequence[Outcome]
    ) -> list[Score]:
        """One score per completion, in order. The completions of a problem stand side by side."""
        ...


@runtime_checkable
class Together(Protocol):
    """A reward whose scores depend on what else it is asked about in the same call. Of others, each
    completion is scored for itself.
    """

    unit: Unit


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
