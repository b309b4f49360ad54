"""Going through a fixed set of things to learn from, epoch after epoch: for how long, how many at
once, in what order.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Generic, Self, TypeVar

from pydantic import Field, model_validator

from lydite.config import Config

T = TypeVar("T")


class PassesConfig(Config):
    """How long a stage goes on, and how much it takes at once."""

    steps: int | None = Field(None, ge=1, description="Optimiser steps; give this or epochs.")
    epochs: float | None = Field(
        None, gt=0, description="Passes over the examples; give this or steps."
    )
    batch_size: int = Field(32, ge=1, description="Examples per optimiser step.")
    tokens_per_micro_batch: int = Field(
        4096, ge=1, description="Tokens run at once. Changes memory and speed, never the gradient."
    )
    fast_blocks: bool = Field(
        True,
        description="Run decoder layers of the Llama kind by functions of our own, with less kept "
        "for the backward pass.",
    )

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give one of steps and epochs")
        return self

    def total_steps(self, examples: int) -> int:
        """Optimiser steps of the stage for this many examples."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return max(1, round(self.epochs * examples / self.batch_size))


class Passes(Generic[T]):
    """Which items a step takes: a fresh shuffle every epoch, addressed by (seed, epoch), so that
    the step number alone decides.
    """

    def __init__(self, items: Sequence[T], seed: int) -> None:
        self._items = items
        self._seed = seed
        self._epoch_order: tuple[int, list[int]] = (-1, [])

    def at(self, step: int, size: int) -> list[T]:
        """The ``size`` items of a step, counted from 0."""
        count = len(self._items)
        return [
            self._items[self._order(i // count)[i % count]]
            for i in range(step * size, (step + 1) * size)
        ]

    def _order(self, epoch: int) -> list[int]:
        if self._epoch_order[0] != epoch:
            order = list(range(len(self._items)))
            random.Random(f"{self._seed}:{epoch}").shuffle(order)
            self._epoch_order = (epoch, order)
        return self._epoch_order[1]
