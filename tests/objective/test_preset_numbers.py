"""Every preset and patch by hand: advantages of a 2×4 table, the loss of five tokens, gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lydite.config import UserError
from lydite.objective import PRESETS, Counts, Objective

NAN = math.nan
TABLE = [[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]]
LENGTHS = torch.tensor([[10, 20, 30, 40], [1, 1, 2, 4]])

ROOT3 = math.sqrt(3)
GROUP = [[ROOT3, *[-1 / ROOT3] * 3], [1.0, 1.0, -1.0, -1.0]]
CENTRED = [[0.75, *[-0.25] * 3], [0.5, 0.5, -0.5, -0.5]]
# std of CENTRED: sqrt((0.5625 + 3/16 + 4/4) / 8) = 0.4677072
WHITE = [[1.6035675, *[-0.5345225] * 3], [1.0690450, 1.0690450, -1.0690450, -1.0690450]]

ADVANTAGES: dict[str, list[list[float]]] = {
    **dict.fromkeys(["grpo", "dapo", "gspo", "gspo_token", "cispo", "gmpo"], GROUP),
    **dict.fromkeys(["sapo", "dppo", "vespo", "bnpo", "luspo"], GROUP),
    **dict.fromkeys(["dr_grpo", "deepseek_v32", "gpg"], CENTRED),
    "reinforce": TABLE,
    "ppo": TABLE,  # rewards: a critic makes advantages of them, see test_gae.py
    "rloo": [[1.0, *[-1 / 3] * 3], [2 / 3, 2 / 3, -2 / 3, -2 / 3]],
    # 3 of 8: mean 0.375, std 0.4841229
    "reinforce++": [[1.2909944, *[-0.7745967] * 3], [1.2909944] * 2 + [-0.7745967] * 2],
    "reinforce++_baseline": WHITE,
    "scalerl": WHITE,
    # baselines 10/100 and (1 + 1)/8
    "opo": [[0.9, -0.1, -0.1, -0.1], [0.75, 0.75, -0.25, -0.25]],
    "lite_ppo": [[1.5491933, *[-0.5163978] * 3], [1.0327956] * 2 + [-1.0327956] * 2],
    # standardised within the group, and the std of those eight is 1
    "gdpo": GROUP,
    # 0.75/0.25, −0.25/0.25; 0.5/0.5
    "maxrl": [[3.0, -1.0, -1.0, -1.0], [1.0, 1.0, -1.0, -1.0]],
    # k = 4 of 4: any right answer is a pass, whoever gave it
    "passk": [[0.0] * 4] * 2,
}


@pytest.mark.parametrize("preset", list(PRESETS))
def test_advantages_by_hand(preset: str) -> None:
    got = Objective.parse(preset).advantages(torch.tensor(TABLE, dtype=torch.float64), LENGTHS)
    for row, expected in zip(got.tolist(), ADVANTAGES[preset], strict=True):
        assert row == pytest.approx(expected, abs=1e-7)


def test_pass_at_two_of_four() -> None:
    objective = Objective.parse({"preset": "passk", "pass_k": 2})
    got = objective.advantages(torch.tensor(TABLE, dtype=torch.float64)).tolist()
    # pass@2 = 1 − 3/6, σ = 1/2: A⁺ = 1, A⁻ = (1/2 − 2/3)/σ; then 1 − 1/6, σ = √5/6
    assert got[0] == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3])
    assert got[1] == pytest.approx([1 / math.sqrt(5)] * 2 + [-1 / math.sqrt(5)] * 2)
    # k = 1 is GRPO, and the excluded were never drawn
    one = Objective.parse({"preset": "passk", "pass_k": 1})
    assert one.advantages(torch.tensor(TABLE)).tolist()[0] == pytest.approx(GROUP[0])
    without = objective.advantages(torch.tensor([[1.0, 0, 0, NAN]], dtype=torch.float64))
    assert without[0, :3].tolist() == pytest.approx(
        objective.advantages(torch.tensor([[1.0, 0, 0]], dtype=torch.float64))[0].tolist()
    )
    with pytest.raises(UserError, match="group size: 1 "):
        objective.check_group_size(1)
    with pytest.raises(UserError, match="holds no 2 completions"):
        Objective.parse(
            {"preset": "passk", "pass_k": 2, "baseline": "none", "scale": "none"}
        ).check_group_size(1)


def test_gdpo_gives_each_reward_its_own_scale() -> None:
    right = torch.tensor(TABLE, dtype=torch.float64)
    style = torch.tensor([[0.0, 10, 0, 10], [5, 5, 5, 5]], dtype=torch.float64)
    parts = torch.stack([right, style], dim=2)
    got = Objective.parse("gdpo").advantages(parts).tolist()
    # row 1: (√3 − 1, 1 − 1/√3, −1 − 1/√3, …), row 2: ±1; std sqrt(7.381198/8) = 0.9605466
    assert got[0] == pytest.approx([0.7621189, 0.4400095, -1.6421384, 0.4400095], abs=1e-6)
    assert got[1] == pytest.approx([1.0410739] * 2 + [-1.0410739] * 2, abs=1e-6)
    # the sample std of each: the same here, for the whitening undoes it; not so with an epsilon
    sample = Objective.parse({"preset": "gdpo", "std": "sample"}).advantages(parts)
    assert sample[0].tolist() == pytest.approx([x * math.sqrt(7 / 8) for x in got[0]], abs=1e-6)
    # stds √3/4 and 5 of row 1 become √3/4 + 1 and 6: its first two entries from 0.52338, −0.83333
    # and −0.17446, 0.83333; of row 2 ±0.5/1.5
    damped = Objective.parse({"preset": "gdpo", "std_eps": 1.0}).advantages(parts).tolist()
    raw = [-0.309949, 0.658873, -1.007794, 0.658873, 1 / 3, 1 / 3, -1 / 3, -1 / 3]
    spread = math.sqrt(sum(x * x for x in raw) / 8) + 1
    assert damped[0] == pytest.approx([x / spread for x in raw[:4]], abs=1e-5)
    # a weight of 0 leaves a reward out; without GDPO the larger reward drowns the other
    alone = Objective.parse("gdpo").advantages(parts, weights=[1.0, 0.0]).tolist()
    assert alone[0] == pytest.approx(GROUP[0])
    summed = Objective.parse("grpo").advantages(parts)
    assert torch.equal(summed, Objective.parse("grpo").advantages(right + style))
    parts[0, 0, 1] = NAN
    assert Objective.parse("gdpo").advantages(parts)[0, 0] == 0


def test_gpg_makes_up_for_groups_without_a_signal() -> None:
    rewards = torch.tensor([*TABLE, [1.0] * 4], dtype=torch.float64)
    got = Objective.parse("gpg").advantages(rewards).tolist()
    assert got[0] == pytest.approx([1.125, -0.375, -0.375, -0.375])  # 0.75 · 12/8
    assert got[2] == [0.0] * 4
    # an excluded reward makes no signal of its group: 2 of 5 are in one that has
    rewards = torch.tensor([[1.0, 0.0, NAN, NAN], [1.0, 1.0, 1.0, NAN]], dtype=torch.float64)
    assert Objective.parse("gpg").advantages(rewards)[0].tolist() == [1.25, -1.25, 0.0, 0.0]


def test_maxrl_has_no_signal_where_the_mean_is_not_above_zero() -> None:
    rewards = torch.tensor([[-1.0, -2.0], [1.0, -1.0], [0.0, 0.0], [3.0, 1.0]])
    assert Objective.parse("maxrl").advantages(rewards).tolist() == [[0, 0]] * 3 + [[0.5, -0.5]]


def test_opo_asks_for_lengths_and_takes_empty_ones() -> None:
    with pytest.raises(UserError, match="needs completion lengths"):
        Objective.parse("opo").advantages(torch.tensor(TABLE))
    got = Objective.parse("opo").advantages(torch.tensor([[1.0, 0.0]]), torch.zeros(1, 2).int())
    assert got.tolist() == [[1.0, 0.0]]


RATIOS = torch.tensor([[1.5, 1.0, 0.5], [1.5, 0.5, 1.0]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 1], [1, 1, 0]])
ZERO = torch.zeros_like(RATIOS)
TWICE = RATIOS.log() + math.log(2.0)


def loss(spec: Any, advantages: list[float], **extra: Any) -> Tensor:
    inputs: dict[str, Any] = {
        "policy": RATIOS.log(),
        "old": ZERO,
        "behaviour": ZERO,
        "counts": Counts(5, 2, 2),
    }
    got, _ = Objective.parse(spec).loss(
        advantages=torch.tensor(advantages, dtype=torch.float64), mask=MASK, **{**inputs, **extra}
    )
    return got


S3 = 0.75 ** (1 / 3)
L = math.log(0.75)  # Σ log ratio of either row
# Σ r·log r of either row: 1.5·log 1.5 + 0.5·log 0.5
RLOG = 1.5 * math.log(1.5) + 0.5 * math.log(0.5)
K3 = 1 - math.log(2.0)
SAMPLE, TOKEN = -(2.7 / 3 - 2.3 / 2) / 2, -(2.7 - 2.3) / 5

LOSSES: dict[str, float] = {
    # clipped gains: 1.2 + 1 + 0.5 = 2.7 and −1.5 − 0.8 = −2.3
    **dict.fromkeys(["grpo", "maxrl", "passk"], SAMPLE),
    **dict.fromkeys(["bnpo", "lite_ppo", "reinforce++_baseline", "gdpo", "ppo"], TOKEN),
    "dr_grpo": -(2.7 - 2.3) / 20,
    "dapo": -(2.78 - 2.3) / 5,
    # ratios 0.75^(1/3), and 0.75^(1/2) clipped to 0.9997
    **dict.fromkeys(["gspo", "gspo_token"], -(S3 - 0.9997) / 2),
    "luspo": -(3 * S3 - 2 * 0.998) / 2,
    "cispo": 0.0,  # the rows cancel; see below
    "scalerl": -RLOG * (1 / 3 - 1 / 2) / 2,
    # log-ratios held: 0.4, 0, log 0.5; log 1.5, −0.4
    "gmpo": -(math.exp((0.4 + math.log(0.5)) / 3) - math.exp((math.log(1.5) - 0.4) / 2)) / 2,
    # σ(x) + σ(−x) = 1: 4·(1 + ½)/3 and −(4/1.05)/2
    "sapo": -(2 - 2 / 1.05) / 2,
    "dppo": -(3 - 2) / 5,
    "vespo": -L * (0.75**2 * math.exp(0.75) - 0.75**3 * math.exp(0.5)) / 5,
    **dict.fromkeys(["reinforce", "rloo", "opo"], 0.0),
    "gpg": 0.0,
    # advantages less 0.001 nats for each token ahead: 0.997, 0.998, 0.999; −1.002, −1.001
    "reinforce++": -(1.2 * 0.997 + 0.998 + 0.5 * 0.999 - 1.5 * 1.002 - 0.8 * 1.001) / 5,
    # k3 = 2 − log 2 − 1 for every token, times ratios that sum to 3 and 2
    "deepseek_v32": -((2.7 - 0.003 * K3) / 3 + (-2.3 - 0.002 * K3) / 2) / 2,
}


@pytest.mark.parametrize("preset", list(PRESETS))
def test_loss_by_hand(preset: str) -> None:
    reference = ZERO - 1 if preset == "reinforce++" else TWICE
    objective = Objective.parse(preset).with_limit(10)
    got = loss(objective, [1.0, -1.0], reference=reference)
    assert got.item() == pytest.approx(LOSSES[preset], abs=1e-12)


def test_log_prob_surrogates_with_advantages_that_do_not_cancel() -> None:
    assert loss("cispo", [2.0, -1.0]).item() == pytest.approx(-RLOG / 5)
    assert loss("gpg", [2.0, -1.0]).item() == pytest.approx(-L / 5)
    for preset in ("reinforce", "rloo", "opo"):
        got = loss({"preset": preset, "fixed_length": 10}, [2.0, -1.0])
        assert got.item() == pytest.approx(-L / 20)
    one_prompt = {"counts": Counts(5, 2, 1), "prompt_tokens": torch.tensor([5, 5])}
    assert loss("scalerl", [2.0, -1.0], **one_prompt).item() == pytest.approx(-RLOG / 5)


def gradient(spec: Any, advantages: list[float], **extra: Any) -> list[list[float]]:
    policy = extra.pop("policy", RATIOS.log()).clone().requires_grad_()
    loss(spec, advantages, policy=policy, **extra).backward()
    assert policy.grad is not None
    return [[round(x, 9) for x in row] for row in policy.grad.tolist()]


def near(rows: list[list[float]]) -> list[Any]:
    return [pytest.approx(row, abs=1e-8) for row in rows]


def test_cispo_keeps_the_gradient_of_clipped_tokens_and_caps_their_weight() -> None:
    assert gradient("cispo", [1.0, -1.0]) == near([[-0.3, -0.2, -0.1], [0.3, 0.1, 0.0]])
    huge = torch.tensor([[10.0, 1.0, 0.5], [1.5, 0.5, 1.0]], dtype=torch.float64).log()
    assert gradient("cispo", [1.0, 0.0], policy=huge)[0] == pytest.approx([-1.0, -0.2, -0.1])


def test_scalerls_ratio_is_to_the_engine() -> None:
    # against behaviour = −log 2 every ratio doubles; old is not looked at
    got = gradient("scalerl", [1.0, -1.0], behaviour=ZERO - math.log(2.0), old=ZERO + 7)
    assert got == near([[-0.5, -1 / 3, -1 / 6], [0.75, 0.25, 0.0]])


def test_gmpo_stops_a_token_and_shares_the_mean() -> None:
    one = math.exp((0.4 + math.log(0.5)) / 3) / 6
    other = math.exp((math.log(1.5) - 0.4) / 2) / 4
    assert gradient("gmpo", [1.0, -1.0]) == near([[0.0, -one, -one], [other, 0.0, 0.0]])


def test_sapos_gate_has_gradient_r_at_the_old_policy() -> None:
    # d/d log π of 4/τ·σ(τ(r − 1)) at r = 1 is 4·σ'(0) = 1, whatever τ
    got = gradient("sapo", [1.0, -1.0], policy=ZERO)
    assert got == near([[-1 / 6] * 3, [1 / 4, 1 / 4, 0.0]])


def test_dppo_stops_by_probability() -> None:
    # μ = e⁻¹ = 0.368: π is 0.552, 0.368, 0.184, so the first and third have moved by 0.184
    got = gradient("dppo", [1.0, -1.0], policy=RATIOS.log() - 1, behaviour=ZERO - 1)
    assert got == near([[0.0, -0.2, -0.1], [0.3, 0.0, 0.0]])
    # one that has not moved learns, whichever way it is to go
    still = {"policy": ZERO - 1, "behaviour": ZERO - 1}
    assert gradient("dppo", [1.0, -1.0], **still) == near([[-0.2] * 3, [0.2, 0.2, 0.0]])
    # a rare token may grow a hundredfold: 1e-5 → 1e-3
    rare = {"policy": ZERO + math.log(1e-3), "behaviour": ZERO + math.log(1e-5)}
    assert gradient("dppo", [1.0, 0.0], **rare)[0] == pytest.approx([-20.0] * 3)


def test_vespos_kernel_is_one_at_the_old_policy() -> None:
    assert gradient("vespo", [1.0, -1.0], policy=ZERO) == near([[-0.2] * 3, [0.2, 0.2, 0.0]])


def test_gspo_token_is_gspo_where_a_sequence_has_one_advantage() -> None:
    ours, theirs = gradient("gspo_token", [1.0, -1.0]), gradient("gspo", [1.0, -1.0])
    assert ours == near(theirs)


def test_deepseek_drops_a_bad_answer_that_is_off_policy() -> None:
    # mean log μ/π is 1 + 0.144 > 0.5: its gain goes, its KL stays; a good one is never dropped
    got = loss("deepseek_v32", [1.0, -1.0], reference=TWICE, behaviour=ZERO + 1)
    assert got.item() == pytest.approx(-((2.7 - 0.003 * K3) / 3 - 0.002 * K3 / 2) / 2)
    near_policy = loss("grpo+off_policy_mask", [1.0, -1.0])
    assert near_policy.item() == pytest.approx(SAMPLE)
    # it is the present policy that must still give it: mean log μ/π = 0.6 > 0.5, at the start 0
    moved = loss("grpo+off_policy_mask", [1.0, -1.0], policy=ZERO - 0.6)
    assert moved.item() == pytest.approx(-math.exp(-0.6) / 2)
    far = loss("grpo+off_policy_mask", [-1.0, 1.0], behaviour=ZERO + 1)
    # row 1 is bad now: gone; row 2 is good: 1.2 + 0.5
    assert far.item() == pytest.approx(-(1.7 / 2) / 2)


def weighed(spec: Any, weights: list[list[float]]) -> float:
    behaviour = -torch.tensor(weights, dtype=torch.float64).log()
    return loss(spec, [1.0, -1.0], behaviour=behaviour).item()


def test_corrections_by_hand() -> None:
    # products 1 and 4: within and above 3
    assert weighed("grpo+mis", [[2, 0.5, 1], [4, 1, 9]]) == pytest.approx(-(2.7 / 3) / 2)
    # 6 is above 5: gains 1·0.5 + 0.5 and −1.5 − 0.8·4
    assert weighed("grpo+icepop", [[6, 0.5, 1], [1, 4, 9]]) == pytest.approx(-(1 / 3 - 4.7 / 2) / 2)
    assert weighed("grpo+icepop", [[0.4, 1, 1], [1, 1, 9]]) == pytest.approx(-(0.5 - 2.3 / 2) / 2)
    # products 1 and 36, truncated at 2
    sequence = {"correction": "tis_sequence"}
    got = weighed(sequence, [[2, 0.5, 1], [4, 9, 9]])
    assert got == pytest.approx(-(2.7 / 3 - 2 * 2.3 / 2) / 2)
    # geometric means 1.005 and 1.02
    masked = weighed("grpo+geometric_mask", [[1.005] * 3, [1.02, 1.02, 1]])
    assert masked == pytest.approx(-(2.7 / 3) / 2)


def test_two_sided_clip_bounds_a_bad_ratio_at_four() -> None:
    policy = torch.tensor([[9.0, 1.0, 1.0], [9.0, 1.0, 1.0]], dtype=torch.float64).log()
    got = loss("grpo+two_sided_clip", [1.0, -1.0], policy=policy)
    assert got.item() == pytest.approx(-((1.2 + 2) / 3 - (4 + 1) / 2) / 2)


def test_prompt_mean_by_hand() -> None:
    # two prompts: each row over its own tokens; one prompt: all five tokens alike
    two = loss("grpo+prompt_mean", [1.0, -1.0], prompt_tokens=torch.tensor([3, 2]))
    assert two.item() == pytest.approx(SAMPLE)
    one = {"prompt_tokens": torch.tensor([5, 5]), "counts": Counts(5, 2, 1)}
    assert loss("grpo+prompt_mean", [1.0, -1.0], **one).item() == pytest.approx(TOKEN)


def test_unbiased_kl_has_the_ratios_gradient_too() -> None:
    # d r·k3 / d log π = r·k3 + r·(1 − 2)
    spec = {"patches": ["kl_unbiased"], "kl": 0.5}
    got = gradient(spec, [0.0, 0.0], reference=TWICE)
    expected = [0.5 * r * (K3 - 1) / 6 for r in (1.5, 1.0, 0.5)]
    assert got[0] == pytest.approx(expected, abs=1e-8)


def test_kl_in_the_reward_is_what_lies_ahead_and_has_no_gradient_of_its_own() -> None:
    spec = {"preset": "rloo", "patches": ["kl_in_reward"], "kl": 0.1, "fixed_length": 1}
    got = gradient(spec, [1.0, -1.0], reference=ZERO - 1)
    assert got == near([[-0.35, -0.4, -0.45], [0.6, 0.55, 0.0]])


def test_entropy_bonus_by_hand() -> None:
    entropy = torch.tensor([[1.0, 2, 3], [4, 5, NAN]], dtype=torch.float64, requires_grad=True)
    got = loss("grpo+entropy_bonus", [1.0, -1.0], entropy=entropy)
    assert got.item() == pytest.approx(SAMPLE - 0.005 * (6 / 3 + 9 / 2) / 2)
    got.backward()
    assert entropy.grad is not None
    assert entropy.grad[0].tolist() == pytest.approx([-0.005 / 6] * 3)
    with pytest.raises(UserError, match="needs entropies"):
        loss("grpo+entropy_bonus", [1.0, -1.0])


def test_adaptive_entropy_by_hand() -> None:
    spec = {"patches": "adaptive_entropy", "entropy_bonus": {"high": 2e-4}}
    objective, coefficient = Objective.parse(spec), 0.0
    course = []
    for entropy in (0.1, 0.1, 0.1, 0.3, 0.2, 0.1, 0.9, 0.9, 0.9, NAN):
        at = objective.at_entropy(coefficient, entropy)
        course.append((round(1e4 * coefficient), round(1e4 * at.entropy_bonus.coefficient)))
        coefficient = objective.next_coefficient(coefficient, entropy)
    # c below the target: 0, 1, 2, 2 (its most); above it: less, and none in force; at it: as it is
    expected = [(0, 0), (1, 1), (2, 2), (2, 0), (1, 1), (1, 1), (2, 0), (1, 0), (0, 0), (0, 0)]
    assert course == expected
    assert coefficient == 0.0
    entropy_of_tokens = torch.tensor([[1.0, 2, 3], [4, 5, NAN]], dtype=torch.float64)
    got = loss("grpo", [1.0, -1.0]) - 2e-4 * (6 / 3 + 9 / 2) / 2
    bonus = objective.at_entropy(2e-4, 0.1)
    assert bonus.needs_entropy and not objective.at_entropy(2e-4, 0.3).needs_entropy
    assert loss(bonus, [1.0, -1.0], entropy=entropy_of_tokens).item() == pytest.approx(got.item())
    fixed = Objective.parse("grpo+entropy_bonus")
    assert fixed.at_entropy(0.3, 0.0) == fixed and fixed.next_coefficient(0.005, 0.0) == 0.005


def test_solved_by_hand() -> None:
    right = torch.tensor([[1] * 10, [1] * 9 + [0], [1] * 8 + [0] * 2, [0] * 10]).bool()
    assert Objective.parse("dapo+retire_solved").solved(right).tolist() == [
        True,
        True,
        False,
        False,
    ]
    assert not Objective.parse("dapo").solved(right).any()
    everything = Objective.parse({"group_filter": {"retire_at": 0.8}})
    assert everything.solved(right).tolist() == [True, True, True, False]


LOGPROBS = torch.tensor([[0.0, 0.0, 0.0], [-4.0, -2.0, NAN]], dtype=torch.float64)
ENTROPY = torch.tensor([[1.0, 5.0, 2.0], [4.0, 3.0, NAN]], dtype=torch.float64)


def picks(spec: Any) -> list[list[int]]:
    picked = Objective.parse(spec).pick(
        policy=LOGPROBS, entropy=ENTROPY, advantages=torch.tensor([1.0, -1.0]), mask=MASK
    )
    return picked.int().tolist()


def test_which_tokens_are_picked() -> None:
    # A − 0.2 is 0.8 ×3, −1.2 ×2; log π + 1.2 is 1.2 ×3, −2.8, −0.8: 0.96 ×3, 3.36, 0.96
    assert picks("grpo+kl_cov") == [[0, 0, 0], [1, 0, 0]]  # one at least
    assert picks({"patches": "clip_cov", "token_filter.share": 1.0}) == [[0, 0, 0], [1, 0, 0]]
    assert picks("grpo+high_entropy_tokens") == [[0, 1, 0], [0, 0, 0]]
    wider = {"patches": "high_entropy_tokens", "token_filter": {"share": 0.4}}
    assert picks(wider) == [[0, 1, 0], [1, 0, 0]]
    assert picks("grpo") == [[0, 0, 0], [0, 0, 0]]


def test_clip_cov_spreads_over_its_band() -> None:
    # two rows of advantages ±1 and log-probs ∓x have covariances x, here 0.5, 1, …, 5.5
    x = torch.arange(1, 12, dtype=torch.float64) / 2
    objective = Objective.parse({"patches": "clip_cov", "token_filter.share": 3 / 22})
    picked = objective.pick(
        policy=torch.stack([x, -x]),
        entropy=torch.zeros(2, 11),
        advantages=torch.tensor([1.0, -1.0]),
        mask=torch.ones(2, 11),
    )
    assert int(picked.sum()) == 3
    chosen = torch.stack([x, x])[picked].tolist()
    assert chosen[0] >= 1.0 and max(chosen) <= 5.0 and max(chosen) - min(chosen) > 2.0


def test_what_picked_tokens_do() -> None:
    picked = torch.tensor([[1, 0, 0], [0, 1, 1]]).bool()
    # only r = 1.5 for A = 1 (clipped to 1.2) and r = 0.5 for A = −1 (clipped to 0.8)
    only = loss("grpo+high_entropy_tokens", [1.0, -1.0], picked=picked)
    assert only.item() == pytest.approx(-(1.2 / 3 - 0.8 / 2) / 2)
    drift = (math.log(1.5) / 3 + math.log(2.0) / 2) / 2
    assert loss("grpo+kl_cov", [1.0, -1.0], picked=picked).item() == pytest.approx(SAMPLE + drift)
    assert loss("grpo+clip_cov", [1.0, -1.0], picked=picked).item() == pytest.approx(SAMPLE)
    still = gradient("grpo+clip_cov", [1.0, -1.0], picked=~picked)
    assert still == near([[0.0] * 3] * 2)
    with pytest.raises(UserError, match=r"pass what Objective.pick returned"):
        loss("grpo+kl_cov", [1.0, -1.0])


def test_every_preset_and_patch_is_in_here_or_beside() -> None:
    assert ADVANTAGES.keys() == LOSSES.keys() == PRESETS.keys()


@pytest.mark.parametrize("preset", sorted(PRESETS.keys() - {"reinforce", "reinforce++", "ppo"}))
def test_group_baselines_refuse_a_group_of_one(preset: str) -> None:
    if Objective.parse(preset).baseline == "batch_mean":
        return
    with pytest.raises(UserError, match="group size: 1"):
        Objective.parse(preset).check_group_size(1)


@pytest.mark.parametrize("preset", list(PRESETS))
def test_equal_negative_and_excluded_rewards(preset: str) -> None:
    objective = Objective.parse(preset)
    rewards = torch.tensor([[-0.3] * 4, [-0.3, NAN, -0.3, NAN], [NAN] * 4], dtype=torch.float64)
    lengths = torch.tensor([[3, 0, 1, 2]] * 3)
    got = objective.advantages(rewards, lengths)
    if preset in ("reinforce", "ppo"):
        assert torch.equal(got, rewards.nan_to_num(0.0))
    else:
        assert (got == 0).all()
    # an excluded completion is as if it had never been drawn
    rewards = torch.tensor([[1.0, NAN, 0.0, -2.0, 1.0]], dtype=torch.float64)
    kept = [0, 2, 3, 4]
    lengths = torch.tensor([[3, 9, 1, 2, 5]])
    ours = objective.advantages(rewards, lengths)
    theirs = objective.advantages(rewards[:, kept], lengths[:, kept])
    assert ours[:, kept].tolist()[0] == pytest.approx(theirs.tolist()[0], abs=1e-12)
    assert ours[0, 1] == 0
