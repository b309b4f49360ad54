"""Whether a completion has the structure that was asked for: a thought, then an answer."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from lydite.tasks.switch import asks_to_think
from lydite.types import Outcome, Problem
from lydite.verify.answer import CLOSE_THINK, OPEN_THINK, after_thinking, last_boxed
from lydite.verify.score import Score
from lydite.verify.text_config import FormatConfig

_EMPTY = re.compile(rf"\A\s*(?:{OPEN_THINK})?\s*{CLOSE_THINK}")
_ANSWER_TAG = re.compile(r"</?answer>")


def malformed(
    text: str, thinking: str = "required", answer: str = "any", opening: str = "auto"
) -> str | None:
    """What is wrong with the structure, or ``None``.

    A thought is one ``</think>``, before it at most one ``<think>`` with nothing in front, and at
    least a letter or digit in between: points, spaces and signs without width are no thought.
    Templates that prefill ``<think>`` leave the opening one out of the completion. The settings are
    those of :class:`~lydite.verify.text_config.FormatConfig`.
    """
    opened, closed = text.count(OPEN_THINK), text.count(CLOSE_THINK)
    if thinking == "forbidden" and (opened or closed):
        return "there is a thought"
    if thinking == "required" or opened or closed:
        wrong = _malformed_thought(text, opened, closed, opening)
        if wrong is not None:
            return wrong
    spoken = after_thinking(text).text or ""
    if answer == "any" and not _seen(spoken):
        return "nothing follows the thought" if closed else "the completion is empty"
    if answer == "boxed" and not _seen(last_boxed(spoken) or ""):
        return "there is no \\boxed{} with an answer after the thought"
    if answer == "tag":
        tags = _ANSWER_TAG.findall(spoken)
        if tags != ["<answer>", "</answer>"] or _ANSWER_TAG.search(text[: len(text) - len(spoken)]):
            return "there is not exactly one <answer>…</answer> after the thought"
        if not _seen(spoken.partition("<answer>")[2].partition("</answer>")[0]):
            return "the <answer>…</answer> is empty"
    return None


def _malformed_thought(text: str, opened: int, closed: int, opening: str) -> str | None:
    if closed != 1:
        return "the thought is never closed" if closed == 0 else f"</think> occurs {closed} times"
    if opened > 1:
        return f"<think> occurs {opened} times"
    if opening == "written" and not opened:
        return "<think> is missing"
    if opening == "prefilled" and opened:
        return "<think> is opened again after the prompt opened it"
    thought = text.partition(CLOSE_THINK)[0]
    if opened:
        before, tag, thought = thought.partition(OPEN_THINK)
        if not tag or before.strip():
            return "<think> does not come first"
    return None if any(map(str.isalnum, thought)) else "the thought is empty"


def _seen(text: str) -> bool:
    """Whether anything in a text can be seen: spaces and signs without width cannot."""
    return any(not c.isspace() and unicodedata.category(c) not in ("Cf", "Cc") for c in text)


class FormatReward:
    """1.0 for a well-formed completion, 0.0 for another."""

    def __init__(self, config: FormatConfig, name: str) -> None:
        self.name = name
        self.weight = config.weight
        self.decides = 0
        self._config = config

    def score(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Score]:
        """One score per completion, in order."""
        pairs = zip(problems, texts, strict=True)
        return [self._score(problem, text) for problem, text in pairs]

    def check_golds(self, problems: Sequence[Problem]) -> list[str | None]:
        """A structure needs no reference."""
        return [None] * len(problems)

    def _score(self, problem: Problem, text: str) -> Score:
        config, thinking = self._config, self._config.thinking
        if thinking == "asked":
            thinking = "required" if asks_to_think(problem) else "forbidden"
            text = text if thinking == "required" else _EMPTY.sub("", text)
        wrong = malformed(text, thinking, config.answer, config.opening)
        return Score(
            Outcome.CORRECT if wrong is None else Outcome.WRONG,
            1.0 if wrong is None else 0.0,
            detail=wrong or "",
        )
