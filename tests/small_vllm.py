"""A small model that vLLM can run on a CPU, and a vLLM for it."""

from __future__ import annotations

from small_runs import VOCABULARY

from lydite.config import validate
from lydite.model.loading import ModelConfig, load_policy
from lydite.model.policy import Policy
from lydite.rollout.colocated import colocated
from lydite.rollout.engine import EngineConfig
from lydite.rollout.vllm import VllmEngine

# vLLM's attention on a CPU wants heads of 32 or a multiple.
MODEL = {
    "path": "init:llama",
    "init": {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "initializer_range": 0.3,
    },
    "vocabulary": VOCABULARY,
    "context": 320,
}  # fmt: skip
ENGINE = {"kind": "vllm", "cache_gb": 0.2, "max_rows": 16}
SEED = 3


def make_policy(**changes: object) -> Policy:
    return load_policy(validate(ModelConfig, {**MODEL, **changes}), "cpu", 0)


def make_engine(policy: Policy, **changes: object) -> VllmEngine:
    return colocated(policy, validate(EngineConfig, {**ENGINE, **changes}), SEED)
