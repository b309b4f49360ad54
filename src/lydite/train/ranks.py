"""What the ranks of one optimiser step tell each other.

Ranks share out a rollout by whole groups, and each runs its own micro-batches. Denominators, the
tokens that a filter picks and the metrics are of all ranks together; since the losses of ranks then
add up to the loss of the step, their gradients are summed, never averaged. A gradient is the same
on one rank and on many.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from lydite.model.policy import Policy
from lydite.model.scoring import score

T = TypeVar("T")


class Ranks(Protocol):
    """The ranks that take a step together. All must make the same calls in the same order."""

    index: int
    size: int

    def gathered(self, value: T) -> list[T]:
        """The value of every rank, by rank."""
        ...

    def passes(self, own: int) -> int:
        """How many passes through the model this rank must make that has work for ``own``: more
        where each pass is a collective, and another rank has more to do.
        """
        ...

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Makes every rank's ``grad`` the sum of all ranks'. One that no rank has stays absent."""
        ...


class Alone:
    """One process."""

    index = 0
    size = 1

    def gathered(self, value: T) -> list[T]:
        return [value]

    def passes(self, own: int) -> int:
        return own

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        pass


class ProcessRanks:
    """The processes of a ``torch.distributed`` group, each with all of the weights."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """``group`` is the default one, if not given: it must have been made already."""
        self._group = group
        self.index = dist.get_rank(group)
        self.size = dist.get_world_size(group)

    def gathered(self, value: T) -> list[T]:
        found: list[T | None] = [None] * self.size
        dist.all_gather_object(found, value, group=self._group)
        return found  # type: ignore[return-value]

    def passes(self, own: int) -> int:
        return own

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """A rank without a token for a parameter adds 0 to it."""
        if not parameters:
            return
        there = torch.tensor([p.grad is not None for p in parameters], device=parameters[0].device)
        counts = there.int()
        dist.all_reduce(counts, group=self._group)
        for parameter, count in zip(parameters, counts.tolist(), strict=True):
            if count:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad, group=self._group)


def matched(ranks: Ranks, own: Sequence[T]) -> list[T | None]:
    """What a rank runs, and then ``None`` for each pass that others make beside it."""
    return [*own, *[None] * (ranks.passes(len(own)) - len(own))]


def idle_loss(policy: Policy, temperature: float = 1.0) -> Tensor:
    """0, whose backward pass adds 0 to the gradient: a rank's part in a pass that it has no work
    for. It runs one token after another.
    """
    token = (min(policy.stop_ids),)
    logprobs, _ = score(policy, [token], [[token]], temperature)
    return (logprobs * 0.0).sum()


def joined(ranks: Ranks, items: Iterable[T]) -> tuple[list[T], int]:
    """The items of all ranks, by rank, and where this rank's own begin."""
    shares = ranks.gathered(list(items))
    return [x for share in shares for x in share], sum(map(len, shares[: ranks.index]))


ALONE = Alone()
