"""Held-out evaluation of a model that can think or answer at once: its score in each mode, and
whether it does as it is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from lydite.config import UserError
from lydite.model.policy import Policy
from lydite.model.render import prompt_text, render_prompt
from lydite.model.thinking import CLOSE, has_switch, prefilled
from lydite.tasks.switch import Mode, after, asks_to_think, earlier_mode, in_mode
from lydite.train.evaluate import Answered, Evaluation, Prompt
from lydite.types import Completion, Problem
from lydite.verify.spoken import part_of

Measure = Callable[[str, Sequence[Prompt]], Evaluation]
"""Evaluates prompts under the name of a task."""


def mode_task(task: str, mode: Mode) -> str:
    """What a task is called in a mode."""
    return f"{task}.{mode}"


def evaluate_modes(
    task: str,
    problems: Sequence[Problem],
    modes: Sequence[Mode],
    policy: Policy,
    measure: Measure,
) -> list[Evaluation]:
    """One evaluation for each mode, with its obedience, named by :func:`mode_task`.

    In ``last_…`` the turn before is another of the problems, asked the other way, with what this
    model answered. A mode that only such an answer needs is measured too, and not returned.

    Raises:
        UserError: a prompt cannot be rendered, or leaves no room for a completion; or the hard
            switch is asked for, and the chat template has none.
    """
    check_modes(modes, policy)
    found: dict[Mode, Evaluation] = {}

    def evaluated(mode: Mode) -> Evaluation:
        if mode not in found:
            earlier = earlier_mode(mode)
            if earlier is None:
                asked = [_prompt(policy, in_mode(p, mode)) for p in problems]
            else:
                said = {a.prompt.problem.id: a for a in reversed(evaluated(earlier).answers)}
                asked = _asked_after(policy, problems, mode, said)
            result = measure(mode_task(task, mode), asked)
            found[mode] = replace(result, obedience=obedience(policy, result.answers))
        return found[mode]

    return [evaluated(mode) for mode in modes]


def check_modes(modes: Sequence[Mode], policy: Policy) -> None:
    """Raises ``UserError`` where the hard switch is asked for, and the chat template has none."""
    hard = [mode for mode in modes if mode.startswith("hard_")]
    if hard and not (policy.chat and has_switch(policy.tokenizer)):
        raise UserError(
            f"modes: {hard[0]} has no effect, for the chat template has no switch enable_thinking; "
            "train with model.thinking_switch, or leave this mode out"
        )


def obedience(policy: Policy, answers: Sequence[Answered]) -> float:
    """The share of completions that think where their prompt asks for it, and do not where it asks
    for none.
    """
    opened: dict[str, str] = {}
    kept = 0
    for answer in answers:
        problem = answer.prompt.problem
        if problem.id not in opened:
            opened[problem.id] = prefilled(
                prompt_text(policy, problem.messages, thinking=problem.thinking)
            )
        kept += thinks(answer.completion, opened[problem.id]) == asks_to_think(problem)
    return kept / max(1, len(answers))


def thinks(completion: Completion, written: str = "") -> bool:
    """Whether there is anything in the thinking of a completion; its prompt ends in ``written``."""
    text = completion.text
    if written and CLOSE not in written and CLOSE not in text:
        return bool(text.strip())  # Cut off within what the prompt opened.
    return bool(part_of(text, "thinking"))


def _prompt(policy: Policy, problem: Problem) -> Prompt:
    return Prompt(problem, render_prompt(policy, problem))


def _asked_after(
    policy: Policy, problems: Sequence[Problem], mode: Mode, said: Mapping[str, Answered]
) -> list[Prompt]:
    """Each problem behind the one before it, the first behind the last."""
    asked = []
    for number, problem in enumerate(problems):
        before = said[problems[number - 1].id]
        last = in_mode(problem, mode)
        # What was cut off is no answer, and a long one may leave no room: then the gold one is.
        gold = before.prompt.problem.reference or ""
        answer = before.completion.text if before.completion.finish == "stop" else gold
        try:
            asked.append(_prompt(policy, after(last, before.prompt.problem, answer)))
        except UserError:
            asked.append(_prompt(policy, after(last, before.prompt.problem, gold)))
    return asked
