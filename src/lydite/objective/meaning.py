"""Which settings have a meaning together: combinations in which one makes another idle or undefined
are refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lydite.config import UserError
from lydite.objective.advantage import BASELINES, SCALES
from lydite.objective.aggregate import AGGREGATIONS
from lydite.objective.correction import CORRECTIONS
from lydite.objective.credit import CREDITS
from lydite.objective.group_filter import FILTERS
from lydite.objective.kl import ESTIMATORS, PLACES
from lydite.objective.settings import GAE, canonical
from lydite.objective.surrogate import ANCHORS, SURROGATES
from lydite.objective.token_filter import TOKEN_FILTERS


class MeaninglessError(UserError):
    """``keys`` are the settings that do not go together, so that it can be said who gave them."""

    def __init__(self, message: str, *keys: str) -> None:
        super().__init__(message)
        self.keys = keys


# What is about an importance ratio, and what it is where there is none.
WITHOUT_RATIO: dict[str, Any] = {
    "ratio": "token",
    "anchor": "old",
    "clip_low": None,
    "clip_high": None,
    "dual_clip": None,
}


def check_meaning(settings: Mapping[str, Any]) -> None:
    """Refuses combinations in which one choice makes another idle or undefined.

    Raises:
        MeaninglessError: the two choices and what to do.
    """
    _check_surrogate(settings)
    _check_critic(settings)
    _check_groups(settings)
    if settings["fixed_length"] is not None and not AGGREGATIONS[settings["aggregation"]].by_length:
        raise MeaninglessError(
            f"objective.fixed_length: {settings['fixed_length']} means nothing to aggregation "
            f"{settings['aggregation']}; leave it out or use aggregation: fixed_length",
            "fixed_length",
            "aggregation",
        )
    kind, low, high = (settings[k] for k in ("correction", "correction.low", "correction.high"))
    if CORRECTIONS[kind] is not None and ANCHORS[settings["anchor"]]:
        raise MeaninglessError(
            f"objective.correction: {kind} corrects for the engine, which the ratio to the "
            "behaviour policy has done already; leave it out or use anchor: old",
            "correction",
            "anchor",
        )
    if low >= high:
        raise MeaninglessError(
            f"objective.correction.low: {low:g} is not below correction.high: {high:g}; lower the "
            "one or raise the other",
            "correction.low",
            "correction.high",
        )
    if settings["kl.refresh"] is not None and settings["kl"] == 0:
        raise MeaninglessError(
            f"objective.kl.refresh: {settings['kl.refresh']} renews a reference that nothing is "
            "held to; reference_refresh goes with kl, kl_unbiased or kl_in_reward, not with no_kl",
            "kl.refresh",
            "kl",
        )
    start, most = settings["entropy_bonus"], settings["entropy_bonus.high"]
    if settings["entropy_bonus.target"] is not None and start > most:
        raise MeaninglessError(
            f"objective.entropy_bonus: {start:g} is above entropy_bonus.high: {most:g}, the most "
            "that it becomes with a target; lower the one or raise the other",
            "entropy_bonus",
            "entropy_bonus.high",
        )
    if PLACES[settings["kl.place"]] and ESTIMATORS[settings["kl.estimator"]].weighted:
        raise MeaninglessError(
            f"objective.kl.estimator: {settings['kl.estimator']} is weighed by a ratio that a "
            "reward does not have; use k1 or kl.place: loss",
            "kl.estimator",
            "kl.place",
        )


@dataclass(frozen=True, slots=True)
class Use:
    """When a setting is looked at, given all of them, and that in words."""

    when: Callable[[Mapping[str, Any]], bool]
    words: str


_WITH_KL = Use(lambda s: s["kl"] > 0, "kl is above 0")
_WITH_FILTER = Use(
    lambda s: TOKEN_FILTERS[s["token_filter"]] is not None, "token_filter picks tokens"
)
_WITH_TARGET = Use(lambda s: s["entropy_bonus.target"] is not None, "entropy_bonus.target is given")
# Of the settings that only count beside another one.
USES: dict[str, Use] = {
    "pass_k": Use(lambda s: CREDITS[s["credit"]].chance, "credit is pass_at_k"),
    "kl.estimator": _WITH_KL,
    "kl.place": _WITH_KL,
    "correction.low": Use(
        lambda s: (kind := CORRECTIONS[s["correction"]]) is not None and kind.floor,
        "correction is mis, icepop or geometric_mask",
    ),
    "correction.high": Use(
        lambda s: CORRECTIONS[s["correction"]] is not None, "correction is not none"
    ),
    "token_filter.share": _WITH_FILTER,
    "token_filter.strength": Use(
        lambda s: (kind := TOKEN_FILTERS[s["token_filter"]]) is not None and kind.of_drift,
        "token_filter is kl_cov",
    ),
    "entropy_bonus.step": _WITH_TARGET,
    "entropy_bonus.high": _WITH_TARGET,
    "group_filter.max_rounds": Use(
        lambda s: FILTERS[s["group_filter"]].refills, "group_filter is dynamic_sampling"
    ),
}


def check_used(
    overrides: Mapping[str, Any], settings: Mapping[str, Any], defaults: Mapping[str, Any]
) -> None:
    """Refuses overrides that change nothing. Only what a user wrote is held to it: a preset's
    estimator may well stay when a patch takes its KL away.

    Raises:
        UserError: the setting, and what it goes with.
    """
    for key, use in USES.items():
        if overrides.get(key, defaults[key]) != defaults[key] and not use.when(settings):
            raise UserError(
                f"objective.{key}: {overrides[key]} changes nothing here; it counts where "
                f"{use.words}; set that too or leave it out"
            )


def _check_surrogate(settings: Mapping[str, Any]) -> None:
    name = settings["surrogate"]
    uses = SURROGATES[name]
    bounds = (settings["clip_low"], settings["clip_high"])
    moved = [key for key, rest in WITHOUT_RATIO.items() if settings[key] != rest]
    if not uses.ratio and moved:
        means = "means" if len(moved) == 1 else "mean"
        raise MeaninglessError(
            f"objective.surrogate: {name} has no importance ratio, so {' and '.join(moved)} "
            f"{means} nothing to it; leave that out or use a preset that clips",
            "surrogate",
            *moved,
        )
    if uses.clip and None in bounds:
        raise MeaninglessError(
            f"objective.surrogate: {name} needs clip_low and clip_high, both", "surrogate"
        )
    if not uses.clip and bounds != (None, None):
        raise MeaninglessError(
            f"objective.surrogate: {name} has no clip range; leave out clip_low and clip_high",
            "surrogate",
            "clip_low",
            "clip_high",
        )
    if not uses.dual and settings["dual_clip"] is not None:
        raise MeaninglessError(
            f"objective.dual_clip: {settings['dual_clip']:g} means nothing to surrogate {name}; "
            "leave it out",
            "surrogate",
            "dual_clip",
        )
    if uses.only_ratio not in (None, settings["ratio"]):
        raise MeaninglessError(
            f"objective.ratio: {settings['ratio']} means nothing to surrogate {name}; "
            f"use ratio: {uses.only_ratio}",
            "surrogate",
            "ratio",
        )


def _check_critic(settings: Mapping[str, Any]) -> None:
    baseline, scale = settings["baseline"], settings["scale"]
    learned, of_tokens = BASELINES[baseline].learned, SCALES[scale].of_tokens
    if learned and not of_tokens and SCALES[scale].spread is not None:
        raise MeaninglessError(
            f"objective.scale: {scale} is of whole completions, and baseline {baseline} gives each "
            "token an advantage of its own; use scale: token_std or none",
            "baseline",
            "scale",
        )
    if of_tokens and not learned:
        raise MeaninglessError(
            f"objective.scale: {scale} is taken over tokens, which baseline {baseline} does not "
            "tell apart; use scale: batch_std, or baseline: critic",
            "baseline",
            "scale",
        )
    for field in dataclasses.fields(GAE):
        key = canonical(f"gae.{field.name}")
        if not learned and settings[key] != field.default:
            raise MeaninglessError(
                f"objective.{key}: {settings[key]} means nothing to baseline {baseline}; leave it "
                "out or use baseline: critic",
                key,
                "baseline",
            )


def _check_groups(settings: Mapping[str, Any]) -> None:
    baseline, scale = settings["baseline"], settings["scale"]
    if FILTERS[settings["group_filter"]].drops and not BASELINES[baseline].compares:
        raise MeaninglessError(
            f"objective.group_filter: {settings['group_filter']} drops groups of equal rewards, "
            f"which carry a signal under baseline {baseline}; use a group baseline",
            "group_filter",
            "baseline",
        )
    if SCALES[scale].within_group and not BASELINES[baseline].compares:
        raise MeaninglessError(
            f"objective.scale: {scale} is 0 for equal rewards, which carry a signal "
            f"under baseline {baseline}; use a group baseline or scale: none",
            "scale",
            "baseline",
        )
    if SCALES[scale].of_chance and not CREDITS[settings["credit"]].chance:
        raise MeaninglessError(
            f"objective.scale: {scale} is the deviation of a chance, which a reward is not; "
            "use credit: pass_at_k or scale: group_std",
            "scale",
            "credit",
        )
