"""Measurements of one loss call that add up over micro-batches and ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Metrics:
    """``name → (sum, weight)``, 0-dimensional tensors without gradient, left on their device.

    Add the records of all micro-batches and ranks (``sum(records, Metrics())``), then call
    :meth:`means` once: a mean of means would weigh short ones too much.
    """

    sums: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @classmethod
    def over(cls, mask: Bool[Tensor, "B T"], values: Mapping[str, Float[Tensor, "B T"]]) -> Metrics:
        """Sums each quantity over the tokens in the mask."""
        weight = mask.sum()
        return cls(
            {
                name: (value.detach().masked_fill(~mask, 0.0).sum(), weight)
                for name, value in values.items()
            }
        )

    def __add__(self, other: Metrics) -> Metrics:
        both = dict(self.sums)
        for name, (total, weight) in other.sums.items():
            if name in both:
                total, weight = both[name][0] + total, both[name][1] + weight
            both[name] = (total, weight)
        return Metrics(both)

    def cpu(self) -> Metrics:
        """On the CPU, to be handed to another process."""
        return Metrics({name: (t.cpu(), w.cpu()) for name, (t, w) in self.sums.items()})

    def means(self) -> dict[str, float]:
        """Each quantity averaged over its weight; those of weight 0 are left out."""
        return {
            name: total.item() / weight.item()
            for name, (total, weight) in self.sums.items()
            if weight.item() > 0
        }
