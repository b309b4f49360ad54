"""An engine whose rows are sampled by other processes.

A step's requests are shared out over the workers that are there, and completions come back as they
end. The noise of sampling is addressed, so who samples what changes nothing: what a lost worker
still owed is asked again elsewhere and comes out the same, and a completion that comes twice is
taken once.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from lydite.cluster.config import ClusterConfig
from lydite.cluster.faults import Lost
from lydite.cluster.packing import buckets
from lydite.cluster.pool import Hands, Weights
from lydite.cluster.processes import Calls, Journal, Process
from lydite.cluster.sampling import News, Stopped
from lydite.config import UserError
from lydite.rollout.engine import Interruption, unbegun
from lydite.types import Completion, OnCompletion, Request

NUMBERS = itertools.count()
"""Of calls: engines with the same workers must not take one for another's."""
LISTEN_SECONDS = 0.1
"""How long it listens before it looks whether it was interrupted."""


@dataclass(eq=False, slots=True)
class _Asked:
    """What a worker was asked, with the numbers that the caller has for its requests, and the
    question that is open of what has come of it.
    """

    process: Process
    number: int
    requests: list[tuple[int, Request]]
    news: Any
    began: float
    moved: float
    tokens: int = 0
    said: float = 0.0


class RemoteEngine:
    """Implements :class:`lydite.types.StreamingEngine` over rollout workers."""

    def __init__(
        self,
        config: ClusterConfig,
        hands: Hands,
        calls: Calls,
        journal: Journal,
        load: Callable[[Weights], None] | None = None,
        turn: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """``load`` gives every worker new weights; None where they share the learner's. A ``turn``
        is held while they sample, so that engines with other weights can have the same workers.
        """
        self.version = 0
        self.newest: Weights | None = None
        self._config = config
        self._hands = hands
        self._calls = calls
        self._journal = journal
        self._load = load
        self._turn = turn
        self._stopped = False
        self.interruption = Interruption()
        self.may_cut = True

    def generate(self, requests: Sequence[Request]) -> list[list[Completion]]:
        """See :meth:`stream`."""
        return self.stream(requests, None)

    def stream(
        self, requests: Sequence[Request], on_completion: OnCompletion | None
    ) -> list[list[Completion]]:
        """The completions of each request, in request and sample order; ``on_completion`` hears of
        each as it comes.

        Raises:
            UserError: as the workers' engines; or too many workers were lost.
            TooFew: too few workers came in time.
        """
        with self._turn():
            if self.newest is not None and self._load is not None:
                self._load(self.newest)
            return _Round(self, requests, on_completion).run()

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Samples with these weights from now on; they are put into the object store once."""
        import ray

        self.take(Weights([ray.put(bucket) for bucket in buckets(weights)], version))

    def take(self, weights: Weights, at_once: bool = True) -> None:
        """Samples with weights that are in the object store from now on. They go to the workers
        ``at_once``, or when it samples next.
        """
        assert self._load is not None, "these workers share the learner's weights"
        self.newest, self.version = weights, weights.version
        if at_once:
            with self._turn():
                self._load(weights)

    def interrupt(self) -> None:
        """See :class:`lydite.types.InterruptibleEngine`. Nothing happens where who samples could
        not go on with what is cut.
        """
        if self.may_cut:
            self.interruption.ask()

    def stop(self) -> None:
        """Ends a call that is under way, and those to come, by :class:`Stopped`."""
        self._stopped = True

    def check(self) -> None:
        """Raises ``Stopped`` where it was stopped."""
        if self._stopped:
            raise Stopped

    # What a round needs of it.

    def begin(self, process: Process, requests: list[tuple[int, Request]]) -> _Asked:
        """Asks a worker."""
        number = next(NUMBERS)
        wanted = [request for _, request in requests]
        news = process.ask("sample", number, wanted, self._config.heartbeat_every)
        now = time.monotonic()
        return _Asked(process, number, requests, news, now, now, said=now)

    def listen(self, process: Process, number: int) -> Any:
        """Asks what has come of it; the answer comes when there is something, or in a while."""
        return process.ask("news", number, self._config.heartbeat_every)

    @property
    def parts(self) -> tuple[ClusterConfig, Hands, Calls, Journal]:
        return self._config, self._hands, self._calls, self._journal


class _Round:
    """One call of the engine."""

    def __init__(
        self, engine: RemoteEngine, requests: Sequence[Request], hear: OnCompletion | None
    ) -> None:
        self._engine = engine
        self._config, self._hands, self._calls, self._journal = engine.parts
        self._requests = requests
        self._on_completion = hear
        self._found: list[dict[int, Completion]] = [{} for _ in requests]
        self._queue: deque[tuple[int, Request]] = deque(enumerate(requests))
        self._again: dict[int, int] = {}
        self._open: list[_Asked] = []
        self._interrupted = False

    def run(self) -> list[list[Completion]]:
        try:
            while self._queue or self._open:
                self._engine.check()
                if self._engine.interruption.noticed():
                    self._interrupt()
                if self._queue and self._interrupted:
                    self._leave_unbegun()
                elif self._queue:
                    self._share_out()
                self._listen()
        finally:
            if self._interrupted:  # what was asked meanwhile was asked of this call
                self._engine.interruption.noticed()
            for asked in self._open:
                asked.process.ask("stop", asked.number)
        return [[found[sample] for sample in sorted(found)] for found in self._found]

    def _interrupt(self) -> None:
        """Has every worker hand over what it has."""
        self._interrupted = True
        for asked in self._open:
            asked.process.ask("interrupt", asked.number)

    def _leave_unbegun(self) -> None:
        """What no worker has been asked, or a lost one has not handed over."""
        for index, request in self._queue:
            for sample in range(request.first_sample, request.first_sample + request.samples):
                nothing = unbegun(request, sample, self._engine.version)
                self._found[index].setdefault(sample, nothing)
        self._queue.clear()

    def _share_out(self) -> None:
        """Gives what waits to workers that have nothing to do, as many tokens to each."""
        busy = {id(asked.process) for asked in self._open}
        free = [p for p in self._hands.ready() if id(p) not in busy and not p.gone]
        if not free and not self._open:
            self._hands.wait_ready()
            return
        if not free:
            return
        shares = shared_out(list(self._queue), len(free))
        self._queue.clear()
        self._open += [
            self._engine.begin(process, share)
            for process, share in zip(free, shares, strict=True)
            if share
        ]

    def _listen(self) -> None:
        """Takes what has come, and looks after those of whom nothing has."""
        import ray

        if not self._open:
            return
        waiting = {asked.news: asked for asked in self._open}
        done, _ = ray.wait(list(waiting), num_returns=1, timeout=LISTEN_SECONDS)
        if done:  # and all others that are there by now
            done, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
        for reference in done:
            asked = waiting[reference]
            try:
                news: News = self._calls.value(reference, asked.process, "sampling")
            except Lost:
                continue  # seen below
            self._hear(asked, news)
        for asked in list(self._open):
            self._look_after(asked)

    def _hear(self, asked: _Asked, news: News) -> None:
        now = time.monotonic()
        if news.tokens > asked.tokens or news.completions:
            asked.moved, asked.tokens = now, news.tokens
        for index, completion in news.completions:
            request = asked.requests[index][0]
            begun = completion.finish == "abort"
            # A call may be ended by an interruption that was meant for the one before it.
            if completion.sample in self._found[request] or (begun and not self._interrupted):
                continue
            self._found[request][completion.sample] = completion
            if self._on_completion is not None and not begun:
                self._on_completion(request, completion)
        if news.completions:
            self._hands.worked(asked.process)
        if news.mistake:
            raise UserError(news.mistake)
        if news.error:
            self._hands.lost(asked.process, news.error.strip().splitlines()[-1])
        elif news.done:
            self._open.remove(asked)
            self._queue.extend(self._owed(asked))
        else:
            asked.news = self._engine.listen(asked.process, asked.number)

    def _look_after(self, asked: _Asked) -> None:
        now, limit = time.monotonic(), self._config.timeouts.sampling
        if not asked.process.gone and now - asked.moved > limit:
            self._hands.lost(asked.process, f"sampling, no new token for {limit:g} s")
        if asked.process.gone:
            self._open.remove(asked)
            self._ask_again(asked)
        elif now - asked.said > self._config.timeouts.say:
            asked.said = now
            role, seconds = asked.process.role, now - asked.began
            self._journal.say(f"waiting for {role}: sampling, {seconds:.0f} s")

    def _ask_again(self, asked: _Asked) -> None:
        """What a lost worker still owed goes back to what waits."""
        owed = self._owed(asked)
        for index, request in dict(owed).items():
            self._again[index] = self._again.get(index, 0) + 1
            if self._again[index] > self._config.restarts:
                raise UserError(
                    f"cluster: problem {request.problem_id!r} was asked {self._again[index]} times,"
                    f" and each time the worker was lost, now {asked.process.role}: "
                    f"{asked.process.gone}; see {self._journal.folder}"
                )
        self._queue.extend(owed)
        count = sum(request.samples for _, request in owed)
        self._journal.warn(
            "rollout_worker_lost",
            f"{asked.process.role} was lost while sampling: {asked.process.gone}; "
            f"{count} completions are asked again of others",
        )

    def _owed(self, asked: _Asked) -> list[tuple[int, Request]]:
        """What has not come of what a worker was asked."""
        return [
            (index, part)
            for index, request in asked.requests
            for part in missing(request, self._found[index])
        ]


def shared_out(
    requests: Sequence[tuple[int, Request]], count: int
) -> list[list[tuple[int, Request]]]:
    """Requests in ``count`` shares of about as many tokens, each in order. A request is cut where
    there are fewer of them than workers.
    """
    shares: list[list[tuple[int, Request]]] = [[] for _ in range(count)]
    loads = [0] * count
    pieces = [piece for each in requests for piece in _pieces(each, count, len(requests))]
    for piece in sorted(pieces, key=lambda piece: -_tokens(piece[1])):
        least = loads.index(min(loads))
        shares[least].append(piece)
        loads[least] += _tokens(piece[1])
    return [sorted(share, key=lambda piece: (piece[0], piece[1].first_sample)) for share in shares]


def _tokens(request: Request) -> int:
    """The most that a request may take."""
    return len(request.prompt_ids) + request.samples * request.params.max_tokens


def _pieces(asked: tuple[int, Request], workers: int, requests: int) -> list[tuple[int, Request]]:
    index, request = asked
    parts = min(request.samples, -(-workers // max(requests, 1)))
    if parts <= 1:
        return [asked]
    cuts = [request.samples * part // parts for part in range(parts + 1)]
    return [
        (index, replace(request, samples=end - start, first_sample=request.first_sample + start))
        for start, end in itertools.pairwise(cuts)
    ]


def missing(request: Request, found: dict[int, Completion]) -> list[Request]:
    """The samples of a request that are not there, in runs of neighbours."""
    samples = range(request.first_sample, request.first_sample + request.samples)
    runs: list[list[int]] = []
    for sample in samples:
        if sample in found:
            continue
        if runs and runs[-1][-1] == sample - 1:
            runs[-1].append(sample)
        else:
            runs.append([sample])
    return [replace(request, samples=len(run), first_sample=run[0]) for run in runs]
