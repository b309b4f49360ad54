"""Rejection sampling as a stage: it leaves a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

from lydite.model.compute import flops_per_token
from lydite.model.estimate import Workload
from lydite.model.policy import Policy
from lydite.pipeline.artifact import DATASET, Artifact
from lydite.pipeline.fit import longest_sampled
from lydite.pipeline.rejection import RejectionSampling
from lydite.pipeline.stages.stage import At, Checks, Finding, Leaves, VerifiedStage
from lydite.rollout.engine import EngineConfig
from lydite.train.rejection import RejectionConfig, RejectionSampler
from lydite.types import Problem


class RejectionSamplingStage(VerifiedStage, RejectionConfig):
    """Several answers to every prompt, verified and filtered: a dataset for a later `sft` stage,
    which names it by a task with `from_stage`. The model stays as it is.
    """

    leaves: ClassVar[Leaves] = "dataset"
    late: ClassVar[tuple[str, ...]] = ("filters",)

    kind: Literal["rejection_sampling"]

    def check_settings(self) -> None:
        self.filters.check()

    def fit(self, policy: Policy, problems: Sequence[Problem]) -> int:
        return longest_sampled(policy, problems, self.sampling, f"stages.{self.name}.sampling")

    def task_checks(self, problems: Sequence[Problem]) -> Checks:
        yield f"samples of {self.name}", partial(self._drawn, problems)

    def _drawn(self, problems: Sequence[Problem]) -> Finding:
        """How much is drawn, and the most that a stage after this one can read."""
        prompts, filters = len(problems), self.filters
        total = prompts * self.samples
        kept = prompts * min(self.samples, filters.per_problem or self.samples)
        tokens = total * self.sampling.max_tokens
        on = [name for name, value in filters if value not in (None, False) and name != "prefer"]
        return (
            f"{prompts} prompts × {self.samples} = {total} completions in "
            f"{self.total_steps(prompts)} steps, at most {tokens:,} tokens; at most {kept} are "
            "kept",
            (f"filters: {', '.join(on) or 'none'}; preferred: {filters.prefer}",),
        )

    def workload(self, engine: EngineConfig) -> Workload:
        rows = min(engine.max_rows, self.prompts_per_step * self.samples)
        tokens = self.sampling.max_tokens
        return Workload(rows * tokens, 0, packed=engine.packs(tokens))

    def files(self, home: Path) -> dict[str, Path]:
        return {f"dataset {self.name}": home / DATASET}

    def run(self, at: At) -> Artifact:
        policy = at.load()
        sampler = RejectionSampler(
            self,
            at.engine(policy),
            at.verifier,
            at.prompts(policy, self.task),
            at.noise_step,
            at.scored_by.limits.fail_rate,
            flops_per_token(policy.model),
        )
        at.started(self.kind, sampler.total)
        # Of sampling a checkpoint is but the step, and a step can take minutes.
        settings = at.loop(evaluate_every=None, checkpoint_every=1)
        work = RejectionSampling(sampler, at.problems(self.task), settings, at.log)
        return work.run(at.home, at.lineage)
