"""Sampling beside training: the rollout of a step is made while earlier steps are trained on.

Step ``s`` is sampled with the weights from before step ``s - N`` (those of the stage's start where
there was none), never with others, so what a run samples does not depend on how fast anything was.
With the noise of sampling addressed as ever, the whole run is a function of its settings, and a
resumed one equals one that never stopped: a checkpoint holds the ``N`` older sets of weights that
the rollouts to come are sampled with, and those rollouts are made again.

Old log-probabilities are the learner's own, as in every run: the difference between the weights
that sampled and those that learn is for the objective's correction (or for a ratio that is taken
against the engine's probabilities).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor

from lydite.rollout.engine import WeightedEngine
from lydite.train.collecting import Collector, Place, Rollout
from lydite.types import Engine

_PREFIX = "ahead."


class DetachedEngine(WeightedEngine, Protocol):
    """An engine that samples with weights of its own, whatever becomes of the policy's."""

    def snapshot(self) -> Mapping[str, Tensor]:
        """The policy's trained weights as they are now, by name."""
        ...

    def stop(self) -> None:
        """Ends a call that is under way in another thread, and those to come, by an exception."""
        ...


@dataclass(frozen=True, slots=True)
class _Weights:
    """The policy's trained weights at some step, and its version then."""

    tensors: Mapping[str, Tensor]
    version: int


class Ahead:
    """Has a thread collect up to ``staleness`` steps ahead of the one that is trained on."""

    def __init__(
        self,
        collector: Collector,
        engines: tuple[Engine, DetachedEngine],
        staleness: int,
        total: int,
    ) -> None:
        """``engines`` are the one that shares the policy's weights, whose version counts, and the
        one that the collector samples with.
        """
        assert staleness >= 1
        self._collector = collector
        self._live, self._engine = engines
        self._staleness = staleness
        self._total = total
        self._place = collector.place
        self._kept: dict[int, _Weights] = {}
        self._jobs: dict[int, Future[Rollout]] = {}
        self._next = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sampler")

    @property
    def place(self) -> Place:
        return self._place

    def take(self, step: int) -> Rollout:
        """The rollout of a step, once it is there; the thread goes on to the steps behind it."""
        began = time.perf_counter()
        if step + self._staleness < self._total or step == 0:
            self._kept[step] = _Weights(self._engine.snapshot(), self._live.version)
        for job in range(max(self._next, step), min(step + self._staleness + 1, self._total)):
            weights = self._kept[max(0, job - self._staleness)]
            self._jobs[job] = self._thread.submit(self._collect, job, weights)
            self._next = job + 1
        rollout = self._jobs.pop(step).result()
        self._place = rollout.place
        oldest = max(0, step + 1 - self._staleness)
        self._kept = {step: kept for step, kept in self._kept.items() if step >= oldest}
        waited = {"seconds_wait": time.perf_counter() - began}
        return replace(rollout, seconds={**rollout.seconds, **waited})

    def _collect(self, step: int, weights: _Weights) -> Rollout:
        self._engine.load_weights(weights.tensors.items(), weights.version)
        return self._collector.take(step)

    def publish(self, version: int) -> None:
        """They are taken over at the step that they are for."""

    def state_tensors(self) -> dict[str, Tensor]:
        """The weights that the rollouts to come are sampled with."""
        return {
            f"{_PREFIX}{step}.{name}": tensor
            for step, kept in self._kept.items()
            for name, tensor in kept.tensors.items()
        }

    def state(self) -> dict[str, Any]:
        """As the collector's, as it was behind the rollout that was taken last; and the versions of
        the weights that are kept, by step.
        """
        versions = {str(step): kept.version for step, kept in self._kept.items()}
        return {**self._place.state(), "ahead": versions}

    def load(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Goes on from a checkpoint, before anything is taken."""
        assert not self._jobs, "a checkpoint is loaded first"
        self._collector.load(tensors, state)
        self._place = self._collector.place
        for step, version in state["ahead"].items():
            start = f"{_PREFIX}{step}."
            own = {k.removeprefix(start): t for k, t in tensors.items() if k.startswith(start)}
            # Copied: what is sampled with must not hold on to the file that it came from.
            own = {name: tensor.clone() for name, tensor in own.items()}
            self._kept[int(step)] = _Weights(own, version)

    def close(self) -> None:
        """Ends the thread; what it was collecting is dropped."""
        self._engine.stop()
        self._thread.shutdown(cancel_futures=True)
