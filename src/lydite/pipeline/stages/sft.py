"""Supervised fine-tuning as a stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from lydite.model.estimate import Workload
from lydite.model.policy import Policy
from lydite.pipeline.artifact import Artifact
from lydite.pipeline.fit import check_worked
from lydite.pipeline.stages.stage import At, Stage, TaskStage
from lydite.pipeline.stages.training import train
from lydite.rollout.engine import EngineConfig
from lydite.train.sft import SFTConfig, SFTTrainer, examples_of
from lydite.types import Problem


class SFTStage(TaskStage, SFTConfig):
    """Supervised fine-tuning on worked examples: cold start, distillation, or a rough base for a
    tiny model.
    """

    imitates: ClassVar[bool] = True
    how: ClassVar[tuple[str, ...]] = (*Stage.how, "tokens_per_micro_batch")

    kind: Literal["sft"]

    def check_task(self, task: str, problems: Sequence[Problem]) -> None:
        check_worked(task, problems)

    def fit(self, policy: Policy, problems: Sequence[Problem]) -> int:
        check_worked(self.task, problems)
        return max(example.tokens for example in examples_of(policy, problems, self))

    def shown(self, problem: Problem, prompt: str) -> str:
        return f"{super().shown(problem, prompt)} → {problem.worked!r}"

    def workload(self, engine: EngineConfig) -> Workload:
        return Workload(0, self.tokens_per_micro_batch)

    def run(self, at: At) -> Artifact:
        policy = at.load()
        examples = examples_of(policy, at.problems(self.task), self)
        trainer = SFTTrainer(policy, self, examples, at.recipe.seed)
        return train(at, self.kind, trainer, policy, at.engine(policy), during=False)
