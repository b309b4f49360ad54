import pytest
import torch

from lydite.model.loading import ModelConfig, load_policy

CHARACTERS = [*"0123456789+= abcdefghijklmnopqrstuvwxyz?."]


def tiny_model(**changes):
    shape = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2,
    }  # fmt: skip
    return ModelConfig(path="init:llama", init=shape, vocabulary=CHARACTERS, context=128, **changes)


@pytest.fixture
def tiny():
    """Loads the same tiny policy every time it is called."""

    def load(dtype=torch.float32, seed=0, **changes):
        policy = load_policy(tiny_model(**changes), seed=seed)
        policy.model.to(dtype)
        return policy

    return load
