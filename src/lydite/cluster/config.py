"""The settings of a cluster. Loads without ray."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from lydite.config import Config, UserError
from lydite.train.sharding import ShardingConfig

Mode = Literal["colocated", "separate", "async"]


class Resources(Config):
    """What one process gets."""

    cpus: float = Field(1.0, gt=0, description="CPU cores of each; its threads too.")
    gpus: float = Field(
        0.0, ge=0, description="GPUs of each; 0 runs it on the CPU, a fraction shares one."
    )


class RolloutConfig(Resources):
    """The processes that sample."""

    workers: int | None = Field(
        None, ge=1, description="How many to start with; null: as many as learner ranks."
    )
    min_workers: int | None = Field(
        None,
        ge=1,
        description="How many must be there for a step to go on; null: 1. Below that the run waits "
        "for them, as long as `timeouts.start`.",
    )
    max_workers: int | None = Field(
        None,
        ge=1,
        description="How many are taken when machines join the cluster; null: `workers`.",
    )


class LearnerConfig(Resources):
    """The processes that train, each with its share of a step's groups."""

    ranks: int = Field(1, ge=1, description="How many; a step is the same on one and on many.")
    sharding: ShardingConfig | None = Field(
        None,
        description="Weights, gradients and optimiser states in shards over the ranks (FSDP2), "
        "which then write checkpoints together; null: each rank has all of them.",
    )
    strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = Field(
        "PACK",
        description="How Ray spreads them over machines: on as few as possible (`PACK`) or as many "
        "(`SPREAD`); `STRICT_` or not at all.",
    )


class TimeoutsConfig(Config):
    """How many seconds each wait may take, by the name that it has in messages."""

    start: float = Field(
        600.0, gt=0, description="For resources, and for a process to load its model."
    )
    sampling: float = Field(
        600.0, gt=0, description="Without one new token of a rollout worker that was asked."
    )
    weights: float = Field(600.0, gt=0, description="For new weights to reach every worker.")
    update: float = Field(3600.0, gt=0, description="For the learner ranks to train on a rollout.")
    checkpoint: float = Field(1800.0, gt=0, description="For states to be fetched or restored.")
    heartbeat: float = Field(
        60.0,
        gt=0,
        description="Without a sign of life of a process, after which it counts as frozen.",
    )
    say: float = Field(
        60.0, gt=0, description="After so long a wait is said, and again each time that has passed."
    )


class ClusterConfig(Config):
    """Where an RL stage samples and trains, if not in this process. Needs the extra `cluster`."""

    mode: Mode = Field(
        "separate",
        description="`separate`: rollout workers beside learner ranks, which take turns. "
        "`colocated`: each learner rank samples as well, from the weights that it trains. `async`: "
        "rollout goes on while the learner trains, up to the stage's `staleness` updates behind.",
    )
    address: str | None = Field(
        None,
        description="Of a running Ray: `auto` on one of its machines, or HOST:PORT. Null: Ray is "
        "started on this machine and ends with the run.",
    )
    rollout: RolloutConfig = Field(RolloutConfig(), description="The processes that sample.")
    learner: LearnerConfig = Field(LearnerConfig(), description="The processes that train.")
    timeouts: TimeoutsConfig = Field(TimeoutsConfig(), description="A limit for every wait.")
    heartbeat_every: float = Field(
        5.0, gt=0, description="Seconds between signs of life that are asked of each process."
    )
    restarts: int = Field(
        3,
        ge=0,
        description="How often in a row, without a completion or a step in between, a rollout "
        "worker is replaced, or all learner ranks start again from the last checkpoint; after that "
        "the run stops.",
    )
    object_store_gb: float | None = Field(
        None,
        gt=0,
        description="Memory of the object store of a Ray that is started here, in GB; null: Ray's "
        "own choice. It holds two sets of weights while they change hands.",
    )

    @property
    def members(self) -> int:
        """Learner ranks, which in mode ``colocated`` sample as well."""
        return self.learner.ranks

    @property
    def workers(self) -> int:
        """Rollout workers to start with."""
        return self.rollout.workers or self.learner.ranks

    @property
    def fewest(self) -> int:
        """Rollout workers without which nothing goes on."""
        return self.rollout.min_workers or 1

    @property
    def most(self) -> int:
        """Rollout workers that are asked for, once there is room."""
        return self.rollout.max_workers or self.workers

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """Where the model is trained."""
        return "cuda" if self.learner.gpus else "cpu"

    @model_validator(mode="after")
    def _possible(self) -> Self:
        rollout = self.rollout
        if self.mode == "colocated":
            for name in ("workers", "min_workers", "max_workers"):
                given = getattr(rollout, name)
                if given not in (None, self.learner.ranks):
                    raise ValueError(
                        f"rollout.{name}: {given}, but colocated learner ranks are the rollout "
                        f"workers, and there are {self.learner.ranks}; leave it out and set "
                        "learner.ranks, or use mode: separate"
                    )
        if self.fewest > self.workers:
            raise ValueError(
                f"rollout.min_workers: {self.fewest} is more than the {self.workers} to start "
                "with; lower it or raise rollout.workers"
            )
        if self.most < self.workers:
            raise ValueError(
                f"rollout.max_workers: {self.most} is fewer than the {self.workers} to start "
                "with; raise it or lower rollout.workers"
            )
        for name, gpus in (("rollout", rollout.gpus), ("learner", self.learner.gpus)):
            if gpus > 1 and gpus != int(gpus):
                raise ValueError(
                    f"{name}.gpus: {gpus:g}; a process has a fraction of one GPU, or whole ones"
                )
        if self.learner.gpus > 1:
            raise ValueError(
                f"learner.gpus: {self.learner.gpus:g}; a learner rank trains on one GPU: give it "
                "1 and set learner.ranks to the number of GPUs"
            )
        if self.learner.sharding is not None:
            try:
                self.learner.sharding.mesh_shape(self.learner.ranks)
            except UserError as error:
                raise ValueError(f"learner.{error}") from None
        if self.timeouts.heartbeat < 2 * self.heartbeat_every:
            raise ValueError(
                f"timeouts.heartbeat: {self.timeouts.heartbeat:g} s is less than two heartbeats "
                f"({self.heartbeat_every:g} s each), so that one late answer would end a process; "
                "raise it or lower heartbeat_every"
            )
        return self
