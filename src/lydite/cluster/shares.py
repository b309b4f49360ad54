"""Which rank trains on which groups of a rollout: as many tokens each, and every optimiser step of
every rank on groups of the same step of one process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lydite.objective.objective import Objective
from lydite.train.batching import split_groups
from lydite.train.learner import teaching
from lydite.types import TrainBatch, TrainGroup


def run_tokens(batch: TrainBatch, objective: Objective) -> list[int]:
    """Tokens that are run of each group: sequences that teach nothing are not."""
    taught = batch if objective.moves_idle else teaching(batch)
    return [
        len(group.prompt_ids) + sum(len(s.token_ids) for s in group.sequences)
        for group in taught.groups
    ]


def balanced(loads: Sequence[int], count: int) -> list[list[int]]:
    """Places of ``loads`` in ``count`` shares of about the same sum, each in order: the largest
    first, each to the share with least.
    """
    shares: list[list[int]] = [[] for _ in range(count)]
    sums = [0] * count
    for place in sorted(range(len(loads)), key=lambda place: (-loads[place], place)):
        least = sums.index(min(sums))
        shares[least].append(place)
        sums[least] += loads[place]
    return [sorted(share) for share in shares]


def for_update(
    batch: TrainBatch, loads: Sequence[int], ranks: int, minibatches: int
) -> list[TrainBatch]:
    """The rollout of each rank.

    :func:`lydite.train.batching.split_groups` deals groups out to optimiser steps by their places.
    So a rank's groups of step ``m`` stand at places ``m``, ``m + steps``, …; where it has fewer for
    one step than for another, groups without a sequence keep the places.
    """
    steps = len(split_groups(batch, minibatches))
    dealt: list[list[list[int]]] = [[] for _ in range(ranks)]
    for step in range(steps):
        places = range(step, len(batch.groups), steps)
        shares = balanced([loads[place] for place in places], ranks)
        for rank, share in enumerate(shares):
            dealt[rank].append([places[index] for index in share])
    return [TrainBatch(_woven(batch.groups, own), batch.temperature) for own in dealt]


def _woven(groups: Sequence[TrainGroup], by_step: Sequence[Sequence[int]]) -> list[TrainGroup]:
    rows = max((len(places) for places in by_step), default=0)
    empty = TrainGroup((), [])
    return [
        groups[places[row]] if row < len(places) else empty
        for row in range(rows)
        for places in by_step
    ]


def by_place(
    batch: TrainBatch, loads: Sequence[int], ranks: int
) -> tuple[list[TrainBatch], Callable[[Sequence[TrainBatch]], TrainBatch]]:
    """The rollout in a share for each rank, and what puts their groups back in their places."""
    shares = balanced(loads, ranks)

    def together(found: Sequence[TrainBatch]) -> TrainBatch:
        groups = list(batch.groups)
        for share, own in zip(shares, found, strict=True):
            for place, group in zip(share, own.groups, strict=True):
                groups[place] = group
        return TrainBatch(groups, batch.temperature)

    own = [TrainBatch([batch.groups[p] for p in share], batch.temperature) for share in shares]
    return own, together
