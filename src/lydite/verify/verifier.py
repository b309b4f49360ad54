"""From a recipe's ``verifier`` to something that scores completions, its references tested before
it scores any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lydite.config import UserError
from lydite.types import Problem, Verifier
from lydite.verify.base_config import PoolLimits
from lydite.verify.code.reward import CodeReward
from lydite.verify.compose import ComposedVerifier
from lydite.verify.final import MATH_HANDLER, ExactReward, MathReward
from lydite.verify.format import FormatReward
from lydite.verify.function import FunctionReward, function_handler
from lydite.verify.judge.config import JudgeConfig
from lydite.verify.judge.reward import JudgeReward
from lydite.verify.pool import Handler, Pool
from lydite.verify.score import Reward
from lydite.verify.settings import (
    AnyReward,
    CodeConfig,
    ExactConfig,
    FormatConfig,
    FunctionConfig,
    MathConfig,
    SqlConfig,
    VerifierConfig,
    reward_names,
)
from lydite.verify.sql.reward import SqlReward, sql_handler

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
    handlers = [
        _handler(reward, name)
        for reward, name in zip(config.rewards, reward_names(config.rewards), strict=True)
    ]
    needed = [handler for handler in handlers if handler is not None]
    pool = Pool(needed, config.limits.workers, config.limits.memory_mb) if needed else None
    rewards: list[Reward] = []
    for reward, name, handler in zip(
        config.rewards, reward_names(config.rewards), handlers, strict=True
    ):
        number = needed.index(handler) if handler is not None else -1
        rewards.append(
            _BUILDERS[reward.kind](reward, name, pool if handler else None, number, config.limits)
        )
    verifier = ComposedVerifier(rewards, pool)
    if problems is not None:
        faults = verify_golds(verifier, problems)
        if faults:
            verifier.close()
            raise gold_error(faults, len(problems))
    return verifier


def _handler(reward: AnyReward, name: str) -> Handler | None:
    """What a reward runs in the workers, if anything."""
    if isinstance(reward, MathConfig):
        return MATH_HANDLER
    if isinstance(reward, SqlConfig):
        return sql_handler(reward)
    if isinstance(reward, FunctionConfig) and reward.isolation == "process":
        return function_handler(reward.function, name)
    return None


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


def _judge(
    config: AnyReward, name: str, pool: Pool | None, handler: int, limits: PoolLimits
) -> Reward:
    assert isinstance(config, JudgeConfig)
    return JudgeReward(config, name)


_BUILDERS: dict[str, Callable[[AnyReward, str, Pool | None, int, PoolLimits], Reward]] = {
    "math": _math,
    "exact": _exact,
    "sql": _sql,
    "format": _format,
    "function": _function,
    "code": _code,
    "judge": _judge,
}


def verify_golds(verifier: Verifier, problems: Sequence[Problem]) -> list[GoldFault]:
    """The problems whose reference does not verify against itself, one by one, in order.

    A reference that the verifier cannot read would make every right answer a wrong one, without a
    word. A problem with a worked solution and no reference is one to imitate, and is passed over.
    """
    if not isinstance(verifier, ComposedVerifier):
        return []
    problems = [p for p in problems if p.reference is not None or p.worked is None]
    columns = [reward.check_golds(problems) for reward in verifier.rewards]
    return [
        GoldFault(problem.id, problem.reference, reason)
        for problem, *reasons in zip(problems, *columns, strict=True)
        if (reason := next((reason for reason in reasons if reason is not None), None)) is not None
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
