"""The rewards that compare the final answer with the reference: mathematically, or as written."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, get_args

from lydite.types import Outcome, Problem
from lydite.verify import notation
from lydite.verify.answer import AnswerType, FinalAnswer, read_answer
from lydite.verify.base_config import AnswerConfig
from lydite.verify.math import Decision, NeedsAlgebra, check_reference, grade, refuse_algebra
from lydite.verify.number import read_number, same_number
from lydite.verify.pool import Handler, Item, Pool, Reply
from lydite.verify.score import Score
from lydite.verify.settings import ExactConfig, MathConfig

ANSWER_TYPES = get_args(AnswerType)
Stated = tuple[Any, Any, bool]
NO_REFERENCE = "the problem has no reference answer"
MATH_HANDLER = Handler("lydite.verify.algebra:grader")


def _read(config: AnswerConfig, text: str) -> FinalAnswer:
    settings = (config.answer, config.marker, config.thinking, config.max_chars, config.strict)
    return read_answer(text, *settings, units=isinstance(config, MathConfig))


def _score(decision: Decision, answer: str | None, seconds: float) -> Score:
    """1 for correct, nothing when it could not be decided, else 0: running out of time is the
    answer's own cost.
    """
    reward = (
        None
        if decision.outcome in (Outcome.CRASHED, Outcome.UNGRADABLE)
        else float(decision.outcome is Outcome.CORRECT)
    )
    return Score(decision.outcome, reward, answer, decision.detail, seconds)


class MathReward:
    """1.0 if the final answer equals the reference, else 0.0.

    What can be decided by reading is decided here, in microseconds; the rest goes to the pool. An
    answer that takes more than its limit of time or memory is ``timeout`` and pays 0, because the
    answer is what cost it; a worker that is lost otherwise is ``crashed`` and pays nothing.
    """

    def __init__(
        self, config: MathConfig, name: str, pool: Pool, handler: int, seconds: float
    ) -> None:
        self.name = name
        self.weight = config.weight
        self.decides = 2
        self._config = config
        self._pool = pool
        self._handler = handler
        self._seconds = seconds

    def score(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Score]:
        """One score per completion, in order."""
        begun = [time.perf_counter()]
        answers: list[FinalAnswer] = []
        for text in texts:
            answers.append(_read(self._config, text))
            begun.append(time.perf_counter())
        reading = [after - before for before, after in pairwise(begun)]
        decided = self._decide(problems, [answer.text for answer in answers])
        return [
            _score(decision, answer.text, seconds + spent)
            if answer.text is not None or problem.reference is None
            else Score(Outcome.UNPARSEABLE, 0.0, detail=answer.reason, seconds=spent)
            for (decision, seconds), answer, problem, spent in zip(
                decided, answers, problems, reading, strict=True
            )
        ]

    def check_golds(self, problems: Sequence[Problem]) -> list[str | None]:
        """Every reference must be readable and equal itself."""
        decided = self._decide(problems, [None] * len(problems), reference_only=True)
        return [
            None if decision.outcome is Outcome.CORRECT else decision.detail
            for decision, _ in decided
        ]

    def _decide(
        self,
        problems: Sequence[Problem],
        answers: Sequence[str | None],
        reference_only: bool = False,
    ) -> list[tuple[Decision, float]]:
        """The decision on each answer, or reference alone, with its seconds."""
        decided: list[tuple[Decision, float]] = []
        items: list[Item] = []
        places: list[int] = []
        for problem, answer in zip(problems, answers, strict=True):
            begun = time.perf_counter()
            stated = self._stated(problem)
            decision = _decide_by_reading(problem.reference, answer, stated, reference_only)
            if decision is None:
                places.append(len(decided))
                payload = (problem.reference, answer, *stated)
                items.append(Item(self._handler, payload, self._seconds))
            decided.append((decision or Decision(Outcome.CRASHED), time.perf_counter() - begun))
        for place, reply in zip(places, self._pool.run(items), strict=True):
            decided[place] = (_decision(reply), decided[place][1] + reply.seconds)
        return decided

    def _stated(self, problem: Problem) -> Stated:
        """The answer type and tolerance that hold for a problem (its columns', else the
        settings'), and whether a plain number may be left unevaluated.
        """
        kind = problem.fields.get("answer_type") or self._config.type
        tolerance = problem.fields.get("tolerance")
        unevaluated = self._config.unevaluated == "accept"
        return kind, self._config.tolerance if tolerance is None else tolerance, unevaluated


def _decide_by_reading(
    gold: str | None, answer: str | None, stated: Stated, reference_only: bool
) -> Decision | None:
    """What needs no algebra; ``None`` for the rest."""
    kind, tolerance, unevaluated = stated
    if gold is None:
        return Decision(Outcome.UNGRADABLE, NO_REFERENCE)
    if kind not in ANSWER_TYPES:
        known = ", ".join(ANSWER_TYPES)
        return Decision(Outcome.UNGRADABLE, f"answer_type {kind!r:.40} is none of {known}")
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float):
        return Decision(Outcome.UNGRADABLE, f"tolerance {tolerance!r:.40} is no number")
    if not 0 <= tolerance < 1:
        return Decision(Outcome.UNGRADABLE, f"tolerance {tolerance} is not in [0, 1)")
    try:
        if reference_only:
            return check_reference(gold, refuse_algebra, kind)
        if answer is None:
            return Decision(Outcome.UNPARSEABLE)
        return grade(gold, answer, refuse_algebra, kind, tolerance, unevaluated)
    except NeedsAlgebra:
        return None
    except Exception as error:
        # A verifier never raises for what a model wrote, and references are tested before.
        detail = f"the answer cannot be read ({type(error).__name__})"
        return Decision(Outcome.UNGRADABLE if answer is None else Outcome.UNPARSEABLE, detail)


def _decision(reply: Reply) -> Decision:
    if reply.status == "done" and isinstance(reply.value, dict):
        return Decision(Outcome(reply.value["outcome"]), str(reply.value["detail"]))
    if reply.status in ("timeout", "memory"):
        return Decision(Outcome.TIMEOUT, reply.detail)
    return Decision(Outcome.CRASHED, reply.detail)


class ExactReward:
    """1.0 if the final answer is the reference: the same plain number, or the same text in one
    spelling; else 0.0.
    """

    def __init__(self, config: ExactConfig, name: str) -> None:
        self.name = name
        self.weight = config.weight
        self.decides = 2
        self._config = config

    def score(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Score]:
        """One score per completion, in order."""
        return [
            self._score(problem.reference, text)
            for problem, text in zip(problems, texts, strict=True)
        ]

    def check_golds(self, problems: Sequence[Problem]) -> list[str | None]:
        """A reference must be there and hold something to compare."""
        return [
            NO_REFERENCE
            if problem.reference is None
            else None
            if _spelling(problem.reference, False)
            else "it is empty"
            for problem in problems
        ]

    def _score(self, gold: str | None, text: str) -> Score:
        begun = time.perf_counter()
        answer = _read(self._config, text)
        if gold is None:
            decision = Decision(Outcome.UNGRADABLE, NO_REFERENCE)
        elif answer.text is None:
            decision = Decision(Outcome.UNPARSEABLE, answer.reason)
        else:
            decision = Decision(
                Outcome.CORRECT
                if same_writing(gold, answer.text, self._config.case_sensitive)
                else Outcome.WRONG
            )
        return _score(decision, answer.text, time.perf_counter() - begun)


def same_writing(gold: str, answer: str, case_sensitive: bool = False) -> bool:
    """Whether two answers are the same plain number or the same text, spaces, wrappers and closing
    points aside.
    """
    numbers = read_number(notation.normalise(gold)), read_number(notation.normalise(answer))
    if numbers[0] is not None and numbers[1] is not None:
        return same_number(numbers[0], numbers[1])
    spelled = _spelling(gold, case_sensitive)
    return bool(spelled) and spelled == _spelling(answer, case_sensitive)


def _spelling(text: str, case_sensitive: bool) -> str:
    opened = " ".join(notation.open_text(notation.strip_outer(text)).split())
    return opened if case_sensitive else opened.casefold()
