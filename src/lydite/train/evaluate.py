"""Held-out accuracy: sample, verify, count. Reward shaping plays no part; only the verdict's
outcome does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from lydite.config import Config
from lydite.train.answers import sample_and_verify
from lydite.types import (
    Completion,
    Engine,
    Group,
    Outcome,
    Problem,
    Request,
    SamplingParams,
    Verdict,
    Verifier,
)
from lydite.watch.intervals import Interval, accuracy_interval
from lydite.watch.samples import Sample, samples_of

UNDECIDED = frozenset({Outcome.CRASHED, Outcome.UNGRADABLE})


class SamplingConfig(Config):
    """How completions are drawn."""

    max_tokens: int = Field(512, ge=1, description="Most tokens in a completion.")
    temperature: float = Field(
        1.0, ge=0, description="Divides the logits; 0 takes the likeliest token."
    )
    top_p: float = Field(
        1.0, gt=0, le=1, description="Keep the likeliest tokens that hold this much probability."
    )
    top_k: int = Field(0, ge=0, description="Keep this many likeliest tokens; 0 is off.")
    min_p: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Drop tokens below this share of the likeliest one's probability.",
    )
    stop: tuple[str, ...] = Field((), description="Texts that end a completion.")

    def params(self) -> SamplingParams:
        """The record that engines take."""
        return SamplingParams(**self.model_dump())


@dataclass(frozen=True, slots=True)
class Prompt:
    """A problem and the tokens that the model is shown for it."""

    problem: Problem
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Answered:
    """One evaluated completion."""

    prompt: Prompt
    completion: Completion
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Evaluation:
    """``scores[id]`` holds 1.0 or 0.0 for each decided sample of a problem; ``undecided`` counts
    the rest.
    """

    task: str
    scores: dict[str, list[float]]
    answers: tuple[Answered, ...]
    undecided: int

    @property
    def interval(self) -> Interval:
        """avg@k with its 95% interval over problems."""
        return accuracy_interval([scores for scores in self.scores.values() if scores])

    @property
    def mean_length(self) -> float:
        """Tokens per completion."""
        return sum(len(a.completion.token_ids) for a in self.answers) / max(1, len(self.answers))

    def samples(self, step: int) -> list[Sample]:
        """Every answer as a row for disk."""
        return [
            row
            for answer in self.answers
            for row in samples_of(
                Group(answer.prompt.problem, [answer.completion], [answer.verdict]),
                [float("nan")],
                step,
            )
        ]


def evaluate(
    task: str,
    prompts: Sequence[Prompt],
    engine: Engine,
    verifier: Verifier,
    params: SamplingParams,
    samples: int,
) -> Evaluation:
    """Samples ``samples`` completions of each prompt and counts those that verify as correct.

    The noise does not depend on the training step, so two evaluations of one run differ by the
    policy alone.
    """
    requests = [Request(p.problem.id, p.token_ids, samples, params) for p in prompts]
    completions, verdicts = sample_and_verify(
        engine, verifier, [p.problem for p in prompts], requests
    )
    answers = tuple(
        Answered(prompt, completion, verdict)
        for prompt, *group in zip(prompts, completions, verdicts, strict=True)
        for completion, verdict in zip(*group, strict=True)
    )
    scores: dict[str, list[float]] = {p.problem.id: [] for p in prompts}
    for answer in answers:
        if answer.verdict.outcome not in UNDECIDED:
            scores[answer.prompt.problem.id].append(
                float(answer.verdict.outcome is Outcome.CORRECT)
            )
    return Evaluation(task, scores, answers, sum(a.verdict.outcome in UNDECIDED for a in answers))
