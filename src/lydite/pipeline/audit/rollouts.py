"""Rollouts of a run through two graders: where they disagree, for a person to read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lydite.config import UserError
from lydite.types import Message, Outcome, Problem, Verdict, Verifier
from lydite.watch.samples import Sample, read_samples

CHUNK = 64


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A completion that one grader takes and the other does not. ``times`` is how often the same
    answer to the same problem occurs.
    """

    problem_id: str
    prompt: str
    reference: str | None
    completion: str
    answer: str | None
    reward: float | None
    accepted: bool
    against_reward: float | None
    against_answer: str | None
    step: int
    times: int


@dataclass(frozen=True, slots=True)
class Disagreements:
    """``pairs`` in the order to read them: first what only the audited reward takes, the most
    frequent first. ``changed`` counts rewards that are not what the run recorded.
    """

    against: str
    total: int
    both: int
    neither: int
    pairs: Sequence[Disagreement]
    changed: int


def disagreements(
    path: Path,
    ours: Verifier,
    theirs: Verifier,
    against: str,
    known: Mapping[str, Problem],
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> Disagreements:
    """Scores the rollouts of a run again, with the audited reward and with another.

    ``known`` are problems by id, for the columns that a reward may need; the rest are made of what
    the rollouts hold. A grader takes a completion when its outcome is ``correct``, which for a
    function is a reward above its ``correct_above``.

    Raises:
        UserError: there are no rollouts.
    """
    samples = [each for each in _read(path) if each.reference is not None]
    if not samples:
        raise UserError(f"--rollouts {path}: no rollout with a reference in it")
    problems = [known.get(each.problem_id) or _problem(each) for each in samples]
    texts = [each.completion for each in samples]
    first: list[Verdict] = []
    second: list[Verdict] = []
    for start in range(0, len(samples), CHUNK):
        part = slice(start, start + CHUNK)
        first += ours.verify(problems[part], texts[part])
        second += theirs.verify(problems[part], texts[part])
        tell(min(start + CHUNK, len(samples)), len(samples))
    taken = list(zip(samples, first, second, strict=True))
    agree = [(_takes(one), _takes(two)) for _, one, two in taken]
    return Disagreements(
        against,
        len(samples),
        sum(one and two for one, two in agree),
        sum(not one and not two for one, two in agree),
        _sorted([each for each, (one, two) in zip(taken, agree, strict=True) if one != two]),
        sum(_differs(sample.reward, verdict.reward) for sample, verdict, _ in taken),
    )


def _read(path: Path) -> list[Sample]:
    if not path.exists():
        raise UserError(f"--rollouts {path}: no such file or folder; give runs/NAME/samples")
    return read_samples(path)


def _problem(sample: Sample) -> Problem:
    return Problem(
        sample.problem_id,
        sample.prompt,
        (Message("user", sample.prompt),),
        sample.reference,
        sample.tag,
    )


def _takes(verdict: Verdict) -> bool:
    return verdict.outcome is Outcome.CORRECT


def _differs(recorded: float | None, now: float | None) -> bool:
    if recorded is None or now is None:
        return recorded is not now
    return abs(recorded - now) > 1e-9


def _sorted(taken: Sequence[tuple[Sample, Verdict, Verdict]]) -> list[Disagreement]:
    """One for each answer to a problem."""
    groups: dict[tuple[str, str, bool], list[tuple[Sample, Verdict, Verdict]]] = {}
    for each in taken:
        sample, one, two = each
        key = (sample.problem_id, one.answer or two.answer or sample.completion, _takes(one))
        groups.setdefault(key, []).append(each)
    found = []
    for (_, _, accepted), group in groups.items():
        sample, one, two = min(group, key=lambda each: len(each[0].completion))
        found.append(
            Disagreement(
                sample.problem_id,
                sample.prompt,
                sample.reference,
                sample.completion,
                one.answer,
                one.reward,
                accepted,
                two.reward,
                two.answer,
                sample.step,
                len(group),
            )
        )
    return sorted(found, key=lambda each: (not each.accepted, -each.times, len(each.completion)))
