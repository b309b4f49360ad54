"""Pairs out of verified answers: a right and a wrong one to the same problem.

Nothing is dropped in silence: every answer and problem that comes to no pair is counted under a
reason.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from lydite.config import Config
from lydite.types import Outcome

Rule = Literal["random", "shortest_right", "closest_length"]

WRONG = frozenset({Outcome.WRONG, Outcome.UNPARSEABLE})
"""What is the model's fault beyond doubt; a timeout may be the machine's."""


class ChoiceConfig(Config):
    """Which pairs are made of a problem's answers."""

    rule: Rule = Field(
        "random",
        description="`random`: any right one with any wrong one. `shortest_right`: the shortest "
        "right one with the longest wrong one, then the next. `closest_length`: those nearest in "
        "length, so that length is not what is learned.",
    )
    per_problem: int = Field(1, ge=1, description="Most pairs of one problem.")
    allow_cut_off: bool = Field(
        False,
        description="Take right answers too that the token limit cut off; they teach not to end.",
    )


@dataclass(frozen=True, slots=True)
class Candidate:
    """An answer that was verified. ``finished`` says whether the model ended it itself; ``source``
    where it comes from.
    """

    text: str
    token_ids: tuple[int, ...]
    outcome: Outcome
    finished: bool
    source: str


@dataclass(frozen=True, slots=True)
class Chosen:
    """Two answers to the problem ``problem_id``, the better first."""

    problem_id: str
    better: Candidate
    worse: Candidate


@dataclass(frozen=True, slots=True)
class Mined:
    """Pairs in the order of the problems, and how much was dropped by reason."""

    pairs: tuple[Chosen, ...]
    dropped: Mapping[str, int] = field(default_factory=dict)

    def report(self) -> str:
        """Both in a sentence."""
        problems = len({pair.problem_id for pair in self.pairs})
        found = f"{len(self.pairs)} pairs of {problems} problems"
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.dropped.items())
        return f"{found}; dropped: {reasons}" if reasons else found


def mine(answers: Mapping[str, Sequence[Candidate]], choice: ChoiceConfig, seed: int) -> Mined:
    """Pairs of each problem's answers, by problem id.

    What is chosen of a problem depends on the seed and on its own answers alone, not on their
    order or on other problems.
    """
    pairs: list[Chosen] = []
    dropped: Counter[str] = Counter()
    for problem, found in answers.items():
        usable = _usable(found, choice, dropped)
        right = [a for a in usable if a.outcome is Outcome.CORRECT]
        wrong = [a for a in usable if a.outcome in WRONG]
        if right and wrong:
            taken = _RULES[choice.rule](right, wrong, choice.per_problem, f"{seed}:{problem}")
            pairs += [Chosen(problem, better, worse) for better, worse in taken]
            used = {id(answer) for both in taken for answer in both}
            dropped["answers beyond what per_problem takes"] += len(usable) - len(used)
        else:
            dropped[
                "problems with right answers only"
                if right
                else "problems with wrong answers only"
                if wrong
                else "problems with no answer to use"
            ] += 1
    return Mined(tuple(pairs), {reason: n for reason, n in dropped.items() if n})


def _usable(
    found: Iterable[Candidate], choice: ChoiceConfig, dropped: Counter[str]
) -> list[Candidate]:
    """Each text once, in an order that does not depend on when it was sampled."""
    first: dict[str, Candidate] = {}
    for answer in sorted(found, key=lambda a: (len(a.token_ids), a.text, a.source)):
        reason = _unusable(answer, choice.allow_cut_off)
        if reason is None and first.setdefault(answer.text, answer) is not answer:
            reason = "answers that repeat another"
        if reason is not None:
            dropped[reason] += 1
    return list(first.values())


def _unusable(answer: Candidate, allow_cut_off: bool) -> str | None:
    if answer.outcome not in WRONG | {Outcome.CORRECT}:
        return "answers not decided"
    if not answer.token_ids:
        return "empty answers"
    if answer.outcome is Outcome.CORRECT and not (answer.finished or allow_cut_off):
        return "right answers cut off"
    return None


_Taken = list[tuple[Candidate, Candidate]]


def _random(right: list[Candidate], wrong: list[Candidate], most: int, address: str) -> _Taken:
    drawn = random.Random(address).sample(
        range(len(right) * len(wrong)), min(most, len(right) * len(wrong))
    )
    return [(right[place % len(right)], wrong[place // len(right)]) for place in drawn]


def _shortest_right(right: list[Candidate], wrong: list[Candidate], most: int, _: str) -> _Taken:
    longest = sorted(wrong, key=lambda answer: -len(answer.token_ids))
    return list(zip(right, longest, strict=False))[:most]


def _closest_length(right: list[Candidate], wrong: list[Candidate], most: int, _: str) -> _Taken:
    """Nearest first, each answer in one pair."""

    def distance(both: tuple[Candidate, Candidate]) -> int:
        return abs(len(both[0].token_ids) - len(both[1].token_ids))

    taken: _Taken = []
    used: set[int] = set()
    for better, worse in sorted(((r, w) for r in right for w in wrong), key=distance):
        if len(taken) < most and not used & {id(better), id(worse)}:
            taken.append((better, worse))
            used |= {id(better), id(worse)}
    return taken


_RULES = {
    "random": _random,
    "shortest_right": _shortest_right,
    "closest_length": _closest_length,
}
