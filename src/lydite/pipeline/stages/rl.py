"""Reinforcement learning as a stage."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Literal

from lydite.model.compute import flops_per_token
from lydite.model.estimate import Workload
from lydite.model.policy import Policy
from lydite.model.reference import Reference
from lydite.objective.describe import describe
from lydite.pipeline.artifact import Artifact
from lydite.pipeline.fit import longest_sampled
from lydite.pipeline.stages.stage import At, Checks, Finding, TaskStage
from lydite.pipeline.stages.training import train
from lydite.rollout.engine import EngineConfig
from lydite.train.learner import Learner
from lydite.train.rl import RLParts, RLTrainer
from lydite.train.rl_config import RLConfig
from lydite.types import Problem


class RLStage(TaskStage, RLConfig):
    """Reinforcement learning on a verifiable reward."""

    kind: Literal["rl"]

    @property
    def verified(self) -> tuple[str, ...]:
        return (self.task,)

    def fit(self, policy: Policy, problems: Sequence[Problem]) -> int:
        return longest_sampled(policy, problems, self.sampling, f"stages.{self.name}.sampling")

    def settings_checks(self) -> Checks:
        yield f"objective of {self.name}", self._explain

    def _explain(self) -> Finding:
        objective = self.build_objective()
        per_step = self.prompts_per_step * self.group_size
        text = (
            f"{objective.name}; {self.prompts_per_step} prompts × {self.group_size} = "
            f"{per_step} completions a step"
        )
        return text, tuple(describe(objective))

    def workload(self, engine: EngineConfig) -> Workload:
        rows = min(engine.max_rows, self.prompts_per_step * self.group_size)
        objective = self.build_objective()
        return Workload(
            rows * self.sampling.max_tokens,
            self.update.tokens_per_micro_batch,
            reference=objective.needs_reference,
            refreshed=objective.kl.refresh is not None,
            critic=self.critic_kind,
            copies=self.copies,
        )

    def run(self, at: At) -> Artifact:
        policy = at.load()
        engine = at.engine(policy)
        objective = self.build_objective()
        reference = Reference(policy) if objective.needs_reference else None
        critic = self.build_critic(policy)
        parts = RLParts(
            engine,
            at.verifier,
            Learner(policy, self.optimizer, self.update, reference, critic),
            objective,
            at.recipe.verifier.limits.fail_rate,
            at.reward_weights,
            flops=flops_per_token(policy.model),
            ahead=at.detached_engine(policy, self.staleness),
        )
        prompts = at.prompts(policy, self.task)
        trainer = RLTrainer(self, parts, prompts, at.recipe.seed, earlier=at.earlier)
        with closing(trainer):
            return train(at, self.kind, trainer, policy, engine)
