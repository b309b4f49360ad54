"""What samples and trains in an RL stage: this process, or others on the recipe's cluster. The
stage and its loop are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from lydite.cluster.session import Session
from lydite.model.loading import ModelConfig, load_policy
from lydite.model.policy import Policy
from lydite.pipeline.stages.stage import At
from lydite.pipeline.stages.training import Elsewhere
from lydite.rollout.budget import Tags
from lydite.train.ahead import DetachedEngine
from lydite.train.learner import LearnerLike
from lydite.train.rl_config import RLConfig
from lydite.types import StreamingEngine


@dataclass(frozen=True, slots=True)
class Crew:
    """``policy`` is what prompts are rendered for, without weights where they are ``elsewhere``.
    ``ahead``, ``sync`` and ``in_flight`` as in :class:`lydite.train.rl.RLParts`.
    """

    policy: Policy
    engine: StreamingEngine
    learner: LearnerLike
    ahead: DetachedEngine | None
    sync: Callable[[int], None] | None
    in_flight: Tags | None
    elsewhere: Elsewhere | None


@contextmanager
def crew_of(at: At, config: RLConfig) -> Iterator[Crew]:
    """For as long as the stage works.

    Raises:
        UserError: a model cannot be loaded, or the cluster has no room.
        TooFew: processes have found no room in time.
        LearnerLost: a learner rank is gone.
    """
    if at.cluster is not None:
        with _remote(at, config, at.cluster) as crew:
            yield crew
        return
    policy = at.load()
    engine = at.engine(policy)
    yield Crew(
        policy,
        engine,
        config.build_learner(policy),
        at.detached_engine(policy, config.staleness),
        at.sync(engine),
        at.in_flight(policy, config.asynchronous),
        None,
    )


@contextmanager
def _remote(at: At, config: RLConfig, session: Session) -> Iterator[Crew]:
    from lydite.cluster.crew import Job, RemoteCrew

    policy = at.load_prompting()
    seed = at.recipe.seed
    in_flight = at.in_flight(policy, config.asynchronous or session.config.mode == "async")
    job = Job(
        _resolved(at.settings, session),
        config.build_learner,
        at.recipe.engine,
        seed,
        seed + at.earlier,
        config.update.minibatches,
        stale=bool(config.staleness),
        in_flight=in_flight is not None,
    )
    processes = RemoteCrew(session, job)
    try:
        yield Crew(
            policy,
            processes.engine,
            processes.learner,
            processes.ahead,
            processes.sync,
            in_flight,
            Elsewhere(
                lambda: _with_weights(load_policy(job.model, "cpu", seed), processes.learner),
                processes.learner.write,
            ),
        )
    finally:
        processes.close()


def _resolved(settings: ModelConfig, session: Session) -> ModelConfig:
    """With the type of weights that the learner's device means, on every device."""
    on_gpu = session.config.device == "cuda" and not settings.path.startswith("init:")
    if settings.dtype == "auto" and on_gpu:
        return settings.model_copy(update={"dtype": "bfloat16"})
    return settings


@torch.no_grad()
def _with_weights(policy: Policy, learner: LearnerLike) -> Policy:
    for name, tensor in learner.weights():
        policy.model.get_parameter(name).copy_(tensor)
    return policy
