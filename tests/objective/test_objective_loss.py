"""The loss: hand-computed values and gradients of presets and patches, metrics, hostile inputs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lydite.config import UserError
from lydite.objective import PRESETS, Counts, Metrics, Objective
from lydite.objective.surrogate import SURROGATES, sequence_ratio

RATIOS = torch.tensor([[1.5, 1.0, 0.5], [1.5, 0.5, 1.0]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 1], [1, 1, 0]])
SPECS = (
    *PRESETS,
    "grpo+tis+kl+dual_clip",
    "gspo+mis+kl_unbiased",
    "dapo+icepop+off_policy_mask+prompt_mean",
    "rloo+kl_in_reward+entropy_bonus",
    "grpo+geometric_mask+high_entropy_tokens",
    "grpo+clip_cov",
    "cispo+kl_cov",
)


def loss(spec: Any, advantages: list[float], **extra: Tensor) -> float:
    return run(spec, advantages, **extra)[0].item()


def run(spec: Any, advantages: list[float], **extra: Tensor) -> tuple[Tensor, Metrics]:
    inputs: dict[str, Any] = {"policy": RATIOS.log(), "old": torch.zeros_like(RATIOS), **extra}
    return Objective.parse(spec).loss(
        advantages=torch.tensor(advantages, dtype=torch.float64),
        mask=MASK,
        counts=Counts.of(MASK),
        **inputs,
    )


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        # A=1: 1.2 + 1 + 0.5 = 2.7; A=−1: −1.5 − 0.8 = −2.3
        ("grpo", -(2.7 / 3 - 2.3 / 2) / 2),
        ("grpo+token_mean", -(2.7 - 2.3) / 5),
        ({"preset": "dr_grpo", "fixed_length": 10}, -(2.7 - 2.3) / 20),
        ("grpo+clip_higher", -(2.78 / 3 - 2.3 / 2) / 2),
        ({"preset": "grpo", "clip_low": 0.4}, -(2.7 / 3 - 2.1 / 2) / 2),
        ("dapo", -(2.78 - 2.3) / 5),
        ("dapo+sample_mean", -(2.78 / 3 - 2.3 / 2) / 2),
        # s = 0.75^(1/3) unclipped for A=1; s = 0.75^(1/2) clipped to 0.9997 for A=−1
        ("gspo", -(0.75 ** (1 / 3) - 0.9997) / 2),
        ("grpo+sequence_ratio", -(0.75 ** (1 / 3) - 0.9997) / 2),
        ("gspo+token_mean", -(3 * 0.75 ** (1 / 3) - 2 * 0.9997) / 5),
    ],
)
def test_value_by_hand(spec: Any, expected: float) -> None:
    assert loss(spec, [1.0, -1.0]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("preset", ["rloo", "reinforce"])
def test_reinforce_sums_log_probs(preset: str) -> None:
    # log 0.75 for both sequences; advantages 2 and −1; divided by 2 sequences of 10 tokens
    spec = {"preset": preset, "fixed_length": 10}
    assert loss(spec, [2.0, -1.0]) == pytest.approx(-math.log(0.75) / 20, abs=1e-12)


def test_without_a_limit_the_constant_is_dr_grpos_own() -> None:
    assert loss("dr_grpo", [1.0, -1.0]) == pytest.approx(-(2.7 - 2.3) / 6000, abs=1e-15)
    limited = Objective.parse("dr_grpo").with_limit(10)
    assert loss(limited, [1.0, -1.0]) == pytest.approx(-(2.7 - 2.3) / 20, abs=1e-12)


@pytest.mark.parametrize(
    ("spec", "value", "gradient"), [("grpo", 5.0, 5.0), ("grpo+dual_clip", 3.0, 0.0)]
)
def test_dual_clip_bounds_a_huge_ratio(spec: str, value: float, gradient: float) -> None:
    policy = torch.tensor([[math.log(5.0)]], requires_grad=True)
    got, metrics = Objective.parse(spec).loss(
        policy=policy,
        old=torch.zeros(1, 1),
        advantages=torch.tensor([-1.0]),
        mask=torch.ones(1, 1),
        counts=Counts(1, 1, 1),
    )
    got.backward()
    assert got.item() == pytest.approx(value)
    assert policy.grad is not None
    assert policy.grad.item() == pytest.approx(gradient)
    assert metrics.means()["clip_high"] == (gradient == 0)


@pytest.mark.parametrize(
    ("estimator", "nats"),
    # log(reference/policy) = log 2: −0.6931, 0.6931²/2, 2 − 0.6931 − 1
    [("k1", -0.6931472), ("k2", 0.2402265), ("k3", 0.3068528)],
)
def test_kl_to_the_reference(estimator: str, nats: float) -> None:
    spec = {"patches": ["kl"], "kl": 0.5, "kl.estimator": estimator}
    got, metrics = run(spec, [0.0, 0.0], reference=RATIOS.log() + math.log(2.0))
    assert got.item() == pytest.approx(0.5 * nats, abs=1e-6)
    assert metrics.means()["kl_reference"] == pytest.approx(0.3068528, abs=1e-6)


def test_kl_gradient_is_the_papers() -> None:
    # d k3 / d log π = 1 − π_ref/π = 1 − 2, arXiv 2402.03300 equation 4
    policy = RATIOS.log().requires_grad_()
    got, _ = run({"kl": 0.5}, [0.0, 0.0], policy=policy, reference=policy.detach() + math.log(2.0))
    got.backward()
    assert policy.grad is not None
    expected = torch.tensor([[-0.5 / 6] * 3, [-0.5 / 4] * 2 + [0.0]], dtype=torch.float64)
    assert torch.allclose(policy.grad, expected)


def test_kl_is_measured_but_not_added_when_its_coefficient_is_zero() -> None:
    got, metrics = run("grpo", [1.0, -1.0], reference=RATIOS.log() + 1.0)
    assert got.item() == pytest.approx(loss("grpo", [1.0, -1.0]))
    assert metrics.means()["kl_reference"] == pytest.approx(math.e - 2)


def test_tis_weighs_by_the_truncated_ratio_of_old_to_behaviour() -> None:
    # old/behaviour = 4 (capped to 2), 0.5, 1 and 1, 4 (capped):
    # A=1 gives 2·1.2 + 0.5·1 + 1·0.5 = 3.4, A=−1 gives −1·1.5 − 2·0.8 = −3.1
    weights = torch.tensor([[4.0, 0.5, 1.0], [1.0, 4.0, 9.0]], dtype=torch.float64)
    policy = RATIOS.log().requires_grad_()
    got, metrics = run("grpo+tis", [1.0, -1.0], policy=policy, behaviour=-weights.log())
    assert got.item() == pytest.approx(-(3.4 / 3 - 3.1 / 2) / 2, abs=1e-12)
    assert metrics.means()["correction"] == pytest.approx((2 + 0.5 + 1 + 1 + 2) / 5)
    got.backward()
    assert policy.grad is not None
    # the unclipped token of ratio 1: −w·A·r / (2·3)
    assert policy.grad[0, 1].item() == pytest.approx(-0.5 / 6)


def test_behaviour_is_measured_without_a_correction() -> None:
    got, metrics = run("grpo", [1.0, -1.0], behaviour=torch.full_like(RATIOS, -math.log(2.0)))
    assert got.item() == pytest.approx(loss("grpo", [1.0, -1.0]))
    assert metrics.means()["kl_behaviour"] == pytest.approx(1 - math.log(2.0))


def test_gradient_of_grpo_by_hand() -> None:
    # −A·r/(2·|o|) where not clipped; 1.5 is clipped for A=1, 0.5 for A=−1
    policy = RATIOS.log().requires_grad_()
    run("grpo", [1.0, -1.0], policy=policy)[0].backward()
    expected = torch.tensor([[0.0, -1 / 6, -0.5 / 6], [1.5 / 4, 0.0, 0.0]], dtype=torch.float64)
    assert policy.grad is not None
    assert torch.allclose(policy.grad, expected)


def test_gradient_of_gspo_by_hand() -> None:
    # every token of an unclipped sequence gets −A·s/(2·|o|)
    policy = RATIOS.log().requires_grad_()
    run("gspo", [1.0, -1.0], policy=policy)[0].backward()
    expected = torch.zeros(2, 3, dtype=torch.float64)
    expected[0] = -(0.75 ** (1 / 3)) / 6
    assert policy.grad is not None
    assert torch.allclose(policy.grad, expected)


def test_sequence_ratio_reads_only_its_own_tokens() -> None:
    garbage = torch.tensor([[0.0, 0.3, 9.0], [7.0, -0.2, 8.0]])
    mask = torch.tensor([[True, True, False], [False, True, False]])
    got = sequence_ratio(garbage, torch.zeros(2, 3), mask)
    assert got[:, 0].tolist() == pytest.approx([math.exp(0.15), math.exp(-0.2)])


@pytest.mark.parametrize("spec", ["grpo", "dapo", "gspo", {"preset": "dr_grpo", "fixed_length": 8}])
def test_without_old_the_ratio_is_one_and_has_gradient(spec: Any) -> None:
    policies = [RATIOS.log().requires_grad_() for _ in range(2)]
    got, metrics = run(spec, [1.0, -2.0], policy=policies[0], old=None)  # type: ignore[arg-type]
    same, _ = run(spec, [1.0, -2.0], policy=policies[1], old=RATIOS.log())
    got.backward()
    same.backward()
    assert metrics.means()["ratio"] == 1.0
    assert metrics.means()["clip_high"] == metrics.means()["kl_old"] == 0.0
    first, second = (policy.grad for policy in policies)
    assert first is not None and second is not None
    assert torch.equal(first, second) and first.abs().sum() > 0


def test_metrics_are_means_over_tokens_and_add_up() -> None:
    entropy = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, math.nan]], dtype=torch.float64)
    _, metrics = run("grpo", [1.0, -1.0], entropy=entropy)
    means = metrics.means()
    assert means["ratio"] == pytest.approx((1.5 + 1 + 0.5 + 1.5 + 0.5) / 5)
    assert means["clip_high"] == pytest.approx(1 / 5)
    assert means["clip_low"] == pytest.approx(1 / 5)
    assert means["entropy"] == pytest.approx(3.0)
    k3s = [r - 1 - math.log(r) for r in (1.5, 1.0, 0.5, 1.5, 0.5)]
    assert means["kl_old"] == pytest.approx(sum(k3s) / 5)
    parts = [
        Metrics.over(MASK[i : i + 1].bool(), {"entropy": entropy[i : i + 1]}) for i in range(2)
    ]
    assert sum(parts, Metrics()).means() == {"entropy": pytest.approx(3.0)}
    assert Metrics.over(torch.zeros(1, 3, dtype=torch.bool), {"x": entropy[:1]}).means() == {}


@pytest.mark.parametrize("spec", SPECS)
def test_all_masked_is_zero_with_zero_gradient(spec: str) -> None:
    policy = torch.full((2, 3), math.nan, requires_grad=True)
    got, metrics = Objective.parse(spec).loss(
        policy=policy,
        old=torch.full((2, 3), math.inf),
        behaviour=torch.full((2, 3), -math.inf),
        reference=torch.full((2, 3), math.nan),
        entropy=torch.full((2, 3), math.nan),
        picked=torch.ones(2, 3).bool(),
        advantages=torch.full((2,), math.nan),
        mask=torch.zeros(2, 3),
        counts=Counts(),
    )
    got.backward()
    assert got.item() == 0.0 and metrics.means() == {}
    assert policy.grad is not None and (policy.grad == 0).all()


def test_no_tokens_at_all() -> None:
    got, _ = Objective.parse("gspo").loss(
        policy=torch.zeros(2, 0), advantages=torch.ones(2), mask=torch.zeros(2, 0), counts=Counts()
    )
    assert got.item() == 0.0


@pytest.mark.parametrize("gap", [-1e30, -2000.0, 2000.0, 1e30])
@pytest.mark.parametrize("advantage", [-1.0, 1.0])
@pytest.mark.parametrize("spec", SPECS)
def test_ratio_zero_and_huge(spec: str, advantage: float, gap: float) -> None:
    policy = torch.full((1, 2), gap, requires_grad=True)
    zero = torch.zeros(1, 2)
    got, metrics = Objective.parse(spec).loss(
        policy=policy,
        old=zero,
        behaviour=zero - gap if spec in ("grpo+tis+kl+dual_clip",) else zero,
        reference=zero,
        entropy=zero,
        picked=zero == 0,
        advantages=torch.tensor([advantage]),
        mask=zero + 1,
        counts=Counts(2, 1, 1),
    )
    got.backward()
    assert got.isfinite() and policy.grad is not None and policy.grad.isfinite().all()
    assert all(math.isfinite(value) for value in metrics.means().values())
    if SURROGATES[Objective.parse(spec).surrogate].ratio:
        expected = math.exp(math.copysign(20.0, gap))
        assert metrics.means()["ratio"] == pytest.approx(expected, rel=1e-5)


def test_what_the_loss_needs_is_asked_for() -> None:
    with pytest.raises(UserError, match="needs reference log-probs"):
        loss("grpo+kl", [1.0, -1.0])
    with pytest.raises(UserError, match="needs behaviour log-probs"):
        loss("grpo+tis", [1.0, -1.0])


def test_bfloat16_inputs_are_summed_in_float32() -> None:
    got, _ = Objective.parse("grpo").loss(
        policy=RATIOS.log().bfloat16(),
        old=torch.zeros(2, 3).bfloat16(),
        advantages=torch.tensor([1.0, -1.0]).bfloat16(),
        mask=MASK,
        counts=Counts.of(MASK),
    )
    assert got.dtype == torch.float32
    assert got.item() == pytest.approx(0.125, abs=5e-3)
