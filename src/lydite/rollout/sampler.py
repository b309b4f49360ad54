"""Which problems to draw next, and dynamic sampling: drawing on until enough groups carry signal.

Every epoch is a shuffle addressed by (seed, epoch), so the order of problems is a function of a
cursor and survives a restart. A retired problem is passed over where it stands: the order of the
others does not change. Dynamic sampling is DAPO's (arXiv 2503.14476, section 3.2), with two
departures: it stops at a stated number of rounds instead of drawing without end, and informative
groups beyond what a step needs are dropped, not kept for the next step, where they would be off
policy. Rewards stay outside: the caller judges the groups.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from lydite.config import UserError
from lydite.types import Problem

G = TypeVar("G")


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a sampler stands; with the retired problems, all that a checkpoint needs of it."""

    epoch: int = 0
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Drawn:
    """A problem and the epoch that drew it, which is what tells two draws of it apart.

    One step may cross into the next epoch and meet a problem again. Numbering its samples from
    ``epoch * G`` (:attr:`lydite.types.Request.first_sample`) keeps their noise different. Of a
    curriculum, ``epoch`` counts how often the step had drawn the problem before.
    """

    problem: Problem
    epoch: int


class Sampler:
    """Walks through problems, epoch after epoch, each in its own order."""

    def __init__(
        self,
        problems: Sequence[Problem],
        seed: int,
        cursor: Cursor | None = None,
        retired: Iterable[str] = (),
    ) -> None:
        """Starts at ``cursor``, or at the beginning; ``retired`` are ids.

        Raises:
            UserError: there are no problems, or the cursor lies beyond them.
        """
        if not problems:
            raise UserError("tasks: no problems to draw from; the task is empty")
        self._problems = problems
        self._seed = seed
        self._cursor = cursor or Cursor()
        self._ids = {problem.id for problem in problems}
        self._retired = self._ids & set(retired)
        if not 0 <= self._cursor.offset <= len(problems):
            raise UserError(
                f"tasks: the run stopped at problem {self._cursor.offset} of its epoch, but there "
                f"are now {len(problems)}; resume with the same ones"
            )
        self._order = _shuffled(len(problems), seed, self._cursor.epoch)

    @property
    def cursor(self) -> Cursor:
        return self._cursor

    def begin(self, step: int) -> None:
        """Hears that a policy step begins, before anything is drawn for it."""

    def learn(self, name: str, right: int, decided: int) -> None:
        """Hears of a problem's group: how many completions were right of those decided."""

    def figures(self) -> dict[str, float]:
        """What there is to log of the step's draws."""
        return {}

    def state(self) -> dict[str, Any] | None:
        """What a checkpoint needs beside the cursor and the retired problems; ``None``: nothing."""
        return None

    @property
    def retired(self) -> list[str]:
        """Ids of the problems that are drawn no more, sorted."""
        return sorted(self._retired)

    @property
    def left(self) -> int:
        """How many problems are still drawn."""
        return len(self._ids) - len(self._retired)

    def retire(self, ids: Iterable[str]) -> None:
        """Draws these problems no more."""
        self._retired |= self._ids & set(ids)

    def upcoming(self, count: int) -> list[Problem]:
        """The problems that :meth:`next` would draw now."""
        copy = Sampler.__new__(Sampler)
        copy.__dict__.update(self.__dict__)
        return [draw.problem for draw in copy.next(count)]

    def next(self, count: int) -> list[Drawn]:
        """The next ``count`` problems, none where all are retired. An epoch that ends goes on into
        the next one.
        """
        drawn: list[Drawn] = []
        while self.left and len(drawn) < count:
            if self._cursor.offset == len(self._problems):
                self._cursor = Cursor(self._cursor.epoch + 1, 0)
                self._order = _shuffled(len(self._problems), self._seed, self._cursor.epoch)
            problem = self._problems[self._order[self._cursor.offset]]
            self._cursor = Cursor(self._cursor.epoch, self._cursor.offset + 1)
            if problem.id not in self._retired:
                drawn.append(Drawn(problem, self._cursor.epoch))
        return drawn


def _shuffled(count: int, seed: int, epoch: int) -> list[int]:
    digest = hashlib.blake2b(f"{seed}\x1forder\x1f{epoch}".encode(), digest_size=8).digest()
    order = list(range(count))
    random.Random(int.from_bytes(digest, "little")).shuffle(order)
    return order


@dataclass(slots=True)
class Collected(Generic[G]):
    """What a step got: the groups to train on, and why the others were left.

    ``dropped`` counts groups by the caller's reason (all right, all wrong, undecided, …) and
    ``surplus`` informative ones beyond what was wanted. ``seen`` has every group, for the log.
    """

    groups: list[G] = field(default_factory=list)
    seen: list[G] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    surplus: int = 0
    rounds: int = 0

    @property
    def report(self) -> str:
        """One sentence for the log."""
        groups, rounds = (
            f"{count} {word}{'s' * (count != 1)}"
            for count, word in ((len(self.groups), "informative group"), (self.rounds, "round"))
        )
        text = f"{groups} of {len(self.seen)} in {rounds}"
        reasons = [f"{count} {reason}" for reason, count in sorted(self.dropped.items())]
        if self.surplus:
            reasons.append(f"{self.surplus} more than needed")
        return f"{text}; dropped: {', '.join(reasons)}" if reasons else text


def collect(
    sampler: Sampler,
    draw_and_score: Callable[[list[Drawn]], Sequence[G]],
    reject: Callable[[G], str | None],
    wanted: int,
    max_rounds: int,
) -> Collected[G]:
    """Draws problems until ``wanted`` of their groups are kept, ``max_rounds`` rounds are over, or
    none is left (``draw_and_score`` may retire some).

    The first round draws ``wanted`` problems; each later one as many as the share kept so far says
    will fill the step, up to ``wanted``. ``reject`` says in a word or two why a group is left out,
    ``None`` to keep it. Fewer groups than wanted is no error: the caller decides what to do.
    """
    assert wanted >= 1 and max_rounds >= 1
    got: Collected[G] = Collected()
    while len(got.groups) < wanted and got.rounds < max_rounds:
        drawn = sampler.next(_next_round(wanted, len(got.groups), len(got.seen)))
        if not drawn:
            break
        batch = draw_and_score(drawn)
        got.rounds += 1
        got.seen.extend(batch)
        for group in batch:
            reason = reject(group)
            if reason is not None:
                got.dropped[reason] += 1
            elif len(got.groups) < wanted:
                got.groups.append(group)
            else:
                got.surplus += 1
    return got


def _next_round(wanted: int, kept: int, seen: int) -> int:
    """Problems to draw, given what share of those seen was kept (one is added to both counts)."""
    share = (kept + 1) / (seen + 1)
    return min(wanted, -int(-(wanted - kept) // share))
