"""What a user should hear of an RL stage while it runs: as (code, one line with the remedy)."""

from __future__ import annotations

from typing import Any

from lydite.objective.objective import Objective
from lydite.rollout.sampler import Collected
from lydite.train.rl_config import RLConfig

Warned = tuple[str, str]


def of_stage(objective: Objective, config: RLConfig) -> list[Warned]:
    """What can be said at the first step: of the objective, something never comes to bear."""
    found = []
    refresh, updates = objective.kl.refresh, config.update.steps_per_rollout
    if refresh is not None and refresh >= config.steps:
        message = (
            f"objective.kl.refresh: the reference would be renewed after {refresh} steps, and this "
            f"stage has {config.steps}; lower it, or leave reference_refresh out"
        )
        found.append(("reference_never_renewed", message))
    if updates > 1 and not objective.has_ratio:
        message = (
            f"update: {updates} optimiser steps are taken on each rollout, and surrogate "
            f"{objective.surrogate} has no importance ratio to correct the later ones; set "
            "minibatches and epochs to 1, or use a preset that has one, such as grpo"
        )
        found.append(("off_policy_without_ratio", message))
    if config.staleness and not objective.needs_behaviour:
        message = (
            f"staleness: rollouts are {'up to ' * config.asynchronous}{config.staleness} updates "
            "old and objective "
            f"{objective.name} takes them for the policy's own; add a correction, such as +tis, or "
            "set staleness: 0"
        )
        found.append(("stale_without_correction", message))
    if updates == 1 and objective.by_drift:
        message = (
            f"objective.token_filter: {objective.token_filter.kind} takes from how far tokens have "
            "moved since the rollout, and with one optimiser step on each they have not; raise "
            "update.minibatches or update.epochs, or leave it out"
        )
        found.append(("token_filter_idle", message))
    return found


def of_groups(
    objective: Objective, config: RLConfig, collected: Collected[Any], trained: int
) -> list[Warned]:
    """Of a step that was trained on fewer groups than it should, or on none; ``trained`` counts
    them.
    """
    if objective.refills and trained < config.prompts_per_step:
        message = (
            f"{collected.report}, of {config.prompts_per_step} wanted; choose problems of medium "
            "difficulty, raise group_size, or raise objective.group_filter.max_rounds"
        )
        return [("too_few_informative_groups", message)]
    if trained > 0:
        return []
    if collected.groups:
        message = (
            f"no completion of {len(collected.groups)} groups is left to train on in this step: "
            "all were cut off, empty or undecided; raise sampling.max_tokens if they were cut off"
        )
    else:
        message = (
            f"{collected.report}; nothing is left to train on in this step; choose problems of "
            "medium difficulty, or raise group_size"
        )
    return [("nothing_to_train", message)]


def of_retired(config: RLConfig, problems: tuple[int, int, int], step: int) -> list[Warned]:
    """When few problems are left, and when none is; ``problems`` counts those before the step,
    after it, and all.
    """
    before, left, whole = problems
    if left == 0:
        message = (
            f"all {whole} problems are solved and retired, so the stage ends after step "
            f"{step + 1} of {config.steps}; give it harder problems to go on"
        )
        return [("all_retired", message)]
    if left < config.prompts_per_step <= before:
        message = (
            f"{left} of {whole} problems are left, the others are solved and retired; a step "
            f"of {config.prompts_per_step} prompts now draws some of them more than once"
        )
        return [("few_left", message)]
    return []
