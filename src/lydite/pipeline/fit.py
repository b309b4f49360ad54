"""Whether what a stage shows the model is there, and fits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lydite.config import UserError
from lydite.model.policy import Policy
from lydite.model.render import render_prompt
from lydite.pipeline.pairs import PairsConfig, StagePairs, TaskPairs, rollout_files
from lydite.rollout.budget import check_budgets
from lydite.train.evaluate import SamplingConfig
from lydite.types import Problem, Request


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
