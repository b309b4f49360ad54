"""Reinforcement learning as a stage."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from lydite.cluster.config import ClusterConfig
from lydite.config import Config
from lydite.model.compute import flops_per_token
from lydite.model.estimate import Workload
from lydite.model.policy import Policy
from lydite.objective.describe import describe
from lydite.pipeline.artifact import Artifact
from lydite.pipeline.fit import longest_sampled
from lydite.pipeline.stages.crew import Crew, crew_of
from lydite.pipeline.stages.stage import At, Checks, Finding, Names, Stage, VerifiedStage
from lydite.pipeline.stages.training import train
from lydite.rollout.curriculum import known_rates
from lydite.rollout.engine import EngineConfig
from lydite.train.collecting import Phase
from lydite.train.readability import form_asked
from lydite.train.rl import RLParts, RLTrainer
from lydite.train.rl_config import RLConfig
from lydite.types import Problem
from lydite.verify.settings import VerifierConfig, reward_weights


class PhaseConfig(Config):
    """What changes for the last part of an RL stage. What is null stays as before it."""

    last_steps: int | None = Field(
        None, ge=1, description="For how many steps at the end it holds; give this or `last_share`."
    )
    last_share: float | None = Field(
        None, gt=0, lt=1, description="The same as a share of the stage's steps."
    )
    task: str | None = Field(None, description="Name under `tasks` of what is drawn from then on.")
    verifier: VerifierConfig | None = Field(
        None, description="What scores completions from then on."
    )

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if (self.last_steps is None) == (self.last_share is None):
            raise ValueError("give one of last_steps and last_share")
        if self.task is None and self.verifier is None:
            raise ValueError("give task or verifier, or both: what changes")
        return self

    def start(self, steps: int) -> int:
        """The step, from 0, that it begins with in a stage of so many."""
        share = self.last_share or 0.0
        return steps - (self.last_steps or max(1, round(share * steps)))


class RLStage(VerifiedStage, RLConfig):
    """Reinforcement learning on a verifiable reward."""

    how: ClassVar[tuple[str, ...]] = (*Stage.how, "update.tokens_per_micro_batch")

    on_cluster: ClassVar[bool] = True

    kind: Literal["rl"]
    phases: tuple[PhaseConfig, ...] = Field(
        (),
        description="Other problems or rewards for the last part of the stage, such as a "
        "preference reward that would be gamed if it were on for longer; in order.",
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        starts = [0, *(phase.start(self.steps) for phase in self.phases)]
        for index, (before, start) in enumerate(pairwise(starts)):
            if start <= before:
                raise ValueError(
                    f"phases.{index}: it would begin at step {start} of {self.steps}, and what is "
                    f"before it at step {before}; give it fewer steps"
                )
        return self

    @property
    def spans(self) -> list[tuple[int, str, VerifierConfig | None]]:
        """First step, task and own verifier of each phase, the stage's beginning included."""
        found = [(0, self.task, self.verifier)]
        for phase in self.phases:
            _, task, verifier = found[-1]
            start = phase.start(self.steps)
            found.append((start, phase.task or task, phase.verifier or verifier))
        return found

    @property
    def uses(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(task for _, task, _ in self.spans))

    @property
    def verified(self) -> tuple[str, ...]:
        return self.uses

    def verifiers(self, default: VerifierConfig) -> tuple[tuple[VerifierConfig, Names], ...]:
        return tuple((own or default, (task,)) for _, task, own in self.spans)

    def check_cluster(self, cluster: ClusterConfig) -> None:
        if cluster.mode == "colocated" and self.staleness:
            raise ValueError(
                f"staleness: {self.staleness}, but processes that sample and train in turns cannot "
                "sample ahead; use cluster.mode=separate or async, or staleness: 0"
            )
        if cluster.mode == "async" and not self.staleness:
            raise ValueError(
                "staleness: 0, but in mode async rollout goes on while the learner trains; say how "
                "many updates it may lag behind, such as 2, or use cluster.mode=separate"
            )

    def fit(self, policy: Policy, problems: Sequence[Problem]) -> int:
        return longest_sampled(policy, problems, self.sampling, f"stages.{self.name}.sampling")

    def check_task(self, task: str, problems: Sequence[Problem]) -> None:
        if self.curriculum is not None and self.curriculum.pass_rate is not None:
            where = f"stages.{self.name}.curriculum.pass_rate: task {task}"
            known_rates(problems, self.curriculum.pass_rate, where)

    def settings_checks(self) -> Checks:
        yield f"objective of {self.name}", self._explain

    def _explain(self) -> Finding:
        objective = self.build_objective()
        per_step = self.prompts_per_step * self.group_size
        text = (
            f"{objective.name}; {self.prompts_per_step} prompts × {self.group_size} = "
            f"{per_step} completions a step"
        )
        phases = [
            f"from step {start + 1}: {task}{', with a verifier of its own' if own else ''}"
            for start, task, own in (self.spans if self.phases else ())
        ]
        drawn = []
        if self.asynchronous:
            drawn.append(
                f"asynchronous: no token more than {self.staleness} updates old; "
                f"{self.copies} more copies of the trained weights"
            )
        if self.curriculum is not None:
            turn = self.curriculum.explore
            drawn = [f"curriculum: {turn:.0%} of the prompts in turn, the others by their chance "
                     "to teach"]  # fmt: skip
        return text, (*describe(objective), *drawn, *phases)

    def workload(self, engine: EngineConfig) -> Workload:
        rows = min(engine.max_rows, self.prompts_per_step * self.group_size)
        objective = self.build_objective()
        return Workload(
            rows * self.sampling.max_tokens,
            self.update.most_tokens,
            reference=objective.needs_reference,
            refreshed=objective.kl.refresh is not None,
            critic=self.critic_kind,
            copies=self.copies,
            packed=engine.packs(self.sampling.max_tokens),
        )

    def run(self, at: At) -> Artifact:
        with crew_of(at, self) as crew:
            return self._run(at, crew)

    def _run(self, at: At, crew: Crew) -> Artifact:
        parts = RLParts(
            crew.engine,
            at.verifier,
            crew.learner,
            self.build_objective(),
            at.scored_by.limits.fail_rate,
            at.reward_weights,
            flops=flops_per_token(crew.policy.model),
            ahead=crew.ahead,
            sync=crew.sync,
            in_flight=crew.in_flight,
            form=form_asked(at.scored_by, at.recipe.evaluation.readability),
        )
        prompts = {task: at.prompts(crew.policy, task) for task in self.uses}
        later = [
            Phase(start, prompts[task], at.verifier_of(config), reward_weights(config))
            for start, task, own in self.spans[1:]
            for config in [own or at.recipe.verifier]
        ]
        seed = at.recipe.seed
        trainer = RLTrainer(self, parts, prompts[self.task], seed, at.earlier, later)
        with closing(trainer):
            return train(at, self.kind, trainer, crew.policy, crew.engine, elsewhere=crew.elsewhere)
