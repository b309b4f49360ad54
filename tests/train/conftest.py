import pytest
import torch
from tiny_policy import tiny_model

from lydite.model.loading import load_policy


@pytest.fixture
def tiny():
    """Loads the same tiny policy every time it is called."""

    def load(dtype=torch.float32, seed=0, **changes):
        policy = load_policy(tiny_model(**changes), seed=seed)
        policy.model.to(dtype)
        return policy

    return load
