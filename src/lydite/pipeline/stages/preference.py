"""Direct preference optimisation as a stage."""

from __future__ import annotations

from typing import ClassVar, Literal

from lydite.model.estimate import Workload
from lydite.pipeline.artifact import Artifact
from lydite.pipeline.pairs import SampledPairs, as_tokens
from lydite.pipeline.stages.pairs import PairStage
from lydite.pipeline.stages.stage import At, Stage
from lydite.pipeline.stages.training import train
from lydite.rollout.engine import EngineConfig
from lydite.train.preference import PreferenceConfig, PreferenceTrainer


class PreferenceStage(PairStage, PreferenceConfig):
    """Direct preference optimisation on pairs of answers: given, or mined from verified ones."""

    how: ClassVar[tuple[str, ...]] = (*Stage.how, "tokens_per_micro_batch")

    kind: Literal["preference"]

    def pair_steps(self, pairs: int) -> int:
        return self.total_steps(pairs)

    def workload(self, engine: EngineConfig) -> Workload:
        sampled = isinstance(self.pairs, SampledPairs)
        tokens = self.pairs.sampling.max_tokens if sampled else 0  # type: ignore[union-attr]
        return Workload(
            engine.max_rows * tokens,
            self.tokens_per_micro_batch,
            reference=not self.reference_free,
            packed=sampled and engine.packs(tokens),
        )

    def run(self, at: At) -> Artifact:
        policy = at.load()
        engine = at.engine(policy)
        mined = self.made(at, policy, engine)
        pairs = as_tokens(mined, at.prompts(policy, self.task))
        notes = [("pairs", mined.report())]
        trainer = PreferenceTrainer(policy, self, pairs, at.recipe.seed, notes)
        return train(at, self.kind, trainer, policy, engine)
