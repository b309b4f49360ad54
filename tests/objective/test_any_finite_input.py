"""No NaN and no infinity out of any finite input: every preset, every patch, loss and gradients."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lydite.config import UserError
from lydite.objective import PATCHES, PRESETS, Counts, Objective
from lydite.objective.loss import LARGEST, inside

# Settings of a run, not of a step's loss.
OF_A_RUN = {"reference_refresh", "retire_solved"}


def first_meaning(patch: str) -> str:
    """The first preset that the patch means something to, with it."""
    for preset in PRESETS:
        try:
            Objective.parse(f"{preset}+{patch}")
        except UserError:
            continue
        return f"{preset}+{patch}"
    raise AssertionError(f"{patch} means nothing to any preset")


EVERY = [
    *PRESETS,
    *(first_meaning(patch) for patch in PATCHES if patch not in OF_A_RUN),
    "rloo+kl_in_reward+entropy_bonus",
    "dapo+icepop+off_policy_mask+prompt_mean+kl_unbiased+high_entropy_tokens",
    "gspo+mis+kl+kl_cov+dual_clip",
]

FINITE = st.floats(allow_nan=False, allow_infinity=False, width=32)
MAGNITUDES = st.lists(
    st.one_of(st.sampled_from([0.0, -1.0, 1.0, 1e-38, -2e4, 3.4e38, -3.4e38]), FINITE),
    min_size=4,
    max_size=8,
)


@pytest.mark.parametrize("spec", EVERY)
@settings(max_examples=10, deadline=None)
@given(
    values=MAGNITUDES,
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 4),
    width=st.integers(0, 5),
    density=st.sampled_from([0.0, 0.3, 0.9, 1.0]),
    wide=st.booleans(),
)
def test_loss_and_gradients(
    spec: str, values: list[float], seed: int, rows: int, width: int, density: float, wide: bool
) -> None:
    noise = torch.Generator().manual_seed(seed)

    def some(*shape: int) -> Tensor:
        chosen = torch.randint(0, len(values), shape, generator=noise)
        return torch.tensor(values, dtype=torch.float64 if wide else torch.float32)[chosen]

    objective = Objective.parse(spec).with_limit(5)
    mask = torch.rand(rows, width, generator=noise) < density
    policy, entropy = (some(rows, width).requires_grad_() for _ in range(2))
    advantages = some(rows, width) if seed % 2 else some(rows)
    loss, metrics = objective.loss(
        policy=policy,
        old=some(rows, width) if seed % 3 else None,
        behaviour=some(rows, width),
        reference=some(rows, width),
        advantages=advantages,
        mask=mask,
        counts=Counts.of(mask),
        entropy=entropy,
        picked=objective.pick(policy=policy, entropy=entropy, advantages=advantages, mask=mask),
    )
    loss.backward()
    assert loss.isfinite()
    for given_ in (policy, entropy):
        gradient = torch.zeros_like(given_) if given_.grad is None else given_.grad
        assert gradient.isfinite().all()
        assert (gradient[~mask] == 0).all()
    assert all(map(math.isfinite, metrics.means().values()))


@pytest.mark.parametrize("spec", EVERY)
@settings(max_examples=10, deadline=None)
@given(values=MAGNITUDES, seed=st.integers(0, 2**31), group=st.integers(1, 5))
def test_advantages(spec: str, values: list[float], seed: int, group: int) -> None:
    noise = torch.Generator().manual_seed(seed)
    objective = Objective.parse(spec)
    double = torch.tensor([*values, math.nan], dtype=torch.float64)
    # In float64 up to its own largest: the squares of 1e300 are infinite.
    for palette in (double.float(), double * 1e260):
        for shape in ((3, group), (3, group, 2)):
            chosen = torch.randint(0, len(palette), shape, generator=noise)
            rewards = palette[chosen]
            lengths = torch.randint(0, 9, (3, group), generator=noise)
            found = objective.advantages(rewards, lengths, [1.0, -2e4][: rewards.dim() - 1])
            excluded = rewards.isnan() if rewards.dim() == 2 else rewards.isnan().any(dim=2)
            assert found.isfinite().all()
            assert (found[excluded] == 0).all()


def test_what_is_infinite_is_seen() -> None:
    """A broken model does not pass for a sound one: held is what is finite."""
    live = torch.tensor([[True, True, True, True, False]])
    values = torch.tensor([[math.inf, -math.inf, math.nan, 3e38, math.nan]])
    found = inside(values, live)[0].tolist()
    assert found[:2] == [math.inf, -math.inf] and math.isnan(found[2])
    assert found[3] == pytest.approx(LARGEST) and found[4] == 0.0
