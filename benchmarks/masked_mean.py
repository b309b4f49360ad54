"""The masked-mean defect beside Lydite: one step's gradient, cut into micro-batches of every size.

    python benchmarks/masked_mean.py

A mean over the tokens of a micro-batch, averaged over micro-batches, weighs a token by who its
neighbours happen to be. Trainers did this for a year or longer (OpenRLHF until its pull request
1249, TRL until 3938; see docs/objectives.md). Here both ways take the same step, and each line says
how far its gradient is from the gradient of the whole step. Runs in seconds, without a model.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lydite.objective import Counts, Objective

LENGTHS = (3, 60, 5, 40, 8, 8, 120, 20)
MICRO_BATCHES = (8, 4, 2, 1)
Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def main() -> None:
    """Prints the table."""
    noise = torch.Generator().manual_seed(0)
    rows, width = len(LENGTHS), max(LENGTHS)
    features = torch.randn(rows, width, 16, generator=noise, dtype=torch.float64)
    old = torch.randn(rows, width, generator=noise, dtype=torch.float64) * 0.1 - 1
    mask = torch.arange(width) < torch.tensor(LENGTHS)[:, None]
    rewards = torch.tensor([[1.0, 0, 1, 0, 0, 1, 0, 1]], dtype=torch.float64)
    objective = Objective.parse("dapo")
    advantages = objective.advantages(rewards)[0]
    step = (features, old, advantages, mask)
    counts = Counts.of(mask)

    def ours(policy: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
        return objective.loss(
            policy=policy, old=old, advantages=advantages, mask=mask, counts=counts
        )[0]

    whole = gradient(ours, step, rows)
    sys.stdout.write("distance to the gradient of the whole step (DAPO's token mean)\n\n")
    sys.stdout.write("sequences per micro-batch   mean per micro-batch   Lydite\n")
    for size in MICRO_BATCHES:
        theirs = gradient(masked_mean(rows // size), step, size)
        found = (distance(theirs, whole), distance(gradient(ours, step, size), whole))
        sys.stdout.write(f"{size:>25}   {found[0]:>20.1e}   {found[1]:.1e}\n")


def masked_mean(micro_batches: int) -> Loss:
    """``(1/K) Σ_k S_k/N_k``: the same clipped loss, averaged per micro-batch, then over them."""

    def loss(policy: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
        ratio, signal = (policy - old).exp(), advantages[:, None]
        gain = torch.minimum(ratio * signal, ratio.clamp(1 - 0.2, 1 + 0.28) * signal)
        return -(gain * mask).sum() / mask.sum() / micro_batches

    return loss


def gradient(loss: Loss, step: Sequence[Tensor], size: int) -> Tensor:
    """The step's gradient for a linear policy, accumulated over micro-batches of ``size`` rows."""
    features, *rest = step
    weights = torch.linspace(-0.05, 0.05, 16, dtype=torch.float64).requires_grad_()
    for start in range(0, len(features), size):
        rows = slice(start, start + size)
        policy = features[rows] @ weights - 1
        loss(policy, *(part[rows] for part in rest)).backward()
    assert weights.grad is not None
    return weights.grad


def distance(found: Tensor, whole: Tensor) -> float:
    """``‖found − whole‖ / ‖whole‖``."""
    return ((found - whole).norm() / whole.norm()).item()


if __name__ == "__main__":
    main()
