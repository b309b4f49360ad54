"""The published algorithms as data: a preset is a full set of choices. ``patches`` has what changes
a few of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
        fixes={"aggregation": "fixed_length"},
    ),
}
