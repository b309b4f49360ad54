"""TRL's losses and ours on the same tensors: equal, or different in the way that the docs say.

TRL divides by the sample std plus 1e-4, here always asked of ours too; every other difference has a
test of its own below and a row under "Beside TRL" in docs/objectives.md.
"""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch

trl = pytest.importorskip("trl", reason="TRL is not installed: pip install 'lydite[parity]'")
if not trl.__version__.startswith("1.16."):
    pytest.skip(f"made for TRL 1.16, found {trl.__version__}", allow_module_level=True)

from trl_step import GROUP, Found, make_step, ours, theirs  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

# TRL's std and its epsilon; its default loss has a KL whose gradient is unbiased, off at β = 0.
SAME = {"std": "sample", "std_eps": 1e-4}
VLLM = {"use_vllm": True, "vllm_importance_sampling_correction": True}


def assert_same(found: Found, expected: Found) -> None:
    assert expected.gradient.abs().max() > 1e-3
    torch.testing.assert_close(found.advantages, expected.advantages, rtol=1e-9, atol=1e-9)
    assert found.loss == pytest.approx(expected.loss, rel=1e-6, abs=1e-9)
    torch.testing.assert_close(found.gradient, expected.gradient, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(found.by_entropy, expected.by_entropy, rtol=1e-6, atol=1e-9)


def grpo(*patches: str, **changes: Any) -> dict[str, Any]:
    return {"preset": "grpo", "patches": list(patches), **SAME, **changes}


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "grpo": (grpo(), {"loss_type": "grpo"}),
    "grpo, no std": (grpo("no_std"), {"loss_type": "grpo", "scale_rewards": "none"}),
    "grpo, batch std": (grpo("batch_std"), {"loss_type": "grpo", "scale_rewards": "batch"}),
    "lite_ppo": ({"preset": "lite_ppo", **SAME}, {"loss_type": "dapo", "scale_rewards": "batch"}),
    "dapo": (grpo("token_mean", "clip_higher"), {"loss_type": "dapo", "epsilon_high": 0.28}),
    "bnpo": ({"preset": "bnpo", **SAME}, {"loss_type": "bnpo"}),
    "dr_grpo": ({"preset": "dr_grpo"}, {"loss_type": "dr_grpo", "scale_rewards": "none"}),
    "gspo": (
        {"preset": "gspo", "clip_low": 0.05, "clip_high": 0.1, **SAME},
        {
            "loss_type": "grpo",
            "importance_sampling_level": "sequence",
            "epsilon": 0.05,
            "epsilon_high": 0.1,
        },
    ),
    "gspo, token mean": (
        {"preset": "gspo", "patches": ["token_mean"], "clip_low": 0.05, "clip_high": 0.1, **SAME},
        {
            "loss_type": "dapo",
            "importance_sampling_level": "sequence",
            "epsilon": 0.05,
            "epsilon_high": 0.1,
        },
    ),
    "luspo": (
        {"preset": "luspo", "clip_low": 0.05, "clip_high": 0.1, **SAME},
        {
            "loss_type": "luspo",
            "importance_sampling_level": "sequence",
            "epsilon": 0.05,
            "epsilon_high": 0.1,
        },
    ),
    "cispo": ({"preset": "cispo", **SAME}, {"loss_type": "cispo", "epsilon_high": 5.0}),
    "cispo, a cap that holds": (
        {"preset": "cispo", "clip_high": 0.5, **SAME},
        {"loss_type": "cispo", "epsilon_high": 1.5},
    ),
    "sapo": ({"preset": "sapo", **SAME}, {"loss_type": "sapo"}),
    "vespo to the old policy": (
        {"preset": "vespo", "anchor": "old", **SAME},
        {"loss_type": "vespo"},
    ),
    "vespo to the engine": (
        {"preset": "vespo", **SAME},
        {
            "loss_type": "vespo",
            **VLLM,
            "vllm_importance_sampling_mode": "token_truncate",
            "vllm_importance_sampling_clip_max": 1e6,
        },
    ),
    "gmpo": (
        {"preset": "gmpo", **SAME},
        {"gmpo": True, "epsilon": 0.4, "epsilon_high": 0.4},
    ),
    "two_sided_clip": (grpo("two_sided_clip"), {"loss_type": "grpo", "delta": 4.0}),
    "kl": (
        grpo("kl", kl=0.04),
        {"loss_type": "grpo", "beta": 0.04, "use_bias_correction_kl": False},
    ),
    "kl_unbiased": (grpo("kl_unbiased", kl=0.04), {"loss_type": "grpo", "beta": 0.04}),
    "kl, token mean": (
        grpo("kl", "token_mean", kl=0.04),
        {"loss_type": "dapo", "beta": 0.04, "use_bias_correction_kl": False},
    ),
    "mask_truncated": (
        grpo("mask_truncated", "token_mean"),
        {"loss_type": "dapo", "mask_truncated_completions": True},
    ),
    "tis": (
        grpo("tis"),
        {
            "loss_type": "grpo",
            **VLLM,
            "vllm_importance_sampling_mode": "token_truncate",
            "vllm_importance_sampling_clip_max": 2.0,
        },
    ),
    "tis_sequence": (
        grpo(correction="tis_sequence", **{"correction.high": 1.2}),
        {
            "loss_type": "grpo",
            **VLLM,
            "vllm_importance_sampling_mode": "sequence_truncate",
            "vllm_importance_sampling_clip_max": 1.2,
        },
    ),
    "mis": (
        grpo("mis", **{"correction.high": 1.2}),
        {
            "loss_type": "grpo",
            **VLLM,
            "vllm_importance_sampling_mode": "sequence_mask",
            "vllm_importance_sampling_clip_max": 1.2,
        },
    ),
    "icepop": (
        grpo("icepop", **{"correction.low": 0.9, "correction.high": 1.1}),
        {
            "loss_type": "grpo",
            **VLLM,
            "vllm_importance_sampling_mode": "token_mask",
            "vllm_importance_sampling_clip_min": 0.9,
            "vllm_importance_sampling_clip_max": 1.1,
        },
    ),
    "off_policy_mask": (
        grpo("off_policy_mask", **{"correction.off_policy": 0.05}),
        {"loss_type": "grpo", "off_policy_mask_threshold": 0.05},
    ),
    "high_entropy_tokens": (
        grpo("high_entropy_tokens", **{"token_filter.share": 0.3}),
        {"loss_type": "grpo", "top_entropy_quantile": 0.3},
    ),
    "deepseek_v32": (
        {"preset": "deepseek_v32", "kl": 0.04, "correction.off_policy": 0.05},
        {
            "loss_type": "grpo",
            "scale_rewards": "none",
            "beta": 0.04,
            "off_policy_mask_threshold": 0.05,
        },
    ),
    "entropy_bonus": (
        grpo("entropy_bonus", "token_mean"),
        {"loss_type": "bnpo", "entropy_coef": 0.005},
    ),
    "all at once": (
        grpo(
            *("two_sided_clip", "clip_higher", "token_mean", "kl_unbiased", "tis"),
            *("off_policy_mask", "mask_truncated", "entropy_bonus"),
            **{"kl": 0.04, "correction.off_policy": 0.05},
        ),
        {
            "loss_type": "dapo",
            "delta": 4.0,
            "epsilon_high": 0.28,
            "beta": 0.04,
            **VLLM,
            "vllm_importance_sampling_mode": "token_truncate",
            "vllm_importance_sampling_clip_max": 2.0,
            "off_policy_mask_threshold": 0.05,
            "mask_truncated_completions": True,
            "entropy_coef": 0.005,
        },
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_trl_and_lydite_agree(name: str) -> None:
    spec, settings = CASES[name]
    # Of ratios from e⁻³ to e³ every clip and bound has tokens on both of its sides.
    for spread in (0.0, 1.0):
        step = make_step(spread)
        assert_same(ours(spec, step), theirs(step, **settings))


def test_no_two_cases_are_the_same() -> None:
    step = make_step(1.0)
    found = {name: ours(spec, step) for name, (spec, _) in CASES.items()}
    names = list(found)
    for i, one in enumerate(names):
        for other in names[:i]:
            gap = (found[one].gradient - found[other].gradient).abs().max()
            gap += (found[one].by_entropy - found[other].by_entropy).abs().max()
            assert gap > 1e-6, (one, other)


def test_every_loss_that_trl_has_is_a_case() -> None:
    help_text = trl.GRPOConfig.__dataclass_fields__["loss_type"].metadata["help"]
    known = set(re.findall(r"'([a-z_]+)'", help_text))
    assert {"grpo", "dapo"} <= known
    assert known - {"sequence"} <= {settings.get("loss_type") for _, settings in CASES.values()}


def test_rloo_of_one_update() -> None:
    # The ratio of TRL's RLOO is 1, and its gradient REINFORCE's.
    step = make_step(0.0)
    step = step.with_(tool=torch.zeros_like(step.tool))
    spec = {"preset": "rloo", "fixed_length": 1}
    found, expected = ours(spec, step), theirs(step, rloo=True, beta=0.0)
    torch.testing.assert_close(found.advantages, expected.advantages)
    torch.testing.assert_close(found.gradient, expected.gradient)


def test_rloo_of_several_updates_is_clipped_by_trl() -> None:
    step = make_step(0.1)
    step = step.with_(tool=torch.zeros_like(step.tool))
    spec = {
        "preset": "grpo",
        "baseline": "leave_one_out",
        "scale": "none",
        "ratio": "product",
    }
    assert_same(ours(spec, step), theirs(step, rloo=True, beta=0.0))


def test_rloo_has_its_kl_in_the_reward_before_the_baseline() -> None:
    step = make_step(0.0)
    step = step.with_(tool=torch.zeros_like(step.tool))
    kl = ((step.old - step.reference) * step.present).sum(dim=1)
    paid = step.with_(rewards=step.rewards - 0.05 * kl)
    found = theirs(step, rloo=True, beta=0.05)
    torch.testing.assert_close(found.advantages, theirs(paid, rloo=True, beta=0.0).advantages)
    # Ours: the KL ahead of each token, no baseline. The last token pays for itself alone.
    patched = {"preset": "rloo", "patches": ["kl_in_reward"], "kl": 0.05, "fixed_length": 1}
    ahead = (
        ours(patched, step).gradient - ours({"preset": "rloo", "fixed_length": 1}, step).gradient
    )
    own = 0.05 * (step.old - step.reference)[0, 2] / 12
    assert ahead[0, 2] == pytest.approx(own.item())


PARTS = torch.stack([make_step().rewards, torch.arange(12, dtype=torch.float64) % 5], dim=1)


@pytest.mark.parametrize("weights", [[1.0, 1.0], [0.3, 2.0]])
def test_several_rewards(weights: list[float]) -> None:
    step = make_step().with_(rewards=PARTS)
    summed = theirs(step, loss_type="grpo", reward_weights=weights)
    assert_same(ours(grpo(), step, weights), summed)
    decoupled = theirs(
        step,
        loss_type="dapo",
        reward_weights=weights,
        multi_objective_aggregation="normalize_then_sum",
    )
    assert_same(ours({"preset": "gdpo", **SAME}, step, weights), decoupled)


# What differs, each with a row in docs/objectives.md.


def test_the_std() -> None:
    step = make_step()
    population = ours("grpo", step).advantages.reshape(3, GROUP)
    sample = theirs(step, loss_type="grpo").advantages.reshape(3, GROUP)
    std = step.rewards.reshape(3, GROUP).std(dim=1, keepdim=True)
    expected = population * math.sqrt(3 / 4) * std / (std + 1e-4)
    torch.testing.assert_close(sample, expected)


def test_a_completion_without_a_verdict_stays_in_trls_denominators() -> None:
    step = make_step()
    step.rewards[[1, 6]] = math.nan
    gone = step.mask[[1, 6]].sum() / step.mask.sum()
    found, expected = ours(grpo("token_mean"), step), theirs(step, loss_type="dapo")
    torch.testing.assert_close(found.advantages, expected.advantages)
    torch.testing.assert_close(found.gradient * (1 - gone), expected.gradient)
    found, expected = ours(grpo(), step), theirs(step, loss_type="grpo")
    torch.testing.assert_close(found.gradient * 10 / 12, expected.gradient)


def test_a_reward_of_several_without_a_verdict_is_zero_in_trl() -> None:
    undecided, zero = PARTS.clone(), PARTS.clone()
    undecided[1, 0], zero[1, 0] = math.nan, 0.0
    step = make_step()
    found = theirs(step.with_(rewards=undecided), loss_type="grpo")
    torch.testing.assert_close(
        found.advantages, theirs(step.with_(rewards=zero), loss_type="grpo").advantages
    )
    assert ours(grpo(), step.with_(rewards=undecided)).gradient[1].abs().max() == 0
    assert found.gradient[1].abs().max() > 0


def test_truncated_completions_stay_in_trls_means_over_sequences() -> None:
    step = make_step().with_(cut=[2])
    left = 1 - step.truncated.sum() / 12
    for spec, settings in (
        (grpo("mask_truncated"), {"loss_type": "grpo"}),
        (
            {"preset": "dr_grpo", "patches": ["mask_truncated"]},
            {"loss_type": "dr_grpo", "scale_rewards": "none"},
        ),
    ):
        expected = theirs(step, mask_truncated_completions=True, **settings)
        torch.testing.assert_close(ours(spec, step).gradient * left, expected.gradient)


def test_groups_without_a_signal_dilute_trls_dapo() -> None:
    step = make_step()
    spec = {"preset": "dapo", **SAME}
    silent = step.mask[8:].sum() / step.mask.sum()
    expected = theirs(step, loss_type="dapo", epsilon_high=0.28)
    torch.testing.assert_close(ours(spec, step).gradient * (1 - silent), expected.gradient)


@pytest.mark.parametrize("name", ["grpo", "dapo", "dr_grpo", "cispo", "luspo", "gspo", "sapo"])
@pytest.mark.parametrize("cut", [3, 12])
def test_micro_batches_change_nothing_in_trl(name: str, cut: int) -> None:
    spec, settings = CASES[name]
    step = make_step(1.0)
    assert_same(ours(spec, step), theirs(step, micro_batches=cut, **settings))


@pytest.mark.parametrize("name", ["bnpo", "entropy_bonus", "high_entropy_tokens"])
def test_micro_batches_that_make_another_objective_in_trl(name: str) -> None:
    spec, settings = CASES[name]
    step = make_step(0.4)
    whole = ours(spec, step)
    found = theirs(step, micro_batches=3, **settings)
    gap = (found.gradient - whole.gradient).norm() / whole.gradient.norm()
    gap += (found.by_entropy - whole.by_entropy).norm() / whole.by_entropy.norm().clamp(min=1e-9)
    assert gap > 0.05


def test_trl_counts_the_tokens_of_a_rollout_not_of_a_step() -> None:
    step = make_step()
    found = theirs(step, micro_batches=3, gradient_accumulation_steps=1, loss_type="dapo")
    spec = grpo("token_mean")
    whole = ours(spec, step).gradient
    # Three steps of one group each: every one is divided by a third of all tokens.
    torch.testing.assert_close(found.gradient, whole * 3)
    own = step.mask[:GROUP].sum()
    first = whole[:GROUP] * step.mask.sum() / own  # the step's own tokens, as ours would count
    assert not torch.allclose(first, found.gradient[:GROUP], rtol=0.01)


def test_the_entropy_bonus_follows_the_aggregation() -> None:
    step = make_step()
    rows = step.mask.sum(dim=1)
    found = ours(grpo("entropy_bonus"), step)
    expected = theirs(step, loss_type="grpo", entropy_coef=0.005)
    torch.testing.assert_close(found.gradient, expected.gradient)
    torch.testing.assert_close(found.by_entropy[0, 0], -0.005 / (12 * rows[0].double()))
    torch.testing.assert_close(expected.by_entropy[0, 0], -0.005 / rows.sum().double())


def test_how_many_tokens_are_the_top_fifth() -> None:
    # Of 56 tokens ours are round(11.2) = 11; TRL's quantile is a token itself, and so a twelfth.
    step = make_step(0.0).with_(rewards=torch.arange(12, dtype=torch.float64).square())
    ranked = step.entropy[step.mask].sort(descending=True).values
    assert len(ranked) == 56
    found = ours(grpo("high_entropy_tokens"), step)
    expected = theirs(step, loss_type="grpo", top_entropy_quantile=0.2)
    for gradient, count in ((found.gradient, 11), (expected.gradient, 12)):
        assert torch.equal(step.entropy[gradient != 0].sort(descending=True).values, ranked[:count])


def test_an_unbiased_kl_is_weighed_by_tokens_even_where_ratios_are_of_sequences() -> None:
    step = make_step(1.0).with_(rewards=torch.ones(12, dtype=torch.float64))
    settings = {"loss_type": "grpo", "beta": 0.04, "importance_sampling_level": "sequence"}
    spec = {"preset": "gspo", "patches": ["kl_unbiased"], "kl": 0.04}
    token = theirs(step, loss_type="grpo", beta=0.04)
    found = ours(spec, step)
    torch.testing.assert_close(found.gradient, token.gradient)
    assert not torch.allclose(found.gradient, theirs(step, **settings).gradient, rtol=0.01)


def test_a_delta_below_the_clip_bounds_good_tokens_too() -> None:
    step = make_step(1.0, seed=5)
    found = ours(grpo(dual_clip=1.1), step)
    expected = theirs(step, loss_type="grpo", delta=1.1)
    bad = found.advantages < 0
    torch.testing.assert_close(found.gradient[bad], expected.gradient[bad])
    stopped = (expected.gradient == 0) & (found.gradient != 0)
    assert stopped.any() and not stopped[bad].any()
    ratio = (step.policy - step.old).exp()[stopped]
    assert (ratio > 1.1).all() and (ratio < 1.2).all()


def test_a_huge_ratio_is_infinite_in_trl() -> None:
    step = make_step()
    step.policy[5, 0] += 800.0
    assert not math.isfinite(theirs(step, loss_type="grpo").loss)
    assert math.isfinite(ours(grpo(), step).loss)
