"""What stages have in common that learn from pairs of answers to one prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import Field

from lydite.model.policy import Policy
from lydite.model.render import render_example, render_prompt
from lydite.pipeline.artifact import Artifact
from lydite.pipeline.fit import check_pairs, longest_sampled
from lydite.pipeline.mining import Mined
from lydite.pipeline.pairs import (
    SampledPairs,
    StagePairs,
    TaskPairs,
    rollout_files,
    rollouts_fingerprint,
)
from lydite.pipeline.prefer import Source, kept_pairs
from lydite.pipeline.stages.stage import At, Checks, Finding, Stage, VerifiedStage
from lydite.types import Engine, Problem

Pairs = Annotated[SampledPairs | StagePairs | TaskPairs, Field(discriminator="kind")]


class PairStage(VerifiedStage):
    """A stage that learns from pairs of answers: given, or mined from verified ones."""

    pairs: Pairs = Field(SampledPairs(kind="sampled"), description="Where pairs come from.")

    @property
    def verified(self) -> tuple[str, ...]:
        return (self.task,) if isinstance(self.pairs, SampledPairs) else ()

    @property
    def reads(self) -> tuple[str, ...]:
        pairs = self.pairs
        return (pairs.stage,) if isinstance(pairs, StagePairs) and pairs.run is None else ()

    def pair_steps(self, pairs: int) -> int:
        """Optimiser steps for this many pairs."""
        raise NotImplementedError

    def check(self, earlier: Sequence[Stage]) -> None:
        pairs = self.pairs
        if not isinstance(pairs, StagePairs) or pairs.run is not None:
            return
        sources = {each.name: each for each in earlier if each.verified}
        if pairs.stage not in sources:
            raise ValueError(
                f"pairs.stage: no earlier stage {pairs.stage!r} that samples; "
                + (
                    f"one of {', '.join(sources)}"
                    if sources
                    else "there is none, use kind: sampled"
                )
            )
        theirs = sources[pairs.stage].verified
        if self.task not in theirs:
            raise ValueError(
                f"task: pairs of stage {pairs.stage!r} are answers to its task; give "
                f"task: {theirs[0]}"
            )

    def check_task(self, task: str, problems: Sequence[Problem]) -> None:
        check_pairs(self.name, task, self.pairs, problems)

    def fit(self, policy: Policy, problems: Sequence[Problem]) -> int:
        """Of the prompt alone where answers are yet to be sampled by another stage."""
        pairs = self.pairs
        if isinstance(pairs, StagePairs):
            return max(len(render_prompt(policy, p)) for p in problems)
        if isinstance(pairs, TaskPairs):
            self.check_task(self.task, problems)
            answers = [(p, answer or "") for p in problems for answer in (p.worked, p.rejected)]
            return max(len(render_example(policy, p, answer)[0]) for p, answer in answers)
        return longest_sampled(
            policy, problems, pairs.sampling, f"stages.{self.name}.pairs.sampling"
        )

    def task_checks(self, problems: Sequence[Problem]) -> Checks:
        yield f"pairs of {self.name}", partial(self._count, problems)

    def _count(self, problems: Sequence[Problem]) -> Finding:
        """Where pairs come from, and how many there can be."""
        self.check_task(self.task, problems)
        pairs, count = self.pairs, len(problems)
        if isinstance(pairs, StagePairs):
            where = f" of {pairs.run}" if pairs.run else ""
            text = f"mined from the rollouts of {pairs.stage}{where}"
        elif isinstance(pairs, SampledPairs):
            text = f"mined from {pairs.samples} answers to each of {count} problems"
        else:
            return f"{count} of the task, in {self.pair_steps(count)} steps", ()
        most = count * pairs.per_problem
        return f"{text}, {pairs.rule}: at most {most}, in {self.pair_steps(most)} steps", ()

    def inputs(self, samples: Path, artifacts: Mapping[str, Artifact]) -> dict[str, str]:
        if not isinstance(self.pairs, StagePairs):
            return {}
        files = rollout_files(self.name, self.pairs, samples)
        return {f"rollouts of {self.pairs.stage}": rollouts_fingerprint(files)}

    def made(self, at: At, policy: Policy, engine: Engine) -> Mined:
        """The pairs, as they lie in the stage's folder from here on. Raises ``UserError``."""
        source = Source(policy, engine, at.verifier, at.folder, at.noise_step)
        rules = at.recipe.seed, at.scored_by.limits.fail_rate
        return kept_pairs(self, source, at.problems(self.task), at.lineage, rules)
