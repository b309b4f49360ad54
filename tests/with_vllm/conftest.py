"""One vLLM for all of these tests, as far as their settings agree: starting one takes a while."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
import torch
from small_vllm import make_engine, make_policy

from lydite.model.policy import Policy
from lydite.rollout.colocated import release
from lydite.rollout.vllm import VllmEngine

os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"


@pytest.fixture
def policy() -> Policy:
    return make_policy()


@pytest.fixture
def engine(policy: Policy) -> VllmEngine:
    """It samples with the weights of ``policy``."""
    return make_engine(policy)


@pytest.fixture(scope="session", autouse=True)
def no_leftovers() -> Iterator[None]:
    yield
    release()


@pytest.fixture
def train() -> Callable[[Policy], None]:
    """Changes the trained weights as an update does, only more."""

    @torch.no_grad()
    def change(policy: Policy) -> None:
        noise = torch.Generator().manual_seed(1)
        for parameter in policy.model.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn(parameter.shape, generator=noise)

    return change
