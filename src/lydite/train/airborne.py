"""A group that is in flight, and one call of an engine on several of them: what
:mod:`lydite.train.flight` keeps under its lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from lydite.rollout.parts import Part, calls_of
from lydite.train.ledger import Entry
from lydite.train.scored import Scored
from lydite.types import Completion, Engine, Request, StreamingEngine

REFILL = 0.5
"""Share of a call's completions that have come before it is interrupted for what waits."""


@dataclass(eq=False, slots=True)
class Airborne:
    """A group so far. ``step`` addresses its noise. ``sampled_by`` is the version at work on it,
    where one is; ``why`` says why a step leaves it out.
    """

    step: int
    parts: list[Part] = field(default_factory=list)
    sampled_by: int | None = None
    scored: Scored | None = None
    why: str | None = None

    @property
    def ended(self) -> bool:
        return bool(self.parts) and all(part.ended for part in self.parts)

    @property
    def oldest(self) -> int | None:
        """The version of its oldest token, or of one that may be on its way; ``None``: there is
        none.
        """
        begun = [part.oldest for part in self.parts if part.oldest is not None]
        return min([*begun, *([] if self.sampled_by is None else [self.sampled_by])], default=None)

    @property
    def completions(self) -> list[Completion]:
        return [part.whole() for part in self.parts]


Open = Entry[Airborne]
Hear = Callable[[Open, Part, Completion], None]


class Call:
    """What an engine is asked in one call, and what has come of it."""

    def __init__(self, entries: Sequence[Open]) -> None:
        self._owner: dict[int, Open] = {}
        waiting = []
        for number, entry in enumerate(entries):
            for part in entry.group.parts:
                if not part.ended:
                    part.index = number
                    waiting.append(part)
                    self._owner[id(part)] = entry
        self._calls = calls_of(waiting)
        self._left = {id(part) for part in waiting}
        self._rows = len(waiting)
        self.idle = 0
        """Completions that have come and are to go on in another call."""
        self.interrupted = False

    @property
    def thin(self) -> bool:
        """Whether most of it has come."""
        return len(self._left) <= (1 - REFILL) * self._rows

    def run(self, engine: Engine, hear: Hear) -> Iterator[tuple[Open, Part, Completion]]:
        """Asks the engine. ``hear`` is told of completions as they come, in whatever thread; those
        that are left over at the end, as far as they are, are given back.
        """
        requests: list[Request] = [call[0].request_for(len(call)) for call in self._calls]

        def on_completion(index: int, completion: Completion) -> None:
            call = self._calls[index]
            part = call[completion.sample - call[0].sample]
            if id(part) in self._left and completion.finish != "abort":
                self._left.discard(id(part))
                hear(self._owner[id(part)], part, completion)

        if isinstance(engine, StreamingEngine):
            found = engine.stream(requests, on_completion)
        else:
            found = engine.generate(requests)
        for call, completions in zip(self._calls, found, strict=True):
            for part, completion in zip(call, completions, strict=True):
                if id(part) in self._left:
                    yield self._owner[id(part)], part, completion
