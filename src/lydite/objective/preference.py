"""Learning from pairs: of two answers to one prompt, the better is to become the likelier.

DPO (2305.18290, eq. 7), its conservative form for labels that are sometimes swapped (cDPO), IPO
(2310.12036, eq. 17), and the likelihood of the better answer beside either (2404.19733, eq. 1). A
loss is a sum over pairs divided by the pairs of the whole optimiser step, so that it can be taken
in parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from lydite.config import UserError
from lydite.objective.metrics import Metrics

PreferenceKind = Literal["dpo", "ipo"]


@dataclass(frozen=True, slots=True)
class PreferenceObjective:
    """What is minimised on pairs.

    ``beta`` is the strength of the tie to the reference (IPO's τ); ``label_smoothing`` the share of
    pairs taken to be swapped; with ``per_token`` an answer's log-ratio is its mean over tokens
    instead of the sum; ``sft`` weighs the better answer's negative log-likelihood per token.

    Raises:
        UserError: a number out of its range, or smoothing with IPO, which has no labels to smooth.
    """

    kind: PreferenceKind = "dpo"
    beta: float = 0.1
    label_smoothing: float = 0.0
    per_token: bool = False
    sft: float = 0.0

    def __post_init__(self) -> None:
        if not self.beta > 0:
            raise UserError(f"beta: {self.beta:g} holds to no reference; give a number above 0")
        if not 0 <= self.label_smoothing < 0.5:
            raise UserError(
                f"label_smoothing: {self.label_smoothing:g} is not a share of swapped pairs; give "
                "0 up to, not including, 0.5"
            )
        if self.label_smoothing and self.kind == "ipo":
            raise UserError(
                "label_smoothing: ipo has no probability to smooth; leave it out, or use loss: dpo"
            )
        if self.sft < 0:
            raise UserError(f"sft: {self.sft:g} would unlearn the better answer; give 0 or more")

    def loss(
        self,
        policy: Float[Tensor, "N 2"],
        reference: Float[Tensor, "N 2"] | None,
        lengths: Float[Tensor, "N 2"],
        pairs: int,
    ) -> tuple[Float[Tensor, ""], Metrics]:
        """These pairs' share of the loss of a step that holds ``pairs`` of them, and what to log.

        ``policy`` and ``reference`` are summed log-probabilities in nats, the better answer first;
        no reference stands for one to which all answers are alike. ``lengths`` are tokens.
        """
        ratios = policy if reference is None else policy - reference
        scores = ratios / lengths if self.per_token else ratios
        gap = scores[:, 0] - scores[:, 1]
        losses = self._of_gap(gap)
        if self.sft:
            losses = losses - self.sft * policy[:, 0] / lengths[:, 0]
        return losses.sum() / pairs, _metrics(losses, policy, self.beta * scores)

    def _of_gap(self, gap: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
        if self.kind == "ipo":
            return (gap - 1 / (2 * self.beta)) ** 2
        smoothing = self.label_smoothing
        found = -(1 - smoothing) * logsigmoid(self.beta * gap)
        return found - smoothing * logsigmoid(-self.beta * gap) if smoothing else found


def _metrics(
    losses: Float[Tensor, " N"], policy: Float[Tensor, "N 2"], rewards: Float[Tensor, "N 2"]
) -> Metrics:
    """Means over pairs. The implicit rewards β·log(π/π_ref) are as the loss compares them: per
    token where it does.
    """
    with torch.no_grad():
        values = {
            "loss": losses,
            "reward_chosen": rewards[:, 0],
            "reward_rejected": rewards[:, 1],
            "reward_margin": rewards[:, 0] - rewards[:, 1],
            "reward_accuracy": (rewards[:, 0] > rewards[:, 1]).to(rewards),
            "logprob_chosen": policy[:, 0],
            "logprob_rejected": policy[:, 1],
        }
        weight = losses.new_tensor(float(len(losses)))
        return Metrics({name: (value.detach().sum(), weight) for name, value in values.items()})
