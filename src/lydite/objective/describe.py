"""What an objective is, in formulas and plain words."""

from __future__ import annotations

from collections.abc import Mapping

from lydite.objective.objective import Objective
from lydite.objective.surrogate import SURROGATES

# field → choice → formula; numbers of the objective stand in braces.
FORMULAS: Mapping[str, Mapping[str, str]] = {
    "baseline": {
        "none": "b = 0",
        "group_mean": "b = mean(r₁ … r_G)",
        "leave_one_out": "bᵢ = mean(rⱼ, j ≠ i)",
    },
    "scale": {
        "none": "A = r − b",
        "group_std": "A = (r − b) / std(r₁ … r_G)",
        "batch_std": "A = (r − b) / std(all rewards of the step)",
    },
    "ratio": {
        "token": "ρₜ = π(oₜ) / π_old(oₜ)",
        "sequence": "ρ = exp( 1/|o| Σₜ log π(oₜ)/π_old(oₜ) )",
    },
    "surrogate": {
        "clip": "gain = min( ρA, clip(ρ, 1 − {clip_low:g}, 1 + {clip_high:g})·A )",
        "reinforce": "gain = A·log π(oₜ)",
    },
    "aggregation": {
        "sample_mean": "J = 1/B Σᵢ 1/|oᵢ| Σₜ gain",
        "token_mean": "J = 1/Σᵢ|oᵢ| Σᵢ Σₜ gain",
        "fixed_length": "J = 1/(B·L) Σᵢ Σₜ gain,  L = {length}",
    },
    "correction": {
        "none": "",
        "tis": "gain weighed by min( π_old/π_behaviour, {correction_cap:g} )",
    },
    "group_filter": {
        "none": "",
        "drop_zero_variance": "groups of equal rewards are dropped",
        "dynamic_sampling": "groups of equal rewards are dropped and resampled, "
        "in at most {max_rounds} rounds",
    },
    "kl_estimator": {
        "k1": "minus {kl:g}·KL(π‖π_ref) per token, −x of x = log π_ref/π",
        "k2": "minus {kl:g}·KL(π‖π_ref) per token, x²/2 of x = log π_ref/π",
        "k3": "minus {kl:g}·KL(π‖π_ref) per token, eˣ − x − 1 of x = log π_ref/π",
    },
}


def describe(objective: Objective) -> list[str]:
    """One line for each setting that has an effect, as ``name: formula``, in the order of use."""
    given = objective.fixed_length
    length = "the completion limit" if given is None else f"{given} tokens"
    values = {**vars(objective), "length": length}
    shown = ["group_filter", "baseline", "scale"]
    if SURROGATES[objective.surrogate].uses_ratio:
        shown.append("ratio")
    shown += ["surrogate", "correction", "aggregation"]
    if objective.kl > 0:
        shown.append("kl_estimator")
    texts = {field: FORMULAS[field][values[field]].format(**values) for field in shown}
    if objective.scale != "none":
        texts["scale"] += f"  ({objective.std})"
    if objective.dual_clip is not None:
        texts["surrogate"] += f", at least {objective.dual_clip:g}·A where A < 0"
    lines = [f"{field}: {text}" for field, text in texts.items() if text]
    if objective.overlong_cache > 0:
        share = f"{objective.overlong_cache:.0%}"
        lines.insert(0, f"reward: falls by up to 1 in the last {share} of the completion limit")
    if objective.mask_truncated:
        lines.append("mask_truncated: completions that hit the limit leave the loss")
    return lines
