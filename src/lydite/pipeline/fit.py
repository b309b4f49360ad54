"""What a stage shows the model: worked examples as tokens, and whether all of it fits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from lydite.config import UserError
from lydite.model.policy import Policy
from lydite.model.render import render_example, render_prompt
from lydite.pipeline.pairs import PairsConfig, StagePairs, TaskPairs, rollout_files
from lydite.train.sft import Example
from lydite.types import Problem


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
    policy: Policy, problems: Sequence[Problem], max_tokens: int, setting: str
) -> int:
    """Tokens of the longest prompt with a completion of ``max_tokens``, which ``setting`` says.

    Raises:
        UserError: a prompt cannot be rendered, or passes the context with its completion.
    """
    found = max(len(render_prompt(policy, p)) for p in problems) + max_tokens
    if found > policy.context:
        raise UserError(
            f"{setting}: the longest prompt and {max_tokens} tokens make {found}, more than the "
            f"context of {policy.context}; lower it or raise model.context"
        )
    return found


def examples_of(
    policy: Policy, problems: Sequence[Problem], loss_on: Literal["answer", "all"]
) -> list[Example]:
    """The task's worked solutions as token ids.

    Raises:
        UserError: one does not fit the context.
    """
    found = []
    for problem in problems:
        ids, mask = render_example(policy, problem, problem.worked or "")
        first = 1 if loss_on == "all" else mask.index(1)
        bits = [1] * (len(ids) - first) if loss_on == "all" else mask[first:]
        found.append(Example(ids[:first], ids[first:], bits))
    return found
