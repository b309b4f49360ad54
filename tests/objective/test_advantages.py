"""Rewards to advantages: hand-computed numbers, exclusion, no signal, length penalty."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lydite.config import UserError
from lydite.objective import Objective

NAN = math.nan
TABLE = [[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]]


def advantages(spec: Any, rewards: list[list[float]]) -> list[list[float]]:
    tensor = torch.tensor(rewards, dtype=torch.float64)
    return Objective.parse(spec).advantages(tensor).tolist()


def test_three_of_eight_correct() -> None:
    rewards = [[1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]]
    got = advantages("grpo", rewards)[0]
    # mean 0.375, population std sqrt(0.375 · 0.625) = 0.484123
    assert got == pytest.approx([1.290994] * 3 + [-0.774597] * 5, abs=1e-6)
    assert [round(got[0], 2), round(got[3], 3)] == [1.29, -0.775]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        # means 0.25 and 0.5, population stds sqrt(3)/4 and 0.5
        ("grpo", [[1.7320508, *[-0.5773503] * 3], [1.0, 1.0, -1.0, -1.0]]),
        ("dapo", [[1.7320508, *[-0.5773503] * 3], [1.0, 1.0, -1.0, -1.0]]),
        ("gspo", [[1.7320508, *[-0.5773503] * 3], [1.0, 1.0, -1.0, -1.0]]),
        ("dr_grpo", [[0.75, *[-0.25] * 3], [0.5, 0.5, -0.5, -0.5]]),
        ("grpo+no_std", [[0.75, *[-0.25] * 3], [0.5, 0.5, -0.5, -0.5]]),
        # sample stds 0.5 and 1/sqrt(3)
        ({"std": "sample"}, [[1.5, *[-0.5] * 3], [0.8660254, 0.8660254, -0.8660254, -0.8660254]]),
        ({"std_eps": 0.5}, [[0.75 / 0.9330127, *[-0.25 / 0.9330127] * 3], [0.5, 0.5, -0.5, -0.5]]),
        # the others of each are 0, 1/3 and 2/3 correct
        ("rloo", [[1.0, *[-1 / 3] * 3], [2 / 3, 2 / 3, -2 / 3, -2 / 3]]),
        # 3 of all 8 are correct: batch std 0.484123
        ("grpo+batch_std", [[1.5491933, *[-0.5163978] * 3], [1.0327956] * 2 + [-1.0327956] * 2]),
        ("reinforce", TABLE),
    ],
)
def test_table_by_hand(spec: Any, expected: list[list[float]]) -> None:
    for got, row in zip(advantages(spec, TABLE), expected, strict=True):
        assert got == pytest.approx(row, abs=1e-7)


@pytest.mark.parametrize("spec", ["grpo", "dr_grpo", "rloo", "grpo+batch_std", "dapo", "gspo"])
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, -0.7, 1e-30, 1e12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rewards_give_exactly_zero(spec: str, reward: float, dtype: torch.dtype) -> None:
    rewards = torch.tensor([[reward] * 8, [reward, NAN] * 4], dtype=dtype)
    assert (Objective.parse(spec).advantages(rewards) == 0).all()


def test_rounding_of_a_weighted_sum_is_no_signal() -> None:
    rewards = [[0.1 + 0.2, 0.3, 0.3, 0.1 + 0.2]]  # differ in the last bit
    assert rewards[0][0] != rewards[0][1]
    assert advantages("grpo", rewards) == [[0.0] * 4]
    assert not Objective.parse("dapo").keep_groups(torch.tensor(rewards, dtype=torch.float64)).any()


def test_a_constant_batch_has_no_spread_to_divide_by() -> None:
    spec = {"preset": "reinforce", "scale": "batch_std"}
    assert advantages(spec, [[0.1] * 3, [0.1] * 3]) == [[0.0] * 3] * 2  # std 1.4e-17 in float64
    assert advantages(spec, [[1.0, 0.0], [1.0, 0.0]]) == [[2.0, 0.0]] * 2


def test_small_but_real_differences_are_a_signal() -> None:
    assert advantages("grpo", [[1.0, 1.0001]])[0] == pytest.approx([-1.0, 1.0])


@pytest.mark.parametrize("spec", ["grpo", "dr_grpo", "rloo", "grpo+batch_std", {"std": "sample"}])
def test_an_excluded_reward_is_as_if_never_sampled(spec: Any) -> None:
    got = advantages(spec, [[1.0, NAN, 0.0, 0.0], [0.5, NAN, -1.0, 2.0]])
    without = advantages(spec, [[1.0, 0.0, 0.0], [0.5, -1.0, 2.0]])
    assert [row[1] for row in got] == [0.0, 0.0]
    for row, expected in zip(got, without, strict=True):
        assert [row[0], *row[2:]] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("spec", ["grpo", "dr_grpo", "rloo", "grpo+batch_std"])
def test_a_lone_survivor_and_an_empty_group_get_zero(spec: str) -> None:
    got = advantages(spec, [[NAN, 3.0, NAN], [NAN, NAN, NAN], [1.0, 0.0, 0.5]])
    assert got[:2] == [[0.0] * 3] * 2
    assert got[2][0] > 0 > got[2][1]


def test_negative_rewards_shift_nothing() -> None:
    shifted = [[r - 5.0 for r in row] for row in TABLE]
    for spec in ("grpo", "dr_grpo", "rloo", "grpo+batch_std"):
        for got, expected in zip(advantages(spec, shifted), advantages(spec, TABLE), strict=True):
            assert got == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("spec", ["grpo", "dr_grpo", "rloo", "dapo", "gspo", "grpo+leave_one_out"])
def test_group_of_one_is_refused(spec: str) -> None:
    objective = Objective.parse(spec)
    with pytest.raises(UserError, match=r"group size: 1 .* at least 2"):
        objective.check_group_size(1)
    objective.check_group_size(2)


def test_group_of_one_is_fine_without_a_group_baseline() -> None:
    Objective.parse("reinforce").check_group_size(1)
    assert advantages("reinforce", [[0.7], [-0.2]]) == [[0.7], [-0.2]]


def test_filters_keep_groups_whose_rewards_differ() -> None:
    rewards = torch.tensor([[1.0, 1, 1], [1, 0, 1], [0, 0, 0], [0, NAN, 1], [1, NAN, NAN]])
    for spec, refills in (("grpo+drop_zero_variance", False), ("grpo+dynamic_sampling", True)):
        objective = Objective.parse(spec)
        assert objective.keep_groups(rewards).tolist() == [False, True, False, True, False]
        assert objective.refills is refills
    assert Objective.parse("grpo").keep_groups(rewards).all()


def test_keep_drops_excluded_filtered_and_truncated() -> None:
    rewards = torch.tensor([[1.0, 0.0, NAN], [1.0, 1.0, 1.0]])
    truncated = torch.tensor([[False, True, False], [False, False, True]])
    kept = {
        spec: Objective.parse(spec).keep(rewards, truncated).tolist()
        for spec in ("grpo", "grpo+mask_truncated", "grpo+mask_truncated+drop_zero_variance")
    }
    assert kept == {
        "grpo": [[True, True, False], [True, True, True]],
        "grpo+mask_truncated": [[True, False, False], [True, True, False]],
        "grpo+mask_truncated+drop_zero_variance": [[True, False, False], [False] * 3],
    }


def test_soft_overlong_by_hand() -> None:
    # limit 100, last 20 tokens: 0 up to 80, then −1/20 a token, −1 from 100
    objective = Objective.parse("dapo")
    lengths = torch.tensor([[0, 80, 81, 90, 100, 130]])
    shaped = objective.shape_rewards(torch.ones(1, 6), lengths, 100)
    assert shaped[0].tolist() == pytest.approx([1.0, 1.0, 0.95, 0.5, 0.0, 0.0])
    papers = objective.shape_rewards(torch.zeros(1, 2), torch.tensor([[16384, 18432]]), 20480)
    assert papers[0].tolist() == pytest.approx([0.0, -0.5])


def test_soft_overlong_is_off_by_default_and_keeps_exclusions() -> None:
    rewards = torch.tensor([[1.0, NAN]])
    lengths = torch.tensor([[100, 100]])
    assert Objective.parse("grpo").shape_rewards(rewards, lengths, 100) is rewards
    shaped = Objective.parse("grpo+soft_overlong").shape_rewards(rewards, lengths, 100)
    assert shaped[0, 0] == 0 and shaped[0, 1].isnan()


REWARD = st.one_of(
    st.just(NAN), st.sampled_from([0.0, 1.0, 0.1]), st.floats(-(2.0**100), 2.0**100, width=32)
)


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(1, 4), st.integers(1, 5))
def test_always_centred_and_bounded(data: st.DataObject, prompts: int, group: int) -> None:
    rows = st.lists(REWARD, min_size=group, max_size=group)
    rewards = torch.tensor(data.draw(st.lists(rows, min_size=prompts, max_size=prompts)))
    got = Objective.parse("grpo").advantages(rewards)
    assert (got[rewards.isnan()] == 0).all()
    assert got.abs().max() <= math.sqrt(group) + 1e-4
    total = Objective.parse("grpo").advantages(rewards.double()).sum(dim=1)
    assert total.abs().max() < 1e-4
