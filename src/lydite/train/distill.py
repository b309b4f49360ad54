"""On-policy distillation: the student samples, a teacher says of every token how likely it was, and
the student moves towards that (2306.13649; Qwen3, 2505.09388 §4.5; Thinking Machines, 2025).

It is the RL loop with another source of advantages. ``kl: sampled`` needs the teacher's
log-probability of the sampled tokens only: the per-token reverse KL is estimated by
``log π − log π_T``, whose negative is the token's advantage, through the objective's ratio, clip
and aggregation. ``kl: exact`` needs the teacher's weights: the divergence of the whole
distributions at the sampled prefixes is a term of the loss. Where this departs from the sources:
log π is that of the engine, when it sampled (as in Tinker), not that of the present weights (as in
prime-rl).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch.nn.utils.rnn import pad_sequence

from lydite.objective.distill import token_advantages
from lydite.objective.group_filter import FILTERS
from lydite.objective.kl import log_ratio
from lydite.objective.objective import Objective
from lydite.train.rl_config import RLConfig
from lydite.types import Outcome, Problem, Teacher, TrainBatch, TrainGroup, Verdict


class DistillConfig(RLConfig):
    """What the student samples, and how it is drawn to the teacher."""

    group_size: int = Field(4, ge=1, description="Completions per prompt.")
    objective: Any = Field(
        "grpo+token_mean",
        description="Ratio, clip and aggregation, as in an `rl` stage; its advantages count by "
        "`reward_weight`.",
    )
    kl: Literal["sampled", "exact"] = Field(
        "sampled",
        description="`sampled`: from the teacher's log-probabilities of the sampled tokens. "
        "`exact`: over the whole vocabulary at every sampled prefix; needs a teacher in this "
        "process.",
    )
    coefficient: float = Field(1.0, gt=0, description="Weight of the KL to the teacher.")
    clip: float | None = Field(
        None,
        gt=0,
        description="Bound on a token's log-ratio in nats, 20 when null; `sampled` only.",
    )
    discount: float = Field(
        0.0,
        ge=0,
        le=1,
        description="What a later token's KL is worth one token earlier; 0: every token answers "
        "for itself alone. `sampled` only.",
    )
    beta: float = Field(
        1.0,
        ge=0,
        le=1,
        description="`exact` only: 1 is the reverse KL(student‖teacher), 0 the forward KL, between "
        "them the generalised Jensen-Shannon divergence of GKD.",
    )
    reward_weight: float = Field(
        0.0,
        ge=0,
        description="Weight of the advantages that the verifier's rewards give; 0 is the teacher "
        "alone.",
    )
    verify: bool = Field(
        True,
        description="Verify what the student samples, for the figures and for `reward_weight`; "
        "false for prompts without a reference.",
    )

    @model_validator(mode="after")
    def _means_something(self) -> Self:
        objective = self.build_objective()
        if self.kl == "exact" and (self.clip is not None or self.discount > 0):
            raise ValueError(
                "clip and discount are of the sampled KL; leave them out, or set kl: sampled"
            )
        if self.kl == "sampled" and self.beta != 1:
            raise ValueError(
                f"beta: {self.beta:g} needs the teacher's whole distribution; set kl: exact"
            )
        if objective.needs_values:
            raise ValueError(
                f"objective: {objective.name} has a critic, and a teacher takes its place; use "
                "another, such as grpo+token_mean"
            )
        if self.reward_weight == 0 and self.curriculum is not None:
            raise ValueError(
                "curriculum: it goes by pass rates, and rewards count for nothing at "
                "reward_weight: 0; leave it out"
            )
        if self.reward_weight > 0 and not self.verify:
            raise ValueError("verify: false leaves no rewards; set reward_weight: 0")
        if self.reward_weight == 0 and FILTERS[objective.group_filter.kind].drops:
            raise ValueError(
                f"objective: {objective.name} leaves out groups by their rewards, which count for "
                "nothing at reward_weight: 0; use another, such as grpo+token_mean"
            )
        return self

    def build_objective(self) -> Objective:
        """See :class:`RLConfig`; a group of one will do where rewards do not count."""
        if self.reward_weight > 0:
            return super().build_objective()
        return Objective.parse(self.objective).with_limit(self.sampling.max_tokens)


class Tutor:
    """Gives sampled tokens their advantages; implements :class:`lydite.train.rl.Guide`.

    Without a teacher the learner is drawn to one by itself, and rewards alone are weighed here.
    """

    def __init__(self, config: DistillConfig, teacher: Teacher | None, flops: float = 0.0) -> None:
        """``flops`` are what a token costs a teacher in this process."""
        self._config = config
        self._teacher = teacher
        self._flops = flops

    @property
    def uses_rewards(self) -> bool:
        """See :class:`lydite.train.rl.Guide`."""
        return self._config.reward_weight > 0

    def advise(self, batch: TrainBatch) -> tuple[TrainBatch, dict[str, float]]:
        """Advantages ``w·A_i + c·A_t``; figures are means over the sampled tokens: ``kl_teacher``
        (estimated, in nats) and ``kl_clipped``, the share that the clip holds.
        """
        if self._teacher is None:
            return _weighed(batch, self._config.reward_weight), {}
        told = self._teacher.logprobs(
            [group.prompt_ids for group in batch.groups],
            [[s.token_ids for s in group.sequences] for group in batch.groups],
        )
        sequences = [s for group in batch.groups for s in group.sequences]
        student, teacher, mask = (
            pad_sequence([torch.tensor(row, dtype=torch.float64) for row in rows], batch_first=True)
            for rows in (
                [s.behaviour for s in sequences],
                [row for group in told for row in group],
                [s.loss_mask for s in sequences],
            )
        )
        clip = self._config.clip
        found = token_advantages(student, teacher, mask, clip, self._config.discount)
        rows = iter((self._config.coefficient * found).tolist())
        groups = []
        for group in batch.groups:
            taught = []
            for s in group.sequences:
                base = self._config.reward_weight * _one(s.advantage)
                own = next(rows)[: len(s.token_ids)]
                taught.append(replace(s, advantage=[base + a for a in own]))
            groups.append(TrainGroup(group.prompt_ids, taught))
        live = mask.bool()
        gap = log_ratio(student, teacher)[live]
        figures = {"kl_teacher": float(gap.mean())}
        if clip is not None:
            figures["kl_clipped"] = float((gap.abs() > clip).double().mean())
        tokens = sum(
            len(g.prompt_ids) + sum(len(s.token_ids) for s in g.sequences) for g in batch.groups
        )
        if self._flops:
            figures["flops"] = self._flops * tokens
        return TrainBatch(groups, batch.temperature), figures


def _weighed(batch: TrainBatch, weight: float) -> TrainBatch:
    groups = [
        TrainGroup(
            group.prompt_ids,
            [replace(s, advantage=weight * _one(s.advantage)) for s in group.sequences],
        )
        for group in batch.groups
    ]
    return TrainBatch(groups, batch.temperature)


def _one(advantage: float | Sequence[float]) -> float:
    assert not isinstance(advantage, Sequence), "rewards are of whole completions"
    return advantage


class Unverified:
    """Implements :class:`lydite.types.Verifier` where nothing is to be verified."""

    def verify(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Verdict]:
        """No reward for anything."""
        del problems
        return [Verdict(Outcome.UNGRADABLE, None, detail="not verified") for _ in texts]

    def close(self) -> None:
        """There is nothing to end."""
