"""Training a reward model as a stage: it leaves what the reward `reward_model` asks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from lydite.config import UserError
from lydite.model.classifier_input import ClassifierSpec
from lydite.model.estimate import Workload
from lydite.model.saving import save_scorer
from lydite.model.scorer import Scorer, new_scorer
from lydite.pipeline.artifact import Artifact, save_artifact
from lydite.pipeline.mining import Mined
from lydite.pipeline.pairs import SampledPairs, TaskPairs
from lydite.pipeline.stages.pairs import Pairs, PairStage
from lydite.pipeline.stages.stage import At, Leaves, Stage
from lydite.rollout.engine import EngineConfig
from lydite.tasks.select import Part, in_part
from lydite.train.loop import run_steps
from lydite.train.reward import RatedPair, RewardTrainer, RewardTraining
from lydite.types import Problem
from lydite.verify.spoken import part_of
from lydite.watch.events import Evaluated
from lydite.watch.intervals import accuracy_interval


class RewardModelStage(PairStage, RewardTraining):
    """Trains a reward model on pairs of answers, from the weights of the model it starts from. A
    reward `reward_model` of a later stage names it by `from_stage`.
    """

    leaves: ClassVar[Leaves] = "reward_model"
    how: ClassVar[tuple[str, ...]] = (*Stage.how, "tokens_per_micro_batch")

    kind: Literal["reward_model"]
    pairs: Pairs = Field(TaskPairs(kind="task"), description="Where pairs come from.")

    def pair_steps(self, pairs: int) -> int:
        return self.total_steps(pairs)

    def workload(self, engine: EngineConfig) -> Workload:
        sampled = isinstance(self.pairs, SampledPairs)
        tokens = self.pairs.sampling.max_tokens if sampled else 0  # type: ignore[union-attr]
        return Workload(
            engine.max_rows * tokens,
            self.tokens_per_micro_batch,
            packed=sampled and engine.packs(tokens),
        )

    def files(self, home: Path) -> dict[str, Path]:
        return {f"reward model {self.name}": home / "model"}

    def run(self, at: At) -> Artifact:
        policy = at.load()
        mined = self.made(at, policy, at.engine(policy))
        # What the reward reads the folder with later: its defaults.
        spec = ClassifierSpec("", max_tokens=self.max_tokens, field=f"stages.{self.name}")
        scorer = new_scorer(policy, at.recipe.seed, spec)
        problems = {problem.id: problem for problem in at.problems(self.task)}
        trained, held_out = self._encoded(scorer, mined, problems)
        notes = [("pairs", f"{mined.report()}; {len(held_out)} of them are held out")]
        trainer = RewardTrainer(scorer, self, trained, at.recipe.seed, notes)
        at.started(self.kind, trainer.total)
        run_steps(
            trainer,
            at.loop(at.recipe.evaluation.every, at.recipe.checkpoint.every),
            at.log,
            lambda step: self._measure(at, trainer, held_out, step),
        )
        save_scorer(scorer, at.home / "model")
        return save_artifact(at.home, at.lineage)

    def _encoded(
        self, scorer: Scorer, mined: Mined, problems: dict[str, Problem]
    ) -> tuple[list[RatedPair], list[RatedPair]]:
        """Those to train on, and those of prompts that are held out, by a hash of the prompt.

        Raises:
            UserError: none are left to train on.
        """
        sides: tuple[list[RatedPair], list[RatedPair]] = ([], [])
        for pair in mined.pairs:
            problem = problems[pair.problem_id]
            better, worse = (
                scorer.encoder.encode(problem.messages, part_of(side.text, self.sees))
                for side in (pair.better, pair.worse)
            )
            apart = self.held_out > 0 and in_part(
                problem, Part(name="heldout", share=self.held_out, by="question")
            )
            sides[apart].append(RatedPair(problem.id, better, worse))
        if not sides[0]:
            raise UserError(
                f"stages.{self.name}.held_out: all {len(sides[1])} pairs are held out; lower it, "
                "or give more prompts"
            )
        return sides

    def _measure(
        self, at: At, trainer: RewardTrainer, held_out: Sequence[RatedPair], step: int
    ) -> None:
        """Logs how many held-out pairs are told right."""
        if not held_out:
            return
        scores: dict[str, list[float]] = {}
        for pair, right in zip(held_out, trainer.measure(held_out), strict=True):
            scores.setdefault(pair.problem_id, []).append(right)
        found = accuracy_interval(list(scores.values()))
        at.log.append(
            Evaluated(
                stage=self.name,
                step=step,
                task=f"pairs of {self.name}",
                avg=found.mean,
                lo=found.lo,
                hi=found.hi,
                n=found.n,
                scores={name: sum(values) / len(values) for name, values in scores.items()},
            )
        )
