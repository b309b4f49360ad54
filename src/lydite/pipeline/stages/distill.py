"""On-policy distillation as a stage. To imitate a teacher's verified answers instead, sample them
by a `rejection_sampling` stage of the teacher and show them to the student by an `sft` stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from lydite.config import UserError
from lydite.model.compute import flops_per_token
from lydite.model.estimate import Workload
from lydite.model.loading import ModelConfig, load_frozen, load_prompting
from lydite.model.policy import Policy
from lydite.model.reference import Reference
from lydite.pipeline.artifact import Artifact
from lydite.pipeline.fit import longest_sampled
from lydite.pipeline.stages.stage import At, Checks, Finding, Stage, VerifiedStage
from lydite.pipeline.stages.training import train
from lydite.pipeline.teachers import ModelTeacher, ServerTeacher, StageTeacher, TeacherField
from lydite.rollout.engine import EngineConfig
from lydite.rollout.remote_teacher import RemoteTeacher
from lydite.rollout.teacher import LocalTeacher, check_same_tokens
from lydite.train.distill import DistillConfig, Tutor, Unverified
from lydite.train.imitation import Imitation
from lydite.train.learner import Learner
from lydite.train.readability import form_asked
from lydite.train.rl import RLParts, RLTrainer
from lydite.types import Problem


class DistillStage(VerifiedStage, DistillConfig):
    """On-policy distillation: the student answers, and a teacher says of every token how likely it
    was.
    """

    how: ClassVar[tuple[str, ...]] = (
        *Stage.how,
        "update.tokens_per_micro_batch",
        *(
            f"teacher.{key}"
            for key in ("base_url", "api_key_env", "ask", "per_request", "requests")
        ),
    )

    kind: Literal["distill"]
    teacher: TeacherField = Field(
        description="Who scores the student's tokens: the name of an earlier stage, or a mapping."
    )

    @property
    def verified(self) -> tuple[str, ...]:
        return (self.task,) if self.verify else ()

    @property
    def draws(self) -> bool:
        return True

    @property
    def takes(self) -> tuple[str, ...]:
        return (self.teacher.stage,) if isinstance(self.teacher, StageTeacher) else ()

    def beside(self, models: Mapping[str, ModelConfig]) -> tuple[ModelConfig, ...]:
        if isinstance(self.teacher, StageTeacher):
            return (models[self.teacher.stage].model_copy(update={"lora": None}),)
        return (self.teacher.settings,) if isinstance(self.teacher, ModelTeacher) else ()

    def check(self, earlier: Sequence[Stage]) -> None:
        if isinstance(self.teacher, StageTeacher):
            models = ["model", *(each.name for each in earlier if each.leaves == "model")]
            if self.teacher.stage not in models:
                raise ValueError(
                    f"teacher.stage: no earlier stage {self.teacher.stage!r} that leaves a model; "
                    f"one of {', '.join(models)}"
                )
        elif isinstance(self.teacher, ServerTeacher):
            if self.kl == "exact":
                raise ValueError(
                    "kl: exact needs the teacher's weights, and a server has them; set kl: sampled"
                )
            if self.sampling.temperature != 1:
                raise ValueError(
                    "sampling.temperature: a server gives log-probabilities at temperature 1; set "
                    "it to 1"
                )

    def check_models(self, policy: Policy, others: Mapping[str, Policy]) -> None:
        where = f"stages.{self.name}.teacher"
        if isinstance(self.teacher, ServerTeacher):
            self._remote(self.teacher, policy).close()
            return
        teacher = (
            others[self.teacher.stage]
            if isinstance(self.teacher, StageTeacher)
            else load_prompting(self.teacher.settings)
        )
        check_same_tokens(policy.tokenizer, teacher.tokenizer, where)

    def _remote(self, teacher: ServerTeacher, student: Policy) -> RemoteTeacher:
        """The server's teacher, asked once whether it is one for this student."""
        remote = RemoteTeacher(teacher, f"stages.{self.name}.teacher", student.context)
        try:
            remote.check(student.tokenizer)
        except UserError:
            remote.close()
            raise
        return remote

    def fit(self, policy: Policy, problems: Sequence[Problem]) -> int:
        return longest_sampled(policy, problems, self.sampling, f"stages.{self.name}.sampling")

    def settings_checks(self) -> Checks:
        yield f"distillation of {self.name}", self._explain

    def _explain(self) -> Finding:
        per_step = self.prompts_per_step * self.group_size
        kind = "estimated from sampled tokens" if self.kl == "sampled" else "over the vocabulary"
        rewards = f", rewards weigh {self.reward_weight:g}" if self.reward_weight else ""
        return (
            f"KL to {self._teacher_name}, {kind}{rewards}; {self.prompts_per_step} prompts × "
            f"{self.group_size} = {per_step} completions a step",
            (),
        )

    @property
    def _teacher_name(self) -> str:
        if isinstance(self.teacher, StageTeacher):
            own = self.teacher.stage == "model"
            return "the recipe's model" if own else f"the model of {self.teacher.stage}"
        if isinstance(self.teacher, ServerTeacher):
            return f"{self.teacher.served} at {self.teacher.base_url}"
        return self.teacher.path

    def workload(self, engine: EngineConfig) -> Workload:
        rows = min(engine.max_rows, self.prompts_per_step * self.group_size)
        return Workload(
            rows * self.sampling.max_tokens,
            self.update.most_tokens,
            reference=self.build_objective().needs_reference,
            copies=self.copies,
            packed=engine.packs(self.sampling.max_tokens),
        )

    def inputs(self, samples: Path, artifacts: Mapping[str, Artifact]) -> dict[str, str]:
        if isinstance(self.teacher, StageTeacher):
            return {f"teacher {self.teacher.stage}": artifacts[self.teacher.stage].fingerprint}
        return {}

    def run(self, at: At) -> Artifact:
        policy = at.load()
        if isinstance(self.teacher, ServerTeacher):
            remote = self._remote(self.teacher, policy)
            try:
                return self._distill(at, policy, Tutor(self, remote))
            finally:
                remote.close()
        teacher = self._load_teacher(at, policy, self.teacher)
        if self.kl == "exact":
            imitation = Imitation(teacher, self.coefficient, self.beta)
            return self._distill(at, policy, Tutor(self, None), imitation)
        scores = LocalTeacher(teacher, self.sampling.temperature, self.update.most_tokens)
        return self._distill(at, policy, Tutor(self, scores, flops_per_token(teacher.model)))

    def _distill(
        self, at: At, policy: Policy, tutor: Tutor, imitation: Imitation | None = None
    ) -> Artifact:
        """The RL loop with a tutor."""
        objective = self.build_objective()
        reference = Reference(policy) if objective.needs_reference else None
        learner = Learner(policy, self.optimizer, self.update, reference, imitation=imitation)
        engine = at.engine(policy)
        parts = RLParts(
            engine,
            at.verifier if self.verify else Unverified(),
            learner,
            objective,
            at.scored_by.limits.fail_rate if self.verify else 1.0,
            at.reward_weights,
            tutor,
            flops_per_token(policy.model),
            at.detached_engine(policy, self.staleness),
            sync=at.sync(engine),
            in_flight=at.in_flight(policy, self.asynchronous),
            form=form_asked(at.scored_by, at.recipe.evaluation.readability),
        )
        prompts = at.prompts(policy, self.task)
        trainer = RLTrainer(self, parts, prompts, at.recipe.seed, earlier=at.earlier)
        with closing(trainer):
            return train(at, self.kind, trainer, policy, engine)

    def _load_teacher(self, at: At, student: Policy, given: StageTeacher | ModelTeacher) -> Policy:
        """
        Raises:
            UserError: it cannot be loaded, its tokens are others, or its context is too short.
        """
        if isinstance(given, StageTeacher):
            teacher = at.load_frozen(given.stage)
        else:
            teacher = load_frozen(given.settings, at.device, at.recipe.seed)
        where = f"stages.{self.name}.teacher"
        check_same_tokens(student.tokenizer, teacher.tokenizer, where)
        longest = self.fit(student, at.problems(self.task))
        if longest > teacher.context:
            raise UserError(
                f"{where}: its context of {teacher.context} tokens is shorter than a prompt with "
                f"{self.sampling.max_tokens} sampled tokens ({longest}); lower "
                f"stages.{self.name}.sampling.max_tokens"
            )
        return teacher
