"""The records that attacks are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from lydite.types import Problem

Kind = Literal[
    "integer", "rational", "decimal", "quantity", "expression", "equation", "tuple", "set",
    "interval", "matrix", "choice", "text", "code", "sql",
]  # fmt: skip

NUMERIC: tuple[Kind, ...] = ("integer", "rational", "decimal", "quantity")
ANSWERS: tuple[Kind, ...] = (
    *NUMERIC, "expression", "equation", "tuple", "set", "interval", "matrix", "choice", "text",
)  # fmt: skip


class Want(StrEnum):
    """The right verdict on a completion. ``SURVIVE``: either, as long as there is one."""

    REFUSE = "refuse"
    ACCEPT = "accept"
    SURVIVE = "survive"


@dataclass(frozen=True, slots=True)
class Example:
    """A problem, with answers known to be right or wrong beside its reference.

    ``binding`` is whether the place that its prompt names for the answer has to be read. Nobody
    chose the prompts of built-in problems for the reward that is audited with them.
    """

    problem: Problem
    right: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    binding: bool = True


@dataclass(frozen=True, slots=True)
class Target:
    """A problem as attacks see it.

    ``gold`` is its reference, ``wrong`` a plain answer that is not it and shares no digits with it,
    ``numbers`` the numbers in the question as written. ``place(answer)`` is a whole completion
    that states an answer where and how the reward reads it, ``thought(inside, after)`` one that
    thinks ``inside`` and says ``after``.
    """

    problem: Problem
    kind: Kind
    gold: str
    wrong: str
    numbers: tuple[str, ...]
    place: Callable[[str], str]
    example: Example = field(default_factory=lambda: Example(Problem("", "", ())))


@dataclass(frozen=True, slots=True)
class Attack:
    """One way to cheat a reward, or one way to be right.

    ``make`` yields answers, which are then placed as the reward reads them, or where ``whole`` is
    set completions as they are. ``kinds`` are the kinds of reference it fits. ``by_value`` marks
    answers that equal the reference only for a reader of mathematics, not of text. A ``heavy`` one
    is made for few problems only.
    """

    name: str
    family: str
    want: Want
    about: str
    make: Callable[[Target], Iterable[str]]
    kinds: tuple[Kind, ...] = ANSWERS
    whole: bool = False
    by_value: bool = False
    heavy: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """A completion whose right verdict is known."""

    target: int
    problem: Problem
    attack: str
    family: str
    want: Want
    text: str
