"""Held-out accuracy: sample, verify, count. Reward shaping plays no part; only the verdict's
outcome does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from lydite.config import Config
from lydite.model.thinking import CLOSE, OPEN
from lydite.train.answers import sample_and_verify
from lydite.types import (
    Completion,
    Engine,
    Group,
    Outcome,
    Problem,
    Request,
    SamplingParams,
    ThinkingBudget,
    Verdict,
    Verifier,
)
from lydite.watch.intervals import Interval, accuracy_interval
from lydite.watch.repeated import repeated_scores, tag_scores
from lydite.watch.samples import Sample, samples_of

UNDECIDED = frozenset({Outcome.CRASHED, Outcome.UNGRADABLE})


class BudgetConfig(Config):
    """Thinking budgets to draw from, all equally likely: a model trained with them learns to make
    the most of whatever it gets. Give `choices`, or `low` and `high`.

    Budgets are addressed like all noise, by seed, problem and step, so a resumed run draws the same
    ones. The completions of a prompt share one: a group then compares like with like, and no
    completion is praised for the luck of a larger budget.
    """

    choices: tuple[int, ...] = Field(
        (), description="Budgets in tokens; a number or a list stands for a record with these."
    )
    low: int | None = Field(None, ge=0, description="Smallest budget of a range.")
    high: int | None = Field(None, ge=0, description="Largest budget of a range.")
    per: Literal["prompt", "sample"] = Field(
        "prompt",
        description="`prompt`: all completions of a prompt in a step share one; `sample`: each "
        "draws its own.",
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        low, high = self.low, self.high
        if bool(self.choices) == (low is not None or high is not None):
            raise ValueError("give choices, or low and high")
        if not self.choices and (low is None or high is None or low > high):
            raise ValueError("give low and high, the lower one first")
        if any(budget < 0 for budget in self.choices):
            raise ValueError("choices: a budget is 0 tokens or more")
        return self

    @property
    def tokens(self) -> tuple[int, ...] | range:
        """What is drawn from."""
        if self.low is None or self.high is None:
            return self.choices
        return range(self.low, self.high + 1)


class SamplingConfig(Config):
    """How completions are drawn."""

    max_tokens: int = Field(
        512, ge=1, description="Most tokens in a completion, with those that a budget injects."
    )
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
    thinking_budget: BudgetConfig | None = Field(
        None,
        description="Tokens after which a thought is ended by force and the answer follows: a "
        "number (0: no thinking), or several to draw from, as a list or a record. What is "
        "injected is out of the loss. Null: no limit but `max_tokens`.",
    )
    budget_phrase: str | None = Field(
        None,
        description="What is said for the model before the closing tag when its budget is used "
        "up. Null: a sentence, or nothing where the tokenizer cannot write it; `''`: nothing.",
    )

    @field_validator("thinking_budget", mode="before")
    @classmethod
    def _short(cls, given: Any) -> Any:
        """A number or a list stands for a record of choices."""
        if isinstance(given, list | tuple):
            return {"choices": given}
        if isinstance(given, int) and not isinstance(given, bool):
            return {"choices": [given]}
        if given is None or isinstance(given, dict | BudgetConfig):
            return given
        raise ValueError(f"give a number of tokens, a list of them, or null (got {given!r})")

    @model_validator(mode="after")
    def _room(self) -> Self:
        phrase, thinking = self.budget_phrase, self._thinking
        if phrase is not None and thinking is None:
            raise ValueError("budget_phrase: there is no thinking_budget; add one, or leave it out")
        if phrase is not None and (OPEN in phrase or CLOSE in phrase):
            raise ValueError(f"budget_phrase: {CLOSE} follows by itself; leave tags out")
        # The tokens of the phrase are not known here; a closing tag and an answer are the least.
        if thinking is not None and thinking.bounds[1] + 2 > self.max_tokens:
            raise ValueError(
                f"thinking_budget: {thinking.bounds[1]} leaves no room for an answer in max_tokens "
                f"{self.max_tokens}; raise max_tokens, or lower the budget"
            )
        return self

    @property
    def _thinking(self) -> ThinkingBudget | None:
        budget = self.thinking_budget
        if budget is None:
            return None
        return ThinkingBudget(budget.tokens, budget.per == "sample", self.budget_phrase)

    def params(self) -> SamplingParams:
        """The record that engines take."""
        own = self.model_dump(exclude={"thinking_budget", "budget_phrase"})
        return SamplingParams(**own, thinking=self._thinking)


class Prompt:
    """A problem and the tokens that the model is shown for it, which may be rendered only when they
    are first asked for: a task can have more problems than a run meets.
    """

    __slots__ = ("_ids", "_render", "problem")

    def __init__(
        self, problem: Problem, ids: tuple[int, ...] | Callable[[Problem], tuple[int, ...]]
    ) -> None:
        self.problem = problem
        self._ids = None if callable(ids) else ids
        self._render = ids if callable(ids) else None

    @property
    def rendered(self) -> bool:
        """Whether its tokens are there already."""
        return self._ids is not None

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Raises ``UserError`` if the problem cannot be rendered."""
        if self._ids is None:
            assert self._render is not None
            self._ids = self._render(self.problem)
        return self._ids


@dataclass(frozen=True, slots=True)
class Answered:
    """One evaluated completion."""

    prompt: Prompt
    completion: Completion
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Evaluation:
    """``scores[id]`` holds 1.0 or 0.0 for each decided sample of a problem; ``undecided`` counts
    the rest. ``obedience`` is the share that thinks, or does not, as asked; ``None`` where nobody
    asked.
    """

    task: str
    scores: dict[str, list[float]]
    answers: tuple[Answered, ...]
    undecided: int
    obedience: float | None = None

    @property
    def interval(self) -> Interval:
        """avg@k with its 95% interval over problems."""
        return accuracy_interval([scores for scores in self.scores.values() if scores])

    def repeated(self, samples: int) -> dict[str, Interval]:
        """pass@k and maj@k of ``samples`` completions a problem, each with its interval."""
        by: dict[str, list[tuple[str | None, float]]] = {name: [] for name in self.scores}
        for answer in self.answers:
            verdict = answer.verdict
            if verdict.outcome not in UNDECIDED:
                right = float(verdict.outcome is Outcome.CORRECT)
                by[answer.prompt.problem.id].append((verdict.answer, right))
        return repeated_scores(list(by.values()), samples)

    @property
    def by_tag(self) -> dict[str, Interval]:
        """avg@k of each tag, where there are several."""
        tags = {a.prompt.problem.id: a.prompt.problem.tag for a in self.answers}
        return tag_scores(self.scores, tags)

    @property
    def mean_length(self) -> float:
        """Sampled tokens per completion."""
        return sum(a.completion.sampled for a in self.answers) / max(1, len(self.answers))

    @property
    def cut_off(self) -> float:
        """Share of completions that reached the token limit."""
        return sum(a.completion.finish == "length" for a in self.answers) / max(
            1, len(self.answers)
        )

    @property
    def mean_reward(self) -> float:
        """Over the answers that could be judged; NaN where none could."""
        rewards = [a.verdict.reward for a in self.answers if a.verdict.reward is not None]
        return sum(rewards) / len(rewards) if rewards else math.nan

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
