"""Rewards that can be checked: verdicts on completions, in killable worker processes where a model
sets the cost.
"""

from lydite.verify.base_config import PoolLimits
from lydite.verify.compose import ComposedVerifier
from lydite.verify.gym.config import GymConfig
from lydite.verify.judge.config import JudgeConfig
from lydite.verify.reward_model_config import RewardModelConfig
from lydite.verify.settings import (
    AnyReward,
    CascadeConfig,
    CodeConfig,
    ExactConfig,
    FunctionConfig,
    GateConfig,
    MathConfig,
    VerifierConfig,
)
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
from lydite.verify.verifier import GoldFault, build, gold_error, verify_golds

__all__ = [
    "AnyReward",
    "CascadeConfig",
    "ChoiceConfig",
    "CodeConfig",
    "ComposedVerifier",
    "ExactConfig",
    "FormatConfig",
    "FunctionConfig",
    "GateConfig",
    "GoldFault",
    "GymConfig",
    "InstructionConfig",
    "JsonConfig",
    "JudgeConfig",
    "LanguageConfig",
    "LengthConfig",
    "MathConfig",
    "PoolLimits",
    "RegexConfig",
    "RepetitionConfig",
    "RewardModelConfig",
    "SqlConfig",
    "VerifierConfig",
    "build",
    "gold_error",
    "verify_golds",
]
