"""What an RL stage works with on a cluster: an engine and a learner made of other processes."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from torch import Tensor

from lydite.cluster.pool import Hands, Pool, Weights
from lydite.cluster.processes import Calls, Watch
from lydite.cluster.remote_engine import RemoteEngine
from lydite.cluster.remote_learner import MemberHands, Ranks, RemoteLearner
from lydite.cluster.sampling import EngineSpec, fetched
from lydite.cluster.session import Session
from lydite.cluster.training import BuildLearner, LearnerSpec
from lydite.cluster.turns import Turns
from lydite.model.loading import ModelConfig
from lydite.rollout.engine import EngineConfig
from lydite.types import Completion, OnCompletion, Request


@dataclass(frozen=True, slots=True)
class Job:
    """What a stage wants of a cluster: the model that it starts from and what trains it. ``seed``
    is the run's, ``dropout_seed`` the stage's own; ``minibatches`` are the optimiser steps of an
    epoch; ``stale`` says whether sampling may lag behind, ``in_flight`` whether what samples then
    goes on with completions that are cut.
    """

    model: ModelConfig
    make: BuildLearner
    engine: EngineConfig
    seed: int
    dropout_seed: int
    minibatches: int
    stale: bool = False
    in_flight: bool = False


class RemoteCrew:
    """The processes of one stage, until :meth:`close`."""

    def __init__(self, session: Session, job: Job) -> None:
        """
        Raises:
            UserError: what a process says that the user can mend.
            TooFew: processes have found no room in time.
            LearnerLost: a learner rank is gone.
        """
        session.open()
        config, self._session = session.config, session
        self.in_flight = job.in_flight
        self._held = ExitStack()
        try:
            journal = session.journal
            watch = Watch(config, journal)
            self._held.callback(watch.close)
            calls = Calls(config, watch, journal)
            self._ranks = Ranks(config, calls, watch, journal)
            self._held.callback(self._ranks.close)
            device = "cuda" if config.rollout.gpus else "cpu"
            spec = EngineSpec(job.model, job.engine, job.seed, device)
            together = config.mode == "colocated"
            self.pool: Pool | None = None
            if not together:
                self.pool = Pool(config, spec, calls, watch, journal)
                self._held.callback(self.pool.close)
            self._ranks.build(
                LearnerSpec(
                    job.model,
                    job.make,
                    job.seed,
                    job.dropout_seed,
                    config.device,
                    config.learner.sharding,
                    spec if together else None,
                )
            )
            hands: Hands = self.pool or MemberHands(self._ranks, watch)
            self.learner = RemoteLearner(self._ranks, job.minibatches, self._stepped)
            turns = Turns(journal.say, config.timeouts.say)
            take = None if self.pool is None else self.pool.load
            self.engine = RemoteEngine(config, hands, calls, journal, take, turns.first)
            self.ahead = None
            if job.stale:
                detached = RemoteEngine(config, hands, calls, journal, take, turns.behind)
                turns.give_way = detached.interrupt
                self.ahead = DetachedRemoteEngine(detached, self)
            if self.pool is not None:
                self.pool.start()
        except BaseException:
            self.close()
            raise

    def sync(self, version: int) -> None:
        """The engine samples with the learner's present weights from now on."""
        if self.pool is None:
            self.learner.share(version)
            self.engine.version = version
        else:
            # Where sampling runs ahead, its workers are not to be stopped for this.
            self.engine.take(self.learner.publish(version), at_once=self.ahead is None)

    def _stepped(self) -> None:
        self._session.losses = 0

    def close(self) -> None:
        """Ends every process."""
        self._held.close()


class Published(Mapping[str, Tensor]):
    """Weights in the object store, fetched when they are looked at."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights

    def __getitem__(self, name: str) -> Tensor:
        return dict(fetched(self.weights.objects))[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in fetched(self.weights.objects))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def items(self) -> PublishedItems:
        """Names and tensors, for whoever does not know what they are."""
        return PublishedItems(self)


class PublishedItems(ItemsView[str, Tensor]):
    """Those of weights in the object store: who knows it takes their references."""

    def __init__(self, published: Published) -> None:
        super().__init__(published)
        self.weights = published.weights

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return fetched(self.weights.objects)


class DetachedRemoteEngine:
    """Implements :class:`lydite.train.ahead.DetachedEngine`: samples with older weights by the same
    workers, in turns with whoever samples with the newest.
    """

    def __init__(self, engine: RemoteEngine, crew: RemoteCrew) -> None:
        self._engine = engine
        self._crew = crew
        engine.may_cut = crew.in_flight

    @property
    def version(self) -> int:
        return self._engine.version

    @version.setter
    def version(self, version: int) -> None:
        self._engine.version = version

    def snapshot(self) -> Published:
        """The learner's weights as they are now."""
        known = self._crew.engine.newest
        if known is None or known.version != self._crew.engine.version:
            known = self._crew.learner.publish(self._crew.engine.version)
        return Published(known)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Samples with these from the next call on."""
        if isinstance(weights, PublishedItems):
            self._engine.take(weights.weights, at_once=False)
        else:
            self._engine.load_weights(weights, version)
        self._engine.version = version

    def interrupt(self) -> None:
        """See :class:`lydite.types.InterruptibleEngine`."""
        self._engine.interrupt()

    def stop(self) -> None:
        """Ends a call that is under way, and those to come."""
        self._engine.stop()

    def generate(self, requests: Sequence[Request]) -> list[list[Completion]]:
        return self._engine.generate(requests)

    def stream(
        self, requests: Sequence[Request], on_completion: OnCompletion | None
    ) -> list[list[Completion]]:
        return self._engine.stream(requests, on_completion)
