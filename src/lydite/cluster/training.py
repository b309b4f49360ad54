"""A process that trains: a learner rank; and one that samples from the same weights too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from lydite.cluster.actor import Actor, free_port
from lydite.cluster.packing import Packed, buckets, pack_all, unpack_all
from lydite.cluster.sampling import EngineSpec, Samples, load_weights
from lydite.config import UserError
from lydite.model.loading import ModelConfig, load_policy
from lydite.model.policy import Policy
from lydite.objective.objective import Objective
from lydite.rollout.select import engine_of
from lydite.rollout.vllm import VllmEngine
from lydite.train.learner import Learner
from lydite.train.loop import addressed_dropout
from lydite.train.ranks import ProcessRanks, Ranks
from lydite.train.sharding import ShardingConfig, sharded_policy
from lydite.types import TrainBatch

BuildLearner = Callable[[Policy, Ranks], Learner]
"""Makes a stage's learner, with what it has beside it, for one of several ranks."""


@dataclass(frozen=True, slots=True)
class LearnerSpec:
    """What a learner is made of, for whoever makes it elsewhere. ``seed`` is the run's, with which
    every process makes the same weights, ``dropout_seed`` the stage's; ``engine`` is given where
    the rank samples as well.
    """

    model: ModelConfig
    make: BuildLearner
    seed: int
    dropout_seed: int
    device: str
    sharding: ShardingConfig | None = None
    engine: EngineSpec | None = None


class Trains(Actor):
    """An actor with a learner: one of several ranks."""

    learner: Learner
    policy: Policy

    def meeting_place(self) -> str:
        """Where the ranks can meet: an address of this machine."""
        return f"tcp://{self.hello().address}:{free_port()}"

    def join(self, place: str, index: int, count: int, backend: str, seconds: float) -> None:
        """Becomes one of the ranks; ends once all have."""
        import torch
        import torch.distributed as dist

        self._index = index
        if "nccl" in backend:
            torch.cuda.set_device(0)  # Ray shows each process its own.
        dist.init_process_group(
            backend,
            init_method=place,
            rank=index,
            world_size=count,
            timeout=timedelta(seconds=seconds),
        )

    def build_learner(self, spec: LearnerSpec) -> None:
        """Raises ``UserError`` as loading the policy and making the learner do."""
        self._dropout_seed = spec.dropout_seed
        ranks: Ranks
        if spec.sharding is None:
            self.policy = load_policy(spec.model, spec.device, spec.seed)
            ranks = ProcessRanks()
        else:
            self.policy, ranks = sharded_policy(spec.model, spec.sharding, spec.device, spec.seed)
        self.learner = spec.make(self.policy, ranks)

    def judge(self, batch: TrainBatch, objective: Objective) -> tuple[TrainBatch, dict[str, float]]:
        """As :meth:`lydite.train.learner.Learner.judge`, for this rank's groups."""
        return self.learner.judge(batch, objective)

    def update(
        self, batch: TrainBatch, objective: Objective, progress: tuple[int, int]
    ) -> dict[str, float]:
        """As :meth:`lydite.train.learner.Learner.update`, for this rank's groups."""
        # The first rank draws what one process would.
        with addressed_dropout(self._dropout_seed + (self._index << 32), progress[0]):
            return self.learner.update(batch, objective, progress)

    def refresh_reference(self) -> None:
        self.learner.refresh_reference()

    def publish(self) -> list[Any]:
        """The trained weights as references into the object store, of the first rank; the others
        take part and have none.
        """
        import ray

        found = buckets(self.learner.weights())
        if self._index:
            for _ in found:
                pass
            return []
        return [ray.put(bucket) for bucket in found]

    def state(self) -> dict[str, Packed]:
        """The learner's state, of the first rank; the others take part and have none."""
        found = self.learner.state_tensors()
        return {} if self._index else pack_all(found)

    def save_shards(self, folder: str) -> None:
        """Writes this rank's shards of the state, in a folder that all ranks see."""
        try:
            self.learner.save_shards(Path(folder))
        except OSError as error:
            raise UserError(
                f"disk: cannot write a checkpoint to {folder}: {error}; mend that and give the "
                "same command again, the run goes on from its last checkpoint"
            ) from error

    def load_shards(self, folder: str) -> None:
        """Goes on from what :meth:`save_shards` wrote, on however many ranks."""
        self.learner.load_shards(Path(folder))

    def restore(self, state: Mapping[str, Packed]) -> None:
        """Goes on from :meth:`state`, to the bit."""
        self.learner.load_state_tensors(unpack_all(state))


class LearnerRank(Trains):
    """Trains, and nothing else."""


class Member(Samples, Trains):
    """Trains, and samples in between: one thread does both."""

    def build_learner(self, spec: LearnerSpec) -> None:
        super().build_learner(spec)
        assert spec.engine is not None, "a rank that samples is told how"
        if spec.sharding is None:
            self.samples_from = self.policy
            self.engine = engine_of(self.policy, spec.engine.config, spec.engine.seed)
        else:  # It samples from whole weights.
            self.engine, self.samples_from = spec.engine.build()

    def sync(self, version: int) -> None:
        """From here on samples with the weights as they are now."""
        if isinstance(self.engine, VllmEngine):
            self.engine.refresh(version)
        elif self.samples_from is self.policy:
            self.engine.version = version
        else:
            load_weights(self.engine, self.samples_from, self.learner.weights(), version)
