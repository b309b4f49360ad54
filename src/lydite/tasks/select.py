"""Which problems are kept: duplicates out, one side of a split, and the check that two sides share
nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field

from lydite.config import Config, UserError
from lydite.types import Problem

_TOKENS = re.compile(r"\w+|[^\w\s]")
_NUMBERS = re.compile(r"\d+(?:\.\d+)?")
_BUCKETS = 1_000_000


class Part(Config):
    """One side of a split that depends on each question alone, so it is the same in every run and
    file order.
    """

    name: Literal["train", "heldout"] = Field(description="Which side to keep.")
    share: float = Field(0.2, gt=0, lt=1, description="Share of the questions that is held out.")
    by: Literal["question", "numbers"] = Field(
        "question",
        description="What is hashed. `numbers`: questions with the same numbers stay on one side, "
        "so that rewordings of one problem are not on both.",
    )


def normalise(text: str) -> str:
    """The question as it is compared: case and the spaces around punctuation do not count."""
    return " ".join(_TOKENS.findall(text.casefold()))


def comparable(problem: Problem) -> str:
    """What makes two problems the same question, whatever system prompt and template they are shown
    with.
    """
    before = (m.content for m in problem.messages[:-1] if m.role != "system")
    return normalise("\n".join([*before, problem.question]))


def learned_questions(problem: Problem) -> list[str]:
    """:func:`comparable` of a problem, and of each turn before whose answer is learned too."""
    turns = problem.messages
    earlier = (
        replace(problem, question=turns[n - 1].content, messages=turns[:n])
        for n, turn in enumerate(turns)
        if turn.learned
    )
    return [comparable(p) for p in (*earlier, problem)]


def in_part(problem: Problem, part: Part) -> bool:
    """Whether a problem is on the given side. Questions equal but for spaces share one."""
    key = normalise(problem.question)
    if part.by == "numbers":
        key = " ".join(sorted(_NUMBERS.findall(problem.question))) or key
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    held_out = int.from_bytes(digest, "big") % _BUCKETS < part.share * _BUCKETS
    return held_out == (part.name == "heldout")


def distinct(name: str, problems: Sequence[Problem]) -> tuple[list[Problem], list[str]]:
    """The first of each question, in order, with a note that counts the rest.

    Several different worked solutions of one question, or pairs of them, are all kept: they are
    different things to imitate.
    """
    first: dict[tuple[str, str | None, str | None], Problem] = {}
    repeated = conflicting = 0
    for problem in problems:
        kept = first.setdefault((comparable(problem), problem.worked, problem.rejected), problem)
        if kept is not problem:
            repeated += 1
            conflicting += kept.reference != problem.reference
    if not repeated:
        return list(first.values()), []
    differ = f", {conflicting} of them with another reference" if conflicting else ""
    note = f"{name}: {repeated} repeated questions removed, {len(first)} left{differ}"
    return list(first.values()), [note]


def check_disjoint(train: Iterable[Problem], heldout: Iterable[Problem]) -> str:
    """A sentence that says what was compared.

    Raises:
        UserError: a held-out question is also a training question; names the two.
    """
    trained = {key: p for p in train for key in learned_questions(p)}
    tested = {comparable(p): p for p in heldout}
    shared = [key for key in tested if key in trained]
    if shared:
        ours, theirs = trained[shared[0]], tested[shared[0]]
        raise UserError(
            f"tasks: {len(shared)} held-out questions are also trained on, such as "
            f"{theirs.question!r} "
            f"({ours.id} and {theirs.id}); split with `part` or use other files"
        )
    return f"{len(tested)} held-out questions, none among the {len(trained)} training questions"
