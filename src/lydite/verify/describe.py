"""A verifier in plain lines, for a dry run."""

from __future__ import annotations

from collections.abc import Sequence

from lydite.types import Problem
from lydite.verify.base_config import RewardConfig
from lydite.verify.compose import applies
from lydite.verify.settings import (
    AnyReward,
    CascadeConfig,
    GateConfig,
    VerifierConfig,
    reward_names,
)


def describe_rewards(config: VerifierConfig, problems: Sequence[Problem] = ()) -> list[str]:
    """A line for each reward that is added up: its weight, what it is made of, and how many of the
    problems it applies to, if not to all.
    """
    return [
        f"{_weighed(reward, name)}{_reach(reward, problems)}"
        for reward, name in zip(config.rewards, reward_names(config.rewards), strict=True)
    ]


def _weighed(reward: AnyReward, name: str) -> str:
    factor = "" if reward.weight == 1 else f"{reward.weight:g} × "
    return f"{factor}{_said(reward, name)}{_condition(reward)}"


def _said(reward: AnyReward, name: str) -> str:
    if isinstance(reward, GateConfig):
        mark = "" if reward.at_least == 1 else f" ≥ {reward.at_least:g}"
        required = " and ".join(f"{each}{mark}" for each in _each(reward.require))
        paid = " + ".join(_each(reward.then))
        return f"{name} ({paid} if {required}, else {reward.otherwise:g})"
    if isinstance(reward, CascadeConfig):
        passed = f"; {' and '.join(reward.pass_on)} is passed on" if reward.pass_on else ""
        return f"{name} ({', else '.join(_each(reward.rewards))}{passed})"
    kind = "" if name == reward.kind else f" ({reward.kind})"
    return f"{name}{kind}"


def _each(rewards: Sequence[AnyReward]) -> list[str]:
    return [
        _weighed(reward, name) for reward, name in zip(rewards, reward_names(rewards), strict=True)
    ]


def _condition(reward: RewardConfig) -> str:
    if reward.when is None:
        return ""
    said = [
        f"{name} is {' or '.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in reward.when.items()
    ]
    return f" when {' and '.join(said)}"


def _reach(reward: RewardConfig, problems: Sequence[Problem]) -> str:
    if reward.when is None or not problems:
        return ""
    count = sum(applies(reward.when, problem) for problem in problems)
    return f": {count} of {len(problems)} problems"
