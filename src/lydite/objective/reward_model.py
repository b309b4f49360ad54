"""The loss of a reward model: of two answers to one prompt, the better is to get the larger number.

Bradley and Terry's model of comparisons, as in 2203.02155 (eq. 1): ``-log σ(r_better − r_worse)``,
beside it ``centering · (r_better + r_worse)²``, which ties down the number that comparisons leave
open (2312.09244, section 2). A loss is a sum over pairs divided by the pairs of the whole
optimiser step, so that it can be taken in parts.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from lydite.objective.metrics import Metrics


def bradley_terry(
    better: Float[Tensor, " N"], worse: Float[Tensor, " N"], pairs: int, centering: float = 0.0
) -> tuple[Float[Tensor, ""], Metrics]:
    """A micro-batch's share of the loss, and figures over its pairs; ``pairs`` are those of the
    whole optimiser step.
    """
    better, worse = better.float(), worse.float()
    losses = -logsigmoid(better - worse) + centering * (better + worse).square()
    with torch.no_grad():
        figures = {
            "loss": losses,
            "reward_better": better,
            "reward_worse": worse,
            "reward_margin": better - worse,
            "reward_accuracy": preferred(better, worse),
        }
        weight = torch.tensor(float(len(better)), device=better.device)
        metrics = Metrics({name: (v.detach().sum(), weight) for name, v in figures.items()})
    return losses.sum() / pairs, metrics


def preferred(better: Float[Tensor, " N"], worse: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """1 where the better answer got the larger number, a half where both got the same."""
    return (better > worse).float() + 0.5 * (better == worse).float()
