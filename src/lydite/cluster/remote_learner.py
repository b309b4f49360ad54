"""A learner whose ranks are other processes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from lydite.cluster.config import ClusterConfig
from lydite.cluster.faults import LearnerLost, TooFew
from lydite.cluster.packing import pack_all, unpack, unpack_all
from lydite.cluster.pool import Weights
from lydite.cluster.processes import (
    SLICE_SECONDS,
    Calls,
    Journal,
    Process,
    Watch,
    bundle,
    spawn,
)
from lydite.cluster.shares import run_tokens, together
from lydite.cluster.training import LearnerRank, LearnerSpec, Member
from lydite.objective.objective import Objective
from lydite.train.batching import deal
from lydite.train.checkpoint import SHARDS
from lydite.train.saved_shards import SavedShards
from lydite.train.sharding import ShardingConfig
from lydite.types import TrainBatch

T = TypeVar("T")


class Ranks:
    """The learner ranks, in one placement group: started, joined, called together."""

    def __init__(self, config: ClusterConfig, calls: Calls, watch: Watch, journal: Journal) -> None:
        from ray.util import placement_group

        self.config = config
        self._calls = calls
        self._watch = watch
        self._journal = journal
        resources = config.learner
        kind = Member if config.mode == "colocated" else LearnerRank
        self._group = placement_group(
            [bundle(resources)] * resources.ranks, strategy=resources.strategy
        )
        self.processes = [
            spawn(kind, f"learner-{index}", resources, journal, (self._group, index))
            for index in range(resources.ranks)
        ]
        self._hellos = [process.actor.hello.remote() for process in self.processes]

    def build(self, spec: LearnerSpec) -> None:
        """Waits for the ranks, has them meet and load their model.

        Raises:
            UserError: the model cannot be loaded.
            TooFew: not all of them have found room in time.
            LearnerLost: a rank is gone.
        """
        self._place()
        limit = self.config.timeouts.start
        first, *_ = self.processes
        (place,) = self._calls.all(
            {first.work("meeting_place"): first}, "starting", limit, LearnerLost
        )
        count, backend = (
            len(self.processes),
            "cpu:gloo,cuda:nccl" if spec.device != "cpu" else "gloo",
        )
        # The longest that a rank may wait for the others.
        seconds = max(self.config.timeouts.update, self.config.timeouts.checkpoint)
        self.each("join", [(place, i, count, backend, seconds) for i in range(count)], limit)
        self.each("build_learner", [(spec,)] * count, limit)

    def _place(self) -> None:
        import ray

        limit, count = self.config.timeouts.start, len(self._hellos)
        began = said = time.monotonic()
        left = self._hellos
        while left:
            done, left = ray.wait(self._hellos, num_returns=count, timeout=SLICE_SECONDS)
            now = time.monotonic()
            here = f"{len(done)} of {count} are there"
            if left and now - began > limit:
                raise TooFew(
                    f"waited {limit:g} s for learner ranks (timeouts.start), and {here}; other "
                    "processes may have the cluster's resources"
                )
            if left and now - said > self.config.timeouts.say:
                said = now
                seconds = f"{now - began:.0f} s"
                self._journal.say(f"waiting for learner ranks: starting, {seconds}; {here}")
        for process, hello in zip(self.processes, self._hellos, strict=True):
            try:
                process.where = ray.get(hello)
            except ray.exceptions.RayError as error:
                raise LearnerLost(process.role, "starting", str(error).splitlines()[0]) from None
            self._watch.add(process)
            self._journal.placed(process)

    def each(self, name: str, arguments: Sequence[tuple[Any, ...]], limit: float) -> list[Any]:
        """Has every rank do a part; their values, by rank.

        Raises:
            UserError: what a rank says that the user can mend.
            LearnerLost: a rank is gone, or takes too long.
        """
        calls = {
            process.work(name, *own): process
            for process, own in zip(self.processes, arguments, strict=True)
        }
        return self._calls.all(calls, PHASES.get(name, name), limit, LearnerLost)

    def close(self) -> None:
        """Ends every rank."""
        from ray.util import remove_placement_group

        for process in self.processes:
            self._watch.forget(process)
        with contextlib.suppress(Exception):
            remove_placement_group(self._group)


PHASES = {
    "join": "meeting the other ranks",
    "build_learner": "loading its model",
    "update": "updating",
    "judge": "judging",
    "refresh_reference": "renewing the reference",
    "publish": "handing out weights",
    "sync": "handing out weights",
    "state": "giving its state",
    "restore": "restoring its state",
    "save_shards": "giving its state",
    "load_shards": "restoring its state",
}
"""What a wait for each call is named."""


class RemoteLearner:
    """Implements :class:`lydite.train.learner.LearnerLike` over learner ranks."""

    def __init__(self, ranks: Ranks, minibatches: int, stepped: Callable[[], None]) -> None:
        """``minibatches`` are the optimiser steps of an epoch; ``stepped`` hears of every update
        that is done.
        """
        self._ranks = ranks
        self._minibatches = minibatches
        self._stepped = stepped
        self._limits = ranks.config.timeouts
        sharding, count = ranks.config.learner.sharding or ShardingConfig(), len(ranks.processes)
        # Ranks that a product lies over work on the same share.
        self._places, (self._shares, *_) = zip(
            *(sharding.share_of(rank, count) for rank in range(count)), strict=True
        )

    def _of_ranks(self, by_share: Sequence[T]) -> list[T]:
        return [by_share[place] for place in self._places]

    def judge(self, batch: TrainBatch, objective: Objective) -> tuple[TrainBatch, dict[str, float]]:
        """As :meth:`lydite.train.learner.Learner.judge`."""
        own = deal(batch, self._shares)
        puts = [(_put(share), objective) for share in own]
        found = self._ranks.each("judge", self._of_ranks(puts), self._limits.update)
        of_shares = dict(zip(self._places, found, strict=True))
        return together([of_shares[i][0] for i in range(self._shares)]), found[0][1]

    def update(
        self, batch: TrainBatch, objective: Objective, progress: tuple[int, int]
    ) -> dict[str, float]:
        """As :meth:`lydite.train.learner.Learner.update`; each rank trains on as many tokens."""
        loads = run_tokens(batch, objective)
        own = deal(batch, self._shares, self._minibatches, loads)
        calls = [(share, objective, progress) for share in own]
        found = self._ranks.each("update", self._of_ranks(calls), self._limits.update)
        self._stepped()
        metrics: dict[str, float] = found[0]
        return metrics

    def refresh_reference(self) -> None:
        """As :meth:`lydite.train.learner.Learner.refresh_reference`."""
        self._all("refresh_reference", self._limits.update)

    def publish(self, version: int) -> Weights:
        """Puts the trained weights into the object store; they are not fetched from there."""
        return Weights(self._all("publish", self._limits.weights)[0], version)

    def share(self, version: int) -> None:
        """Ranks that sample as well do so with their present weights from now on."""
        self._all("sync", self._limits.weights, version)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """As :meth:`lydite.train.learner.Learner.weights`, fetched a bucket at a time."""
        import ray

        objects = list(self.publish(0).objects)
        while objects:
            for name, packed in ray.get(objects.pop(0)).items():
                yield name, unpack(packed)

    def state_tensors(self) -> dict[str, Tensor]:
        """As :meth:`lydite.train.learner.Learner.state_tensors`; nothing where the ranks have
        shards, which they write themselves.
        """
        if self._ranks.config.learner.sharding is not None:
            return {}
        return unpack_all(self._all("state", self._limits.checkpoint)[0])

    def write(self, checkpoint: Path) -> None:
        """Has ranks with shards write them into a checkpoint's folder."""
        if self._ranks.config.learner.sharding is not None:
            folder = str((checkpoint / SHARDS).resolve())
            self._all("save_shards", self._limits.checkpoint, folder)

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """As :meth:`lydite.train.learner.Learner.load_state_tensors`. Ranks read shards
        themselves.
        """
        if isinstance(tensors, SavedShards):
            folder = str(tensors.folder.resolve())
            self._all("load_shards", self._limits.checkpoint, folder)
            return
        state = _put(pack_all(tensors))
        self._all("restore", self._limits.checkpoint, state)

    def _all(self, name: str, limit: float, *arguments: Any) -> list[Any]:
        return self._ranks.each(name, [arguments] * len(self._ranks.processes), limit)


def _put(value: Any) -> Any:
    """Into the object store, once for all who need it."""
    import ray

    return ray.put(value)


class MemberHands:
    """Learner ranks that sample as well: :class:`lydite.cluster.pool.Hands`. None of them can be
    replaced alone.
    """

    def __init__(self, ranks: Ranks, watch: Watch) -> None:
        self._processes: list[Process] = ranks.processes
        self._watch = watch

    def ready(self) -> list[Process]:
        """All of them. Raises ``LearnerLost``: one is gone."""
        for process in self._processes:
            if process.gone:
                raise LearnerLost(process.role, process.phase, process.gone)
        return self._processes

    def wait_ready(self) -> None:
        """They are there, or one is lost."""
        self.ready()

    def lost(self, process: Process, why: str) -> None:
        self._watch.lost(process, why)
        raise LearnerLost(process.role, "sampling", why)

    def worked(self, process: Process) -> None:
        pass
