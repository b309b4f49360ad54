"""Held-out questions that are nearly training questions: alike in their words, whatever their
numbers.

A question is its normalised text with every number put as 0, cut into words; scripts without
spaces into characters. Two are alike where their runs of three words have a Jaccard similarity of
:data:`ALIKE` or more: one word in twelve replaced is still alike, one in eight no longer. Of those
that are alike, some have the same numbers (a rewording: what was trained on is the very problem)
and some have others (the same problem with new numbers, which measures whether a method was
learnt, and not whether it carries over to other problems).

All pairs that are alike are found, by the prefix filter of 10.1145/1242572.1242591: of a set of n
runs, a set that shares at least ``t·n`` of them must share one of any ``n − ⌈t·n⌉ + 1``, and the
rarest are looked up.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from lydite.tasks.select import comparable, learned_questions
from lydite.types import Problem

ALIKE = Fraction(7, 10)
"""Jaccard similarity from which two questions are alike."""

WORDS = 3
"""Words in a run."""

SHOWN, CHARACTERS = 3, 100
"""Pairs that a person is shown, and how much of each question."""

_NUMBER = re.compile(r"\d+")
_UNSPACED = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])"
)

Runs = frozenset[int]
"""Hashes of a question's runs of words."""


@dataclass(frozen=True, slots=True)
class Near:
    """A held-out problem and the training problem that it is most like. ``same_numbers``: they
    differ in words alone, or in the order of their numbers.
    """

    heldout: Problem
    trained: Problem
    similarity: float
    same_numbers: bool


@dataclass(slots=True)
class _Wording:
    """Questions that are the same but for their numbers, by the set of them. ``size``
    counts their runs, of which ``runs`` are those that matter.
    """

    size: int
    runs: Runs
    by_numbers: dict[tuple[str, ...], list[Problem]] = field(default_factory=dict)


def near_duplicates(train: Iterable[Problem], heldout: Iterable[Problem]) -> list[Near]:
    """The held-out problems that are alike to a training problem, each with one: with the same
    numbers if there is such a one, else the most similar. Questions that are equal in words and
    numbers are left to :func:`lydite.tasks.select.check_disjoint`, which refuses them.

    Linear in the number of questions but for those that share rare runs of words.
    """
    tested = _wordings((comparable(problem), problem) for problem in heldout)
    asked = frozenset().union(*(wording.runs for wording in tested.values()))
    trained = _wordings(((text, p) for problem in train for text, p in _learned(problem)), asked)
    found: dict[str, Near] = {}
    for text, wording in tested.items():
        if text in trained:
            _match(wording, trained[text], 1.0, found)
    candidates = _Prefixes(tested, trained.values())
    for text, wording in trained.items():
        for other in candidates.of(wording):
            if other != text:
                shared = len(wording.runs & tested[other].runs)
                union = wording.size + tested[other].size - shared
                if shared >= ALIKE * union:
                    _match(tested[other], wording, shared / union, found)
    every = (p for w in tested.values() for each in w.by_numbers.values() for p in each)
    return [found[problem.id] for problem in every if problem.id in found]


def _learned(problem: Problem) -> Iterator[tuple[str, Problem]]:
    return ((text, problem) for text in learned_questions(problem))


def _wordings(
    questions: Iterable[tuple[str, Problem]], matter: Runs | None = None
) -> dict[str, _Wording]:
    found: dict[str, _Wording] = {}
    for text, problem in questions:
        plain = _NUMBER.sub("0", text)
        if plain not in found:
            runs = runs_of(plain)
            # Of a hundred thousand questions, all runs would take half a gigabyte.
            found[plain] = _Wording(len(runs), runs if matter is None else runs & matter)
        numbers = tuple(sorted(_NUMBER.findall(text)))
        found[plain].by_numbers.setdefault(numbers, []).append(problem)
    return found


def runs_of(text: str) -> Runs:
    """Hashes of all runs of :data:`WORDS` words; of a shorter text, of the whole."""
    words = (text if text.isascii() else _UNSPACED.sub(r" \1 ", text)).split()
    if len(words) < WORDS:
        return frozenset({hash(tuple(words))})
    return frozenset(map(hash, zip(*(words[i:] for i in range(WORDS)), strict=False)))


def _match(tested: _Wording, trained: _Wording, alike: float, found: dict[str, Near]) -> None:
    """Notes what each question of a wording is most like."""
    first = next(iter(trained.by_numbers.values()))
    for numbers, problems in tested.by_numbers.items():
        same = trained.by_numbers.get(numbers, [])
        for problem in problems:
            if alike == 1.0 and any(comparable(problem) in learned_questions(p) for p in same):
                continue
            near = Near(problem, (same or first)[0], alike, bool(same))
            before = found.get(problem.id)
            if before is None or _closeness(near) > _closeness(before):
                found[problem.id] = near


def _closeness(near: Near) -> tuple[bool, float]:
    return near.same_numbers, near.similarity


class _Prefixes:
    """Which held-out wordings can be alike to a training wording."""

    def __init__(self, tested: Mapping[str, _Wording], trained: Iterable[_Wording]) -> None:
        common = Counter(run for wording in trained for run in wording.runs)
        self._size = {text: wording.size for text, wording in tested.items()}
        self._by_run: dict[int, list[str]] = defaultdict(list)
        for text, wording in tested.items():
            rarest = sorted(wording.runs, key=lambda run: (common[run], run))
            for run in rarest[: len(rarest) - math.ceil(ALIKE * len(rarest)) + 1]:
                if common[run]:
                    self._by_run[run].append(text)

    def of(self, trained: _Wording) -> set[str]:
        """Of sizes too different no two sets are alike."""
        low, high = ALIKE * trained.size, trained.size / ALIKE
        return {
            text
            for run in trained.runs
            if run in self._by_run
            for text in self._by_run[run]
            if low <= self._size[text] <= high
        }


def sentence(name: str, heldout: int, near: Sequence[Near]) -> str:
    """What was found of a held-out task, with its remedy; empty for nothing."""
    if not near:
        return ""
    same = [each for each in near if each.same_numbers]
    other = [each for each in near if not each.same_numbers]
    counts = [
        *([f"{len(same)} in their wording alone"] if same else []),
        *([f"{len(other)} in their numbers"] if other else []),
    ]
    shown = (same or other)[0]
    advice = (
        "take these out of one side, or split with `part: {by: numbers}`"
        if same
        else "they measure new numbers, not new kinds of problem"
    )
    return (
        f"{name}: {len(near)} of {heldout} held-out questions are nearly trained on: they differ "
        f"from a training question {' and '.join(counts)}, such as {_short(shown.heldout)} "
        f"from {_short(shown.trained)}; {advice}"
    )


def _short(problem: Problem) -> str:
    question = problem.question
    cut = question if len(question) <= CHARACTERS else f"{question[:CHARACTERS]}…"
    return f"{cut!r} ({problem.id})"


def pairs_shown(near: Sequence[Near]) -> tuple[str, ...]:
    """Some pairs as lines for a person, rewordings first."""
    chosen = sorted(near, key=lambda each: (not each.same_numbers, -each.similarity))[:SHOWN]
    return tuple(
        f"{_short(each.heldout)} ~ {_short(each.trained)}: {each.similarity:.0%} alike, "
        f"{'the same' if each.same_numbers else 'other'} numbers"
        for each in chosen
    )
