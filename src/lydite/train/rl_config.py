"""The settings of an RL stage, and what is built from them."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from lydite.config import Config
from lydite.model.policy import Policy
from lydite.model.reference import Reference
from lydite.objective.objective import Objective
from lydite.rollout.curriculum import CurriculumConfig
from lydite.train.critic import Critic, CriticConfig
from lydite.train.evaluate import SamplingConfig
from lydite.train.learner import Learner, UpdateConfig
from lydite.train.optimizer import OptimizerConfig
from lydite.train.ranks import ALONE, Ranks


class RLConfig(Config):
    """How many prompts and completions a step takes, how they are drawn, and what is optimised."""

    steps: int = Field(100, ge=1, description="Rollouts, each followed by its optimiser steps.")
    prompts_per_step: int = Field(16, ge=1, description="Prompts (groups) per step.")
    group_size: int = Field(8, ge=1, description="Completions per prompt.")
    objective: Any = Field(
        "grpo",
        description=(
            "A preset, patches after it: `dapo`, `grpo+clip_higher`, a list, or a mapping with "
            "`preset`, `patches` and any [setting](#objective)."
        ),
    )
    sampling: SamplingConfig = Field(
        SamplingConfig(), description="How training completions are drawn."
    )
    optimizer: OptimizerConfig = Field(OptimizerConfig(), description="AdamW and its schedule.")
    update: UpdateConfig = Field(
        UpdateConfig(), description="How a rollout becomes optimiser steps."
    )
    staleness: int = Field(
        0,
        ge=0,
        description="Updates that the weights which sample may lag behind. 0: sample, then train. "
        "N: step s is sampled with the weights from before step s − N, beside the training of the "
        "steps in between; takes memory for N + 2 more copies of the trained weights. Give the "
        "objective a `correction`, such as `+tis`.",
    )
    asynchronous: bool = Field(
        False,
        description="Keeps groups in flight instead: a step takes those that are complete, and new "
        "weights are taken amid completions, of which no token may lag behind more than "
        "`staleness` updates. No group waits for the longest of another; two runs are not the "
        "same. Takes memory for three more copies of the trained weights.",
    )
    patience: float = Field(
        3600.0,
        gt=0,
        description="Seconds without a completion or a verdict after which an asynchronous stage "
        "stops and says what it waits for.",
    )
    curriculum: CurriculumConfig | None = Field(
        None,
        description="Draws problems by the chance that they teach, `{}` with its defaults. Null: "
        "all problems in turn, epoch after epoch.",
    )
    critic: CriticConfig | None = Field(
        None,
        description="The critic of an objective that has one (`ppo`); its defaults when null.",
    )

    @field_validator("objective")
    @classmethod
    def _parses(cls, spec: Any) -> Any:
        Objective.parse(spec)
        return spec

    @model_validator(mode="after")
    def _fits(self) -> Self:
        """Said when the recipe is read, not when the stages before this one are done."""
        if self.sampling.temperature == 0:
            raise ValueError(
                "sampling.temperature: 0 draws the same completion every time, which teaches "
                "nothing; give a number above 0, 1 as a rule"
            )
        if self.asynchronous and not self.staleness:
            raise ValueError(
                "asynchronous: needs staleness of 1 or more, the updates that a token may lag "
                "behind; 2 is a good start"
            )
        objective = self.build_objective()
        if self.critic is not None and not objective.needs_values:
            raise ValueError(
                f"critic: objective {objective.name} has no critic; leave it out, or use the "
                "objective ppo"
            )
        return self

    def build_objective(self) -> Objective:
        """The objective, with what it needs to know of this stage filled in.

        Raises:
            UserError: it cannot work with this group size or completion limit.
        """
        objective = Objective.parse(self.objective).with_limit(self.sampling.max_tokens)
        objective.check_group_size(self.group_size)
        return objective

    @property
    def copies(self) -> int:
        """Of the trained weights, for sampling beside training: what samples, and what it will."""
        if self.asynchronous:  # what samples, what it takes next, and what is being taken
            return 3
        return self.staleness + 2 if self.staleness else 0

    @property
    def critic_kind(self) -> Literal["model", "head"] | None:
        """Of the critic that the objective needs, if it needs one."""
        if not self.build_objective().needs_values:
            return None
        return (self.critic or CriticConfig()).kind

    def build_learner(self, policy: Policy, ranks: Ranks = ALONE) -> Learner:
        """The learner, with the reference and the critic that the objective needs, from the
        policy's present weights; one of ``ranks``, which all have the same.
        """
        needs_reference = self.build_objective().needs_reference
        reference = Reference(policy) if needs_reference else None
        critic = self.build_critic(policy, ranks)
        return Learner(policy, self.optimizer, self.update, reference, critic, ranks)

    def build_critic(self, policy: Policy, ranks: Ranks = ALONE) -> Critic | None:
        """The critic that the objective needs, from the policy's present weights."""
        if not self.build_objective().needs_values:
            return None
        config = self.critic or CriticConfig()
        return Critic(policy, config, self.optimizer, self.update.most_tokens, ranks)
