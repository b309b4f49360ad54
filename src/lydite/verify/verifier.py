"""From a recipe's ``verifier`` to something that scores completions, its references tested before
it scores any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lydite.config import UserError
from lydite.types import Problem, Verifier
from lydite.verify.base_config import PoolLimits
from lydite.verify.branch import CascadeReward, GateReward
from lydite.verify.choice import ChoiceReward
from lydite.verify.code.reward import CodeReward
from lydite.verify.compose import ComposedVerifier, Part
from lydite.verify.final import MATH_HANDLER, ExactReward, MathReward
from lydite.verify.format import FormatReward
from lydite.verify.function import FunctionReward, function_handler
from lydite.verify.gym.config import GymConfig
from lydite.verify.gym.reward import GymReward
from lydite.verify.instruction import SCHEMA_HANDLER, InstructionReward
from lydite.verify.json_reward import JsonReward
from lydite.verify.judge.config import JudgeConfig
from lydite.verify.judge.reward import JudgeReward
from lydite.verify.language import LanguageReward
from lydite.verify.length import GroupLengthReward, LengthReward
from lydite.verify.pool import Handler, Pool
from lydite.verify.regex import RegexReward, regex_handler
from lydite.verify.repetition import RepetitionReward
from lydite.verify.reward_model import RewardModelReward
from lydite.verify.reward_model_config import RewardModelConfig
from lydite.verify.score import Reward
from lydite.verify.settings import (
    AnyReward,
    CascadeConfig,
    CodeConfig,
    ExactConfig,
    FunctionConfig,
    GateConfig,
    MathConfig,
    VerifierConfig,
    inner_rewards,
    reward_names,
)
from lydite.verify.sql.config import SqlConfig
from lydite.verify.sql.reward import SqlReward, sql_handler
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

__all__ = ["GoldFault", "VerifierConfig", "build", "gold_error", "verify_golds"]


@dataclass(frozen=True, slots=True)
class GoldFault:
    """A problem whose reference answer cannot be used, and why."""

    problem_id: str
    reference: str | None
    reason: str


def build(config: VerifierConfig, problems: Sequence[Problem] | None = None) -> ComposedVerifier:
    """The verifier that a recipe describes. Worker processes start with the first completion that
    needs one.

    Args:
        config: the rewards and their limits.
        problems: if given, their references are tested now.

    Raises:
        UserError: a reward function cannot be loaded, or references cannot be used.
    """
    handlers = _handlers(config.rewards)
    pool = Pool(handlers, config.limits.workers, config.limits.memory_mb) if handlers else None
    parts = _parts(config.rewards, pool, handlers, config.limits)
    # Few references need the workers of the math reward, and these import Math-Verify.
    verifier = ComposedVerifier(parts, pool, warm_pool=any(h != MATH_HANDLER for h in handlers))
    if problems is not None:
        faults = verify_golds(verifier, problems)
        if faults:
            verifier.close()
            raise gold_error(faults, len(problems))
    return verifier


def _handlers(rewards: Sequence[AnyReward]) -> list[Handler]:
    """What the rewards run in the workers, those inside others included; each once."""
    found: list[Handler] = []
    for listed in (rewards, *(each for reward in rewards for each in inner_rewards(reward))):
        if listed is not rewards:
            inner = _handlers(listed)
        else:
            named = zip(rewards, reward_names(rewards), strict=True)
            inner = [h for reward, name in named if (h := _handler(reward, name)) is not None]
        found += [handler for handler in inner if handler not in found]
    return found


def _handler(reward: AnyReward, name: str) -> Handler | None:
    """What a reward runs in the workers, if anything."""
    if isinstance(reward, MathConfig):
        return MATH_HANDLER
    if isinstance(reward, SqlConfig):
        return sql_handler(reward)
    if isinstance(reward, JsonConfig | InstructionConfig):
        return SCHEMA_HANDLER
    if isinstance(reward, RegexConfig):
        return regex_handler(reward)
    if isinstance(reward, FunctionConfig) and reward.isolation == "process":
        return function_handler(reward.function, name)
    return None


def _parts(
    rewards: Sequence[AnyReward],
    pool: Pool | None,
    handlers: Sequence[Handler],
    limits: PoolLimits,
) -> list[Part]:
    """The rewards in their places, those inside others built first."""
    return [
        Part(
            _reward(reward, name, pool, handlers, limits),
            () if reward.when is None else (reward.when,),
        )
        for reward, name in zip(rewards, reward_names(rewards), strict=True)
    ]


def _reward(
    reward: AnyReward,
    name: str,
    pool: Pool | None,
    handlers: Sequence[Handler],
    limits: PoolLimits,
) -> Reward:
    inner = [_parts(listed, pool, handlers, limits) for listed in inner_rewards(reward)]
    if isinstance(reward, GateConfig):
        return GateReward(reward, name, *inner)
    if isinstance(reward, CascadeConfig):
        return CascadeReward(reward, name, *inner)
    handler = _handler(reward, name)
    number = -1 if handler is None else handlers.index(handler)
    return _BUILDERS[reward.kind](reward, name, None if handler is None else pool, number, limits)


def _math(
    config: AnyReward, name: str, pool: Pool | None, handler: int, limits: PoolLimits
) -> Reward:
    assert isinstance(config, MathConfig) and pool is not None
    return MathReward(config, name, pool, handler, limits.seconds)


def _exact(
    config: AnyReward, name: str, pool: Pool | None, handler: int, limits: PoolLimits
) -> Reward:
    assert isinstance(config, ExactConfig)
    return ExactReward(config, name)


def _sql(
    config: AnyReward, name: str, pool: Pool | None, handler: int, limits: PoolLimits
) -> Reward:
    assert isinstance(config, SqlConfig) and pool is not None
    return SqlReward(config, name, pool, handler, limits.seconds)


def _format(
    config: AnyReward, name: str, pool: Pool | None, handler: int, limits: PoolLimits
) -> Reward:
    assert isinstance(config, FormatConfig)
    return FormatReward(config, name)


def _function(
    config: AnyReward, name: str, pool: Pool | None, handler: int, limits: PoolLimits
) -> Reward:
    assert isinstance(config, FunctionConfig)
    return FunctionReward(config, name, pool, handler, limits.seconds)


def _code(
    config: AnyReward, name: str, pool: Pool | None, handler: int, limits: PoolLimits
) -> Reward:
    assert isinstance(config, CodeConfig)
    return CodeReward(config, name, limits)


def _gym(
    config: AnyReward, name: str, pool: Pool | None, handler: int, limits: PoolLimits
) -> Reward:
    assert isinstance(config, GymConfig)
    return GymReward(config, name, limits)


def _reward_model(
    config: AnyReward, name: str, pool: Pool | None, handler: int, limits: PoolLimits
) -> Reward:
    assert isinstance(config, RewardModelConfig)
    return RewardModelReward(config, name)


def _judge(
    config: AnyReward, name: str, pool: Pool | None, handler: int, limits: PoolLimits
) -> Reward:
    assert isinstance(config, JudgeConfig)
    return JudgeReward(config, name)


def _choice(
    config: AnyReward, name: str, pool: Pool | None, handler: int, limits: PoolLimits
) -> Reward:
    assert isinstance(config, ChoiceConfig)
    return ChoiceReward(config, name)


def _json(
    config: AnyReward, name: str, pool: Pool | None, handler: int, limits: PoolLimits
) -> Reward:
    assert isinstance(config, JsonConfig) and pool is not None
    return JsonReward(config, name, pool, handler, limits.seconds)


def _regex(
    config: AnyReward, name: str, pool: Pool | None, handler: int, limits: PoolLimits
) -> Reward:
    assert isinstance(config, RegexConfig) and pool is not None
    return RegexReward(config, name, pool, handler, limits.seconds)


def _instruction(
    config: AnyReward, name: str, pool: Pool | None, handler: int, limits: PoolLimits
) -> Reward:
    assert isinstance(config, InstructionConfig) and pool is not None
    return InstructionReward(config, name, pool, handler, limits.seconds)


def _language(
    config: AnyReward, name: str, pool: Pool | None, handler: int, limits: PoolLimits
) -> Reward:
    assert isinstance(config, LanguageConfig)
    return LanguageReward(config, name)


def _length(
    config: AnyReward, name: str, pool: Pool | None, handler: int, limits: PoolLimits
) -> Reward:
    assert isinstance(config, LengthConfig)
    return GroupLengthReward(config, name) if config.grouped else LengthReward(config, name)


def _repetition(
    config: AnyReward, name: str, pool: Pool | None, handler: int, limits: PoolLimits
) -> Reward:
    assert isinstance(config, RepetitionConfig)
    return RepetitionReward(config, name)


_BUILDERS: dict[str, Callable[[AnyReward, str, Pool | None, int, PoolLimits], Reward]] = {
    "math": _math,
    "exact": _exact,
    "sql": _sql,
    "format": _format,
    "function": _function,
    "code": _code,
    "gym": _gym,
    "judge": _judge,
    "reward_model": _reward_model,
    "choice": _choice,
    "json": _json,
    "regex": _regex,
    "instruction": _instruction,
    "language": _language,
    "length": _length,
    "repetition": _repetition,
}


def verify_golds(verifier: Verifier, problems: Sequence[Problem]) -> list[GoldFault]:
    """The problems whose reference does not verify against itself, one by one, in order.

    A reference that the verifier cannot read would make every right answer a wrong one, without a
    word. A problem with a worked solution and no reference is one to imitate, and is passed over.
    """
    if not isinstance(verifier, ComposedVerifier):
        return []
    problems = [p for p in problems if p.reference is not None or p.worked is None]
    return [
        GoldFault(problem.id, problem.reference, reason)
        for problem, reason in zip(problems, verifier.gold_faults(problems), strict=True)
        if reason is not None
    ]


def gold_error(faults: Sequence[GoldFault], total: int, shown: int = 3) -> UserError:
    """The faults as one line that names the first few problems and the remedy."""
    named = "; ".join(
        f"{fault.problem_id} ({fault.reference!r:.60}): {fault.reason}" for fault in faults[:shown]
    )
    more = f"; and {len(faults) - shown} more" if len(faults) > shown else ""
    return UserError(
        f"verifier: {len(faults)} of {total} reference answers cannot be checked: {named}{more}; "
        "correct or drop these rows, or choose another verifier (`exact` compares text)"
    )
