"""Thinking-mode fusion as a stage: one model that thinks, or answers at once, as it is asked."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from lydite.config import UserError
from lydite.model.estimate import Workload
from lydite.model.policy import Policy
from lydite.model.render import completion_ids, render_prompt
from lydite.model.thinking import EMPTY, add_switch
from lydite.model.tiny_tokenizer import check_encodable
from lydite.pipeline.artifact import Artifact
from lydite.pipeline.fit import check_worked
from lydite.pipeline.stages.stage import At, Checks, Stage, TaskStage
from lydite.pipeline.stages.training import train
from lydite.rollout.engine import EngineConfig
from lydite.tasks.switch import NO_THINK, THINK
from lydite.train.fusion import Fused, FusionConfig, fuse, longest_rows
from lydite.train.sft import SFTConfig, SFTTrainer, examples_of
from lydite.types import Problem
from lydite.watch.events import Warned, read_events


class FuseThinkingStage(TaskStage, FusionConfig, SFTConfig):
    """Supervised fine-tuning on worked solutions in both modes of thinking, so that `/think`,
    `/no_think` and `enable_thinking` choose between them. The chat template that is saved with the
    model has the switch.
    """

    imitates: ClassVar[bool] = True
    how: ClassVar[tuple[str, ...]] = (*Stage.how, "tokens_per_micro_batch")

    kind: Literal["fuse_thinking"]
    history: Literal["strip", "keep"] = Field(
        "strip",
        description="Whether a template that is given the switch leaves out the thinking of "
        "earlier turns; see `model.thinking_switch`.",
    )

    def check_task(self, task: str, problems: Sequence[Problem]) -> None:
        check_worked(task, problems)

    def check_models(self, policy: Policy, others: Mapping[str, Policy]) -> None:
        where = f"stages.{self.name}, the switch"
        check_encodable(self._switched(policy).tokenizer, f" {THINK} {NO_THINK}{EMPTY}", where)

    def fit(self, policy: Policy, problems: Sequence[Problem]) -> int:
        """Of solutions alone: conversations are made so long that they fit."""
        check_worked(self.task, problems)
        rows = [row for problem in problems for row in self._alone(problem)]
        switched = self._switched(policy)
        return max(example.tokens for example in examples_of(switched, rows, self))

    def shown(self, problem: Problem, prompt: str) -> str:
        return f"{super().shown(problem, prompt)} → {problem.worked!r}"

    def task_checks(self, problems: Sequence[Problem]) -> Checks:
        yield f"rows of {self.name}", lambda: (self._rows(problems, seed=0).note, ())

    def workload(self, engine: EngineConfig) -> Workload:
        return Workload(0, self.tokens_per_micro_batch)

    def run(self, at: At) -> Artifact:
        policy = self._switched(at.load())
        fused = self._rows(at.problems(self.task), at.recipe.seed, policy)
        told = Warned(stage=self.name, code="fused", message=fused.note)
        if told.message not in {
            event.message for event in read_events(at.log.path) if isinstance(event, Warned)
        }:
            at.log.append(told)
        examples = examples_of(policy, fused.problems, self)
        trainer = SFTTrainer(policy, self, examples, at.recipe.seed)
        return train(at, self.kind, trainer, policy, at.engine(policy), during=False)

    def _switched(self, policy: Policy) -> Policy:
        """The policy with the switch in its chat template; the one given stays as it is.

        Raises:
            UserError: there can be none, or the model's settings hold it fast.
        """
        where = f"stages.{self.name}"
        if not policy.chat:
            raise UserError(
                f"{where}: the switch is the chat template's, and prompts are plain text; set "
                "model.chat_template and model.chat"
            )
        if policy.thinking is False:
            raise UserError(f"{where}: model.thinking turns thinking off; leave it null or true")
        tokenizer = copy.deepcopy(policy.tokenizer)
        add_switch(tokenizer, strip_history=self.history == "strip")
        return replace(policy, tokenizer=tokenizer)

    def _alone(self, problem: Problem) -> tuple[Problem, ...]:
        try:
            return longest_rows(problem)
        except UserError as error:
            raise UserError(f"stages.{self.name}: {error}") from error

    def _rows(self, problems: Sequence[Problem], seed: int, policy: Policy | None = None) -> Fused:
        """The fused rows; with a policy, no conversation is longer than its context."""
        try:
            return fuse(problems, self, seed, lambda row: policy is None or _fits(policy, row))
        except UserError as error:
            raise UserError(f"stages.{self.name}: {error}") from error


def _fits(policy: Policy, row: Problem) -> bool:
    """Whether a row, rendered, is within the context."""
    try:
        prompt = render_prompt(policy, row)
        return len(prompt) + len(completion_ids(policy, row, row.worked or "")) <= policy.context
    except UserError:
        return False
