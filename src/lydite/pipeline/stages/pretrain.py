"""Pretraining of a small model as a stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import Field

from lydite.config import UserError
from lydite.model.estimate import Workload
from lydite.model.policy import Policy
from lydite.pipeline.artifact import Artifact
from lydite.pipeline.stages.stage import At, Checks, Finding, Stage, TaskStage
from lydite.pipeline.stages.training import train
from lydite.rollout.engine import EngineConfig
from lydite.train.pretrain import PretrainConfig, PretrainTrainer, document, pack
from lydite.types import Problem


class PretrainStage(TaskStage, PretrainConfig):
    """Next-token prediction on documents: plain text (`prompt` names its column, `reference: null`)
    or prompts with worked solutions. For small models, such as those that `init:` makes.
    """

    imitates: ClassVar[bool] = True
    how: ClassVar[tuple[str, ...]] = (*Stage.how, "tokens_per_micro_batch", "parameters_at_most")

    kind: Literal["pretrain"]
    parameters_at_most: int = Field(
        500_000_000,
        ge=1,
        description="A larger model is refused: one process on one device is not what it takes.",
    )

    def check_models(self, policy: Policy, others: Mapping[str, Policy]) -> None:
        count = policy.model.num_parameters()
        if count > self.parameters_at_most:
            raise UserError(
                f"stages.{self.name}.parameters_at_most: the model has {count:,} parameters, and "
                f"pretraining is for small ones; raise it from {self.parameters_at_most:,} if you "
                "mean it"
            )
        block = self.block
        if block is not None and block > policy.context:
            raise UserError(
                f"stages.{self.name}.block: {block} tokens are more than the context of "
                f"{policy.context}; lower it or raise model.context"
            )

    def fit(self, policy: Policy, problems: Sequence[Problem]) -> int:
        longest = max(len(document(policy, problem)) for problem in problems)
        return min(longest, self.block or policy.context)

    def shown(self, problem: Problem, prompt: str) -> str:
        if problem.worked is not None:
            return f"{super().shown(problem, prompt)} → {problem.worked!r}"
        text = "\n\n".join(message.content for message in problem.messages)
        return f"{problem.id}: {text if len(text) < 200 else text[:200] + '…'!r}"

    def task_checks(self, problems: Sequence[Problem]) -> Checks:
        yield f"documents of {self.name}", lambda: self._count(problems)

    def _count(self, problems: Sequence[Problem]) -> Finding:
        size = f"{self.block} tokens" if self.block else "the model's context"
        steps = f"{self.steps} steps" if self.epochs is None else f"{self.epochs:g} passes"
        return f"{len(problems)} in blocks of {size}, {self.batch_size} at once; {steps}", ()

    def workload(self, engine: EngineConfig) -> Workload:
        return Workload(0, self.tokens_per_micro_batch)

    def run(self, at: At) -> Artifact:
        policy = at.load()
        texts = [document(policy, problem) for problem in at.problems(self.task)]
        blocks = pack(texts, self.block or policy.context)
        trainer = PretrainTrainer(policy, self, blocks, at.recipe.seed)
        return train(at, self.kind, trainer, policy, at.engine(policy), during=False)
