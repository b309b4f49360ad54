"""Rejection sampling: several completions of every prompt, verified. What is kept of them is
:mod:`lydite.train.filters`' business.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from lydite.config import Config
from lydite.train.answers import sample_and_verify
from lydite.train.clock import Clock
from lydite.train.evaluate import Prompt, SamplingConfig
from lydite.train.filters import FilterConfig
from lydite.train.loop import StepResult
from lydite.train.scored import Scored, check_failures, reward_metrics
from lydite.types import Engine, Group, Request, Verifier
from lydite.watch.samples import samples_of


class RejectionConfig(Config):
    """How many completions are drawn, how, and which of them are kept."""

    samples: int = Field(8, ge=1, description="Completions per prompt.")
    prompts_per_step: int = Field(
        32,
        ge=1,
        description="Prompts sampled at a time: what a kill can cost. Changes nothing that is "
        "sampled.",
    )
    sampling: SamplingConfig = Field(SamplingConfig(), description="How completions are drawn.")
    filters: FilterConfig = Field(FilterConfig(), description="What is kept.")

    def total_steps(self, prompts: int) -> int:
        """Steps of the stage for this many prompts."""
        return math.ceil(prompts / self.prompts_per_step)


class RejectionSampler:
    """Walks through the prompts once, some at a step: see :class:`lydite.train.loop.Trainer`.

    What a step samples depends on its number alone: noise is addressed by seed, ``noise_step``,
    problem and sample number.
    """

    def __init__(
        self,
        config: RejectionConfig,
        engine: Engine,
        verifier: Verifier,
        prompts: Sequence[Prompt],
        noise_step: int = 0,
        fail_rate: float = 0.1,
        flops: float = 0.0,
    ) -> None:
        """``fail_rate`` is the share of undecided verdicts past which the run stops; ``flops`` are
        what a token costs the engine (0: unknown).
        """
        self.config = config
        self.total = config.total_steps(len(prompts))
        self._engine = engine
        self._verifier = verifier
        self._prompts = prompts
        self._noise_step = noise_step
        self._fail_rate = fail_rate
        self._flops = flops

    @property
    def finished(self) -> bool:
        """Not before every prompt is sampled."""
        return False

    def step(self, step: int) -> StepResult:
        """Samples and verifies the next prompts.

        Raises:
            UserError: too many verdicts could not be decided.
        """
        began = time.perf_counter()
        size = self.config.prompts_per_step
        prompts = self._prompts[step * size : (step + 1) * size]
        params, samples = self.config.sampling.params(), self.config.samples
        clock = Clock()
        completions, verdicts = sample_and_verify(
            self._engine,
            self._verifier,
            [p.problem for p in prompts],
            [
                Request(p.problem.id, p.token_ids, samples, params, self._noise_step)
                for p in prompts
            ],
            clock,
        )
        check_failures([v for group in verdicts for v in group], self._fail_rate)
        groups = [
            Group(prompt.problem, drawn, said)
            for prompt, drawn, said in zip(prompts, completions, verdicts, strict=True)
        ]
        rewards = [torch.tensor(group.rewards, dtype=torch.float64) for group in groups]
        tokens = sum(c.sampled for group in completions for c in group)
        run = sum(len(c.token_ids) for group in completions for c in group)
        flops = self._flops * (run + sum(len(prompt.token_ids) for prompt in prompts))
        metrics = {
            **reward_metrics([Scored(g, r, r) for g, r in zip(groups, rewards, strict=True)]),
            "tokens": float(tokens),
            "tokens_per_second": tokens / (time.perf_counter() - began),
            **({"flops": flops} if flops else {}),
            **clock.seconds,
        }
        nothing = [float("nan")] * samples
        return StepResult(
            metrics, [row for group in groups for row in samples_of(group, nothing, step + 1)]
        )

    def state_tensors(self) -> dict[str, Tensor]:
        """None: the model does not change."""
        return {}

    def state(self) -> dict[str, Any]:
        """Nothing but the step; what was sampled lies in ``samples/``."""
        return {}

    def load(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Nothing to go on from but the step."""
        del tensors, state
