"""The critic of PPO: a value model with an optimiser of its own, trained beside the policy.

Its loss has its own optimiser, so it needs no coefficient and shares no gradient norm with the
policy's. It takes the same minibatches and epochs, and its losses are divided by the tokens of the
whole optimiser step, so that micro-batches change memory only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from lydite.config import Config
from lydite.model.policy import Policy
from lydite.model.value import ValueModel
from lydite.objective.aggregate import Counts
from lydite.objective.kl import k3, log_ratio
from lydite.objective.metrics import Metrics
from lydite.objective.objective import Objective
from lydite.objective.value import explained_variance
from lydite.ops.linear import fast_products
from lydite.train.batching import Piece, idle_piece, members, micro_batches, step_counts
from lydite.train.fields import field_of, padded
from lydite.train.loop import without_dropout
from lydite.train.optimizer import Optimizer, OptimizerConfig, lr_at
from lydite.train.ranks import ALONE, Ranks, matched
from lydite.types import TrainBatch, TrainGroup

TIMES_THE_POLICYS = 10.0
"""A critic's learning rate over its policy's, where none is given: 1e-5 and 1e-6 in verl; between 1
and 20 times in published runs.
"""


class CriticConfig(Config):
    """The critic of an objective with ``baseline: critic``, such as ``ppo``."""

    kind: Literal["model", "head"] = Field(
        "model",
        description="`model`: a whole value model that starts from the policy's weights. `head`: "
        "one linear layer that reads the policy's last hidden states and does not change them.",
    )
    optimizer: OptimizerConfig | None = Field(
        None, description="AdamW and its schedule; null: the policy's, at 10 times its rate."
    )
    warmup: int = Field(
        0, ge=0, description="Rollouts at the start from which only the critic learns."
    )

    def optimizer_beside(self, policy: OptimizerConfig) -> OptimizerConfig:
        """What it trains with, beside a policy that trains with ``policy``."""
        if self.optimizer is not None:
            return self.optimizer
        return policy.model_copy(update={"lr": policy.lr * TIMES_THE_POLICYS})


class Critic:
    """A value model and its optimiser. Build it before the policy trains: it starts from its
    weights.
    """

    def __init__(
        self,
        policy: Policy,
        config: CriticConfig,
        optimizer: OptimizerConfig,
        budget: int,
        ranks: Ranks = ALONE,
    ) -> None:
        """``optimizer`` is the policy's; ``budget`` tokens are run at once."""
        self.config = config
        self.model = ValueModel(policy, own_trunk=config.kind == "model")
        self.optimizer = Optimizer(self.model, config.optimizer_beside(optimizer))
        self._budget = budget
        self._ranks = ranks
        self._nothing = idle_piece(min(policy.stop_ids))

    def values(self, batch: TrainBatch) -> list[Tensor]:
        """The value before each token, one ``[T_b]`` per sequence in flat order, without gradient
        and without dropout.
        """
        found: dict[int, Tensor] = {}
        with torch.no_grad(), without_dropout(self.model.reads), fast_products(self.model.reads):
            for pieces in matched(self._ranks, micro_batches(batch, self._budget)):
                if pieces is None:
                    self._run([self._nothing])
                    continue
                values = self._run(pieces)
                sizes = [len(p.group.sequences[m].token_ids) for p in pieces for m in p.members]
                rows = [row for piece in pieces for row in piece.rows]
                found |= {
                    r: values[i, :n] for i, (r, n) in enumerate(zip(rows, sizes, strict=True))
                }
        nothing = self.model.head.weight.new_zeros(0)
        total = sum(len(group.sequences) for group in batch.groups)
        return [found.get(row, nothing) for row in range(total)]

    def update(
        self, batch: TrainBatch, objective: Objective, step: int, total: int
    ) -> tuple[Metrics, float]:
        """Optimiser step ``step`` of ``total``, on a batch with values and returns. Gives what was
        measured, and the gradient's norm.
        """
        metrics = self.accumulate(batch, objective)
        return metrics, self.optimizer.step(lr_at(self.optimizer.config, step, total))

    def accumulate(self, batch: TrainBatch, objective: Objective) -> Metrics:
        """Adds the gradient of the whole step's loss, a micro-batch at a time."""
        metrics = Metrics()
        counts = sum(self._ranks.gathered(step_counts(batch)), Counts())
        with fast_products(self.model.reads):
            for pieces in matched(self._ranks, micro_batches(batch, self._budget)):
                if pieces is None:
                    self.optimizer.backward((self._run([self._nothing]) * 0.0).sum())
                    continue
                values, sequences = self._run(pieces), members(pieces)
                loss, found = objective.value_loss(
                    values=values,
                    before=field_of(sequences, "values", values),
                    returns=field_of(sequences, "returns", values),
                    mask=field_of(sequences, "loss_mask", values),
                    counts=counts,
                )
                self.optimizer.backward(loss)
                metrics = metrics + found
        self._ranks.sum_gradients(self.optimizer.masters)
        return metrics

    def _run(self, pieces: Sequence[Piece]) -> Tensor:
        values = self.model(
            [piece.group.prompt_ids for piece in pieces],
            [[piece.group.sequences[m].token_ids for m in piece.members] for piece in pieces],
        )
        assert isinstance(values, Tensor)
        return values

    def state_tensors(self) -> dict[str, Tensor]:
        """What it changes, and its optimiser's states, by name."""
        return self.optimizer.state_tensors()

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restores :meth:`state_tensors`, to the bit."""
        self.optimizer.load_state_tensors(tensors)


def judged(
    batch: TrainBatch,
    objective: Objective,
    values: Sequence[Tensor],
    olds: Sequence[Tensor] | None = None,
    references: Sequence[Tensor] | None = None,
) -> tuple[TrainBatch, dict[str, float]]:
    """A whole rollout with the advantages of its tokens, given its values and, for a KL in the
    reward, log-probabilities, each ``[T_b]`` in flat order. Its own advantages are rewards.

    Measures ``value`` (their mean over tokens), ``explained_variance`` (where returns differ), and
    with a KL ``kl_reference``, from before the update.
    """
    sequences = [s for group in batch.groups for s in group.sequences]
    like = values[0]
    before = padded(values, like)
    mask = field_of(sequences, "loss_mask", like).bool()
    old, reference = (None if x is None else padded(x, like) for x in (olds, references))
    advantages, returns = objective.token_advantages(
        rewards=like.new_tensor([s.advantage for s in sequences]),
        values=before,
        mask=mask,
        old=old,
        reference=reference,
    )
    told = iter(zip(before.tolist(), advantages.tolist(), returns.tolist(), strict=True))
    groups = []
    for group in batch.groups:
        found = []
        for sequence in group.sequences:
            size = len(sequence.token_ids)
            value, advantage, goal = (row[:size] for row in next(told))
            found.append(replace(sequence, advantage=advantage, values=value, returns=goal))
        groups.append(TrainGroup(group.prompt_ids, found))
    measured = {"value": before}
    if old is not None and reference is not None:
        measured["kl_reference"] = k3(log_ratio(reference, old))
    figures = Metrics.over(mask, measured).means()
    explained = explained_variance(before, returns, mask)
    if explained is not None:
        figures["explained_variance"] = explained
    return TrainBatch(groups, batch.temperature), figures
