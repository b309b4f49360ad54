"""Picks the engine that samples with a policy's weights in this process."""

from __future__ import annotations

from lydite.config import UserError
from lydite.model.policy import Policy
from lydite.rollout.colocated import colocated
from lydite.rollout.engine import EngineConfig
from lydite.rollout.local import LocalEngine
from lydite.rollout.padded import PaddedEngine
from lydite.rollout.vllm import VllmEngine

OwnEngine = LocalEngine | PaddedEngine | VllmEngine
"""What :func:`engine_of` gives."""


def local_engine(
    policy: Policy, config: EngineConfig | None = None, seed: int = 0
) -> LocalEngine | PaddedEngine:
    """The fast engine where the model runs on flat tokens, the padded one where it does not.

    Raises:
        UserError: the policy is sharded: each token would be a collective of all ranks.
    """
    if policy.shards is not None:
        raise UserError(
            "engine: sharded weights do not sample; give the engine a whole policy of its own, and "
            "the learner's weights() after each update"
        )
    kind = LocalEngine if policy.flat else PaddedEngine
    return kind(policy, config, seed)


def engine_of(policy: Policy, config: EngineConfig, seed: int = 0) -> OwnEngine:
    """The engine that the settings ask for. A vLLM has a copy of the policy's weights, and must be
    told to :meth:`~lydite.rollout.vllm.VllmEngine.refresh` it when they have changed.

    Raises:
        UserError: vLLM is asked for, and is not installed or does not start.
    """
    if config.kind == "local":
        return local_engine(policy, config, seed)
    return colocated(policy, config, seed)
