"""The learner: log-probabilities and optimiser steps for a batch of groups, on one device, beside
other ranks if there are any (:mod:`lydite.train.ranks`).

It knows no algorithm: it packs groups, runs the model, hands log-probabilities to the objective
with counts taken over the whole step, and steps the optimiser. Micro-batches only decide how much
memory that takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lydite.config import Config
from lydite.model.compute import BACKWARD, flops_per_token
from lydite.model.policy import Policy
from lydite.model.reference import Reference
from lydite.model.scoring import score
from lydite.model.shards import trained_weights
from lydite.model.training_blocks import fast_layers
from lydite.objective.aggregate import Counts
from lydite.objective.metrics import Metrics
from lydite.objective.mismatch import derived
from lydite.objective.objective import Objective
from lydite.ops.linear import fast_products
from lydite.ops.memory import keep_freed_memory
from lydite.train.batching import (
    MOST_TOKENS,
    Piece,
    Room,
    members,
    micro_batches,
    room_for,
    split_groups,
    step_counts,
)
from lydite.train.critic import Critic, judged
from lydite.train.fields import advantages_of, field_of, padded
from lydite.train.imitation import Imitation
from lydite.train.loop import without_dropout
from lydite.train.optimizer import Optimizer, OptimizerConfig, lr_at
from lydite.train.ranks import ALONE, Ranks, idle_loss, joined, matched
from lydite.train.saved_shards import SavedShards, cut_for, save_shards
from lydite.types import TrainBatch, TrainGroup, TrainSequence

CRITIC = "critic."
"""Before the names of the critic's tensors in a checkpoint."""


class UpdateConfig(Config):
    """How one rollout becomes optimiser steps."""

    minibatches: int = Field(
        1, ge=1, description="Optimiser steps that a rollout is cut into; above 1 is off-policy."
    )
    epochs: int = Field(1, ge=1, description="Times each rollout is trained on.")
    tokens_per_micro_batch: int | None = Field(
        None,
        ge=1,
        description="Tokens run at once. Changes memory and speed, never the gradient. Null: "
        f"{MOST_TOKENS}, or on a CPU fewer where their activations would take more memory than "
        "half of the weights, a group at least.",
    )
    fast_blocks: bool = Field(
        True,
        description="Run decoder layers of the Llama kind by functions of our own, with less kept "
        "for the backward pass.",
    )
    keep_memory: bool = Field(
        True,
        description="On a CPU, memory that an update frees stays with the process for the next.",
    )

    @property
    def most_tokens(self) -> int:
        """Tokens run at once, at most."""
        return self.tokens_per_micro_batch or MOST_TOKENS

    @property
    def steps_per_rollout(self) -> int:
        return self.minibatches * self.epochs


class LearnerLike(Protocol):
    """What the RL loop asks of a learner, here or on a cluster."""

    def judge(self, batch: TrainBatch, objective: Objective) -> tuple[TrainBatch, dict[str, float]]:
        """For an objective that needs values: the rollout, whose advantages are rewards, with those
        of its tokens, and what its critic measures.
        """
        ...

    def update(
        self, batch: TrainBatch, objective: Objective, progress: tuple[int, int]
    ) -> dict[str, float]:
        """Trains on one rollout; ``progress`` is (rollout number from 0, how many in all)."""
        ...

    def refresh_reference(self) -> None:
        """Makes the reference the policy as it is now; asked only where the objective has a KL."""
        ...

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """The trained weights, each whole, by its name in the model, one after another: an engine
        elsewhere takes them over as they come. Many ranks must all run through it.
        """
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
        critic: Critic | None = None,
        ranks: Ranks = ALONE,
        imitation: Imitation | None = None,
    ) -> None:
        """
        Raises:
            UserError: an imitation is asked for that the model cannot be trained by.
        """
        self.policy = policy
        self.config = update
        self.optimizer = Optimizer(policy.model, optimizer)
        self._reference = reference
        self.critic = critic
        self._ranks = ranks
        self._imitation = imitation
        if imitation is not None:
            imitation.check(policy)
        self._flops = 0.0
        if update.keep_memory and policy.device == "cpu":
            keep_freed_memory()

    def judge(self, batch: TrainBatch, objective: Objective) -> tuple[TrainBatch, dict[str, float]]:
        """See :class:`LearnerLike`. Old and reference log-probabilities are those of the policy
        before this rollout's first step.
        """
        assert self.critic is not None, "an objective that needs values needs a critic"
        in_reward = objective.kl_in_token_rewards
        # Advantages are whitened over the tokens of all ranks.
        groups, first = joined(self._ranks, batch.groups)
        found, figures = judged(
            TrainBatch(groups, batch.temperature),
            objective,
            self._of_all(self.critic.values(batch)),
            self._of_all(self.logprobs(batch)) if in_reward else None,
            self._of_all(self.reference_logprobs(batch)) if in_reward else None,
        )
        own = found.groups[first : first + len(batch.groups)]
        return TrainBatch(own, batch.temperature), figures

    def update(
        self, batch: TrainBatch, objective: Objective, progress: tuple[int, int]
    ) -> dict[str, float]:
        """One or several optimiser steps on a rollout; metrics averaged over all the tokens trained
        on. A critic takes a step on each minibatch before the policy does.

        With one step per rollout the policy is its own old policy and the ratio is exactly 1, so
        old log-probabilities are only computed when there are more. ``flops`` are those of all
        passes since the last update, a critic's left out.
        """
        minis = self._minibatches(batch)
        stale = self.config.steps_per_rollout > 1
        olds = [self.logprobs(mini) if stale else None for mini in minis]
        references = [
            self.reference_logprobs(mini) if objective.loss_needs_reference else None
            for mini in minis
        ]
        rollout, rollouts = progress
        metrics = Metrics()
        last: dict[str, float] = {}
        waits = self.critic is not None and rollout < self.critic.config.warmup
        for index in range(self.config.epochs * len(minis)):
            mini = index % len(minis)
            step = rollout * self.config.steps_per_rollout + index
            total = rollouts * self.config.steps_per_rollout
            if self.critic is not None:
                found, norm = self.critic.update(minis[mini], objective, step, total)
                metrics, last["critic_grad_norm"] = metrics + found, norm
            if waits:
                continue
            with fast_products(self.policy.model), self._fast_layers():
                found = self._accumulate(minis[mini], objective, olds[mini], references[mini])
            metrics = metrics + found
            last["lr"] = lr_at(self.optimizer.config, step, total)
            last["grad_norm"] = self.optimizer.step(last["lr"])
        if not waits:
            last["update_ratio"] = self.optimizer.update_ratio()
        metrics = sum(self._ranks.gathered(metrics.cpu()), Metrics())
        last["flops"], self._flops = sum(self._ranks.gathered(self._flops)), 0.0
        return {**derived(metrics.means()), **last}

    def _accumulate(
        self,
        batch: TrainBatch,
        objective: Objective,
        olds: Sequence[Tensor] | None,
        references: Sequence[Tensor] | None,
    ) -> Metrics:
        """Adds the gradient of the whole step's loss, a micro-batch at a time."""
        counts = sum(self._ranks.gathered(step_counts(batch)), Counts())
        metrics = Metrics()
        picked = self._picked(batch, objective)
        in_prompt = [
            tokens for group in batch.groups for tokens in [_tokens(group)] * len(group.sequences)
        ]
        all_move = objective.moves_idle or self._imitation is not None
        taught = batch if all_move else teaching(batch)
        for pieces in self._passes(taught, self._room(taught)):
            if pieces is None:
                self.optimizer.backward(idle_loss(self.policy, batch.temperature))
                continue
            policy, entropy, apart = self._run(pieces, batch.temperature)
            rows, sequences = [row for piece in pieces for row in piece.rows], members(pieces)
            mask = field_of(sequences, "loss_mask", policy)
            prompt_tokens = torch.tensor([in_prompt[r] for r in rows], device=policy.device)
            loss, found = objective.loss(
                policy=policy,
                old=None if olds is None else padded([olds[r] for r in rows], policy),
                behaviour=field_of(sequences, "behaviour", policy),
                reference=None
                if references is None
                else padded([references[r] for r in rows], policy),
                advantages=advantages_of(sequences, policy),
                mask=mask,
                counts=counts,
                entropy=entropy if objective.needs_entropy else entropy.detach(),
                prompt_tokens=prompt_tokens,
                picked=None if picked is None else padded([picked[r] for r in rows], policy).bool(),
            )
            if apart is not None and self._imitation is not None:
                mean = objective.mean(apart, mask, counts, prompt_tokens)
                loss = loss + self._imitation.coefficient * mean
                found = found + Metrics.over(mask.bool(), {"kl_teacher": apart})
            self.optimizer.backward(loss)
            metrics = metrics + found
        self._ranks.sum_gradients(self.optimizer.masters)
        return metrics

    def _passes(self, batch: TrainBatch, room: Room) -> list[list[Piece] | None]:
        return matched(self._ranks, micro_batches(batch, room.later, room.first))

    def _room(self, batch: TrainBatch) -> Room:
        """Tokens of passes with gradient."""
        if self.config.tokens_per_micro_batch is None:
            return room_for(self.policy, batch)
        return self._most()

    def _most(self) -> Room:
        """Tokens of passes without."""
        return Room(self.config.most_tokens, self.config.most_tokens)

    def _fast_layers(self) -> AbstractContextManager[None]:
        return fast_layers(self.policy.model, self.config.fast_blocks)

    def _minibatches(self, batch: TrainBatch) -> list[TrainBatch]:
        """One for each optimiser step, as many as the rank with the most groups has; some may be
        empty.
        """
        minis = split_groups(batch, self.config.minibatches)
        steps = max(self._ranks.gathered(len(minis)))
        return minis + [TrainBatch([], batch.temperature)] * (steps - len(minis))

    def logprobs(self, batch: TrainBatch) -> list[Tensor]:
        """Log-probabilities under the current weights, one ``[T_b]`` per sequence in flat order,
        without gradient.
        """
        return [logprobs for logprobs, _ in self._measure(batch)]

    def _measure(self, batch: TrainBatch) -> list[tuple[Tensor, Tensor]]:
        """:meth:`logprobs`, each with the entropies."""
        found: dict[int, tuple[Tensor, Tensor]] = {}
        model = self.policy.model
        with torch.no_grad(), without_dropout(model), fast_products(model), self._fast_layers():
            for pieces in self._passes(batch, self._most()):
                if pieces is None:
                    idle_loss(self.policy, batch.temperature)
                    continue
                self._flops += flops_per_token(self.policy.model) * _run_tokens(pieces)
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
        own = [s for group in batch.groups for s in group.sequences]
        sequences, first = joined(self._ranks, own)
        measured = self._measure(batch)
        logprobs, entropies = (self._of_all([row[i] for row in measured]) for i in range(2))
        if not own:
            return []
        policy = pad_sequence(logprobs, batch_first=True)
        picked = objective.pick(
            policy=policy,
            entropy=pad_sequence(entropies, batch_first=True),
            advantages=advantages_of(sequences, policy),
            mask=padded([policy.new_tensor(s.loss_mask) for s in sequences], policy),
        )
        rows = picked[first : first + len(own)].to(self.policy.device)
        return [row[: len(s.token_ids)] for row, s in zip(rows, own, strict=True)]

    def _of_all(self, rows: Sequence[Tensor]) -> list[Tensor]:
        """Rows of the sequences of all ranks, by rank, on the CPU."""
        return joined(self._ranks, [row.cpu() for row in rows])[0]

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

    def _run(
        self, pieces: Sequence[Piece], temperature: float
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """A pass with gradient: :meth:`_score`, and where there is a teacher to imitate whole, the
        divergences from it.
        """
        tokens = _run_tokens(pieces)
        self._flops += (1 + BACKWARD) * flops_per_token(self.policy.model) * tokens
        if self._imitation is None:
            return *self._score(pieces, temperature), None
        self._flops += self._imitation.flops * tokens
        return self._imitation.score(self.policy, pieces, temperature)

    def _score(self, pieces: Sequence[Piece], temperature: float) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies of completion tokens, both padded ``[B, T]``."""
        return score(
            self.policy,
            [piece.group.prompt_ids for piece in pieces],
            [[piece.group.sequences[m].token_ids for m in piece.members] for piece in pieces],
            temperature,
        )

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """See :class:`LearnerLike`."""
        return trained_weights(self.policy)

    def state_tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds, by name: trained weights and optimiser states, those of a critic
        too, and a refreshed reference.
        """
        found = self.optimizer.state_tensors()
        if self._reference is not None:
            found |= self._reference.state_tensors()
        if self.critic is not None:
            found |= {CRITIC + name: t for name, t in self.critic.state_tensors().items()}
        return found

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restores :meth:`state_tensors`, to the bit; those of any number of ranks."""
        tensors = cut_for(self.policy.model, tensors)
        self.optimizer.load_state_tensors(tensors)
        if self._reference is not None:
            self._reference.load_state_tensors(tensors)
        if self.critic is not None:
            own = {n.removeprefix(CRITIC): tensors[n] for n in tensors if n.startswith(CRITIC)}
            self.critic.load_state_tensors(own)

    def save_shards(self, folder: Path) -> None:
        """Writes :meth:`state_tensors` to a folder that all ranks see; a collective.

        Raises:
            OSError: as :func:`lydite.train.saved_shards.save_shards`.
        """
        save_shards(folder, self.state_tensors())

    def load_shards(self, folder: Path) -> None:
        """Restores what :meth:`save_shards` wrote, on any number of ranks; a collective."""
        self.load_state_tensors(SavedShards(folder))


def _run_tokens(pieces: Sequence[Piece]) -> int:
    return sum(piece.tokens for piece in pieces)


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
        TrainGroup(group.prompt_ids, [s if _teaches(s) else idle for s in group.sequences])
        for group in batch.groups
    ]
    return TrainBatch(groups, batch.temperature)


def _teaches(sequence: TrainSequence) -> bool:
    advantage = sequence.advantage
    return any(advantage) if isinstance(advantage, Sequence) else advantage != 0
