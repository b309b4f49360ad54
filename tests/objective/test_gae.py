"""A critic's objective by hand: advantages of tokens, whitening, KL in the reward, its loss."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lydite.config import UserError
from lydite.objective import Counts, Metrics, Objective, describe
from lydite.objective.gae import gae, token_rewards, whitened
from lydite.objective.value import explained_variance, value_loss

NAN = math.nan


def numbers(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


ALL = torch.ones(1, 3).bool()
VALUES, REWARDS = numbers([1, 2, 3]), numbers([0, 0, 10])


@pytest.mark.parametrize(
    ("gamma", "lam", "expected"),
    [
        (1.0, 1.0, [9, 8, 7]),  # the return less the value
        (1.0, 0.0, [1, 1, 7]),  # δ: 2 − 1, 3 − 2, 10 − 3
        (1.0, 0.5, [3.25, 4.5, 7]),
        (0.9, 0.5, [2.5325, 3.85, 7]),  # δ: 0.8, 0.7, 7; decay 0.45
        (0.5, 1.0, [1.5, 3, 7]),  # 10/4 − 1, 10/2 − 2
    ],
)
def test_gae_by_hand(gamma: float, lam: float, expected: list[float]) -> None:
    assert gae(VALUES, REWARDS, ALL, gamma, lam)[0].tolist() == pytest.approx(expected)


def test_a_token_that_the_policy_did_not_write_is_stepped_over() -> None:
    mask = torch.tensor([[1, 0, 1, 0, 0]]).bool()
    got = gae(numbers([1, NAN, 3, NAN, 7]), numbers([0, NAN, 10, 5, NAN]), mask, 1.0, 0.5)
    # as a completion of two tokens: 3 − 1 + 0.5·7, 7
    assert got.tolist() == [[5.5, 0, 7, 0, 0]]


def test_the_reward_is_on_the_last_token_in_the_mask() -> None:
    mask = torch.tensor([[1, 1, 0], [1, 0, 1], [0, 0, 0]]).bool()
    got = token_rewards(torch.tensor([2.0, 3.0, 5.0]), mask)
    assert got.tolist() == [[0, 2, 0], [0, 0, 3], [0, 0, 0]]
    taxed = token_rewards(
        torch.tensor([2.0, 3.0, NAN]), mask, numbers([1, 2, NAN], *[[1, NAN, 3]] * 2)
    )
    assert taxed.tolist() == [[-1, 0, 0], [-1, 0, 0], [0, 0, 0]]
    assert token_rewards(torch.ones(2), torch.ones(2, 0).bool()).shape == (2, 0)


def test_whitening_by_hand() -> None:
    mask = torch.tensor([[1, 1], [1, 0]]).bool()
    # 1, 2, 6: mean 3, variance 14/3
    got = whitened(numbers([1, 2], [6, 99]), mask, 0, 0.0)
    std = math.sqrt(14 / 3)
    assert got.flatten().tolist() == pytest.approx([-2 / std, -1 / std, 3 / std, 0])
    assert whitened(numbers([1, 2], [6, 99]), mask, 1, 0.0)[1, 0].item() == pytest.approx(
        3 / math.sqrt(7)
    )
    alike = whitened(numbers([0.1 + 0.2, 0.3], [0.3, 99]), mask, 0, 0.0)
    assert alike.tolist() == [[0, 0], [0, 0]]
    assert whitened(numbers([1, 2], [6, 99]), mask & False, 0, 0.0).tolist() == [[0, 0], [0, 0]]


def judge(spec: Any, **extra: Any) -> tuple[list[list[float]], list[list[float]]]:
    given_ = {
        "rewards": torch.tensor([1.0, 0.0], dtype=torch.float64),
        "values": numbers([0.5, 0.25, NAN], [0.5, 0.0, 0.25]),
        "mask": torch.tensor([[1, 1, 0], [1, 1, 1]]),
        **extra,
    }
    advantages, returns = Objective.parse(spec).token_advantages(**given_)
    return advantages.tolist(), returns.tolist()


def test_ppo_by_hand() -> None:
    advantages, returns = judge({"preset": "ppo", "scale": "none"})
    assert advantages == [[0.5, 0.75, 0], [-0.5, 0, -0.25]]
    assert returns == [[1, 1, 0], [0, 0, 0]]
    # 0.5, 0.75, −0.5, 0, −0.25: mean 0.1, variance 1.125/5 − 0.01
    white, same = judge("ppo")
    std = math.sqrt(1.125 / 5 - 0.01)
    assert white[0] == pytest.approx([0.4 / std, 0.65 / std, 0])
    assert white[1] == pytest.approx([-0.6 / std, -0.1 / std, -0.35 / std])
    assert same == returns  # what the critic learns is in the reward's own unit
    with_lambda, goals = judge({"preset": "ppo", "scale": "none", "gae": {"lam": 0.5}})
    # δ: −0.25, 0.75; −0.5, 0.25, −0.25
    assert with_lambda == [[0.125, 0.75, 0], [-0.4375, 0.125, -0.25]]
    assert goals == [[0.625, 1, 0], [0.0625, 0.125, 0]]


def test_kl_in_the_reward_is_paid_token_by_token() -> None:
    spec = {"preset": "ppo", "patches": ["kl_in_reward"], "kl": 0.1, "scale": "none"}
    old, reference = numbers([-1, -1, NAN], [-1, -1, -1]), numbers([-2, -1, NAN], [-1, -1, -4])
    # k1: 1 nat on the first token of row 1, 3 on the last of row 2
    advantages, returns = judge(spec, old=old, reference=reference)
    assert returns[0] == pytest.approx([0.9, 1, 0]) and returns[1] == pytest.approx([-0.3] * 3)
    assert advantages[0] == pytest.approx([0.4, 0.75, 0])
    assert advantages[1] == pytest.approx([-0.8, -0.3, -0.55])
    with pytest.raises(UserError, match="needs old and reference"):
        judge(spec)
    # and not a second time in the loss, which needs no reference
    objective = Objective.parse(spec)
    assert objective.needs_reference and not objective.loss_needs_reference
    given_: dict[str, Any] = {
        "policy": old,
        "advantages": numbers(*advantages),
        "mask": torch.tensor([[1, 1, 0], [1, 1, 1]]),
        "counts": Counts(5, 2, 2),
    }
    there, _ = objective.loss(**given_, reference=reference)
    assert torch.equal(there, objective.loss(**given_)[0])
    assert there.item() == pytest.approx(-(0.4 + 0.75 - 0.8 - 0.3 - 0.55) / 5)


def test_value_loss_by_hand() -> None:
    values = numbers([0.5, -0.5, 0.1], [2.0, 0.0, NAN]).requires_grad_()
    before, returns = numbers([0, 0, 0], [2, 0, NAN]), numbers([1, 1, 1], [1, 0, NAN])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]]).bool()
    loss, metrics = value_loss(values, before, returns, mask, Counts(5, 2, 2), clip=0.2)
    # held at 0.2: 0.8² > 0.5²; the second went the wrong way: 1.5² > 1.2²; the rest are within
    assert loss.item() == pytest.approx(0.5 * (0.64 + 2.25 + 0.81 + 1 + 0) / 5)
    assert metrics.means()["value_clip"] == pytest.approx(1 / 5)
    loss.backward()
    assert values.grad is not None
    assert values.grad[0].tolist() == pytest.approx([0, -1.5 / 5, -0.9 / 5])
    assert values.grad[1].tolist() == pytest.approx([1 / 5, 0, 0])
    free, _ = value_loss(values, before, returns, mask, Counts(5, 2, 2), clip=None)
    assert free.item() == pytest.approx(0.5 * (0.25 + 2.25 + 0.81 + 1) / 5)


def test_value_losses_of_micro_batches_add_up() -> None:
    noise = torch.Generator().manual_seed(0)
    values, before, returns = torch.randn(3, 6, 5, generator=noise, dtype=torch.float64)
    mask = torch.rand(6, 5, generator=noise) < 0.6
    counts = Counts.of(mask)
    whole, metrics = value_loss(values, before, returns, mask, counts, 0.2)
    parts = [value_loss(values[[i]], before[[i]], returns[[i]], mask[[i]], counts, 0.2)
             for i in range(6)]  # fmt: skip
    assert sum(loss.item() for loss, _ in parts) == pytest.approx(whole.item(), rel=1e-12)
    assert sum((m for _, m in parts), Metrics()).means() == pytest.approx(metrics.means())


def test_explained_variance() -> None:
    mask = torch.tensor([[1, 1, 1, 0]]).bool()
    returns = numbers([0, 1, 2, NAN])
    assert explained_variance(returns, returns, mask) == 1.0
    assert explained_variance(returns * 0 + 7, returns, mask) == pytest.approx(0.0)
    # errors 0, 0.5, 1: a quarter of the variance
    assert explained_variance(returns / 2, returns, mask) == pytest.approx(0.75)
    assert explained_variance(returns, returns * 0 + 1, mask) is None
    assert explained_variance(returns, returns, mask & False) is None


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 4),
    width=st.integers(0, 5),
    size=st.sampled_from([0.0, 1e-3, 1.0, 1e30, 3e38]),
    density=st.sampled_from([0.0, 0.5, 1.0]),
    spec=st.sampled_from(["ppo", "ppo+no_std", "ppo+kl_in_reward"]),
)
def test_finite_in_finite_out(
    seed: int, rows: int, width: int, size: float, density: float, spec: str
) -> None:
    noise = torch.Generator().manual_seed(seed)
    draws = torch.randn(4, rows, width, generator=noise).clamp(-1, 1) * size
    mask = torch.rand(rows, width, generator=noise) < density
    objective = Objective.parse(spec)
    rewards = torch.randn(rows, generator=noise).clamp(-1, 1) * size
    advantages, returns = objective.token_advantages(
        rewards=rewards, values=draws[0], mask=mask, old=draws[1], reference=draws[2]
    )
    for found in (advantages, returns):
        assert found.isfinite().all() and (found[~mask] == 0).all()
    values = draws[3].requires_grad_()
    loss, metrics = objective.value_loss(
        values=values, before=draws[0], returns=returns, mask=mask, counts=Counts.of(mask)
    )
    loss.backward()
    assert loss.isfinite() and values.grad is not None and values.grad.isfinite().all()
    assert (values.grad[~mask] == 0).all()
    assert all(map(math.isfinite, metrics.means().values()))


@pytest.mark.parametrize("extra", [0, 4])
def test_order_and_padding_change_nothing(extra: int) -> None:
    noise = torch.Generator().manual_seed(2)
    values = torch.randn(5, 6, generator=noise, dtype=torch.float64)
    mask = torch.rand(5, 6, generator=noise) < 0.7
    rewards = torch.randn(5, generator=noise, dtype=torch.float64)
    objective = Objective.parse({"preset": "ppo", "gae": 0.9})
    ours, goals = objective.token_advantages(rewards=rewards, values=values, mask=mask)
    turned = [3, 1, 4, 0, 2]
    theirs, others = objective.token_advantages(
        rewards=rewards[turned],
        values=torch.cat([values, torch.full((5, extra), NAN, dtype=torch.float64)], 1)[turned],
        mask=torch.cat([mask, torch.zeros(5, extra).bool()], 1)[turned],
    )
    for a, b in ((ours, theirs), (goals, others)):
        torch.testing.assert_close(b[:, :6], a[turned], rtol=1e-12, atol=1e-12)


def test_what_ppo_is() -> None:
    ppo = Objective.parse("ppo")
    assert ppo.needs_values and not Objective.parse("grpo").needs_values
    assert (ppo.gae.lam, ppo.gae.gamma, ppo.gae.value_clip, ppo.scale) == (1, 1, 0.2, "token_std")
    assert Objective.parse({"preset": "ppo", "gae": 0.95}).gae.lam == 0.95
    ppo.check_group_size(1)
    lines = describe(Objective.parse({"preset": "ppo", "gae": 0.95, "patches": "kl_in_reward"}))
    assert lines[0].startswith("baseline: Aₜ = Σₖ (γλ)ᵏ") and "λ = 0.95" in lines[0]
    assert lines[1].startswith("scale: A = (Aₜ − mean) / std of all tokens")
    assert any(line.startswith("kl: rₜ less 0.001·KL(π‖π_ref), ") for line in lines)
    assert lines[-1].startswith("critic: learns by ½·(V − R)²")
    assert "scale: A = Aₜ" in describe(Objective.parse("ppo+no_std"))


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("ppo+leave_one_out", "'ppo' and 'leave_one_out' contradict"),
        ("ppo+leave_one_out+no_std", "'ppo' and 'leave_one_out' contradict"),
        ({"preset": "ppo", "baseline": "group_mean"}, "'ppo' and this spec contradict"),
        ("ppo+batch_std", "batch_std is of whole completions"),
        ({"preset": "ppo", "scale": "group_std"}, "group_std is of whole completions"),
        ({"preset": "ppo", "scale": "informative_share"}, "use scale: token_std or none"),
        ({"scale": "token_std"}, "which baseline group_mean does not tell apart"),
        ({"gae": 0.95}, "objective.gae: 0.95 means nothing to baseline group_mean"),
        ({"gae.value_clip": None}, "objective.gae.value_clip: None means nothing"),
        ({"preset": "ppo", "gae": 1.5}, "objective.gae: got 1.5"),
        ({"preset": "ppo", "gae.gamma": -1}, "objective.gae.gamma: got -1"),
        ({"preset": "ppo", "gae.value_clip": 0}, "objective.gae.value_clip: got 0"),
        ("ppo+dynamic_sampling", "carry a signal under baseline critic"),
    ],
)  # fmt: skip
def test_what_has_no_meaning_is_refused_in_one_line(spec: Any, says: str) -> None:
    with pytest.raises(UserError) as caught:
        Objective.parse(spec)
    assert says in str(caught.value) and "\n" not in str(caught.value)
