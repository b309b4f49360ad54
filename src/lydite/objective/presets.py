"""The published algorithms as data: a preset is a full set of choices, a patch changes a few.

A patch ``fixes`` what it stands for, and brings ``tunes``, numbers that an override may change. Two
patches that give one setting different values contradict each other; all others can be applied in
any order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lydite.objective.objective import Objective

Setting = str | float | int | bool | None


@dataclass(frozen=True, slots=True)
class Preset:
    """``settings`` over the defaults of :class:`Objective`, by key; ``about`` in a few words.

    ``fixes`` are those of them without which it is another algorithm.
    """

    settings: Mapping[str, Setting]
    source: str
    about: str
    fixes: Mapping[str, Setting] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Patch:
    """A function from objective to objective, with the failure it is for (``why``)."""

    fixes: Mapping[str, Setting]
    why: str
    source: str
    tunes: Mapping[str, Setting] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Setting]:
        """All that it sets."""
        return {**self.fixes, **self.tunes}

    def __call__(self, objective: Objective) -> Objective:
        """The objective with this patch.

        Raises:
            UserError: the patch has no meaning for this objective.
        """
        return objective.changed(self.settings)


_GRPO: dict[str, Setting] = {
    "baseline": "group_mean",
    "scale": "group_std",
    "ratio": "token",
    "surrogate": "clip",
    "clip_low": 0.2,
    "clip_high": 0.2,
    "aggregation": "sample_mean",
}
# Sums log-probs over a sequence as these papers do; the constant length is only a unit.
_REINFORCE: dict[str, Setting] = {
    "surrogate": "reinforce",
    "clip_low": None,
    "clip_high": None,
    "scale": "none",
    "aggregation": "fixed_length",
}

_DR_GRPO: dict[str, Setting] = {**_GRPO, "scale": "none", "aggregation": "fixed_length"}
_DAPO: dict[str, Setting] = {
    **_GRPO,
    "clip_high": 0.28,
    "aggregation": "token_mean",
    "group_filter": "dynamic_sampling",
    "overlong_cache": 0.2,  # 4,096 of 20,480 tokens
}
_GSPO: dict[str, Setting] = {**_GRPO, "ratio": "sequence", "clip_low": 3e-4, "clip_high": 4e-4}
# A ratio is never below 0 = 1 − clip_low: only the cap of 5, peers' value, holds. M1's own is
# not published.
_CISPO: dict[str, Setting] = {
    **_GRPO,
    "surrogate": "cispo",
    "clip_low": 1.0,
    "clip_high": 4.0,
    "aggregation": "token_mean",
}
_NO_CLIP: dict[str, Setting] = {"clip_low": None, "clip_high": None}

PRESETS: dict[str, Preset] = {
    "grpo": Preset(
        _GRPO, "DeepSeekMath, arXiv 2402.03300", "group mean and std, clipped token ratios"
    ),
    "dr_grpo": Preset(
        _DR_GRPO,
        "Understanding R1-Zero-Like Training, arXiv 2503.20783",
        "GRPO without its two biases: no std, a constant length",
    ),
    "dapo": Preset(
        _DAPO,
        "DAPO, arXiv 2503.14476",
        "clip-higher, token mean, dynamic sampling, soft overlong penalty",
    ),
    "gspo": Preset(
        _GSPO, "GSPO, arXiv 2507.18071", "one ratio for a sequence, clipped very closely"
    ),
    "gspo_token": Preset(
        {**_GSPO, "ratio": "gspo_token"},
        "GSPO, arXiv 2507.18071 §4.3",
        "GSPO for advantages that differ from token to token",
    ),
    "cispo": Preset(
        _CISPO, "MiniMax-M1, arXiv 2506.13585", "clips the weight and keeps every gradient"
    ),
    "gmpo": Preset(
        {**_GRPO, "surrogate": "gmpo", "clip_low": 0.4, "clip_high": 0.4},
        "GMPO, arXiv 2507.20673",
        "the geometric mean of clipped ratios",
    ),
    "sapo": Preset(
        {**_GRPO, **_NO_CLIP, "surrogate": "sapo"},
        "SAPO, arXiv 2511.20347",
        "a soft gate in place of the clip",
    ),
    "dppo": Preset(
        {
            **_GRPO,
            "surrogate": "dppo",
            "anchor": "behaviour",
            "clip_low": 0.15,
            "clip_high": 0.15,
            "aggregation": "token_mean",
        },
        "DPPO, arXiv 2602.04879",
        "stops tokens by how far their probability moved",
    ),
    "vespo": Preset(
        {
            **_GRPO,
            **_NO_CLIP,
            "surrogate": "vespo",
            "ratio": "product",
            "anchor": "behaviour",
            "aggregation": "token_mean",
        },
        "VESPO, arXiv 2602.10693",
        "a smooth kernel of the whole sequence's weight",
    ),
    "rloo": Preset(
        {**_REINFORCE, "baseline": "leave_one_out"},
        "Back to Basics, arXiv 2402.14740",
        "REINFORCE against the mean of the others",
    ),
    "reinforce": Preset(
        {**_REINFORCE, "baseline": "none"},
        "Williams, Simple statistical gradient-following algorithms, 1992",
        "the reward times the log-probability",
    ),
    "reinforce++": Preset(
        {
            **_GRPO,
            "baseline": "batch_mean",
            "scale": "batch_std",
            "aggregation": "token_mean",
            "kl": 0.001,
            "kl.estimator": "k1",
            "kl.place": "reward",
        },
        "REINFORCE++, arXiv 2501.03262",
        "rewards whitened over the batch, KL in the reward",
    ),
    "reinforce++_baseline": Preset(
        {**_GRPO, "scale": "advantage_std", "aggregation": "token_mean"},
        "REINFORCE++, arXiv 2501.03262, its variant with a baseline",
        "group mean, then whitened over the batch",
    ),
    # RLHF's KL in the reward is the patch kl_in_reward: a reward that can be checked needs none.
    # λ = 0.95, as RLHF has it, did much worse than λ = 1 on long reasoning (R1, 2501.12948v2).
    "ppo": Preset(
        {
            **_GRPO,
            "baseline": "critic",
            "scale": "token_std",
            "aggregation": "token_mean",
            "gae": 1.0,
            "gae.gamma": 1.0,
            "gae.value_clip": 0.2,
        },
        "PPO, arXiv 1707.06347, as in RLHF, arXiv 2203.02155; λ = 1 as in R1, arXiv 2501.12948",
        "a critic's values as the baseline of each token (GAE), whitened",
        fixes={"baseline": "critic"},
    ),
    "gpg": Preset(
        {
            **_REINFORCE,
            "baseline": "group_mean",
            "scale": "informative_share",
            "aggregation": "token_mean",
        },
        "GPG, arXiv 2504.02546",
        "REINFORCE, made up for the groups without a signal",
    ),
    "opo": Preset(
        {**_REINFORCE, "baseline": "length_weighted"},
        "OPO, arXiv 2505.23585",
        "exactly on policy, the baseline of least variance",
    ),
    "lite_ppo": Preset(
        {**_GRPO, "scale": "batch_std", "aggregation": "token_mean"},
        "Part I: Tricks or Traps?, arXiv 2508.08221",
        "group mean, batch std, token mean",
    ),
    "gdpo": Preset(
        {
            **_GRPO,
            "credit": "standardised_parts",
            "baseline": "batch_mean",
            "scale": "batch_std",
            "aggregation": "token_mean",
        },
        "GDPO, arXiv 2601.05242",
        "several rewards, each standardised on its own",
    ),
    "maxrl": Preset(
        {**_GRPO, "scale": "reward_mean"},
        "MaxRL, arXiv 2602.02710",
        "divides by the mean reward: rare successes weigh most",
    ),
    "passk": Preset(
        {**_GRPO, "credit": "pass_at_k", "scale": "bernoulli_std"},
        "Pass@k training, arXiv 2508.10751",
        "credits a completion with the pass@k of samples that hold it",
    ),
    "deepseek_v32": Preset(
        {
            **_GRPO,
            "scale": "none",
            "kl": 0.001,
            "kl.estimator": "k3_unbiased",
            "correction.off_policy": 0.5,
        },
        "DeepSeek-V3.2, arXiv 2512.02556; β and δ are not published",
        "no std, unbiased KL, bad answers that are off policy masked",
    ),
    "scalerl": Preset(
        {
            **_CISPO,
            "anchor": "behaviour",
            "scale": "advantage_std",
            "aggregation": "prompt_mean",
            "group_filter": "drop_zero_variance",
            "group_filter.retire_at": 0.9,
        },
        "The Art of Scaling RL Compute, arXiv 2510.13786, of it the loss and the choice of prompts",
        "CISPO against the engine, batch std, prompt mean, solved prompts retired",
    ),
    "bnpo": Preset(
        {**_GRPO, "aggregation": "token_mean"},
        "TRL's loss_type bnpo, with tokens counted over the step and not over a micro-batch",
        "GRPO with a token mean",
    ),
    "luspo": Preset(
        {
            **_GSPO,
            "clip_low": 2e-3,
            "clip_high": 2.5e-3,
            "aggregation": "fixed_length",
            "fixed_length": 1,
        },
        "LUSPO, arXiv 2602.05261",
        "GSPO with each sequence weighed by its length",
    ),
}

PATCHES: dict[str, Patch] = {
    "clip_higher": Patch(
        {},
        "entropy collapse: rare tokens may grow",
        "DAPO, arXiv 2503.14476 §3.1",
        tunes={"clip_low": 0.2, "clip_high": 0.28},
    ),
    "dual_clip": Patch(
        {},
        "loss spikes from a huge ratio under a negative advantage",
        "arXiv 1912.09729",
        tunes={"dual_clip": 3.0},
    ),
    # min(r, δ)·A for A < 0 is dual clip's bound δ·A: the same formula with another number.
    "two_sided_clip": Patch(
        {},
        "loss spikes from a huge ratio under a negative advantage",
        "INTELLECT-2, arXiv 2505.07291 §4.1",
        tunes={"dual_clip": 4.0},
    ),
    "sequence_ratio": Patch(
        {"ratio": "sequence"},
        "noisy token ratios on long answers and in mixtures of experts",
        "GSPO, arXiv 2507.18071",
        tunes={"clip_low": 3e-4, "clip_high": 4e-4},
    ),
    "token_mean": Patch(
        {"aggregation": "token_mean"},
        "long answers whose tokens hardly count",
        "DAPO, arXiv 2503.14476 §3.3",
    ),
    "sample_mean": Patch(
        {"aggregation": "sample_mean"},
        "long answers that outweigh short ones",
        "DeepSeekMath, arXiv 2402.03300",
    ),
    "fixed_length": Patch(
        {"aggregation": "fixed_length"},
        "wrong answers that grow because length dilutes their penalty",
        "Dr. GRPO, arXiv 2503.20783 §3.2",
    ),
    "prompt_mean": Patch(
        {"aggregation": "prompt_mean"},
        "prompts with long answers that outweigh the others",
        "ScaleRL, arXiv 2510.13786",
    ),
    "no_std": Patch(
        {"scale": "none"},
        "problems that are almost always or almost never solved weighing most",
        "Dr. GRPO, arXiv 2503.20783 §3.2",
    ),
    "batch_std": Patch(
        {"scale": "batch_std"},
        "group deviations that are noise in small or nearly equal groups",
        "Lite PPO, arXiv 2508.08221",
    ),
    "leave_one_out": Patch(
        {"baseline": "leave_one_out"},
        "a baseline that contains the very reward it is compared with",
        "RLOO, arXiv 2402.14740",
    ),
    "dynamic_sampling": Patch(
        {"group_filter": "dynamic_sampling"},
        "groups without a signal that shrink the step: drop and resample them",
        "DAPO, arXiv 2503.14476 §3.2",
        tunes={"group_filter.max_rounds": 10},
    ),
    "retire_solved": Patch(
        {},
        "rollouts spent on prompts that are solved already: they are drawn no more",
        "ScaleRL, arXiv 2510.13786; the pass rate is that of the prompt's last group",
        tunes={"group_filter.retire_at": 0.9},
    ),
    "drop_zero_variance": Patch(
        {"group_filter": "drop_zero_variance"},
        "groups without a signal that dilute the loss: drop, do not resample",
        "ScaleRL, arXiv 2510.13786",
    ),
    "soft_overlong": Patch(
        {},
        "answers that run into the completion limit",
        "DAPO, arXiv 2503.14476 §3.4",
        tunes={"overlong_cache": 0.2},
    ),
    "mask_truncated": Patch(
        {"mask_truncated": True},
        "sound reasoning punished because it was cut off",
        "DAPO, arXiv 2503.14476 §3.4, overlong filtering",
    ),
    "kl": Patch(
        {},
        "a policy that drifts too far from where it began",
        "DeepSeekMath, arXiv 2402.03300 equation 4",
        tunes={"kl": 0.001},
    ),
    "kl_unbiased": Patch(
        {"kl.estimator": "k3_unbiased"},
        "a KL whose gradient is wrong once the tokens are off policy",
        "DeepSeek-V3.2, arXiv 2512.02556",
        tunes={"kl": 0.001},
    ),
    "kl_in_reward": Patch(
        {"kl.place": "reward", "kl.estimator": "k1"},
        "a KL in the loss that sees no further than its own token",
        "RLOO, arXiv 2402.14740; REINFORCE++, arXiv 2501.03262",
        tunes={"kl": 0.001},
    ),
    "reference_refresh": Patch(
        {},
        "an anchor so old that it holds back a policy which has learned much",
        "R1-Zero, arXiv 2501.12948: every 400 steps",
        tunes={"kl.refresh": 400},
    ),
    "no_kl": Patch(
        {"kl": 0.0},
        "an anchor that holds back a policy which must change much",
        "DAPO, arXiv 2503.14476 §2.3",
    ),
    "tis": Patch(
        {"correction": "tis"},
        "an engine whose probabilities differ from the learner's",
        "truncated importance sampling, Yao et al. 2025",
        tunes={"correction.high": 2.0},
    ),
    "mis": Patch(
        {"correction": "mis"},
        "answers that the learner finds much likelier than the engine did",
        "masked importance sampling, J. Liu et al. 2025; the bound as in TRL",
        tunes={"correction.high": 3.0},
    ),
    "icepop": Patch(
        {"correction": "icepop"},
        "single tokens on which engine and learner disagree, in mixtures of experts",
        "IcePop, arXiv 2510.18855; the bounds as in verl",
        tunes={"correction.low": 0.5, "correction.high": 5.0},
    ),
    "geometric_mask": Patch(
        {"correction": "geometric_mask"},
        "whole answers on which engine and learner disagree a little, everywhere",
        "SkyRL's geometric sequence mask",
        tunes={"correction.low": 0.99, "correction.high": 1.01},
    ),
    "off_policy_mask": Patch(
        {},
        "bad answers, drawn long ago, that the policy no longer gives",
        "DeepSeek-V3.2, arXiv 2512.02556; δ as in TRL",
        tunes={"correction.off_policy": 0.5},
    ),
    "clip_cov": Patch(
        {"token_filter": "clip_cov"},
        "entropy collapse: a few tokens drive it",
        "Clip-Cov, arXiv 2505.22617",
        tunes={"token_filter.share": 2e-4},
    ),
    "kl_cov": Patch(
        {"token_filter": "kl_cov"},
        "entropy collapse: a few tokens drive it",
        "KL-Cov, arXiv 2505.22617",
        tunes={"token_filter.share": 2e-4, "token_filter.strength": 1.0},
    ),
    "high_entropy_tokens": Patch(
        {"token_filter": "high_entropy"},
        "gradients spent on tokens that were never in doubt",
        "Beyond the 80/20 rule, arXiv 2506.01939",
        tunes={"token_filter.share": 0.2},
    ),
    "entropy_bonus": Patch(
        {},
        "entropy collapse: every token is paid for its entropy",
        "A3C, arXiv 1602.01783; the size as in Skywork-OR1's cap",
        tunes={"entropy_bonus": 0.005},
    ),
    "adaptive_entropy": Patch(
        {},
        "entropy collapse: tokens are paid for entropy while there is too little of it",
        "Skywork-OR1, arXiv 2505.22312; the numbers are its scripts'",
        tunes={
            "entropy_bonus": 0.0,
            "entropy_bonus.target": 0.2,
            "entropy_bonus.step": 1e-4,
            "entropy_bonus.high": 0.005,
        },
    ),
}
