"""Accuracy against thinking budget: the same problems with the same noise, once for each budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rich.table import Table

from lydite.config import UserError
from lydite.model.loading import ModelConfig
from lydite.model.thinking import CLOSE, OPEN
from lydite.pipeline.evaluation import Measurement, RemoteModel, evaluate_each, figures
from lydite.rollout.engine import Progress
from lydite.train.evaluate import Evaluation
from lydite.train.scored import budget_metrics
from lydite.types import SamplingParams, ThinkingBudget
from lydite.watch.intervals import Interval

UNLIMITED = "none"
_WIDTH = 50
"""Characters from 0% to 100% in :func:`chart`."""


@dataclass(frozen=True, slots=True)
class Point:
    """What a task came to under one budget in tokens, or without (``None``): accuracy, means per
    completion in tokens, shares of completions. ``hits``: the budget ended the thought;
    ``thought`` is NaN where there was no budget to count for.
    """

    task: str
    budget: int | None
    accuracy: Interval
    length: float
    thought: float
    hits: float
    cut_off: float

    @property
    def label(self) -> str:
        return _label(self.budget)


def _label(budget: int | None) -> str:
    return UNLIMITED if budget is None else str(budget)


def parse_budgets(text: str) -> list[int | None]:
    """``16,32,none`` as numbers, smallest first; ``none`` comes last and sets no budget.

    Raises:
        UserError: something else.
    """
    found: set[int | None] = set()
    for part in (part.strip() for part in text.split(",")):
        if part != UNLIMITED and not (part.isascii() and part.isdigit()):
            raise UserError(
                f"--budgets: {part!r} is no number of tokens; write 16,32,64, and {UNLIMITED} for "
                "no budget"
            )
        found.add(None if part == UNLIMITED else int(part))
    return sorted(found, key=lambda budget: math.inf if budget is None else budget)


def evaluate_budgets(
    model: ModelConfig | RemoteModel,
    plan: Measurement,
    budgets: Sequence[int | None],
    phrase: str | None,
    on_progress: Callable[[str, Progress], None],
) -> dict[int | None, dict[str, Evaluation]]:
    """Scores by budget and task name. ``phrase`` is said before the closing tag; null: the
    recipe's, else one of ours. ``on_progress`` is told of each task and budget.

    Raises:
        UserError: see :func:`lydite.pipeline.evaluation.evaluate_each`.
    """
    settings = [with_budget(plan.params, budget, phrase) for budget in budgets]

    def tell(number: int, task: str, progress: Progress) -> None:
        on_progress(f"{task}, budget {_label(budgets[number])}", progress)

    found = evaluate_each(model, plan, settings, tell)
    return dict(zip(budgets, found, strict=True))


def with_budget(params: SamplingParams, budget: int | None, phrase: str | None) -> SamplingParams:
    """The same with this budget.

    Raises:
        UserError: the phrase holds a tag.
    """
    if phrase is not None and (OPEN in phrase or CLOSE in phrase):
        raise UserError(f"--budget-phrase: {CLOSE} follows by itself; leave tags out")
    if phrase is None and params.thinking is not None:
        phrase = params.thinking.phrase
    thinking = None if budget is None else ThinkingBudget((budget,), phrase=phrase)
    return replace(params, thinking=thinking)


def points(found: Mapping[int | None, Mapping[str, Evaluation]]) -> list[Point]:
    """Task by task, in the order of the budgets."""
    tasks = dict.fromkeys(task for by_task in found.values() for task in by_task)
    return [_point(by_task[task], budget) for task in tasks for budget, by_task in found.items()]


def _point(evaluation: Evaluation, budget: int | None) -> Point:
    completions = [answer.completion for answer in evaluation.answers]
    measured = budget_metrics(completions)
    cut_off = sum(c.finish == "length" for c in completions) / max(1, len(completions))
    return Point(
        evaluation.task,
        budget,
        evaluation.interval,
        evaluation.mean_length,
        measured.get("thinking_length", math.nan),
        measured.get("budget_hits", 0.0),
        cut_off,
    )


def table(found: Sequence[Point], samples: int) -> Table:
    """A row for each task and budget."""
    made = Table(box=None, pad_edge=False)
    headings = (
        "task", "budget", f"avg@{samples}", "95% interval", "tokens", "thinking", "hits", "cut off",
    )  # fmt: skip
    for heading in headings:
        justify: Literal["left", "right"] = "left" if heading == "task" else "right"
        made.add_column(heading, justify=justify, no_wrap=True)
    for p in found:
        thought = "" if math.isnan(p.thought) else f"{p.thought:.1f}"
        hits = "" if p.budget is None else f"{p.hits:.0%}"
        made.add_row(
            p.task, p.label, *figures(p.accuracy)[:2], f"{p.length:.1f}", thought, hits,
            f"{p.cut_off:.0%}",
        )  # fmt: skip
    return made


def chart(found: Sequence[Point]) -> str:
    """Accuracy against budget for a terminal: ``●`` the mean, ``├─┤`` its interval."""
    wide = max(len("budget"), *(len(p.label) for p in found))
    scale = "".join(f"{tick}%".ljust(_WIDTH // 2) for tick in (0, 50, 100)).rstrip()
    lines: list[str] = []
    for task in dict.fromkeys(p.task for p in found):
        own = [p for p in found if p.task == task]
        lines += ["", f"{task}: accuracy on {own[0].accuracy.n} problems by thinking budget"]
        lines.append(f"{'budget':>{wide}}  {scale}")
        lines += [f"{p.label:>{wide}}  {_whisker(p.accuracy)}" for p in own]
    return "\n".join(lines[1:])


def _whisker(accuracy: Interval) -> str:
    if math.isnan(accuracy.mean):
        return "nothing could be decided"
    low, mean, high = (round(_WIDTH * x) for x in (accuracy.lo, accuracy.mean, accuracy.hi))
    cells = [" "] * (_WIDTH + 1)
    cells[low : high + 1] = "─" * (high + 1 - low)
    cells[low], cells[high], cells[mean] = "├", "┤", "●"
    return f"{''.join(cells).rstrip()} {accuracy.mean:.1%}"
