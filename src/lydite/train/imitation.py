"""A teacher's whole distributions in the learner's loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from lydite.config import UserError
from lydite.model.compute import flops_per_token
from lydite.model.policy import Policy
from lydite.model.scoring import compare
from lydite.train.batching import Piece


@dataclass(frozen=True, slots=True)
class Imitation:
    """``coefficient`` times the student's divergence from a teacher, at the prefixes that the
    student sampled; ``beta`` 1 is the reverse KL, see
    :func:`lydite.ops.divergence.divergence_of`. The teacher does not change.
    """

    teacher: Policy
    coefficient: float = 1.0
    beta: float = 1.0

    def check(self, student: Policy) -> None:
        """
        Raises:
            UserError: one of the two cannot run on flat tokens, or the teacher is sharded: both
                heads are whole at once.
        """
        if self.teacher.shards is not None:
            raise UserError(
                "kl: exact needs a teacher that each rank holds whole; use kl: sampled, with the "
                "teacher behind a server"
            )
        for name, policy in (("student", student), ("teacher", self.teacher)):
            if not policy.flat:
                raise UserError(
                    f"kl: exact needs a {name} that runs on flat tokens, and this one does not "
                    f"({policy.not_flat}); use kl: sampled"
                )

    @property
    def flops(self) -> float:
        """Of the teacher, for each token that the learner runs."""
        return flops_per_token(self.teacher.model)

    def score(
        self, policy: Policy, pieces: Sequence[Piece], temperature: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities, entropies and divergences of a micro-batch, ``[B, T]`` each."""
        return compare(
            policy,
            self.teacher,
            [piece.group.prompt_ids for piece in pieces],
            [[piece.group.sequences[m].token_ids for m in piece.members] for piece in pieces],
            temperature,
            self.beta,
        )
