"""Reading a spec: names, overrides, order, contradictions, and combinations without a meaning."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from lydite.config import UserError
from lydite.objective import PATCHES, PRESETS, Objective, describe
from lydite.objective.describe import FORMULAS
from lydite.objective.settings import CHOICES, GroupFilter
from lydite.objective.surrogate import SURROGATES

KEYS = set(Objective.defaults())
_OTHERS = ("gspo", "gspo_token", "luspo", "cispo", "gmpo", "dppo", "scalerl")


def test_the_papers_settings() -> None:
    assert Objective.parse("grpo") == Objective()
    dapo = Objective.parse("dapo")
    assert (dapo.clip_low, dapo.clip_high, dapo.aggregation) == (0.2, 0.28, "token_mean")
    assert (dapo.group_filter.kind, dapo.overlong_cache, dapo.kl.coefficient) == (
        "dynamic_sampling",
        0.2,
        0.0,
    )
    gspo = Objective.parse("gspo")
    assert (gspo.ratio, gspo.clip_low, gspo.clip_high) == ("sequence", 3e-4, 4e-4)
    dr_grpo = Objective.parse("dr_grpo")
    assert (dr_grpo.scale, dr_grpo.aggregation) == ("none", "fixed_length")
    assert dr_grpo.with_limit(3000).fixed_length == 3000
    assert dr_grpo.with_limit(3000).with_limit(7).fixed_length == 3000
    assert Objective.parse("grpo").with_limit(3000) == Objective()


def test_one_spec_written_in_every_way() -> None:
    text = Objective.parse("grpo+clip_higher+dynamic_sampling")
    assert text == Objective.parse(["grpo", "clip_higher", "dynamic_sampling"])
    assert text == Objective.parse(" dynamic_sampling + grpo + clip_higher ")
    assert text == Objective.parse({"preset": "grpo", "patches": "clip_higher+dynamic_sampling"})
    assert text == Objective.parse({"patches": ["clip_higher", "dynamic_sampling"]})
    assert text == Objective.parse(text)
    refilling = GroupFilter("dynamic_sampling")
    assert text == dataclasses.replace(Objective(), clip_high=0.28, group_filter=refilling)
    assert text.name == "grpo+clip_higher+dynamic_sampling"


def test_dapo_is_grpo_and_its_patches() -> None:
    patched = Objective.parse("grpo+clip_higher+token_mean+dynamic_sampling+soft_overlong+no_kl")
    assert patched == Objective.parse("dapo")
    assert Objective.parse("grpo+sequence_ratio") == Objective.parse("gspo")
    assert Objective.parse("grpo+no_std+fixed_length") == Objective.parse("dr_grpo")


def test_overrides_tune_preset_and_patch() -> None:
    tuned = Objective.parse({"preset": "dapo", "patches": ["kl"], "clip_high": 0.3, "kl": 0.01})
    assert (tuned.clip_high, tuned.kl.coefficient, tuned.kl.estimator) == (0.3, 0.01, "k3")
    assert tuned.needs_reference and not Objective.parse("dapo").needs_reference
    assert Objective.parse("grpo+tis").needs_behaviour


def test_names_and_settings_in_presets_and_patches_exist() -> None:
    for preset in PRESETS.values():
        assert set(preset.settings) <= KEYS and preset.source
    for patch in PATCHES.values():
        assert set(patch.settings) <= KEYS and patch.source and patch.why
        assert patch.settings and not set(patch.fixes) & set(patch.tunes)
    assert not set(PRESETS) & set(PATCHES)
    assert all(field.metadata["description"] for field in dataclasses.fields(Objective))


@pytest.mark.parametrize("name", list(PATCHES))
def test_a_patch_is_a_function_of_an_objective(name: str) -> None:
    start = "grpo+kl" if name == "reference_refresh" else "grpo"
    assert PATCHES[name](Objective.parse(start)) == Objective.parse([start, name])


def test_order_never_matters() -> None:
    found: list[Objective | str]
    alone = {name: PATCHES[name](Objective()) for name in PATCHES if name != "reference_refresh"}
    for one, other in itertools.combinations(PATCHES, 2):
        found = []
        for order in (["grpo", one, other], [other, one, "grpo"]):
            try:
                found.append(Objective.parse(order))
            except UserError as error:
                found.append(str(error))
        assert found[0] == found[1]
        # reference_refresh means nothing before the KL that it goes with
        if isinstance(found[0], Objective) and {one, other} <= alone.keys():
            assert PATCHES[one](alone[other]) == PATCHES[other](alone[one]) == found[0]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("token_mean", "fixed_length"),
        ("token_mean", "sample_mean"),
        ("no_kl", "kl"),
        ("no_kl", "kl_unbiased"),
        ("kl_unbiased", "kl_in_reward"),
        ("no_kl", "reference_refresh"),
        ("entropy_bonus", "adaptive_entropy"),
        ("tis", "icepop"),
        ("clip_cov", "kl_cov"),
        ("dual_clip", "two_sided_clip"),
        ("prompt_mean", "token_mean"),
        ("no_std", "batch_std"),
        ("dynamic_sampling", "drop_zero_variance"),
        ("sequence_ratio", "clip_higher"),
    ],
)
def test_contradicting_patches_are_both_named(one: str, other: str) -> None:
    for names in ([one, other], [other, one]):
        with pytest.raises(UserError) as caught:
            Objective.parse(["grpo", *names])
        assert one in str(caught.value) and other in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("grpo+clip_heigher", "did you mean 'clip_higher'"),
        ("dapoo", "did you mean 'dapo'"),
        ("", "a name is missing"),
        ("grpo+", "a name is missing"),
        ("grpo++clip_higher", "unknown name 'grpo++clip_higher'"),
        ("grpo&tis", "unknown name 'grpo&tis'"),
        ("DAPO", "did you mean 'dapo'"),
        ([], "exactly one preset"),
        (7, "write a name"),
        (["grpo", 3], "write a name"),
        ("grpo+dapo", "'grpo' and 'dapo'"),
        ("clip_higher", "only patches"),
        ({"preset": "dapo", "clip_hihg": 0.3}, "unknown key 'clip_hihg'; did you mean 'clip_high'"),
        ({"patches": ["no_kl"], "kl": 0.01}, "'no_kl' sets kl to 0.0"),
        ({"patches": ["token_mean"], "aggregation": "sample_mean"}, "'token_mean' sets"),
        ({"clip_high": "wide"}, "objective.clip_high: got 'wide'; give a number above 0"),
        ({"clip_high": [0.2]}, "objective.clip_high: got"),
        ({"clip_low": -0.1}, "objective.clip_low: got -0.1"),
        ({"kl": float("nan")}, "objective.kl: got nan"),
        ({"kl": -1}, "objective.kl: got -1; give a number at least 0"),
        ({"overlong_cache": 4096}, "at most 1"),
        ({"max_rounds": 9}, "unknown key 'max_rounds'; did you mean 'group_filter.max_rounds'"),
        ({"group_filter": {"max_rounds": 0}}, "whole number at least 1"),
        ({"group_filter": {"max_rounds": 2.5}}, "whole number"),
        ({"group_filter": {"max_rounds": True}}, "whole number"),
        ({"group_filter": {"retire_at": 1.5}}, "objective.group_filter.retire_at: got 1.5"),
        ({"group_filter": {"retire_at": 0}}, "give a number above 0 and at most 1"),
        ({"entropy_bonus": {"target": -1}}, "objective.entropy_bonus.target: got -1"),
        ({"entropy_bonus": {"coefficient": 0.1, "target": 1}}, "0.1 is above entropy_bonus.high"),
        ("dapo+reference_refresh", "renews a reference that nothing is held to"),
        ({"kl": 0.1, "kl.refresh": 0}, "objective.kl.refresh: got 0; give a whole number"),
        ({"mask_truncated": "yes"}, "give true or false"),
        ({"aggregation": "token_means"}, "did you mean 'token_mean'"),
        ({"aggregation": None}, "objective.aggregation: no choice None"),
        ({"dual_clip": 1.0}, "above 1"),
        ({"preset": "dapo", "fixed_length": 100}, "means nothing to aggregation token_mean"),
        ({"clip_high": None}, "needs clip_low and clip_high"),
        ("reinforce+clip_higher", "no importance ratio"),
        ("rloo+sequence_ratio", "no importance ratio"),
        ("rloo+dual_clip", "no importance ratio"),
        ({"preset": "reinforce", "scale": "group_std"}, "use a group baseline"),
        ("reinforce+dynamic_sampling", "which carry a signal"),
        ("reinforce+++drop_zero_variance", "which carry a signal"),
        ("scalerl+tis", "which the ratio to the behaviour policy has done already"),
        ("sapo+clip_higher", "sapo has no clip range"),
        ("gmpo+sequence_ratio", "use ratio: token"),
        ("cispo+dual_clip", "means nothing to surrogate cispo"),
        ({"scale": "bernoulli_std"}, "use credit: pass_at_k"),
        ({"correction": {"kind": "icepop", "low": 3}}, "3 is not below correction.high: 2"),
        ({"kl": {"estimator": "k3_unbiased", "place": "reward"}}, "use k1 or kl.place: loss"),
        ({"kl": {"estimatr": "k1"}}, "unknown key 'kl.estimatr'; did you mean 'kl.estimator'"),
        ({"token_filter": {"share": 0}}, "objective.token_filter.share: got 0"),
        ({"pass_k": 0}, "objective.pass_k: got 0; give a whole number at least 1"),
        ({"kl": [0.1]}, "objective.kl: got [0.1]"),
    ],
)
def test_a_wrong_spec_is_refused_in_one_line(spec: Any, says: str) -> None:
    with pytest.raises(UserError) as caught:
        Objective.parse(spec)
    message = str(caught.value)
    assert message.startswith("objective") and says in message and "\n" not in message


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ("scalerl+tis", "('tis' sets correction, 'scalerl' sets anchor)"),
        ("rloo+dual_clip", "so dual_clip means nothing to it"),
        ("gdpo+dynamic_sampling", "'dynamic_sampling' sets group_filter, 'gdpo' sets baseline"),
        ("luspo+token_mean", "'luspo' and 'token_mean' contradict each other"),
        ("ppo+leave_one_out", "'ppo' and 'leave_one_out' contradict each other"),
        # ranges of another size: they would never clip, or clip where the preset does not
        *((f"{p}+clip_higher", f"'clip_higher' and '{p}' do not go together") for p in _OTHERS),
    ],
)
def test_a_preset_and_a_patch_that_do_not_go_together_are_both_named(names: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        Objective.parse(names)
    message = str(caught.value)
    assert says in message and "\n" not in message
    assert all(f"'{name}'" in message for name in names.split("+"))


def test_any_preset_and_patch_make_an_objective_or_one_line() -> None:
    made = 0
    for preset, patch in itertools.product(PRESETS, PATCHES):
        try:
            made += Objective.parse([preset, patch]) == Objective.parse(f"{patch}+{preset}")
        except UserError as error:
            message = str(error)
            assert "\n" not in message and message.startswith("objective")
            settings = PATCHES[patch].settings
            assert patch in message or any(f"objective.{key}: " in message for key in settings)
    assert made > 0.85 * len(PRESETS) * len(PATCHES)


@pytest.mark.parametrize(
    ("spec", "goes_with"),
    [
        ({"kl.estimator": "k2"}, "kl is above 0"),
        ({"preset": "dapo", "kl": {"place": "reward"}}, "kl is above 0"),
        ({"correction.high": 3}, "correction is not none"),
        ({"patches": "tis", "correction.low": 0.5}, "mis, icepop or geometric_mask"),
        ({"token_filter.share": 0.1}, "token_filter picks tokens"),
        ({"patches": "clip_cov", "token_filter.strength": 2}, "token_filter is kl_cov"),
        ({"patches": "entropy_bonus", "entropy_bonus.step": 0.1}, "target is given"),
        ({"preset": "scalerl", "group_filter.max_rounds": 3}, "is dynamic_sampling"),
        ({"pass_k": 2}, "credit is pass_at_k"),
    ],
)
def test_an_override_that_changes_nothing_is_refused(spec: Any, goes_with: str) -> None:
    with pytest.raises(UserError, match=f"changes nothing here.*{goes_with}"):
        Objective.parse(spec)


def test_what_a_spec_leaves_idle_but_as_it_was_is_no_mistake() -> None:
    # a preset's estimator may stay when a patch takes its KL away; a default may be written out
    assert Objective.parse("deepseek_v32+no_kl").kl.coefficient == 0
    assert Objective.parse(dict(Objective().settings)) == Objective()
    assert Objective.parse({"kl": {"coefficient": 0, "estimator": "k3"}}) == Objective()


def test_two_signs_in_a_row_belong_to_a_name() -> None:
    patched = Objective.parse("reinforce+++mask_truncated")
    assert patched == Objective.parse(["reinforce++", "mask_truncated"])
    assert patched.name == "reinforce+++mask_truncated"
    assert Objective.parse("kl_unbiased+reinforce++_baseline").kl.estimator == "k3_unbiased"


def test_a_setting_of_a_record_can_be_written_in_three_ways() -> None:
    nested = Objective.parse({"kl": {"coefficient": 0.1, "estimator": "k1"}})
    assert nested == Objective.parse({"kl": 0.1, "kl.estimator": "k1"})
    assert nested == Objective.parse({"kl.coefficient": 0.1, "kl.estimator": "k1"})
    assert nested.changed(nested.settings) == nested
    assert nested.changed({"kl": 0.0, "kl.estimator": "k3"}) == Objective()


def test_an_objective_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Objective().kl = 0.1  # type: ignore[misc]


def test_r1s_clip_of_ten_is_allowed() -> None:
    assert Objective.parse({"clip_low": 10, "clip_high": 10}).clip_high == 10


def test_every_choice_has_its_formula() -> None:
    for field, formulas in FORMULAS.items():
        assert formulas.keys() == CHOICES[field].keys()
    assert all(chosen.formula.startswith("gain = ") for chosen in SURROGATES.values())
    for preset in PRESETS:
        lines = describe(Objective.parse(preset))
        assert sum(line.startswith("surrogate: gain = ") for line in lines) == 1
        assert not any("{" in line for line in lines)


def test_describe_says_what_has_an_effect() -> None:
    assert describe(Objective.parse({"preset": "dapo", "clip_high": 0.3})) == [
        "reward: falls by up to 1 in the last 20% of the completion limit",
        "group_filter: groups of equal rewards are dropped and resampled, in at most 10 rounds",
        "baseline: b = mean(r₁ … r_G)",
        "scale: A = (r − b) / std(r₁ … r_G)  (population)",
        "ratio: ρₜ = π(oₜ) / π_old(oₜ)",
        "surrogate: gain = min( ρA, clip(ρ, 1 − 0.2, 1 + 0.3)·A )",
        "aggregation: J = 1/Σᵢ|oᵢ| Σᵢ Σₜ gain",
    ]
    assert describe(Objective.parse("grpo+kl+reference_refresh+adaptive_entropy+retire_solved"))[
        -3:
    ] == [
        "reference: π_ref ← π every 400 steps",
        "entropy_bonus: plus c·H(π) per token while H ≤ 0.2;  c starts at 0 and goes up 0.0001 a "
        "step where H < 0.2, down where H > 0.2, within 0 … 0.005",
        "retire: a prompt is drawn no more once 0.9 of its group is right",
    ]
    # the mean under the root is the group's, whatever the baseline
    assert (
        describe(Objective.parse("passk+leave_one_out"))[2]
        == "scale: A = (r − b) / √(r̄(1 − r̄)),  r̄ = mean(r₁ … r_G)"
    )
    assert "surrogate: gain = sg[clip(ρ, 0, 5)]·A·log π(oₜ)" in describe(Objective.parse("cispo"))
    assert describe(Objective.parse("luspo"))[-1].endswith("L = 1 token")
    lines = describe(Objective.parse("rloo+kl+mask_truncated"))
    assert lines[2] == "surrogate: gain = A·log π(oₜ)"
    assert lines[3].endswith("L = the completion limit")
    assert "minus 0.001·KL" in lines[4] and lines[5].startswith("mask_truncated")
