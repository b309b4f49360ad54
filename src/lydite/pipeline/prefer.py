"""From a preference stage's settings to its pairs: they are made once and kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lydite.config import UserError
from lydite.model.policy import Policy
from lydite.model.render import render_prompt
from lydite.pipeline.artifact import Lineage
from lydite.pipeline.folder import RunFolder
from lydite.pipeline.mining import Mined
from lydite.pipeline.pairs import (
    StagePairs,
    TaskPairs,
    load_pairs,
    rollout_files,
    sampled_pairs,
    save_pairs,
    stage_pairs,
    task_pairs,
)
from lydite.train.evaluate import Prompt
from lydite.types import Engine, Problem, Verifier

if TYPE_CHECKING:
    from lydite.pipeline.stages.pairs import PairStage


@dataclass(frozen=True, slots=True)
class Source:
    """What pairs can be made with: the policy as the stage starts, an engine that samples from it,
    the verifier, the run's folder, and the step that addresses the noise of what is sampled.
    """

    policy: Policy
    engine: Engine
    verifier: Verifier
    folder: RunFolder
    noise_step: int


def kept_pairs(
    stage: PairStage,
    source: Source,
    problems: Sequence[Problem],
    lineage: Lineage,
    rules: tuple[int, float],
) -> Mined:
    """The pairs of a stage, which lie in ``pairs.parquet`` in its folder from here on. ``rules``
    are the run's seed and the verifier's ``fail_rate``.

    Raises:
        UserError: there is no pair, and why.
    """
    policy = source.policy
    prompts = [Prompt(problem, render_prompt(policy, problem)) for problem in problems]
    path = source.folder.stage(stage.name) / "pairs.parquet"
    mined = load_pairs(path, lineage.fingerprint)
    if mined is None:
        mined = _mine(stage, source, prompts, rules)
        if not mined.pairs:
            raise UserError(f"stages.{stage.name}.pairs: {mined.report()}; {_remedy(stage)}")
        save_pairs(path, mined, lineage.fingerprint)
    return mined


def _mine(
    stage: PairStage,
    source: Source,
    prompts: Sequence[Prompt],
    rules: tuple[int, float],
) -> Mined:
    samples = source.folder.samples
    problems = [prompt.problem for prompt in prompts]
    seed, fail_rate = rules
    if isinstance(stage.pairs, TaskPairs):
        return task_pairs(source.policy, problems)
    if isinstance(stage.pairs, StagePairs):
        files = rollout_files(stage.name, stage.pairs, samples)
        return stage_pairs(source.policy, problems, stage.pairs, files, seed)
    return sampled_pairs(
        prompts,
        (source.engine, source.verifier),
        stage.pairs,
        (samples, stage.name, source.noise_step),
        seed,
        fail_rate,
    )


def _remedy(stage: PairStage) -> str:
    if isinstance(stage.pairs, TaskPairs):
        return f"look at the columns worked and rejected of tasks.{stage.task}"
    if isinstance(stage.pairs, StagePairs):
        return "take a stage with both right and wrong answers to this task's problems"
    return "raise pairs.samples, or take problems that the model gets right now and then"
