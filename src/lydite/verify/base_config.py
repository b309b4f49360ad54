"""What every reward's settings have, and what checking one answer may cost."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field, field_validator

from lydite.config import Config
from lydite.verify.answer import AnswerPlace, ThinkingRule

Condition = str | int | float | bool


class PoolLimits(Config):
    """What checking one answer may cost before it is killed."""

    seconds: float = Field(
        default=5.0, gt=0, description="Wall-clock seconds that one item may take."
    )
    memory_mb: int = Field(
        default=2048,
        ge=64,
        description="Mebibytes that one item may use on top of what its worker took to start.",
    )
    workers: int = Field(
        default=2, ge=1, description="Worker processes that check answers side by side."
    )
    fail_rate: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="Share of crashed or ungradable verdicts in a step past which a run stops.",
    )


class RewardConfig(Config):
    """What every reward has."""

    name: str | None = Field(
        default=None, min_length=1, description="Name it is logged under; its kind by default."
    )
    weight: float = Field(
        default=1.0, allow_inf_nan=False, description="Factor of this reward in the weighted sum."
    )
    when: Mapping[str, Condition | list[Condition]] | None = Field(
        default=None,
        description="The problems that it applies to, by the value of a column or one of several: "
        "`{tag: math}`, `{tag: [math, logic], level: 3}`. All of them by default.",
    )

    @field_validator("when")
    @classmethod
    def _says_something(
        cls, when: Mapping[str, Condition | list[Condition]] | None
    ) -> Mapping[str, Condition | list[Condition]] | None:
        if when is not None and (not when or any(value == [] for value in when.values())):
            raise ValueError("name a column and its value, such as {tag: math}; or leave it out")
        return when


class AnswerConfig(RewardConfig):
    """Where a reward that compares the final answer reads it."""

    answer: AnswerPlace = Field(
        default="auto",
        description="Where the final answer stands: `boxed` (the last \\boxed{}), `tag` "
        "(<answer>…</answer>), `phrase` "
        "(after `marker`), or `auto`: the first of tag, box and phrase that occurs, else the "
        "closing statement.",
    )
    marker: str | None = Field(
        default=None,
        min_length=1,
        description="Phrase that announces the answer, such as `####` or `The answer is`; the "
        "usual ones by default.",
    )
    thinking: ThinkingRule = Field(
        default="auto",
        description="`required`: a completion that never closes </think> has no answer; use it "
        "when the chat template "
        "prefills <think>. `auto`: only one that opens <think> itself and never closes it has "
        "none.",
    )
    max_chars: int = Field(default=1000, ge=1, description="A longer final answer is unparseable.")
    strict: bool = Field(
        default=False,
        description="Whether a completion that states several final answers which differ has none; "
        "by default the last counts.",
    )
