"""Rewards that can be checked: verdicts on completions, in killable worker processes where a model
sets the cost.
"""

from lydite.verify.base_config import PoolLimits
from lydite.verify.compose import ComposedVerifier
from lydite.verify.judge.config import JudgeConfig
from lydite.verify.settings import (
    AnyReward,
    CodeConfig,
    ExactConfig,
    FormatConfig,
    FunctionConfig,
    MathConfig,
    SqlConfig,
    VerifierConfig,
)
from lydite.verify.verifier import GoldFault, build, gold_error, verify_golds

__all__ = [
    "AnyReward",
    "CodeConfig",
    "ComposedVerifier",
    "ExactConfig",
    "FormatConfig",
    "FunctionConfig",
    "GoldFault",
    "JudgeConfig",
    "MathConfig",
    "PoolLimits",
    "SqlConfig",
    "VerifierConfig",
    "build",
    "gold_error",
    "verify_golds",
]
