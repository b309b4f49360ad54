"""What an objective is, in formulas and plain words."""

from __future__ import annotations

from collections.abc import Mapping

from lydite.objective.objective import Objective
from lydite.objective.surrogate import SURROGATES

# field → choice → formula; numbers of the objective stand in braces. Surrogates bring their own.
FORMULAS: Mapping[str, Mapping[str, str]] = {
    "credit": {
        "reward": "",
        "pass_at_k": "r: the chance that {pass_k} answers, this one among them, hold a right one",
        "standardised_parts": "r = Σ w·(rᵏ − mean(rᵏ)) / std(rᵏ) over the parts rᵏ of the reward, "
        "mean and std of the group  ({std})",
    },
    "group_filter": {
        "none": "",
        "drop_zero_variance": "groups of equal rewards are dropped",
        "dynamic_sampling": "groups of equal rewards are dropped and resampled, "
        "in at most {group_filter.max_rounds} rounds",
    },
    "baseline": {
        "none": "b = 0",
        "batch_mean": "b = mean(all rewards of the step)",
        "group_mean": "b = mean(r₁ … r_G)",
        "leave_one_out": "bᵢ = mean(rⱼ, j ≠ i)",
        "length_weighted": "b = Σ|oᵢ|rᵢ / Σ|oᵢ|",
        "critic": "Aₜ = Σₖ (γλ)ᵏ·δₜ₊ₖ,  δₜ = rₜ + γVₜ₊₁ − Vₜ of a critic V,  λ = {gae.lam:g}, "
        "γ = {gae.gamma:g},  r on the last token",
    },
    "scale": {
        "none": "A = r − b",
        "group_std": "A = (r − b) / std(r₁ … r_G)  ({std})",
        "batch_std": "A = (r − b) / std(all rewards of the step)  ({std})",
        "advantage_std": "A = (r − b) / std(all r − b of the step)  ({std})",
        "reward_mean": "A = (r − b) / mean(r₁ … r_G)",
        "bernoulli_std": "A = (r − b) / √(r̄(1 − r̄)),  r̄ = mean(r₁ … r_G)",
        "informative_share": "A = (r − b) / share of completions in groups of unequal rewards",
        "token_std": "A = (Aₜ − mean) / std of all tokens of the step  ({std})",
    },
    "ratio": {
        "token": "ρₜ = π(oₜ) / {under}(oₜ)",
        "sequence": "ρ = exp( 1/|o| Σₜ log π(oₜ)/{under}(oₜ) )",
        "gspo_token": "ρₜ = sg[ exp( 1/|o| Σₜ log π(oₜ)/{under}(oₜ) ) ]·π(oₜ)/sg[π(oₜ)]",
        "product": "ρ = Πₜ π(oₜ) / {under}(oₜ)",
    },
    "token_filter": {
        "none": "",
        "high_entropy": "only the {token_filter.share:g} of tokens with the highest entropy learn",
        "clip_cov": "{token_filter.share:g} of tokens, of covariance 1 to 5, do not learn",
        "kl_cov": "minus {token_filter.strength:g}·|log π/π_old| on the {token_filter.share:g} "
        "of tokens with the highest covariance",
    },
    "correction": {
        "none": "",
        "tis": "gain weighed by min( c, {correction.high:g} ),  c = π_old/π_behaviour",
        "tis_sequence": "gain weighed by min( c, {correction.high:g} ),  c = Πₜ π_old/π_behaviour",
        "mis": "gain weighed by c = Πₜ π_old/π_behaviour, by 0 outside "
        "{correction.low:g} … {correction.high:g}",
        "icepop": "gain weighed by c = π_old/π_behaviour, by 0 outside "
        "{correction.low:g} … {correction.high:g}",
        "geometric_mask": "gain dropped where exp( 1/|o| Σₜ log π_old/π_behaviour ) is outside "
        "{correction.low:g} … {correction.high:g}",
    },
    "aggregation": {
        "sample_mean": "J = 1/B Σᵢ 1/|oᵢ| Σₜ gain",
        "token_mean": "J = 1/Σᵢ|oᵢ| Σᵢ Σₜ gain",
        "fixed_length": "J = 1/(B·L) Σᵢ Σₜ gain,  L = {length}",
        "prompt_mean": "J = 1/P Σ_prompts 1/Σᵢ|oᵢ| Σᵢ Σₜ gain",
    },
    "kl.estimator": {
        "k1": "−x",
        "k2": "x²/2",
        "k3": "eˣ − x − 1",
        "k3_unbiased": "π/π_old·(eˣ − x − 1)",
    },
    "kl.place": {
        "loss": "minus {kl.coefficient:g}·KL(π‖π_ref) per token, {estimator} of x = log π_ref/π",
        "reward": "advantages less {kl.coefficient:g}·KL(π‖π_ref) of the tokens ahead, "
        "{estimator} of x = log π_ref/π",
    },
}

# How an anchor is written.
UNDER = {"old": "π_old", "behaviour": "π_behaviour"}


def describe(objective: Objective) -> list[str]:
    """One line for each setting that has an effect, as ``name: formula``, in the order of use."""
    settings = objective.settings
    given = objective.fixed_length
    values = {
        **vars(objective),
        "length": "the completion limit" if given is None else f"{given} token{'s' * (given > 1)}",
        "floor": max(0.0, 1.0 - objective.clip.low),
        "cap": 1.0 + objective.clip.high,
        "under": UNDER[objective.anchor],
        "estimator": FORMULAS["kl.estimator"][objective.kl.estimator],
    }
    shown = ["credit", "group_filter", "baseline", "scale"]
    if SURROGATES[objective.surrogate].ratio:
        shown.append("ratio")
    shown += ["surrogate", "token_filter", "correction", "aggregation"]
    if objective.kl.coefficient > 0:
        shown.append("kl.place")
    formulas = {**FORMULAS, "surrogate": {n: s.formula for n, s in SURROGATES.items()}}
    texts = {key: formulas[key][settings[key]].format(**values) for key in shown}
    if objective.needs_values:
        texts |= _of_critic(objective, texts)
    if objective.dual_clip is not None:
        texts["surrogate"] += f", at least {objective.dual_clip:g}·A where A < 0"
    lines = [f"{key.split('.')[0]}: {text}" for key, text in texts.items() if text]
    return [*_before(objective), *lines, *_after(objective)]


def _of_critic(objective: Objective, texts: Mapping[str, str]) -> dict[str, str]:
    """What reads otherwise where a critic gives every token an advantage of its own."""
    found = {}
    if objective.scale == "none":
        found["scale"] = "A = Aₜ"
    if objective.kl_in_token_rewards:
        found["kl.place"] = (
            texts["kl.place"]
            .replace("advantages less", "rₜ less")
            .replace(" of the tokens ahead", "")
        )
    return found


def _before(objective: Objective) -> list[str]:
    if objective.overlong_cache == 0:
        return []
    share = f"{objective.overlong_cache:.0%}"
    return [f"reward: falls by up to 1 in the last {share} of the completion limit"]


def _after(objective: Objective) -> list[str]:
    lines = []
    if objective.correction.off_policy is not None:
        lines.append(
            "correction: gain dropped where A < 0 and mean log π_behaviour/π > "
            f"{objective.correction.off_policy:g}"
        )
    if objective.kl.refresh is not None:
        lines.append(f"reference: π_ref ← π every {objective.kl.refresh} steps")
    lines += _entropy_bonus(objective)
    if objective.group_filter.retire_at is not None:
        share = f"{objective.group_filter.retire_at:.3g}"
        lines.append(f"retire: a prompt is drawn no more once {share} of its group is right")
    if objective.needs_values:
        limit = objective.gae.value_clip
        held = "" if limit is None else f", V held within {limit:g} of V_old where that is worse"
        lines.append(f"critic: learns by ½·(V − R)², R = Aₜ + V_old{held}")
    if objective.mask_truncated:
        lines.append("mask_truncated: completions that hit the limit leave the loss")
    return lines


def _entropy_bonus(objective: Objective) -> list[str]:
    bonus = objective.entropy_bonus
    if bonus.target is not None:
        return [
            f"entropy_bonus: plus c·H(π) per token while H ≤ {bonus.target:g};  c starts at "
            f"{bonus.coefficient:g} and goes up {bonus.step:g} a step where H < {bonus.target:g}, "
            f"down where H > {bonus.target:g}, within 0 … {bonus.high:g}"
        ]
    if bonus.coefficient > 0:
        return [f"entropy_bonus: plus {bonus.coefficient:g}·H(π) per token"]
    return []
