"""Preference optimisation on pairs of answers: DPO and IPO over a fixed set of pairs.

The two answers of a pair share their prompt, which is run once. Reference log-probabilities are
computed once for each step, before its first backward pass, by the learner that RL uses.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from lydite.model.compute import BACKWARD, flops_per_token
from lydite.model.policy import Policy
from lydite.model.reference import Reference
from lydite.model.scoring import score
from lydite.model.training_blocks import fast_layers
from lydite.objective.metrics import Metrics
from lydite.objective.preference import PreferenceKind, PreferenceObjective
from lydite.ops.linear import fast_products
from lydite.train.batching import fill
from lydite.train.learner import Learner, UpdateConfig
from lydite.train.loop import StepResult, addressed_dropout
from lydite.train.optimizer import OptimizerConfig, lr_at
from lydite.train.passes import Passes, PassesConfig
from lydite.train.ranks import ALONE, Ranks, idle_loss, matched
from lydite.types import TrainBatch, TrainGroup, TrainSequence


class PreferenceConfig(PassesConfig):
    """What is learned from pairs, and how fast."""

    batch_size: int = Field(32, ge=1, description="Pairs per optimiser step.")
    loss: PreferenceKind = Field(
        "dpo", description="`dpo` (2305.18290, eq. 7) or `ipo` (2310.12036, eq. 17)."
    )
    beta: float = Field(
        0.1,
        gt=0,
        description="Strength of the tie to the reference; in `ipo`, τ: the margin aimed at is "
        "1/(2β).",
    )
    label_smoothing: float = Field(
        0.0, ge=0, lt=0.5, description="Share of pairs taken to be swapped (cDPO); `dpo` only."
    )
    length_normalised: bool | None = Field(
        None,
        description="Compare answers by log-ratio per token instead of in sum. Null: as published, "
        "which is per token for `ipo` and in sum for `dpo`.",
    )
    sft: float = Field(
        0.0,
        ge=0,
        description="Weight of the better answer's negative log-likelihood per token, added to the "
        "loss; 1 keeps its likelihood from falling (2404.19733).",
    )
    reference_free: bool = Field(
        False,
        description="Compare the policy's own log-probabilities, without a reference model.",
    )
    optimizer: OptimizerConfig = Field(
        OptimizerConfig(lr=1e-6, schedule="linear"), description="AdamW and its schedule."
    )

    @model_validator(mode="after")
    def _has_meaning(self) -> Self:
        self.build_objective()
        return self

    def build_objective(self) -> PreferenceObjective:
        """The loss.

        Raises:
            UserError: a combination that has no meaning.
        """
        normal = self.loss == "ipo" if self.length_normalised is None else self.length_normalised
        return PreferenceObjective(self.loss, self.beta, self.label_smoothing, normal, self.sft)


@dataclass(frozen=True, slots=True)
class Pair:
    """Token ids of a prompt, of the better answer to it and of the worse; neither is empty."""

    prompt_ids: Sequence[int]
    chosen_ids: Sequence[int]
    rejected_ids: Sequence[int]

    @property
    def tokens(self) -> int:
        return len(self.prompt_ids) + len(self.chosen_ids) + len(self.rejected_ids)


class PreferenceTrainer:
    """Trains a policy on pairs, a step at a time; the step number alone decides what it sees.

    The reference is the policy as it is when the trainer is made.
    """

    def __init__(
        self,
        policy: Policy,
        config: PreferenceConfig,
        pairs: Sequence[Pair],
        seed: int,
        notes: Sequence[tuple[str, str]] = (),
        ranks: Ranks = ALONE,
    ) -> None:
        """``notes`` are (code, message) of how the pairs came to be, told with the first step;
        ``ranks`` share each step's pairs out, and all are given the same.
        """
        self.policy = policy
        self.config = config
        self.total = config.total_steps(len(pairs))
        self.learner = Learner(
            policy,
            config.optimizer,
            UpdateConfig(
                tokens_per_micro_batch=config.tokens_per_micro_batch, fast_blocks=config.fast_blocks
            ),
            None if config.reference_free else Reference(policy),
            ranks=ranks,
        )
        self._ranks = ranks
        self._objective = config.build_objective()
        self._passes = Passes(pairs, seed)
        self._seed = seed
        self._notes = notes

    @property
    def finished(self) -> bool:
        """Never: pairs can be shown again."""
        return False

    def batch_at(self, step: int) -> list[Pair]:
        """The pairs of a step."""
        return self._passes.at(step, self.config.batch_size)

    def step(self, step: int) -> StepResult:
        """One optimiser step; every figure is a mean over its pairs, before the update."""
        began = time.perf_counter()
        # Longest first: like lengths share a micro-batch, and the peak of memory comes at once.
        batch = sorted(self.batch_at(step), key=lambda pair: -pair.tokens)
        own = batch[self._ranks.index :: self._ranks.size]
        references = self._references(own)
        metrics, optimizer = Metrics(), self.learner.optimizer
        model, fast = self.policy.model, self.config.fast_blocks
        with addressed_dropout(self._seed, step), fast_products(model), fast_layers(model, fast):
            parts = fill(
                range(len(own)), lambda row: own[row].tokens, self.config.tokens_per_micro_batch
            )
            for rows in matched(self._ranks, parts):
                if rows is None:
                    optimizer.backward(idle_loss(self.policy))
                else:
                    metrics = metrics + self._backward(own, rows, references, len(batch))
        self._ranks.sum_gradients(optimizer.masters)
        metrics = sum(self._ranks.gathered(metrics.cpu()), Metrics())
        lr = lr_at(self.config.optimizer, step, self.total)
        norm = optimizer.step(lr)
        tokens = sum(pair.tokens for pair in batch)
        passes = 1 + BACKWARD + (0 if references is None else 1)
        figures = {
            **metrics.means(),
            "lr": lr,
            "grad_norm": norm,
            "update_ratio": optimizer.update_ratio(),
            "tokens": float(tokens),
            "tokens_per_second": tokens / (time.perf_counter() - began),
            "flops": passes * flops_per_token(self.policy.model) * tokens,
        }
        return StepResult(figures, warnings=self._notes if step == 0 else ())

    def _references(self, batch: Sequence[Pair]) -> Tensor | None:
        """Summed reference log-probabilities ``[N, 2]``, the better answer first."""
        if self.config.reference_free:
            return None
        groups = [
            TrainGroup(pair.prompt_ids, [_answer(pair.chosen_ids), _answer(pair.rejected_ids)])
            for pair in batch
        ]
        found = self.learner.reference_logprobs(TrainBatch(groups))
        nothing = torch.zeros(0, 2, device=self.policy.device)
        return torch.stack([row.sum() for row in found]).reshape(-1, 2) if found else nothing

    def _backward(
        self, batch: Sequence[Pair], rows: Sequence[int], references: Tensor | None, pairs: int
    ) -> Metrics:
        """Adds a micro-batch's share of the gradient of a step of so many pairs."""
        part = [batch[row] for row in rows]
        answers = [[pair.chosen_ids, pair.rejected_ids] for pair in part]
        logprobs, _ = score(self.policy, [pair.prompt_ids for pair in part], answers)
        policy = logprobs.sum(1).reshape(-1, 2)
        lengths = policy.new_tensor([[len(ids) for ids in both] for both in answers])
        reference = None if references is None else references[list(rows)].to(policy)
        loss, found = self._objective.loss(policy, reference, lengths, pairs)
        self.learner.optimizer.backward(loss)
        return found

    def state_tensors(self) -> dict[str, Tensor]:
        """See :class:`lydite.train.loop.Trainer`."""
        return self.learner.state_tensors()

    def state(self) -> dict[str, Any]:
        """Nothing but the step: it alone addresses the data."""
        return {}

    def load(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Goes on from a checkpoint, to the bit."""
        del state
        self.learner.load_state_tensors(tensors)


def _answer(ids: Sequence[int]) -> TrainSequence:
    """An answer to be scored; it was not sampled and has no advantage."""
    return TrainSequence(ids, [1] * len(ids), (), 0.0)
