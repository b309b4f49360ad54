"""Which rank trains on which groups of a rollout, and what puts their parts together again."""

from __future__ import annotations

from collections.abc import Sequence

from lydite.objective.objective import Objective
from lydite.train.learner import teaching
from lydite.types import TrainBatch


def run_tokens(batch: TrainBatch, objective: Objective) -> list[int]:
    """Tokens that an update runs of each group: sequences that teach nothing are not run."""
    taught = batch if objective.moves_idle else teaching(batch)
    return [
        len(group.prompt_ids) + sum(len(s.token_ids) for s in group.sequences)
        for group in taught.groups
    ]


def together(shares: Sequence[TrainBatch]) -> TrainBatch:
    """The rollout whose shares these are: each group is at the same place in all, and has its
    sequences in one (:func:`lydite.train.batching.deal`).
    """
    places = zip(*(share.groups for share in shares), strict=True)
    groups = [next((group for group in place if group.sequences), place[0]) for place in places]
    return TrainBatch(groups, shares[0].temperature)
