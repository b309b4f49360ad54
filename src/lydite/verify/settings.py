"""What a recipe says about rewards. One record per kind, told apart by ``kind``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_serializer, model_validator

from lydite.config import Config
from lydite.verify.answer import AnswerType, ThinkingRule
from lydite.verify.base_config import AnswerConfig, PoolLimits, RewardConfig
from lydite.verify.gym.config import GymConfig
from lydite.verify.judge.config import JudgeConfig
from lydite.verify.reward_model_config import RewardModelConfig
from lydite.verify.sandbox.program import SandboxLimits
from lydite.verify.sql.config import SqlConfig
from lydite.verify.text_config import (
    ChoiceConfig,
    FormatConfig,
    InstructionConfig,
    JsonConfig,
    LanguageConfig,
    LengthConfig,
    RegexConfig,
    RepetitionConfig,
)


class MathConfig(AnswerConfig):
    """1 if the final answer equals the reference mathematically, else 0."""

    kind: Literal["math"] = Field(default="math", description="Mathematical equality.")
    type: AnswerType = Field(
        default="auto",
        description="What every reference is; `auto`: its writing says so. A column `answer_type` "
        "states it for a row. `decimal` takes what rounds to the reference's decimals, `set` is "
        "without order and `tuple` in order however they are written, `text` compares words.",
    )
    tolerance: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Relative difference that a number may have from a reference that is no "
        "integer. A column `tolerance` states it for a row.",
    )
    unevaluated: Literal["refuse", "accept"] = Field(
        default="refuse",
        description="Whether a sum, product or division (`17+25`) answers a reference that is a "
        "plain number. `accept` pays an arithmetic prompt that is only repeated.",
    )


class ExactConfig(AnswerConfig):
    """1 if the final answer equals the reference as text or as a number, else 0."""

    kind: Literal["exact"] = Field(
        default="exact", description="Equality of normalised text or plain numbers."
    )
    case_sensitive: bool = Field(default=False, description="Whether upper and lower case differ.")


class FunctionConfig(RewardConfig):
    """Whatever a plain Python function says."""

    kind: Literal["function"] = Field(default="function", description="A plain reward function.")
    function: str | Callable[..., Any] = Field(
        description="`module:function`, `path/file.py:function`, or from Python the function "
        "itself, with the signature "
        "`reward(prompts, completions, **columns) -> list[float | None]`."
    )
    isolation: Literal["process", "inline"] = Field(
        default="process",
        description="`process`: in the killable workers. `inline`: in the training process, "
        "unlimited.",
    )
    correct_above: float = Field(
        default=0.0,
        description="A reward above this counts as correct in accuracies when no math or exact "
        "reward decides.",
    )

    @field_serializer("function")
    def _spell(self, function: str | Callable[..., Any]) -> str:
        if isinstance(function, str):
            return function
        bare = unwrapped(function)
        owner = bare if hasattr(bare, "__qualname__") else type(bare)
        return f"{owner.__module__}:{owner.__qualname__}"


def _per_test() -> SandboxLimits:
    return SandboxLimits(wall_seconds=5.0, cpu_seconds=5)


class CodeConfig(RewardConfig):
    """1 if the program in the completion passes the problem's tests, else 0; run in a sandbox.

    The problem's columns are ``tests``; or ``entry_point`` with ``cases`` or ``test_code``.
    """

    kind: Literal["code"] = Field(default="code", description="Programs that pass tests.")
    language: Literal["python", "cpp", "javascript"] = Field(
        default="python", description="Language of the programs."
    )
    reward: Literal["all", "share"] = Field(
        default="all",
        description="`all`: 1 for passing every test, else 0. `share`: the share of tests passed "
        "(`test_code` is one test).",
    )
    counted: Literal["all", "hidden"] = Field(
        default="all",
        description="Which tests decide: all, or only those that the model is not shown, so that "
        "knowing the shown ones pays nothing.",
    )
    shown: int | None = Field(
        default=None,
        ge=0,
        description="How many tests at the front the model is shown; the others are hidden. A "
        "test's own `hidden` goes first. By default none is hidden.",
    )
    unfenced: Literal["whole", "refuse"] = Field(
        default="whole",
        description="A completion without a code block: its whole text is the program, or it has "
        "none.",
    )
    thinking: ThinkingRule = Field(
        default="auto", description="As for `math`: whether the thinking must be closed."
    )
    max_chars: int = Field(default=100_000, ge=1, description="A longer program is unparseable.")
    relative: float = Field(
        default=1e-6,
        ge=0,
        description="Relative tolerance where a floating-point number is expected.",
    )
    absolute: float = Field(
        default=1e-9, ge=0, description="Absolute tolerance; the larger of the two holds."
    )
    per_test: SandboxLimits = Field(
        default_factory=_per_test, description="What one test may cost a program."
    )
    total_seconds: float = Field(
        default=30.0, gt=0, description="Wall-clock seconds that all tests of a program may take."
    )
    check_golds: bool = Field(
        default=True,
        description="Whether a reference solution must pass its own tests; each is tried once, "
        "before anything is scored.",
    )


def _listed(value: Any) -> Any:
    """One thing as a list of one."""
    return list(value) if isinstance(value, list | tuple) else [value]


def _expand_reward(reward: Any) -> Any:
    if isinstance(reward, str):
        return {"kind": "function", "function": reward} if ":" in reward else {"kind": reward}
    if callable(reward) and not isinstance(reward, RewardConfig):
        return {"kind": "function", "function": reward}
    return reward


class GateConfig(RewardConfig):
    """The sum of the rewards under ``then``, if what is under ``require`` holds first."""

    kind: Literal["gate"] = Field(default="gate", description="Rewards behind a condition.")
    require: Annotated[list[AnyReward], BeforeValidator(_listed)] = Field(
        min_length=1,
        description="What must hold, one reward or a list of which each must: `format`.",
    )
    then: Annotated[list[AnyReward], BeforeValidator(_listed)] = Field(
        min_length=1,
        description="What is paid then, one reward or a list whose weighted sum it is: `math`.",
    )
    at_least: float = Field(
        default=1.0,
        allow_inf_nan=False,
        description="What a required reward must pay, its weight aside, to hold.",
    )
    otherwise: float = Field(
        default=0.0,
        allow_inf_nan=False,
        description="What is paid where one does not hold. Such a completion is not correct.",
    )


class CascadeConfig(RewardConfig):
    """What the first reward says that can decide."""

    kind: Literal["cascade"] = Field(
        default="cascade", description="The first of several that decides."
    )
    rewards: list[AnyReward] = Field(
        min_length=2,
        description="In the order in which they are asked: `[exact, math]`. One that cannot decide "
        "(crashed, ungradable) or does not apply hands over to the next.",
    )
    pass_on: Annotated[
        list[Literal["wrong", "unparseable", "timeout"]], BeforeValidator(_listed)
    ] = Field(
        default_factory=list,
        description="Other outcomes that are handed to the next: with `wrong`, a completion is "
        "refused only by the last.",
    )


AnyReward = Annotated[
    Annotated[
        MathConfig
        | ExactConfig
        | ChoiceConfig
        | SqlConfig
        | CodeConfig
        | GymConfig
        | JsonConfig
        | RegexConfig
        | InstructionConfig
        | FormatConfig
        | LanguageConfig
        | LengthConfig
        | RepetitionConfig
        | RewardModelConfig
        | JudgeConfig
        | FunctionConfig
        | GateConfig
        | CascadeConfig,
        Field(discriminator="kind"),
    ],
    BeforeValidator(_expand_reward),
]
GateConfig.model_rebuild()
CascadeConfig.model_rebuild()


def _math_alone() -> list[AnyReward]:
    return [MathConfig()]


class VerifierConfig(Config):
    """How completions are scored. ``verifier: math`` and ``verifier: [math, format]`` are short
    for this.
    """

    rewards: list[AnyReward] = Field(
        default_factory=_math_alone,
        min_length=1,
        description="The rewards whose weighted sum is the reward. `math`, `format` or "
        "`my_rewards.py:score` is short for "
        "a reward of that kind with its defaults.",
    )
    limits: PoolLimits = Field(
        default_factory=PoolLimits, description="What checking one answer may cost."
    )

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, value: Any) -> Any:
        if isinstance(value, str | list | tuple | RewardConfig) or callable(value):
            value = {"rewards": value}
        elif isinstance(value, Mapping) and "kind" in value:
            reward = {key: item for key, item in value.items() if key != "limits"}
            value = {
                "rewards": [reward],
                **({"limits": value["limits"]} if "limits" in value else {}),
            }
        if not isinstance(value, Mapping) or "rewards" not in value:
            return value
        rewards = _listed(value["rewards"])
        _check_depth(rewards)
        return {**value, "rewards": rewards}

    @model_validator(mode="after")
    def _fits_together(self) -> VerifierConfig:
        for names in (reward_names(each) for each in _lists_of(self.rewards)):
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise ValueError(
                    f"two rewards are named {twice!r}; give one of them another `name`"
                )
        grouped = [
            r for r in all_rewards(self.rewards) if isinstance(r, LengthConfig) and r.grouped
        ]
        if len(grouped) > sum(any(each is reward for reward in self.rewards) for each in grouped):
            raise ValueError(
                f"length: rule {grouped[0].rule} compares the correct completions of a problem, so "
                "it stands beside the other rewards, not inside one"
            )
        if grouped and all(isinstance(reward, FORM_ONLY) for reward in self.rewards):
            raise ValueError(
                f"length: rule {grouped[0].rule} needs a reward beside it that says which "
                "completions are correct, such as math"
            )
        return self


FORM_ONLY = (FormatConfig, LanguageConfig, LengthConfig, RepetitionConfig, RewardModelConfig)
"""Rewards that say nothing of whether a completion is correct."""

MAX_NESTING = 4
"""How deep rewards may stand inside rewards."""

_INNER = ("require", "then", "rewards")


def _check_depth(rewards: Any) -> None:
    level = list(rewards)
    for _ in range(MAX_NESTING):
        level = [
            inner
            for reward in level
            if isinstance(reward, Mapping)
            for key in _INNER
            for inner in _listed(reward.get(key, []))
        ]
    if level:
        raise ValueError(f"rewards stand more than {MAX_NESTING} deep inside each other")


def inner_rewards(reward: AnyReward) -> list[list[AnyReward]]:
    """The lists of rewards that a reward combines."""
    if isinstance(reward, GateConfig):
        return [reward.require, reward.then]
    return [reward.rewards] if isinstance(reward, CascadeConfig) else []


def _lists_of(rewards: list[AnyReward]) -> Iterator[list[AnyReward]]:
    """The list, and for each reward the lists that share its name space, at any depth."""
    yield rewards
    for reward in rewards:
        inner = [each for listed in inner_rewards(reward) for each in listed]
        yield from _lists_of(inner) if inner else ()


def all_rewards(rewards: Sequence[AnyReward]) -> Iterator[AnyReward]:
    """Every reward, those inside others after them."""
    for reward in rewards:
        yield reward
        for each in inner_rewards(reward):
            yield from all_rewards(each)


def reward_model_stages(config: VerifierConfig) -> dict[str, RewardModelConfig]:
    """The rewards whose model a stage of the recipe trains, by its name."""
    return {
        reward.from_stage: reward
        for reward in all_rewards(config.rewards)
        if isinstance(reward, RewardModelConfig) and reward.from_stage is not None
    }


def with_reward_models(config: VerifierConfig, folders: Mapping[str, Path]) -> VerifierConfig:
    """The same with the folder of each reward model that a stage has trained, by its name."""

    def ready(rewards: Sequence[Any]) -> list[Any]:
        return [_ready(reward) for reward in rewards]

    def _ready(reward: Any) -> Any:
        if isinstance(reward, RewardModelConfig):
            folder = folders.get(reward.from_stage or "")
            found = {} if folder is None else {"model": str(folder), "from_stage": None}
            return reward.model_copy(update=found)
        if isinstance(reward, GateConfig):
            inner = {"require": ready(reward.require), "then": ready(reward.then)}
            return reward.model_copy(update=inner)
        if isinstance(reward, CascadeConfig):
            return reward.model_copy(update={"rewards": ready(reward.rewards)})
        return reward

    if not reward_model_stages(config):
        return config
    return config.model_copy(update={"rewards": ready(config.rewards)})


def reward_weights(config: VerifierConfig) -> dict[str, float]:
    """The weight of each reward that is added up, by name."""
    names = reward_names(config.rewards)
    return {name: each.weight for name, each in zip(names, config.rewards, strict=True)}


def reward_names(rewards: Sequence[Any]) -> list[str]:
    """The names that rewards are logged under: their own, else the function's, else their kind."""
    return [
        reward.name
        or (function_name(reward.function) if reward.kind == "function" else reward.kind)
        for reward in rewards
    ]


def function_name(function: str | Callable[..., Any]) -> str:
    """``score`` of ``my_rewards.py:score`` or of the function itself."""
    if isinstance(function, str):
        return function.rpartition(":")[2] or function
    bare = unwrapped(function)
    return str(getattr(bare, "__name__", type(bare).__name__))


def unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a ``functools.partial`` was made of."""
    while isinstance(function, functools.partial):
        function = function.func
    return function
