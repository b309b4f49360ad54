"""What becomes of every group that is drawn, and which of them a step may take so that none grows
too old.

Pure bookkeeping, without threads: :mod:`lydite.train.flight` keeps it under its lock. A draw is a
problem and the epoch that drew it. It is open until it is settled, once: trained on, rejected (its
group carries no signal), retired (its problem was solved meanwhile) or dropped (its phase is over).
The open ones are part of a checkpoint, and are drawn again, first, by the run that goes on from it.

Ages: policy versions count updates. A group whose oldest token was sampled by version ``b`` may be
trained by the policy of version ``b + η`` at the latest, its *deadline*. A step takes ``n`` groups
and makes one update, so with deadlines in order the i-th (from 0) is taken at ``v + i // n`` if the
earliest go first; they can all be met exactly if that never passes one (:func:`feasible`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from lydite.rollout.sampler import Drawn

T = TypeVar("T")
Fate = Literal["trained", "rejected", "retired", "dropped"]


@dataclass(eq=False, slots=True)
class Entry(Generic[T]):
    """A draw that is open, and what its group is so far; ``number`` counts draws."""

    drawn: Drawn
    number: int
    group: T


@dataclass(slots=True)
class Ledger(Generic[T]):
    """The draws of a phase's problems: those that are open, in order, and what the others came
    to.
    """

    open: list[Entry[T]] = field(default_factory=list)
    fates: Counter[str] = field(default_factory=Counter)
    drawn: int = 0

    def draw(self, drawn: Drawn, group: T) -> Entry[T]:
        """Opens an entry, behind all others."""
        entry = Entry(drawn, self.drawn, group)
        self.drawn += 1
        self.open.append(entry)
        return entry

    def settle(self, entries: Iterable[Entry[T]], fate: Fate) -> None:
        """Closes entries, each of them open until now."""
        for entry in entries:
            self.open.remove(entry)
            self.fates[fate] += 1
        assert self.drawn == len(self.open) + sum(self.fates.values()), "each draw is settled once"


def feasible(deadlines: Iterable[int], version: int, size: int) -> bool:
    """Whether groups with these deadlines can all be trained in time by steps of ``size`` groups,
    the first of them taken at ``version``.
    """
    return all(
        deadline >= version + place // size for place, deadline in enumerate(sorted(deadlines))
    )


def choose(
    ready: Sequence[tuple[int, int]], others: Iterable[int], version: int, size: int
) -> list[int] | None:
    """Which ``size`` of the groups that are ready a step at ``version`` takes (all, if there are
    fewer): the first drawn, unless the rest could then not be trained in time; then those with the
    earliest deadlines. ``None``: it has to wait for others.

    ``ready`` are (draw number, deadline) in draw order, ``others`` the deadlines of groups that are
    not ready. Returns draw numbers.
    """
    first = list(ready[:size])
    urgent = sorted(ready, key=lambda pair: (pair[1], pair[0]))[:size]
    waiting = list(others)
    for chosen in (first, urgent):
        taken = {number for number, _ in chosen}
        left = [deadline for number, deadline in ready if number not in taken]
        if feasible([*left, *waiting], version + 1, size):
            return [number for number, _ in ready if number in taken]
    return None
