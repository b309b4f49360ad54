"""Completions with their verdicts: each is verified as it ends, while others are still decoded.

The verdicts are those of a single call after the last completion; only when they are asked for
differs. How small a piece may be asked about is the verifier's to say
(:class:`lydite.types.PiecemealVerifier`). A thread asks about all that has come in since it last
did, so pieces are small while the verifier keeps up and large when it does not.

Where sampling has every processor (:class:`lydite.types.BusyEngine`), single completions wait for
its end: what took one from it would stop the others too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import groupby

from lydite.types import (
    BusyEngine,
    Completion,
    Engine,
    PiecemealVerifier,
    Problem,
    Request,
    StreamingEngine,
    Unit,
    Verdict,
    Verifier,
)

THREADS = 4
"""Calls of the verifier under way at a time. They wait for its processes, so more cost little."""

Phase = Callable[[str], AbstractContextManager[object]]
"""What is timed: ``sample``, then ``verify``, which is what was left to wait for."""


def sample_and_verify(
    engine: Engine,
    verifier: Verifier,
    problems: Sequence[Problem],
    requests: Sequence[Request],
    phase: Phase = lambda name: nullcontext(),
) -> tuple[list[list[Completion]], list[list[Verdict]]]:
    """The completions of each request, and their verdicts; ``problems`` are those of the requests.

    Raises:
        UserError: of the engine or the verifier. What the verifier raises ends the sampling.
    """
    unit: Unit = verifier.unit if isinstance(verifier, PiecemealVerifier) else "all"
    if unit == "all" or not isinstance(engine, StreamingEngine):
        with phase("sample"):
            completions = engine.generate(requests)
        with phase("verify"):
            return completions, _verify_all(verifier, problems, completions)
    later = unit == "completion" and isinstance(engine, BusyEngine) and engine.busy
    with _Desk(verifier, problems, requests, unit, later) as desk:
        with phase("sample"):
            completions = engine.stream(requests, desk.hand_in)
        with phase("verify"):
            return completions, desk.verdicts()


def _verify_all(
    verifier: Verifier, problems: Sequence[Problem], completions: Sequence[Sequence[Completion]]
) -> list[list[Verdict]]:
    found = iter(
        verifier.verify(
            [p for p, group in zip(problems, completions, strict=True) for _ in group],
            [c.text for group in completions for c in group],
        )
    )
    return [[next(found) for _ in group] for group in completions]


Place = tuple[int, int]
"""A request's number, and a completion's place in it."""


@dataclass(slots=True, eq=False)
class _Piece:
    """What is verified in one call at least. Places are in request and sample order."""

    places: Sequence[Place]
    missing: int


class _Desk:
    """Where completions are handed in and verdicts come out."""

    def __init__(
        self,
        verifier: Verifier,
        problems: Sequence[Problem],
        requests: Sequence[Request],
        unit: Unit,
        later: bool,
    ) -> None:
        """``later``: nothing is verified before :meth:`verdicts`."""
        self._later = later
        self._verifier = verifier
        self._problems = problems
        self._first = [request.first_sample for request in requests]
        self._texts: list[list[str]] = [[""] * request.samples for request in requests]
        self._found: list[list[Verdict | None]] = [[None] * r.samples for r in requests]
        self._piece_of = {
            place: piece for piece in _pieces(problems, requests, unit) for place in piece.places
        }
        self._grouped = unit == "problem"
        self._ready: list[_Piece] = []
        self._closed = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> _Desk:
        if not self._later:
            self._start()
        return self

    def _start(self) -> None:
        self._threads = [
            threading.Thread(target=self._serve, daemon=True, name=f"answers-{number}")
            for number in range(THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        """Nothing new is asked; a call under way is not waited for."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()

    def hand_in(self, request: int, completion: Completion) -> None:
        """Takes a completion; raises what the verifier has raised."""
        if self._error is not None:
            raise self._error
        place = request, completion.sample - self._first[request]
        self._texts[request][place[1]] = completion.text
        piece = self._piece_of[place]
        piece.missing -= 1
        if not piece.missing:
            with self._changed:
                self._ready.append(piece)
                self._changed.notify()

    def verdicts(self) -> list[list[Verdict]]:
        """Those of all completions, once they are there; raises what the verifier has raised."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._later:
            self._start()
        for thread in self._threads:
            thread.join()
        if self._error is not None:
            raise self._error
        rows = [[v for v in row if v is not None] for row in self._found]
        assert [len(row) for row in rows] == [len(row) for row in self._found], "none is left out"
        return rows

    def _serve(self) -> None:
        while pieces := self._next():
            places = [place for piece in pieces for place in piece.places]
            try:
                verdicts = self._verifier.verify(
                    [self._problems[request] for request, _ in places],
                    [self._texts[request][sample] for request, sample in places],
                )
                for (request, sample), verdict in zip(places, verdicts, strict=True):
                    self._found[request][sample] = verdict
            except BaseException as error:  # whoever waits must hear of it, whatever it is
                with self._changed:
                    self._error = self._error or error
                    self._closed = True
                    self._ready.clear()
                    self._changed.notify_all()
                return

    def _next(self) -> list[_Piece]:
        """All that has come in; nothing once there will be no more.

        Of groups of one problem that are apart in the batch, one: side by side in a call they would
        be one group.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._closed)
            if not self._grouped:
                taken, self._ready = self._ready, []
                return taken
            chosen: dict[str, _Piece] = {}
            for piece in self._ready:
                chosen.setdefault(self._problems[piece.places[0][0]].id, piece)
            taken = list(chosen.values())
            self._ready = [piece for piece in self._ready if piece not in taken]
            return taken


def _pieces(problems: Sequence[Problem], requests: Sequence[Request], unit: Unit) -> list[_Piece]:
    places = [
        (i, sample) for i, request in enumerate(requests) for sample in range(request.samples)
    ]
    if unit == "completion":
        return [_Piece([place], 1) for place in places]
    # Requests for one problem that stand side by side are one group to a verifier.
    together = groupby(places, key=lambda place: problems[place[0]].id)
    return [_Piece(members, len(members)) for _, group in together for members in [list(group)]]
