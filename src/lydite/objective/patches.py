"""The published changes to an algorithm as data: a patch changes a few choices of any preset.

A patch ``fixes`` what it stands for, and brings ``tunes``, numbers that an override may change. Two
patches that give one setting different values contradict each other; all others can be applied in
any order. What it ``needs`` is what its numbers were made for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lydite.objective.presets import Setting

if TYPE_CHECKING:
    from lydite.objective.objective import Objective


@dataclass(frozen=True, slots=True)
class Patch:
    """A function from objective to objective, with the failure it is for (``why``)."""

    fixes: Mapping[str, Setting]
    why: str
    source: str
    tunes: Mapping[str, Setting] = field(default_factory=dict)
    needs: Mapping[str, Setting] = field(default_factory=dict)

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


PATCHES: dict[str, Patch] = {
    "clip_higher": Patch(
        {},
        "entropy collapse: rare tokens may grow",
        "DAPO, arXiv 2503.14476 §3.1",
        tunes={"clip_low": 0.2, "clip_high": 0.28},
        # Elsewhere the range is of another size: GSPO's is a thousandth, CISPO's cap is 5.
        needs={"surrogate": "clip", "ratio": "token"},
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
