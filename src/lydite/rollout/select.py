"""Picks the in-process engine that a policy can run on."""

from __future__ import annotations

from lydite.model.policy import Policy
from lydite.rollout.engine import EngineConfig
from lydite.rollout.local import LocalEngine
from lydite.rollout.padded import PaddedEngine


def local_engine(
    policy: Policy, config: EngineConfig | None = None, seed: int = 0
) -> LocalEngine | PaddedEngine:
    """The fast engine where the model runs on flat tokens, the padded one where it does not."""
    kind = LocalEngine if policy.flat else PaddedEngine
    return kind(policy, config, seed)
