"""The published algorithms as data: a preset is a full set of choices, a patch changes a few.

A patch ``fixes`` what it stands for, and brings ``tunes``, numbers that an override may change. Two
patches that give one setting different values contradict each other; all others can be applied in
any order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lydite.objective.objective import Objective

Setting = str | float | int | bool | None


@dataclass(frozen=True, slots=True)
class Preset:
    """``settings`` over the defaults of :class:`Objective`; ``source`` is the publication."""

    settings: Mapping[str, Setting]
    source: str


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
        return replace(objective, **self.settings)  # type: ignore[arg-type]


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

PRESETS: dict[str, Preset] = {
    "grpo": Preset(_GRPO, "DeepSeekMath, arXiv 2402.03300"),
    "dr_grpo": Preset(
        {**_GRPO, "scale": "none", "aggregation": "fixed_length"},
        "Understanding R1-Zero-Like Training, arXiv 2503.20783",
    ),
    "dapo": Preset(
        {
            **_GRPO,
            "clip_high": 0.28,
            "aggregation": "token_mean",
            "group_filter": "dynamic_sampling",
            "overlong_cache": 0.2,  # 4,096 of 20,480 tokens
        },
        "DAPO, arXiv 2503.14476",
    ),
    "gspo": Preset(
        {**_GRPO, "ratio": "sequence", "clip_low": 3e-4, "clip_high": 4e-4},
        "GSPO, arXiv 2507.18071",
    ),
    "rloo": Preset(
        {**_REINFORCE, "baseline": "leave_one_out"},
        "Back to Basics, arXiv 2402.14740",
    ),
    "reinforce": Preset(
        {**_REINFORCE, "baseline": "none"},
        "Williams, Simple statistical gradient-following algorithms, 1992",
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
        tunes={"max_rounds": 10},
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
        "DAPO, arXiv 2503.14476 §3.4 (overlong filtering)",
    ),
    "kl": Patch(
        {},
        "a policy that drifts too far from where it began",
        "DeepSeekMath, arXiv 2402.03300 equation 4",
        tunes={"kl": 0.001, "kl_estimator": "k3"},
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
        tunes={"correction_cap": 2.0},
    ),
}
