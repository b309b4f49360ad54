"""Cuts a step into micro-batches by a budget of tokens. How it is cut never changes the gradient,
only the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from lydite.model.compute import kept_per_token
from lydite.model.policy import Policy
from lydite.objective.aggregate import Counts
from lydite.types import TrainBatch, TrainGroup, TrainSequence

T = TypeVar("T")


MOST_TOKENS = 2048
"""Run at once where nothing else is asked for: products of more rows are not faster."""
LEAST_TOKENS = 512
"""And with how few products are nearly as fast."""
SMALL = 256 << 20
"""Bytes of activations that are not worth saving."""


@dataclass(frozen=True, slots=True)
class Room:
    """Tokens that a training pass may run at once: the first of a step, and those behind it."""

    first: int
    later: int


def room_for(policy: Policy, batch: TrainBatch) -> Room:
    """On a CPU so many that activations take half of what the weights take; no group is cut for
    that, as its prompt would be run again.

    The first pass of a step has the room that gradients take from then on: they grow while its
    activations go. The head's is there at once.
    """
    most = Room(MOST_TOKENS, MOST_TOKENS)
    if policy.device != "cpu" or policy.shards is not None:
        return most
    each = max(1, kept_per_token(policy.model))
    weights = list(policy.model.parameters())
    half = sum(weight.numel() * weight.element_size() for weight in weights) // 2
    to_come = sum(map(_gradient_bytes, weights)) - _gradient_bytes(policy.head[0])
    largest = max((_size(group) for group in batch.groups), default=0)
    later = max(LEAST_TOKENS, largest, max(SMALL, half) // each)
    return Room(min(MOST_TOKENS, later + to_come // each), min(MOST_TOKENS, later))


def _gradient_bytes(weight: Tensor) -> int:
    return weight.numel() * max(4, weight.element_size()) if weight.requires_grad else 0


@dataclass(frozen=True, slots=True)
class Piece:
    """Completions of one prompt that are run together: ``rows`` are their places in the whole
    batch, counted flat.
    """

    group: TrainGroup
    members: tuple[int, ...]
    rows: tuple[int, ...]

    @property
    def longest(self) -> int:
        return max(len(self.group.sequences[m].token_ids) for m in self.members)

    @property
    def tokens(self) -> int:
        return len(self.group.prompt_ids) + sum(
            len(self.group.sequences[m].token_ids) for m in self.members
        )


def micro_batches(batch: TrainBatch, budget: int, first: int = 0) -> list[list[Piece]]:
    """Pieces of at most ``budget`` tokens each, or of twice their prompt's if that is more (a
    single longer completion goes alone), longest first. The first micro-batch may have ``first``
    tokens, if that is more.

    Longest first, because like lengths then share a micro-batch (little padding in attention) and
    the peak of memory comes first: a batch that will not fit fails at once.
    """
    pieces = sorted(_pieces(batch, budget), key=lambda piece: (-piece.longest, piece.rows))
    return fill(pieces, lambda piece: piece.tokens, budget, first)


def fill(
    items: Iterable[T], tokens: Callable[[T], int], budget: int, first: int = 0
) -> list[list[T]]:
    """Items in order, cut into runs of at most ``budget`` tokens, or of ``first`` in the first run
    if that is more; a larger item goes alone.
    """
    found: list[list[T]] = []
    used = 0
    for item in items:
        limit = max(budget, first) if len(found) == 1 else budget
        if not found or used + tokens(item) > limit:
            found.append([])
            used = 0
        found[-1].append(item)
        used += tokens(item)
    return found


def _pieces(batch: TrainBatch, budget: int) -> list[Piece]:
    """Every group, cut where it alone is over budget; empty completions have nothing to learn from
    and are left out.

    Each piece runs the prompt again. Behind a prompt of more than half the budget a piece holds as
    many tokens of completions as the prompt has, so that this at most doubles a group's cost.
    """
    found: list[Piece] = []
    first = 0
    for group in batch.groups:
        limit = max(budget, 2 * len(group.prompt_ids))
        order = [i for i, s in enumerate(group.sequences) if s.token_ids]
        order.sort(key=lambda i: -len(group.sequences[i].token_ids))
        members: list[int] = []
        used = len(group.prompt_ids)
        for member in order:
            size = len(group.sequences[member].token_ids)
            if members and used + size > limit:
                found.append(Piece(group, tuple(members), tuple(first + m for m in members)))
                members, used = [], len(group.prompt_ids)
            members.append(member)
            used += size
        if members:
            found.append(Piece(group, tuple(members), tuple(first + m for m in members)))
        first += len(group.sequences)
    return found


def idle_piece(token: int) -> Piece:
    """The least that a pass can be made with, where another rank has more to run: one token after
    another.
    """
    nothing = TrainSequence((token,), (0,), (0.0,), 0.0)
    return Piece(TrainGroup((token,), [nothing]), (0,), (0,))


def split_groups(batch: TrainBatch, parts: int) -> list[TrainBatch]:
    """Cuts a rollout into ``parts`` batches for as many optimiser steps, every ``parts``-th group
    to each.
    """
    cut = [batch.groups[part::parts] for part in range(min(parts, len(batch.groups)))]
    return [TrainBatch(groups, batch.temperature) for groups in cut]


def deal(
    batch: TrainBatch, ranks: int, minibatches: int = 1, loads: Sequence[int] | None = None
) -> list[TrainBatch]:
    """A rollout shared out over ranks by whole groups, so that each has about as many tokens to run
    in every optimiser step.

    A share has every group's place, and what is another rank's is empty there: cut into minibatches
    by :func:`split_groups`, shares of a minibatch make up the one that the rollout has. ``loads``
    are the tokens that are run of each group, if not all that it has.
    """
    sizes = [_size(group) for group in batch.groups] if loads is None else loads
    owners = [0] * len(batch.groups)
    for part in range(minibatches):
        load = [0] * ranks
        places = range(part, len(batch.groups), minibatches)
        for place in sorted(places, key=lambda p: (-sizes[p], p)):
            owners[place] = min(range(ranks), key=lambda rank: (load[rank], rank))
            load[owners[place]] += sizes[place]
    return [
        TrainBatch(
            [
                group if owner == rank else TrainGroup(group.prompt_ids, [])
                for group, owner in zip(batch.groups, owners, strict=True)
            ],
            batch.temperature,
        )
        for rank in range(ranks)
    ]


def _size(group: TrainGroup) -> int:
    return len(group.prompt_ids) + sum(len(s.token_ids) for s in group.sequences)


def step_counts(batch: TrainBatch) -> Counts:
    """What the whole optimiser step holds: the denominators of every micro-batch's loss."""
    sizes = [[sum(s.loss_mask) for s in group.sequences] for group in batch.groups]
    return Counts(
        tokens=sum(n for group in sizes for n in group),
        sequences=sum(n > 0 for group in sizes for n in group),
        prompts=sum(any(group) for group in sizes),
    )


def members(pieces: Iterable[Piece]) -> list[TrainSequence]:
    """The completions of a micro-batch, in the order of its rows."""
    return [piece.group.sequences[m] for piece in pieces for m in piece.members]
