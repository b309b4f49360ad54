"""Training a reward model on pairs of answers: the better of two is to get the larger number."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from lydite.model.classifier_input import Encoded
from lydite.model.scorer import Scorer
from lydite.model.training_blocks import fast_layers
from lydite.objective.metrics import Metrics
from lydite.objective.reward_model import bradley_terry, preferred
from lydite.ops.linear import fast_products
from lydite.train.batching import fill
from lydite.train.loop import StepResult, addressed_dropout, without_dropout
from lydite.train.optimizer import Optimizer, OptimizerConfig, lr_at
from lydite.train.passes import Passes, PassesConfig
from lydite.verify.spoken import TextPart


class RewardTraining(PassesConfig):
    """What a reward model learns from pairs, and how fast."""

    batch_size: int = Field(32, ge=1, description="Pairs per optimiser step.")
    sees: TextPart = Field(
        "answer",
        description="What it is shown of an answer, in training as in use. `answer`: what follows "
        "the thinking, which judges helpfulness; `whole`: all, which judges harmlessness; "
        "`thinking`.",
    )
    max_tokens: int | None = Field(
        None,
        ge=8,
        description="Most tokens of its input; the model's own limit if null. Of a longer one the "
        "front of the prompt is cut.",
    )
    centering: float = Field(
        0.01,
        ge=0,
        description="Weight of (r_better + r_worse)², which keeps rewards around 0; comparisons "
        "alone leave their level open.",
    )
    held_out: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="Share of the prompts whose pairs are measured on and not trained on.",
    )
    optimizer: OptimizerConfig = Field(
        OptimizerConfig(lr=6e-6, schedule="linear"), description="AdamW and its schedule."
    )


@dataclass(frozen=True, slots=True)
class RatedPair:
    """Two inputs of one prompt, the better first."""

    problem_id: str
    better: Encoded
    worse: Encoded

    @property
    def tokens(self) -> int:
        return len(self.better.ids) + len(self.worse.ids)


class RewardTrainer:
    """Trains a scorer on pairs, a step at a time; the step number alone decides what it sees."""

    def __init__(
        self,
        scorer: Scorer,
        config: RewardTraining,
        pairs: Sequence[RatedPair],
        seed: int,
        notes: Sequence[tuple[str, str]] = (),
    ) -> None:
        """``notes`` are (code, message) of how the pairs came to be, told with the first step."""
        self.scorer = scorer
        self.config = config
        self.total = config.total_steps(len(pairs))
        self.optimizer = Optimizer(scorer.model, config.optimizer)
        self._seed = seed
        self._passes = Passes(pairs, seed)
        self._notes = notes

    @property
    def finished(self) -> bool:
        """Never: pairs can be shown again."""
        return False

    def step(self, step: int) -> StepResult:
        """One optimiser step; every figure is a mean over its pairs, before the update."""
        began = time.perf_counter()
        batch = self._passes.at(step, self.config.batch_size)
        batch = sorted(batch, key=lambda pair: -pair.tokens)
        metrics = Metrics()
        model, fast = self.scorer.model, self.config.fast_blocks
        with addressed_dropout(self._seed, step), fast_products(model), fast_layers(model, fast):
            for part in fill(batch, lambda p: p.tokens, self.config.tokens_per_micro_batch):
                loss, found = bradley_terry(*self._scores(part), len(batch), self.config.centering)
                self.optimizer.backward(loss)
                metrics = metrics + found
        lr = lr_at(self.config.optimizer, step, self.total)
        norm = self.optimizer.step(lr)
        tokens = sum(pair.tokens for pair in batch)
        figures = {
            **metrics.means(),
            "lr": lr,
            "grad_norm": norm,
            "update_ratio": self.optimizer.update_ratio(),
            "tokens": float(tokens),
            "tokens_per_second": tokens / (time.perf_counter() - began),
        }
        return StepResult(figures, warnings=self._notes if step == 0 else ())

    @torch.no_grad()
    def measure(self, pairs: Sequence[RatedPair]) -> list[float]:
        """For each pair 1 where the better answer has the larger number, a half for equal ones."""
        found = [0.0] * len(pairs)
        with without_dropout(self.scorer.model), fast_products(self.scorer.model):
            for rows in fill(
                sorted(range(len(pairs)), key=lambda row: -pairs[row].tokens),
                lambda row: pairs[row].tokens,
                self.config.tokens_per_micro_batch,
            ):
                values = preferred(*self._scores([pairs[row] for row in rows])).tolist()
                for row, value in zip(rows, values, strict=True):
                    found[row] = value
        return found

    def _scores(self, pairs: Sequence[RatedPair]) -> tuple[Tensor, Tensor]:
        both = [*(p.better for p in pairs), *(p.worse for p in pairs)]
        scores = self.scorer.scores(both)
        return scores[: len(pairs)], scores[len(pairs) :]

    def state_tensors(self) -> dict[str, Tensor]:
        """See :class:`lydite.train.loop.Trainer`."""
        return self.optimizer.state_tensors()

    def state(self) -> dict[str, Any]:
        """Nothing but the step: it alone addresses the data."""
        return {}

    def load(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Goes on from a checkpoint, to the bit."""
        del state
        self.optimizer.load_state_tensors(tensors)
