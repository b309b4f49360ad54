"""Whether what a stage shows the model is there, and fits."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from lydite.config import UserError
from lydite.model.policy import Policy
from lydite.model.render import render_prompt
from lydite.pipeline.pairs import PairsConfig, StagePairs, TaskPairs, rollout_files
from lydite.rollout.budget import check_budgets
from lydite.train.evaluate import SamplingConfig
from lydite.types import Problem, Request

AT_ONCE = 1000
"""Problems of a stage that are tried before anything is trained: the longest of a larger task."""
SLICE = 50
"""Problems that are tried in one go later."""


class Fits:
    """Whether what every stage will show the model fits it.

    The longest texts are tried at once. The rest of a large task is tried bit by bit beside the
    work, so that it does not delay the first step, and still early in a run of hours.
    """

    def __init__(self) -> None:
        self._left: deque[Callable[[], object]] = deque()

    def add(self, fit: Callable[[Sequence[Problem]], object], problems: Sequence[Problem]) -> None:
        """Tries some of these now. Raises what ``fit`` raises."""
        if len(problems) > AT_ONCE:
            problems = sorted(problems, key=_characters, reverse=True)
        fit(problems[:AT_ONCE])
        for start in range(AT_ONCE, len(problems), SLICE):
            self._left.append(partial(fit, problems[start : start + SLICE]))

    def go_on(self, seconds: float) -> None:
        """Tries more of what is left, a tenth as long as something took that took ``seconds``."""
        end = time.perf_counter() + 0.02 + 0.1 * seconds
        while self._left and time.perf_counter() < end:
            self._left.popleft()()

    def finish(self) -> None:
        """Tries all that is left."""
        while self._left:
            self._left.popleft()()


def _characters(problem: Problem) -> int:
    """Of all that is shown of a problem."""
    shown = [message.content for message in problem.messages]
    return sum(map(len, (*shown, problem.worked or "", problem.rejected or "")))


def check_worked(task: str, problems: Sequence[Problem]) -> None:
    """Raises ``UserError`` when a task to imitate has problems without a worked solution."""
    missing = [problem.id for problem in problems if problem.worked is None]
    if missing:
        raise UserError(
            f"tasks.{task}.worked: {len(missing)} of {len(problems)} problems have no worked "
            f"solution, such as {missing[0]}; name the column that holds it"
        )


def check_pairs(stage: str, task: str, pairs: PairsConfig, problems: Sequence[Problem]) -> None:
    """Raises ``UserError`` when what pairs are to be made of is there already, and is lacking: half
    of a task's pairs, or the rollouts of another run.
    """
    if isinstance(pairs, StagePairs) and pairs.run is not None:
        rollout_files(stage, pairs, Path())
    if not isinstance(pairs, TaskPairs):
        return
    for column in ("worked", "rejected"):
        missing = [p.id for p in problems if getattr(p, column) is None]
        if missing:
            raise UserError(
                f"tasks.{task}.{column}: {len(missing)} of {len(problems)} problems have "
                f"none, such as {missing[0]}; name the column that holds it, or let "
                f"stages.{stage}.pairs mine pairs"
            )


def longest_sampled(
    policy: Policy, problems: Sequence[Problem], sampling: SamplingConfig, place: str
) -> int:
    """Tokens of the longest prompt with a completion drawn so; ``place`` is where the recipe says
    how.

    Raises:
        UserError: a prompt cannot be rendered, or passes the context with its completion, or a
            thinking budget cannot be kept.
    """
    params = sampling.params()
    requests = [Request(p.id, render_prompt(policy, p), 1, params) for p in problems]
    try:
        check_budgets(policy.tokenizer, requests)
    except UserError as error:
        raise UserError(f"{place}.{error}") from None
    found = max(len(request.prompt_ids) for request in requests) + params.max_tokens
    if found > policy.context:
        raise UserError(
            f"{place}.max_tokens: the longest prompt and {params.max_tokens} tokens make {found}, "
            f"more than the context of {policy.context}; lower it or raise model.context"
        )
    return found
