"""Every patch by hand, with its published numbers: GRPO with it on five tokens, or on rewards.

Ratios 1.5, 1, ½ for A = 1 and 1.5, ½ for A = −1, as in test_preset_numbers.py. GRPO's gains are
1.2 + 1 + 0.5 = 2.7 and −1.5 − 0.8 = −2.3.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from test_preset_numbers import (
    CENTRED,
    K3,
    LENGTHS,
    MASK,
    RATIOS,
    ROOT3,
    S3,
    SAMPLE,
    TABLE,
    TOKEN,
    TWICE,
    ZERO,
    loss,
)

from lydite.objective import PATCHES, Counts, Objective

NINES = torch.tensor([[9.0, 1.0, 1.0], [9.0, 1.0, 1.0]], dtype=torch.float64).log()
PICKED = torch.tensor([[True, False, False], [False, True, True]])
ENTROPY = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 0.0]], dtype=torch.float64)


def engine(weights: list[list[float]]) -> torch.Tensor:
    """Behaviour log-probs whose π_old/π_behaviour are these."""
    return -torch.tensor(weights, dtype=torch.float64).log()


# patch → what else the loss is given, and the loss
LOSSES: dict[str, tuple[dict[str, Any], float]] = {
    "clip_higher": ({}, -(2.78 / 3 - 2.3 / 2) / 2),
    # 9 is clipped to 1.2 where A = 1, to c where A = −1
    "dual_clip": ({"policy": NINES}, -(3.2 / 3 - (3 + 1) / 2) / 2),
    "two_sided_clip": ({"policy": NINES}, -(3.2 / 3 - (4 + 1) / 2) / 2),
    "sequence_ratio": ({}, -(S3 - 0.9997) / 2),
    "token_mean": ({}, TOKEN),
    "sample_mean": ({}, SAMPLE),
    "fixed_length": ({}, -(2.7 - 2.3) / 20),
    "prompt_mean": (
        {"prompt_tokens": torch.tensor([5, 5]), "counts": Counts(5, 2, 1)},
        TOKEN,
    ),
    "kl": ({"reference": TWICE}, SAMPLE + 0.001 * K3),
    "kl_unbiased": (
        {"reference": TWICE},
        -((2.7 - 0.003 * K3) / 3 + (-2.3 - 0.002 * K3) / 2) / 2,
    ),
    "kl_in_reward": (
        {"reference": ZERO - 1},
        -(
            (1.2 * 0.997 + 0.998 + 0.5 * 0.999) / 3  # 3, 2, 1 tokens ahead
            - (1.5 * 1.002 + 0.8 * 1.001) / 2
        )
        / 2,
    ),
    "no_kl": ({}, SAMPLE),
    # 4 is truncated to 2
    "tis": (
        {"behaviour": engine([[4, 0.5, 1], [1, 4, 9]])},
        -((2 * 1.2 + 0.5 + 0.5) / 3 - (1.5 + 2 * 0.8) / 2) / 2,
    ),
    # products 1 and 4
    "mis": ({"behaviour": engine([[2, 0.5, 1], [4, 1, 9]])}, -(2.7 / 3) / 2),
    # 6 is above 5, 0.4 below 0.5
    "icepop": (
        {"behaviour": engine([[6, 1, 1], [2, 0.4, 9]])},
        -(1.5 / 3 - 3.0 / 2) / 2,
    ),
    # 1.005, and 1.02 above 1.01
    "geometric_mask": ({"behaviour": engine([[1.005] * 3, [1.02, 1.02, 1]])}, -(2.7 / 3) / 2),
    # mean log μ/π: 1 − (log 0.75)/2 = 1.14 for the bad one; the good one is never masked
    "off_policy_mask": ({"behaviour": ZERO + 1}, -(2.7 / 3) / 2),
    "clip_cov": ({"picked": PICKED}, SAMPLE),
    "kl_cov": (
        {"picked": PICKED},
        SAMPLE + (math.log(1.5) / 3 + math.log(2.0) / 2) / 2,
    ),
    "high_entropy_tokens": ({"picked": PICKED}, -(1.2 / 3 - 0.8 / 2) / 2),
    "entropy_bonus": ({"entropy": ENTROPY}, SAMPLE - 0.005 * (6 / 3 + 9 / 2) / 2),
    # starts from nothing
    "adaptive_entropy": ({"entropy": ENTROPY}, SAMPLE),
}


@pytest.mark.parametrize("patch", LOSSES)
def test_loss_by_hand(patch: str) -> None:
    given, expected = LOSSES[patch]
    objective = Objective.parse(f"grpo+{patch}").with_limit(10)
    assert loss(objective, [1.0, -1.0], **given).item() == pytest.approx(expected, abs=1e-12)


# patch → the advantages of the table; GRPO's are √3, −1/√3 … and ±1
BATCH_STD = math.sqrt(15) / 8  # of 3 ones and 5 zeros
LONE = [
    [x / (ROOT3 / 4) for x in (1.0, *[-1 / 3] * 3)],
    [x / 0.5 for x in [2 / 3] * 2 + [-2 / 3] * 2],
]
ADVANTAGES: dict[str, list[list[float]]] = {
    "no_std": CENTRED,
    "batch_std": [[x / BATCH_STD for x in row] for row in CENTRED],
    "leave_one_out": LONE,
}


@pytest.mark.parametrize("patch", ADVANTAGES)
def test_advantages_by_hand(patch: str) -> None:
    got = Objective.parse(f"grpo+{patch}").advantages(torch.tensor(TABLE, dtype=torch.float64))
    for row, expected in zip(got.tolist(), ADVANTAGES[patch], strict=True):
        assert row == pytest.approx(expected, abs=1e-12)


def of_groups(patch: str) -> Any:
    objective = Objective.parse(f"grpo+{patch}")
    rewards = torch.tensor([[1.0, 0.0, 1.0], [1.0, 1.0, 1.0]])
    if patch == "soft_overlong":
        return objective.shape_rewards(rewards, torch.tensor([[80, 90, 100], [120, 1, 85]]), 100)
    if patch == "mask_truncated":
        return objective.keep(rewards, torch.tensor([[True, False, False], [False] * 3])).int()
    if patch == "retire_solved":
        return objective.solved(torch.tensor([[True, False, True], [True, True, True]])).int()
    return torch.cat([objective.keep_groups(rewards).int(), torch.tensor([int(objective.refills)])])


# patch → what it makes of two groups; see of_groups
GROUPS: dict[str, list[Any]] = {
    "dynamic_sampling": [1, 0, 1],
    "drop_zero_variance": [1, 0, 0],
    "soft_overlong": [[1.0, -0.5, 0.0], [0.0, 1.0, 0.75]],
    "mask_truncated": [[0, 1, 1], [1, 1, 1]],
    "retire_solved": [0, 1],
}


@pytest.mark.parametrize("patch", GROUPS)
def test_groups_by_hand(patch: str) -> None:
    got, expected = of_groups(patch), torch.tensor(GROUPS[patch])
    torch.testing.assert_close(got.double(), expected.double(), rtol=0, atol=1e-6)


def test_every_patch_is_in_here() -> None:
    of_a_run = {"reference_refresh"}  # tests/train/test_learner.py
    found = [*LOSSES, *ADVANTAGES, *GROUPS, *of_a_run]
    assert sorted(found) == sorted(PATCHES)


def test_the_numbers_that_stand_here_are_of_grpo() -> None:
    got = Objective.parse("grpo").advantages(torch.tensor(TABLE, dtype=torch.float64), LENGTHS)
    assert got[0].tolist() == pytest.approx([ROOT3, *[-1 / ROOT3] * 3])
    gains = torch.minimum(RATIOS[0], torch.tensor(1.2))
    assert gains.sum().item() == pytest.approx(2.7)
    assert MASK.sum() == 5
