"""The failures of an audit as a pytest file, which fails until they are mended."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lydite.pipeline.audit.report import Report
from lydite.pipeline.audit.subject import Spelling
from lydite.types import Message, Problem
from lydite.verify.audit import Finding, Target
from lydite.verify.audit.assess import accepted, level
from lydite.verify.audit.trial import ask
from lydite.verify.verifier import build

LITERAL = 2000
"""Longer texts are packed: an editor should open the file."""

_HEAD = '''"""What `lydite audit {name}` found, one test a case: `pytest {file}`.

A completion counts as accepted when its reward is nearer to that of a right answer than to that of
a wrong one. Texts are hostile and written in escapes; long ones are packed.
"""

import pytest

from lydite.pipeline.audit.testfile import Replay, unpack

SPELLING = {spelling}

# id: (problem, a right answer, a wrong answer)
PROBLEMS = {problems}

# problem, whether it must be accepted, completion
CASES = {cases}


@pytest.fixture(scope="module")
def replay():
    with Replay(SPELLING, PROBLEMS, {told_apart}) as ready:
        yield ready


@pytest.mark.parametrize(("problem", "accept", "completion"), CASES)
def test_case(replay, problem, accept, completion):
    replay.check(problem, accept, completion)
'''


def pack(text: str) -> str:
    """A long text in a few letters that are safe anywhere."""
    packed = zlib.compress(text.encode("utf-8", "surrogatepass"), 9)
    return base64.b85encode(packed).decode()


def unpack(packed: str) -> str:
    """What :func:`pack` was given."""
    return zlib.decompress(base64.b85decode(packed)).decode("utf-8", "surrogatepass")


class Replay:
    """A verifier and what it pays for right and wrong answers, for the cases of a test file.

    Args:
        spelling: the fields of :class:`~lydite.pipeline.audit.subject.Spelling`.
        problems: by id, each as a mapping, with a right and a wrong completion.
        told_apart: whether right answers were paid more than wrong ones when the file was made.
    """

    def __init__(
        self,
        spelling: dict[str, Any],
        problems: dict[str, tuple[dict[str, Any], str, str]],
        told_apart: bool = True,
    ) -> None:
        self._verifier = build(Spelling(**spelling).config())
        self._problems = {key: _problem(fields) for key, (fields, _, _) in problems.items()}
        self._sides = {key: sides for key, (_, *sides) in problems.items()}
        self._told_apart = told_apart
        self._rewards: dict[str, tuple[float, float]] = {}

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, *error: object) -> None:
        self._verifier.close()

    def check(self, problem: str, accept: bool, completion: str) -> None:
        """Fails unless the completion is judged as it must be."""
        trial = ask(self._verifier, (self._problems[problem], completion))
        bar = self._level(problem)
        taken = accepted(trial, bar)
        said = trial.error or trial.detail
        if accept:
            assert taken, f"refused: reward {trial.reward}, a right answer has {bar:g}: {said}"
        else:
            assert not taken, f"accepted: reward {trial.reward}, which counts from {bar:g}: {said}"

    def _level(self, key: str) -> float:
        return level(self._paid(key), self._all_paid() if self._told_apart else [])

    def _all_paid(self) -> list[tuple[float, float]]:
        return [self._paid(key) for key in self._problems]

    def _paid(self, key: str) -> tuple[float, float]:
        if key not in self._rewards:
            right, wrong = (
                ask(self._verifier, (self._problems[key], text)).reward or 0.0
                for text in self._sides[key]
            )
            self._rewards[key] = right, wrong
        return self._rewards[key]


def _problem(fields: dict[str, Any]) -> Problem:
    messages = tuple(Message(**message) for message in fields["messages"])
    return Problem(**{**fields, "messages": messages})


def as_tests(report: Report, file: str) -> str:
    """The source of a test file with a test for every wrong verdict of the report."""
    wrong = [finding for finding in report.assessment.findings if finding.at_fault]
    targets = report.assessment.targets
    used = dict.fromkeys(finding.case.target for finding in wrong)
    return _HEAD.format(
        name=_plain(report.subject.name),
        file=_plain(file),
        spelling=ascii(asdict(report.subject.spelling)),
        problems=_lines("{}", [_problem_line(targets[number]) for number in used]),
        cases=_lines("[]", [_case_line(finding) for finding in wrong]),
        told_apart=report.assessment.told_apart,
    )


def _plain(name: str) -> str:
    return re.sub(r"[^\w./: -]", "?", name)


def _lines(brackets: str, lines: Sequence[str]) -> str:
    body = "".join(f"    {line},\n" for line in lines)
    return f"{brackets[0]}\n{body}{brackets[1]}"


def _problem_line(target: Target) -> str:
    problem = target.problem
    fields = {**asdict(problem), "fields": dict(problem.fields)}
    sides = target.place(target.gold), target.place(target.wrong)
    return f"{problem.id!a}: ({fields!a}, {', '.join(map(literal, sides))})"


def _case_line(finding: Finding) -> str:
    case = finding.case
    name = ascii(f"{case.family}: {case.attack}: {case.problem.id}")
    accept = case.want == "accept"
    return f"pytest.param({case.problem.id!a}, {accept}, {literal(case.text)}, id={name})"


def literal(text: str) -> str:
    """A Python expression for a text, whatever it holds: in ASCII, packed when it is long."""
    return ascii(text) if len(text) <= LITERAL else f"unpack({pack(text)!a})"
