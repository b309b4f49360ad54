"""What a recipe says about reasoning-gym's scorers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lydite.verify.base_config import AnswerConfig
from lydite.verify.sandbox.program import SandboxLimits


def _per_answer() -> SandboxLimits:
    return SandboxLimits(wall_seconds=10.0, cpu_seconds=10, memory_mb=1024, file_mb=1)


class GymConfig(AnswerConfig):
    """1 if reasoning-gym's scorer of the problem's dataset gives the final answer full marks.

    The problem's columns, as `tasks` of a `gym` source have them: `gym` (the dataset's name),
    `gym_config` (its settings) and `metadata` (the entry's).
    """

    kind: Literal["gym"] = Field(
        default="gym", description="The scorer that belongs to a reasoning-gym problem."
    )
    max_chars: int = Field(
        default=10_000, ge=1, description="A longer final answer is unparseable."
    )
    binary: bool = Field(
        default=True,
        description="Whether only full marks pay. Scorers give partial ones for an answer that is "
        "near, or that is long and holds the right one, and some for any answer.",
    )
    per_answer: SandboxLimits = Field(
        default_factory=_per_answer, description="What scoring one answer may cost."
    )
