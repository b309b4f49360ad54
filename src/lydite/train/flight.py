"""Groups in flight: sampling goes on while the learner trains, and takes new weights amid it.

A thread keeps an engine at work on as many groups as may be trained in time. When the learner has
new weights, the engine is interrupted, takes them, and goes on with the completions that it has
begun: their tokens stay, with the log-probabilities and the version of what sampled each
(:attr:`lydite.types.Completion.version_runs`). A step takes the groups that are complete, those
drawn first before others. As in AReaL (arXiv 2505.24298) and PipelineRL (2509.19128), with these
choices of ours:

- The bound on staleness is exact. No token that is trained on is more than ``staleness`` updates
  old, and no group is thrown away for its age: nothing is drawn that could not be trained in time,
  and a step waits for the groups that could not be trained after it (:mod:`lydite.train.ledger`).
- Every draw is settled once. A checkpoint names those that are open, and the run that goes on from
  it draws these again, first; what they had of completions is not kept.
- What has begun goes on as a new request, whose prompt holds the tokens so far: any engine that can
  be interrupted will do, and one that cannot takes new weights when its call ends.

Which weights sample what depends on how fast everything is: unlike :mod:`lydite.train.ahead`, two
runs are not the same. Old log-probabilities are the learner's own; the behaviour's are those of
each token's own version, and the objective's correction is for the difference.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torch import Tensor

from lydite.config import UserError
from lydite.rollout.budget import Tags
from lydite.rollout.parts import Part, parts_of
from lydite.rollout.sampler import Collected, Drawn
from lydite.train.ahead import DetachedEngine
from lydite.train.airborne import Airborne, Call, Open
from lydite.train.answers import THREADS
from lydite.train.collecting import Collector, Place, Rollout
from lydite.train.ledger import Ledger, choose, feasible
from lydite.train.rl_config import RLConfig
from lydite.train.scored import Scored
from lydite.types import (
    Completion,
    Engine,
    InterruptibleEngine,
    PiecemealVerifier,
)

SLICE_SECONDS = 1.0
"""How long a thread waits before it looks whether it waits in vain."""


class Flight:
    """Implements :class:`lydite.train.collecting.Rollouts`; made from a collector, whose walk
    through the problems it goes.
    """

    def __init__(
        self,
        config: RLConfig,
        collector: Collector,
        engines: tuple[Engine, DetachedEngine],
        tags: Tags,
        seed: int,
    ) -> None:
        """``engines`` are the one whose version is the policy's, and the one that samples; ``seed``
        addresses drawn thinking budgets.
        """
        assert config.staleness >= 1, "what is in flight during an update is one behind after it"
        self._config = config
        self._size = config.prompts_per_step
        self._collector = collector
        self._live, self._engine = engines
        self._tags = tags
        self._seed = seed
        self._place = collector.place
        self._ledger: Ledger[Airborne] = Ledger()
        self._again: deque[tuple[Drawn, int]] = deque()
        self._landed: list[Open] = []
        self._step = 0
        self._next = 0
        self._published: int | None = None
        self._pending: tuple[Mapping[str, Tensor], int] | None = None
        self._call: Call | None = None
        self._closed = False
        self._error: BaseException | None = None
        self._moved = time.monotonic()
        # Not reentrant calls into the engine: it may call back from its own thread.
        self._changed = threading.Condition(threading.RLock())
        self._producer = threading.Thread(target=self._produce, daemon=True, name="rollouts")
        self._desk: ThreadPoolExecutor | None = None

    # What the trainer asks.

    @property
    def place(self) -> Place:
        return self._place

    def take(self, step: int) -> Rollout:
        """Waits until a step's groups are complete, and settles them.

        Raises:
            UserError: too many verdicts could not be decided, nothing has come for
                ``patience`` seconds, or whatever engine and verifier say.
        """
        began = time.perf_counter()
        if self._published != self._live.version:
            self.publish(self._live.version)
        with self._changed:
            self._step, self._next = step, self._live.version
            self._advance(step)
            before = self._collector.place.left
            self._moved = time.monotonic()
            self._begin()  # not before it is known what samples, and for which step
            self._refill()
            self._changed.notify_all()
            taken = self._wait()
            scored = [entry.group.scored for entry in taken if entry.group.scored is not None]
            self._collector.check(scored)
            rollout = self._settled(taken, before)
            self._step, self._next = step + 1, self._live.version + 1
            self._place = rollout.place
            self._refill()
            self._changed.notify_all()
        seconds = {"seconds_wait": time.perf_counter() - began}
        return Rollout(
            rollout.collected, before, rollout.place, seconds, rollout.version, rollout.figures
        )

    def publish(self, version: int) -> None:
        """Has what is in flight go on with the learner's present weights."""
        # What waits to be loaded stays until then: what is sampled meanwhile counts as its own.
        weights = self._engine.snapshot()
        with self._changed:
            self._pending, self._published, self._next = (weights, version), version, version
            self._interrupt()
            self._changed.notify_all()

    def state_tensors(self) -> dict[str, Tensor]:
        """None: a run that goes on samples with the weights that it goes on with."""
        return {}

    def state(self) -> dict[str, Any]:
        """As the collector's, with the draws that are open, and what became of the others."""
        with self._changed:
            again = [[drawn.problem.id, drawn.epoch, step] for drawn, step in self._again]
            entries = [
                [entry.drawn.problem.id, entry.drawn.epoch, entry.group.step]
                for entry in self._ledger.open
            ]
            fates = dict(self._ledger.fates)
            return {
                **self._collector.place.state(),
                "in_flight": {"open": [*entries, *again], "fates": fates},
            }

    def load(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Goes on from a checkpoint, before anything is taken."""
        assert not self._producer.is_alive(), "a checkpoint is loaded first"
        self._collector.load(tensors, state)
        self._place = self._collector.place
        flight = state.get("in_flight", {"open": [], "fates": {}})
        self._ledger.fates = Counter(flight["fates"])
        self._ledger.drawn = sum(self._ledger.fates.values())
        for name, epoch, step in flight["open"]:
            problem = self._collector.problem(name)
            if problem is None:
                raise UserError(
                    f"tasks: problem {name!r} was being sampled when the run stopped, and is there "
                    "no more; resume with the same ones"
                )
            self._again.append((Drawn(problem, epoch), step))

    def close(self) -> None:
        """Ends the threads; what is in flight is dropped."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._engine.stop()
        if self._producer.is_alive():
            self._producer.join(self._config.patience)
        if self._desk is not None:
            self._desk.shutdown(wait=False, cancel_futures=True)

    # A step, in the trainer's thread, under the lock.

    def _begin(self) -> None:
        if self._desk is not None:
            return
        verifier = self._collector.verifier
        piecemeal = isinstance(verifier, PiecemealVerifier) and verifier.unit != "all"
        self._desk = ThreadPoolExecutor(THREADS if piecemeal else 1, "verdicts")
        self._producer.start()

    def _advance(self, step: int) -> None:
        """To the step's phase. One with the same problems judges anew what it has not taken yet;
        one with others drops it.
        """
        old, verifier = self._collector.prompts, self._collector.verifier
        self._collector.advance(step)
        if self._collector.prompts is not old:
            self._again.clear()
            self._landed.clear()
            self._ledger.settle(list(self._ledger.open), "dropped")
            self._interrupt()
        elif self._collector.verifier is not verifier:
            for entry in self._ledger.open:
                if entry.group.scored is not None:
                    entry.group.scored = entry.group.why = None
                    self._land(entry)

    def _wait(self) -> list[Open]:
        """The step's groups, in draw order, once they are there."""
        while True:
            if self._error is not None:
                raise self._error
            taken = self._choice()
            if taken is not None:
                return taken
            self._changed.wait(SLICE_SECONDS)
            idle = time.monotonic() - self._moved
            if idle > self._config.patience:
                raise UserError(
                    f"patience: no completion and no verdict for {idle:.0f} s: {self._waiting()}; "
                    "raise it if completions take so long, else see what the engine is at"
                )

    def _waiting(self) -> str:
        """What is waited for, in words."""
        groups = [entry.group for entry in self._ledger.open]
        judged = sum(group.scored is not None for group in groups)
        landed = sum(group.ended and group.scored is None for group in groups)
        return (
            f"{len(groups) - judged - landed} groups are being sampled, {landed} wait for their "
            f"verdicts, {judged} of the {self._size} of a step are there"
        )

    def _choice(self) -> list[Open] | None:
        """What a step would take now; ``None``: it waits."""
        there = [entry for entry in self._ledger.open if entry.group.scored is not None]
        refills = self._collector.refills
        idle = [entry for entry in there if refills and entry.group.why is not None]
        ready = [entry for entry in there if not refills or entry.group.why is None]
        out = len(there) >= self._collector.max_rounds * self._size
        others = [entry for entry in self._ledger.open if entry.group.scored is None]
        if len(ready) < self._size and not out and (others or self._more()):
            return None
        numbers = choose(
            [(entry.number, self._deadline(entry)) for entry in ready],
            [self._deadline(entry) for entry in others],
            self._live.version,
            self._size,
        )
        if numbers is None:
            return None
        return [entry for entry in there if entry in idle or entry.number in numbers]

    def _settled(self, taken: Sequence[Open], before: int) -> Rollout:
        """Closes what a step takes, and what it makes superfluous."""
        collected: Collected[Scored] = Collected(rounds=-(-len(taken) // self._size))
        for entry in taken:
            scored = entry.group.scored
            assert scored is not None
            collected.seen.append(scored)
            if entry.group.why is None:
                collected.groups.append(scored)
            else:
                collected.dropped[entry.group.why] += 1
        self._ledger.settle([e for e in taken if e.group.why is None], "trained")
        self._ledger.settle([e for e in taken if e.group.why is not None], "rejected")
        if collected.seen:
            self._collector.retire(collected.seen)
            self._collector.learn(collected.seen)
        problem = self._collector.problem
        solved = [e for e in self._ledger.open if problem(e.drawn.problem.id) is None]
        self._ledger.settle(solved, "retired")
        self._landed = [entry for entry in self._landed if entry not in solved]
        place = self._collector.place
        figures = {**self._collector.figures(), "in_flight": float(len(self._ledger.open))}
        return Rollout(collected, before, place, {}, self._live.version, figures)

    # What may be drawn.

    def _more(self) -> bool:
        return bool(self._again) or self._collector.place.left > 0

    def _deadline(self, entry: Open) -> int:
        """The last policy version that may train on it."""
        oldest = entry.group.oldest
        return self._config.staleness + (self._published or 0 if oldest is None else oldest)

    def _may_draw(self) -> bool:
        """Whether one more group could be trained in time, and a step of the stage is there for
        it.
        """
        if not self._more():
            return False
        refills = self._collector.refills
        counted = [e for e in self._ledger.open if not (refills and e.group.why is not None)]
        if len(counted) >= self._size * (self._config.steps - self._step):
            return False
        left_out = len(self._ledger.open) - len(counted)
        if refills and left_out >= self._collector.max_rounds * self._size:
            return False
        fresh = self._config.staleness + (self._published or 0)
        return feasible([*map(self._deadline, counted), fresh], self._next, self._size)

    def _draw(self) -> None:
        """Opens as many draws as may be; those of a checkpoint first."""
        while self._may_draw():
            if self._again:
                drawn, step = self._again.popleft()
                if self._collector.problem(drawn.problem.id) is None:
                    self._ledger.settle([self._ledger.draw(drawn, Airborne(step))], "retired")
                    continue
                self._ledger.draw(drawn, Airborne(step))
            else:
                for drawn in self._collector.draw(1):
                    self._ledger.draw(drawn, Airborne(self._step))

    # The engine, in a thread of its own.

    def _produce(self) -> None:
        try:
            while self._next_call():
                pass
        except BaseException as error:  # whoever waits must hear of it, whatever it is
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            if not self._closed:
                self._error = self._error or error
            self._changed.notify_all()

    def _next_call(self) -> bool:
        """Loads new weights, if there are any, or samples what is to be sampled. False: it is
        over.
        """
        entries: list[Open] = []
        with self._changed:
            while not self._closed and self._pending is None:
                self._draw()
                entries = [entry for entry in self._ledger.open if not entry.group.ended]
                if entries:
                    break
                self._changed.wait(SLICE_SECONDS)
            if self._closed:
                return False
            pending, self._pending = self._pending, None
            if pending is None:
                for entry in entries:
                    entry.group.sampled_by = self._published
        if pending is not None:
            self._engine.load_weights(pending[0].items(), pending[1])
            return True
        try:
            self._sample(entries)
        finally:
            with self._changed:
                for entry in entries:
                    entry.group.sampled_by = None
                self._changed.notify_all()
        return True

    def _sample(self, entries: Sequence[Open]) -> None:
        """One call of the engine."""
        for number, entry in enumerate(entries):
            if not entry.group.parts:  # it renders the prompt: not under the lock
                request = self._collector.request(entry.drawn, entry.group.step)
                entry.group.parts = parts_of(number, request, self._seed, self._tags)
        call = Call(entries)
        with self._changed:
            if self._pending is not None or self._closed:
                return  # before it has begun
            self._call = call
        try:
            left = list(call.run(self._engine, self._hear))
        finally:
            with self._changed:
                self._call = None
        with self._changed:
            for entry, part, completion in left:
                self._go_on(entry, part, completion)

    def _hear(self, entry: Open, part: Part, completion: Completion) -> None:
        """Of a completion that has come."""
        with self._changed:
            self._go_on(entry, part, completion)
            if self._call is not None and not part.ended:
                self._call.idle += 1
            self._refill()

    def _go_on(self, entry: Open, part: Part, completion: Completion) -> None:
        part.go_on(completion, self._tags.tokenizer)
        if completion.finish != "abort":
            self._moved = time.monotonic()
        if part.ended and entry.group.ended and entry in self._ledger.open:
            self._land(entry)

    def _refill(self) -> None:
        """Interrupts a call of which much is done where something waits to begin or to go on."""
        call = self._call
        done = call is not None and call.thin and not call.interrupted
        if call is not None and done and (call.idle or self._may_draw()):
            self._interrupt()

    def _interrupt(self) -> None:
        if self._call is not None and isinstance(self._engine, InterruptibleEngine):
            self._call.interrupted = True
            self._engine.interrupt()

    # Verdicts, in threads of their own.

    def _land(self, entry: Open) -> None:
        self._landed.append(entry)
        if self._desk is not None and not self._closed:
            self._desk.submit(self._verify)

    def _verify(self) -> None:
        """Judges what has landed: groups of one problem in different calls, for side by side they
        would be one group.
        """
        with self._changed:
            verifier = self._collector.verifier
            chosen: dict[str, Open] = {}
            for entry in self._landed:
                chosen.setdefault(entry.drawn.problem.id, entry)
            taken = list(chosen.values())
            self._landed = [entry for entry in self._landed if entry not in taken]
        if not taken:
            return
        try:
            problems = [entry.drawn.problem for entry in taken]
            completions = [entry.group.completions for entry in taken]
            verdicts = iter(
                verifier.verify(
                    [p for p, g in zip(problems, completions, strict=True) for _ in g],
                    [completion.text for group in completions for completion in group],
                )
            )
            rows = [[next(verdicts) for _ in group] for group in completions]
            scored = self._collector.score(problems, completions, rows)
        except BaseException as error:  # as in the thread that samples
            self._fail(error)
            return
        with self._changed:
            self._moved = time.monotonic()
            for entry, each in zip(taken, scored, strict=True):
                if entry not in self._ledger.open:
                    continue
                if self._collector.verifier is not verifier:  # a phase has begun meanwhile
                    self._land(entry)
                    continue
                entry.group.scored, entry.group.why = each, self._collector.why_left_out(each)
            self._changed.notify_all()
