"""From the answers to what is recommended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from lydite.config import UserError
from lydite.model.policy import Policy
from lydite.pipeline.probe.subject import Subject
from lydite.rollout.curriculum import mixed_chance
from lydite.train.evaluate import UNDECIDED, Evaluation
from lydite.types import Outcome
from lydite.watch.intervals import Interval
from lydite.watch.probing import (
    Choice,
    GroupSize,
    Lengths,
    Limit,
    Shares,
    Tally,
    best_size,
    completion_limit,
    fit_beta,
    group_sizes,
    mixed,
    pass_curve,
    share_interval,
    shares,
    skill,
    tally,
)

LIKELY = 0.5
"""Chance of an informative group from which a problem is worth its sampling."""


@dataclass(frozen=True, slots=True)
class Band:
    """Problems worth sampling in groups of ``size``: their ids, the least and the largest observed
    pass rate among them, and the share of informative groups expected of all and of these.
    """

    size: int
    kept: tuple[str, ...]
    lo: float
    hi: float
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Findings:
    """All that the answers say. ``undecided`` counts completions that could not be judged."""

    tallies: tuple[Tally, ...]
    undecided: int
    accuracy: Interval
    tags: tuple[tuple[str, Interval], ...]
    shares: Shares
    curve: tuple[tuple[int, Interval], ...]
    sizes: tuple[GroupSize, ...]
    choice: Choice | None
    band: Band | None
    right: Lengths
    every: Lengths
    limit: Limit
    skill: str
    notes: tuple[str, ...]


def findings(subject: Subject, policy: Policy, found: Evaluation) -> Findings:
    """What the answers of a probe say.

    Raises:
        UserError: too few answers could be judged to say anything.
    """
    tallies = _tallies(found)
    if not tallies:
        raise UserError(
            "probe: no problem has two answers that could be judged; look at the verifier with "
            "`lydite verify`"
        )
    right, every = _lengths(found)
    choice = best_size(tallies, subject.stage.group_size)
    tags = dict.fromkeys(sorted(t.tag for t in tallies))
    curve, split = tuple(pass_curve(tallies)), shares(tallies)
    return Findings(
        tuple(tallies),
        found.undecided,
        share_interval([t.rate for t in tallies]),
        tuple((tag, share_interval([t.rate for t in tallies if t.tag == tag])) for tag in tags)
        if len(tags) > 1
        else (),
        split,
        curve,
        tuple(group_sizes(tallies)),
        choice,
        None if choice is None else band(tallies, choice.size),
        right,
        every,
        _limit(subject, policy, right, every),
        skill(curve, split),
        _notes(subject, found),
    )


def _tallies(found: Evaluation) -> list[Tally]:
    """In the order of the problems."""
    right: dict[str, list[bool]] = {}
    rewards: dict[str, list[float]] = {}
    tags: dict[str, str] = {}
    for answer in found.answers:
        problem, verdict = answer.prompt.problem, answer.verdict
        tags[problem.id] = problem.tag
        if verdict.outcome not in UNDECIDED and verdict.reward is not None:
            right.setdefault(problem.id, []).append(verdict.outcome is Outcome.CORRECT)
            rewards.setdefault(problem.id, []).append(verdict.reward)
    made = (tally(name, right.get(name, []), rewards.get(name, []), tags[name]) for name in tags)
    return [each for each in made if each is not None]


def _lengths(found: Evaluation) -> tuple[Lengths, Lengths]:
    """Of right answers, and of all."""

    def of(answers: Sequence[tuple[int, bool]]) -> Lengths:
        return Lengths(tuple(sorted(n for n, _ in answers)), sum(cut for _, cut in answers))

    known = [
        (a.completion.sampled, a.completion.finish == "length", a.verdict.outcome)
        for a in found.answers
    ]
    right = of([(n, cut) for n, cut, outcome in known if outcome is Outcome.CORRECT])
    return right, of([(n, cut) for n, cut, _ in known])


def band(tallies: Sequence[Tally], size: int) -> Band | None:
    """The problems whose group is likelier than not to be informative, given what was seen of them
    and how pass rates are distributed over problems; where none is, those that were now and then
    right. ``None`` where nothing differs.
    """
    a, b = fit_beta(tallies)
    chances = {
        t.problem_id: max(
            mixed_chance(a + t.right, b + t.decided - t.right, size),
            # Graded rewards can differ among answers that are all wrong.
            mixed(t.alike, min(size, t.decided)) if len(t.alike) > 2 else 0.0,
        )
        for t in tallies
    }
    kept = [t for t in tallies if chances[t.problem_id] >= LIKELY]
    kept = kept or [t for t in tallies if len(t.alike) > 1]
    if not kept:
        return None
    return Band(
        size,
        tuple(t.problem_id for t in kept),
        min(t.rate for t in kept),
        max(t.rate for t in kept),
        fmean(chances.values()),
        fmean(chances[t.problem_id] for t in kept),
    )


def _limit(subject: Subject, policy: Policy, right: Lengths, every: Lengths) -> Limit:
    """The limit that the lengths call for, where the recipe and the model allow it."""
    stage = subject.stage
    found = completion_limit(right, every, stage.sampling.max_tokens)
    if found.verdict == "lower" and stage.sampling.thinking_budget is not None:
        return Limit(stage.sampling.max_tokens, "keep", "thinking has a budget")
    if found.verdict == "raise":
        wider = stage.sampling.model_copy(update={"max_tokens": found.tokens})
        try:
            stage.model_copy(update={"sampling": wider}).fit(policy, subject.problems)
        except UserError as error:
            return Limit(stage.sampling.max_tokens, "keep", f"{found.why}, but {error}")
    return found


def _notes(subject: Subject, found: Evaluation) -> tuple[str, ...]:
    notes = []
    total = len(found.answers)
    allowed = subject.verifier.limits.fail_rate
    if found.undecided:
        past = found.undecided > allowed * total
        detail = next(
            (a.verdict.detail for a in found.answers if a.verdict.outcome in UNDECIDED), ""
        )
        notes.append(
            f"{found.undecided} of {total} answers could not be judged and count for nothing "
            f"({detail or 'no reason given'})"
            + (f"; a run stops past {allowed:.0%} (verifier.limits.fail_rate)" if past else "")
        )
    if not subject.whole:
        notes.append(
            f"{len(subject.problems)} of {len(subject.data.problems)} problems were probed, so the "
            "filtered file is no replacement for the task: to filter all of it, probe it with "
            f"--problems {len(subject.data.problems)} (what is there is not sampled again)"
        )
    return tuple(notes)
