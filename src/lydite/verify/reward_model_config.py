"""What a recipe says about a reward model."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from lydite.verify.base_config import RewardConfig
from lydite.verify.spoken import TextPart


class RewardModelConfig(RewardConfig):
    """What a sequence classifier says of prompt and completion. It does not decide what is
    correct.
    """

    kind: Literal["reward_model"] = Field(
        default="reward_model", description="A Transformers sequence classifier."
    )
    model: str | None = Field(
        default=None,
        min_length=1,
        description="Hub id or local folder of the classifier; give this or `from_stage`.",
    )
    from_stage: str | None = Field(
        default=None,
        min_length=1,
        description="Name of an earlier `reward_model` stage of the recipe, whose model it is. For "
        "the `verifier` of a stage after it.",
    )
    tokenizer: str | None = Field(
        default=None, description="Hub id or folder of its tokenizer; the model's if null."
    )
    sees: TextPart = Field(
        default="answer",
        description="What it is shown of a completion. `answer`: what follows the thinking (all of "
        "it where there is none; nothing where it is left open); `whole`: all; `thinking`.",
    )
    layout: Literal["auto", "chat", "pair", "template"] = Field(
        default="auto",
        description="How prompt and completion are put to it. `chat`: by its chat template; "
        "`pair`: as two segments; `template`: by `template`; `auto`: chat if it has a chat "
        "template, else template.",
    )
    template: str = Field(
        default="{prompt}\n\n{completion}", description="Text for the layout `template`."
    )
    max_tokens: int | None = Field(
        default=None,
        ge=8,
        description="Most tokens of its input; the model's own limit if null. Of a longer one the "
        "front of the prompt is cut; only a completion too long by itself loses its end.",
    )
    batch_tokens: int = Field(
        default=16_384, ge=1, description="Most tokens of a forward pass, padding included."
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="Type of its weights; `auto`: bfloat16 on a GPU, else float32."
    )
    device: str = Field(
        default="auto",
        description="Where it runs, such as `cuda:1`; `auto`: a GPU if there is one.",
    )
    label: int | str | None = Field(
        default=None,
        description="Which of its outputs is the reward, by number or name; needed where it has "
        "several.",
    )
    center: float = Field(
        default=0.0, allow_inf_nan=False, description="Taken from the output first."
    )
    scale: float = Field(
        default=1.0,
        gt=0,
        allow_inf_nan=False,
        description="What the difference is divided by: with its mean and standard deviation on "
        "known completions, rewards are in their units.",
    )
    transform: Literal["none", "sigmoid", "softmax"] = Field(
        default="none",
        description="Applied then. `softmax`: the label's share among all outputs.",
    )
    clip: tuple[float, float] | None = Field(
        default=None, description="Least and greatest reward, applied last."
    )
    correct_above: float = Field(
        default=0.0,
        allow_inf_nan=False,
        description="A reward above this counts as correct where no other reward decides that.",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.model is None) == (self.from_stage is None):
            raise ValueError(
                "give one of model (a hub id or folder) and from_stage (a stage that trains it)"
            )
        if self.clip is not None and not self.clip[0] < self.clip[1]:
            raise ValueError(f"clip: {list(self.clip)} is empty; give the least reward first")
        for place in ("{prompt}", "{completion}"):
            if place not in self.template:
                raise ValueError(
                    f"template: no {place} in {self.template!r}; write it where it goes"
                )
        return self
