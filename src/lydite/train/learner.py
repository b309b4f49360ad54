"""The learner: log-probabilities and optimiser steps for a batch of groups, on one device.

It knows no algorithm: it packs groups, runs the model, hands log-probabilities to the objective
with counts taken over the whole step, and steps the optimiser. Micro-batches only decide how much
memory that takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from lydite.config import Config
from lydite.model.policy import Policy
from lydite.model.reference import Reference
from lydite.model.scoring import score
from lydite.objective.aggregate import Counts
from lydite.objective.metrics import Metrics
from lydite.objective.objective import Objective
from lydite.ops.linear import fast_products
from lydite.train.batching import Piece, micro_batches, split_groups
from lydite.train.optimizer import Optimizer, OptimizerConfig, lr_at
from lydite.types import TrainBatch, TrainGroup, TrainSequence


class UpdateConfig(Config):
    """How one rollout becomes optimiser steps."""

    minibatches: int = Field(
        1, ge=1, description="Optimiser steps that a rollout is cut into; above 1 is off-policy."
    )
    epochs: int = Field(1, ge=1, description="Times each rollout is trained on.")
    tokens_per_micro_batch: int = Field(
        4096, ge=1, description="Tokens run at once. Changes memory and speed, never the gradient."
    )

    @property
    def steps_per_rollout(self) -> int:
        return self.minibatches * self.epochs


class LearnerLike(Protocol):
    """What the RL loop asks of a learner, here or on a cluster."""

    def update(
        self, batch: TrainBatch, objective: Objective, progress: tuple[int, int]
    ) -> dict[str, float]:
        """Trains on one rollout; ``progress`` is (rollout number from 0, how many in all)."""
        ...

    def refresh_reference(self) -> None:
        """Makes the reference the policy as it is now; asked only where the objective has a KL."""
        ...

    def state_tensors(self) -> dict[str, Tensor]: ...

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None: ...


class Learner:
    """Trains a policy in this process. The engine that samples may share its weights."""

    def __init__(
        self,
        policy: Policy,
        optimizer: OptimizerConfig,
        update: UpdateConfig,
        reference: Reference | None = None,
    ) -> None:
        self.policy = policy
        self.config = update
        self.optimizer = Optimizer(policy.model, optimizer)
        self._reference = reference

    def update(
        self, batch: TrainBatch, objective: Objective, progress: tuple[int, int]
    ) -> dict[str, float]:
        """One or several optimiser steps on a rollout; metrics averaged over all the tokens trained
        on.

        With one step per rollout the policy is its own old policy and the ratio is exactly 1, so
        old log-probabilities are only computed when there are more.
        """
        minis = split_groups(batch, self.config.minibatches)
        stale = self.config.steps_per_rollout > 1
        olds = [self.logprobs(mini) if stale else None for mini in minis]
        references = [
            self.reference_logprobs(mini) if objective.needs_reference else None for mini in minis
        ]
        rollout, rollouts = progress
        metrics = Metrics()
        norm = lr = 0.0
        for index in range(self.config.epochs * len(minis)):
            mini = index % len(minis)
            with fast_products(self.policy.model):
                found = self._accumulate(minis[mini], objective, olds[mini], references[mini])
            metrics = metrics + found
            step = rollout * self.config.steps_per_rollout + index
            lr = lr_at(self.optimizer.config, step, rollouts * self.config.steps_per_rollout)
            norm = self.optimizer.step(lr)
        return {**metrics.means(), "grad_norm": norm, "lr": lr}

    def _accumulate(
        self,
        batch: TrainBatch,
        objective: Objective,
        olds: Sequence[Tensor] | None,
        references: Sequence[Tensor] | None,
    ) -> Metrics:
        """Adds the gradient of the whole step's loss, a micro-batch at a time."""
        counts = step_counts(batch)
        metrics = Metrics()
        picked = self._picked(batch, objective)
        in_prompt = [
            tokens for group in batch.groups for tokens in [_tokens(group)] * len(group.sequences)
        ]
        taught = batch if objective.moves_idle else teaching(batch)
        for pieces in micro_batches(taught, self.config.tokens_per_micro_batch):
            policy, entropy = self._score(pieces, batch.temperature)
            rows = [row for piece in pieces for row in piece.rows]
            loss, found = objective.loss(
                policy=policy,
                old=None if olds is None else _padded([olds[r] for r in rows], policy),
                behaviour=_field(pieces, "behaviour", policy),
                reference=None
                if references is None
                else _padded([references[r] for r in rows], policy),
                advantages=torch.tensor(
                    [p.group.sequences[m].advantage for p in pieces for m in p.members],
                    dtype=policy.dtype,
                    device=policy.device,
                ),
                mask=_field(pieces, "loss_mask", policy),
                counts=counts,
                entropy=entropy if objective.needs_entropy else entropy.detach(),
                prompt_tokens=torch.tensor([in_prompt[r] for r in rows], device=policy.device),
                picked=None
                if picked is None
                else _padded([picked[r] for r in rows], policy).bool(),
            )
            loss.backward()
            self.optimizer.gather()
            metrics = metrics + found
        return metrics

    def logprobs(self, batch: TrainBatch) -> list[Tensor]:
        """Log-probabilities under the current weights, one ``[T_b]`` per sequence in flat order,
        without gradient.
        """
        return [logprobs for logprobs, _ in self._measure(batch)]

    def _measure(self, batch: TrainBatch) -> list[tuple[Tensor, Tensor]]:
        """:meth:`logprobs`, each with the entropies."""
        found: dict[int, tuple[Tensor, Tensor]] = {}
        with torch.no_grad(), _without_dropout(self.policy.model), fast_products(self.policy.model):
            for pieces in micro_batches(batch, self.config.tokens_per_micro_batch):
                logprobs, entropies = self._score(pieces, batch.temperature)
                rows = [row for piece in pieces for row in piece.rows]
                sizes = [len(p.group.sequences[m].token_ids) for p in pieces for m in p.members]
                found |= {
                    row: (logprobs[i, :n], entropies[i, :n])
                    for i, (row, n) in enumerate(zip(rows, sizes, strict=True))
                }
        total = sum(len(group.sequences) for group in batch.groups)
        nothing = torch.zeros(0, device=self.policy.device)
        return [found.get(row, (nothing, nothing)) for row in range(total)]

    def _picked(self, batch: TrainBatch, objective: Objective) -> list[Tensor] | None:
        """The tokens that a token filter picks out of the whole optimiser step, row by row."""
        if not objective.picks_tokens:
            return None
        measured = self._measure(batch)
        policy = pad_sequence([logprobs for logprobs, _ in measured], batch_first=True)
        sequences = [s for group in batch.groups for s in group.sequences]
        picked = objective.pick(
            policy=policy,
            entropy=pad_sequence([entropies for _, entropies in measured], batch_first=True),
            advantages=policy.new_tensor([s.advantage for s in sequences]),
            mask=_padded([policy.new_tensor(s.loss_mask) for s in sequences], policy),
        )
        return [row[: len(s.token_ids)] for row, s in zip(picked, sequences, strict=True)]

    def reference_logprobs(self, batch: TrainBatch) -> list[Tensor]:
        """:meth:`logprobs` under the reference policy."""
        assert self._reference is not None, "an objective with KL needs a reference"
        live = self.policy.model
        with self._reference.active() as model:
            self.policy.model = model  # type: ignore[assignment]
            try:
                return self.logprobs(batch)
            finally:
                self.policy.model = live

    def refresh_reference(self) -> None:
        """The reference becomes the policy as it is now."""
        assert self._reference is not None, "an objective with KL needs a reference"
        self._reference.refresh()

    def _score(self, pieces: Sequence[Piece], temperature: float) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies of completion tokens, both padded ``[B, T]``."""
        return score(
            self.policy,
            [piece.group.prompt_ids for piece in pieces],
            [[piece.group.sequences[m].token_ids for m in piece.members] for piece in pieces],
            temperature,
        )

    def state_tensors(self) -> dict[str, Tensor]:
        """Trainable weights, optimiser states and a refreshed reference by name: what a checkpoint
        holds.
        """
        reference = {} if self._reference is None else self._reference.state_tensors()
        return {**self.optimizer.state_tensors(), **reference}

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restores :meth:`state_tensors`, to the bit."""
        self.optimizer.load_state_tensors(tensors)
        if self._reference is not None:
            self._reference.load_state_tensors(tensors)


@contextmanager
def _without_dropout(model: nn.Module) -> Iterator[None]:
    """Evaluation mode: an old log-probability is the policy's, as when it sampled, and no noise."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def step_counts(batch: TrainBatch) -> Counts:
    """What the whole optimiser step holds: the denominators of every micro-batch's loss."""
    sizes = [[sum(s.loss_mask) for s in group.sequences] for group in batch.groups]
    return Counts(
        tokens=sum(n for group in sizes for n in group),
        sequences=sum(n > 0 for group in sizes for n in group),
        prompts=sum(any(group) for group in sizes),
    )


def _tokens(group: TrainGroup) -> int:
    """What a prompt's completions hold in the loss mask."""
    return sum(sum(s.loss_mask) for s in group.sequences)


def teaching(batch: TrainBatch) -> TrainBatch:
    """The batch with sequences of advantage 0 emptied: without KL their gradient is exactly 0, so
    they are not run.

    They keep their places, and the step's counts are taken with them.
    """
    idle = TrainSequence((), (), (), 0.0)
    groups = [
        TrainGroup(group.prompt_ids, [s if s.advantage != 0 else idle for s in group.sequences])
        for group in batch.groups
    ]
    return TrainBatch(groups, batch.temperature)


def _field(pieces: Sequence[Piece], field: str, like: Tensor) -> Tensor:
    """A per-token field of the pieces' sequences as padded ``[B, T]``."""
    rows = [
        torch.tensor(getattr(p.group.sequences[m], field), dtype=like.dtype)
        for p in pieces
        for m in p.members
    ]
    return _padded(rows, like)


def _padded(rows: Sequence[Tensor], like: Tensor) -> Tensor:
    """Rows of unequal length as ``[B, T]`` beside ``like``, zero past their ends."""
    return pad_sequence(list(rows), batch_first=True).to(like)
