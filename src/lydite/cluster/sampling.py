"""A process that samples: a rollout worker."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lydite.cluster.actor import Actor, Answer, answered
from lydite.cluster.packing import unpack
from lydite.model.loading import ModelConfig, load_policy
from lydite.model.policy import Policy
from lydite.rollout.colocated import apart
from lydite.rollout.engine import EngineConfig, Progress
from lydite.rollout.select import local_engine
from lydite.types import Completion, Engine, InterruptibleEngine, Request


class Stopped(Exception):
    """A call was ended before its last completion."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What an engine is made of, for whoever makes it elsewhere. ``seed`` is the run's, with which
    every process makes the same weights and the same noise.
    """

    model: ModelConfig
    config: EngineConfig
    seed: int
    device: str

    def build(self) -> tuple[Engine, Policy | None]:
        """The engine, and the policy that it samples from, where that is not vLLM's own.

        Raises:
            UserError: as loading does, and as starting vLLM.
        """
        if self.config.kind == "vllm":
            return apart(self.model, self.config, self.seed, self.device), None
        policy = load_policy(self.model, self.device, self.seed)
        policy.model.requires_grad_(False)
        return local_engine(policy, self.config, self.seed), policy


@dataclass(frozen=True, slots=True)
class News:
    """What has come of a call since it was last asked about: completions with the numbers of their
    requests, all tokens sampled so far, and whether that is all of it. ``mistake`` and ``error`` as
    in :class:`lydite.cluster.actor.Answer`.
    """

    completions: tuple[tuple[int, Completion], ...]
    tokens: int
    done: bool
    mistake: str = ""
    error: str = ""


@dataclass(slots=True)
class _Call:
    """One call of the engine, under way in the working thread."""

    fresh: list[tuple[int, Completion]] = field(default_factory=list)
    tokens: int = 0
    done: bool = False
    stopped: bool = False
    mistake: str = ""
    error: str = ""
    changed: threading.Condition = field(default_factory=threading.Condition)

    def add(self, index: int, completion: Completion) -> None:
        with self.changed:
            if self.stopped:
                raise Stopped
            self.fresh.append((index, completion))
            self.changed.notify_all()

    def hand_over(self, found: Sequence[Sequence[Completion]]) -> None:
        """Adds what an interrupted engine has begun; of the rest it has told."""
        with self.changed:
            self.fresh += [
                (index, completion)
                for index, completions in enumerate(found)
                for completion in completions
                if completion.finish == "abort"
            ]

    def progress(self, progress: Progress) -> None:
        if self.stopped:
            raise Stopped
        self.tokens = progress.tokens

    def end(self, answer: Answer) -> None:
        with self.changed:
            self.mistake, self.error = answer.mistake, answer.error
            self.done = True
            self.changed.notify_all()

    def news(self, seconds: float) -> News:
        """What there is, once there is something, or after so many seconds."""
        with self.changed:
            self.changed.wait_for(lambda: self.fresh or self.done, seconds)
            # Those that end within a moment travel together.
            end = time.monotonic() + 0.01
            while not self.done and (left := end - time.monotonic()) > 0:
                self.changed.wait(left)
            fresh, self.fresh = tuple(self.fresh), []
            return News(fresh, self.tokens, self.done, self.mistake, self.error)


class Samples(Actor):
    """An actor with an engine."""

    engine: Any
    samples_from: Policy | None

    def __init__(self, role: str, logs: str, threads: int) -> None:
        super().__init__(role, logs, threads)
        self._calls: dict[int, _Call] = {}
        self._newest = -1
        self._early: set[int] = set()

    def sample(self, number: int, requests: Sequence[Request], seconds: float) -> News:
        """Begins to sample, and gives the first :meth:`news` of it."""
        self._calls[number] = call = _Call()
        self._newest = max(self._newest, number)
        if number in self._early:
            self._early.discard(number)
            self.interrupt(number)
        self._work.submit(self._sample, call, requests)
        return self.news(number, seconds)

    def news(self, number: int, seconds: float) -> News:
        """See :meth:`_Call.news`. What was told once is not told again."""
        call = self._calls.get(number)
        if call is None:
            return News((), 0, done=True)
        found = call.news(seconds)
        if found.done:
            self._calls.pop(number, None)
        return found

    def interrupt(self, number: int) -> None:
        """Has a call hand over what it has, if its engine can; it ends then. This may overtake the
        call itself, whose number is larger than those before it.
        """
        call = self._calls.get(number)
        if call is None and number > self._newest:
            self._early.add(number)
        if call is not None and not call.done and isinstance(self.engine, InterruptibleEngine):
            self.engine.interrupt()

    def stop(self, number: int) -> None:
        """Ends a call; what it has not told is dropped."""
        call = self._calls.pop(number, None)
        if call is not None:
            call.stopped = True

    def _sample(self, call: _Call, requests: Sequence[Request]) -> None:
        accepts = inspect.signature(self.engine.stream).parameters
        told = (call.progress,) if "on_progress" in accepts else ()

        def sample() -> None:
            with suppress(Stopped):
                call.hand_over(self.engine.stream(requests, call.add, *told))

        self.enter("sampling")
        answer = answered(sample)
        self.enter("idle")
        call.end(answer)


class RolloutWorker(Samples):
    """Samples with weights of its own."""

    def build(self, spec: EngineSpec) -> None:
        """Raises ``UserError`` as loading the policy does."""
        self.engine, self.samples_from = spec.build()

    def load(self, objects: Sequence[Any], version: int) -> int:
        """From here on samples with these weights: references of
        :func:`lydite.cluster.packing.buckets`. Gives the version.
        """
        load_weights(self.engine, self.samples_from, fetched(objects), version)
        return version


def fetched(objects: Sequence[Any]) -> Iterator[tuple[str, Tensor]]:
    """Tensors out of the object store, a bucket at a time."""
    import ray

    for reference in objects:
        for name, packed in ray.get(reference).items():
            yield name, unpack(packed)


def load_weights(
    engine: Any, policy: Policy | None, weights: Iterable[tuple[str, Tensor]], version: int
) -> None:
    """Puts weights, named as the policy's parameters, into what an engine samples from."""
    if hasattr(engine, "load_weights"):
        engine.load_weights(weights, version)
        return
    assert policy is not None, "an engine without weights of its own has a policy's"
    with torch.no_grad():
        for name, tensor in weights:
            policy.model.get_parameter(name).copy_(tensor)
    engine.version = version
