"""The audit of one verifier: what it reads, what it is fooled by, how it behaves."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from lydite.config import UserError
from lydite.types import Verifier
from lydite.verify.audit.anywhere import ANYWHERE
from lydite.verify.audit.attack import Attack, Case, Example, Kind, Target, Want
from lydite.verify.audit.behaviour import (
    Behaviour,
    inputs_kept,
    observed,
    repeated_calls,
    repetition,
)
from lydite.verify.audit.kinds import kind_of, numbers_in, plainly_wrong
from lydite.verify.audit.near import NEAR
from lydite.verify.audit.programs import PROGRAMS
from lydite.verify.audit.rewrites import DATA_REWRITES, REWRITES
from lydite.verify.audit.trial import Pair, Progress, Trial, ask_all
from lydite.verify.audit.wording import (
    EXPLICIT,
    Wording,
    named_places,
    paid_of,
    readable,
    wordings,
)

ATTACKS: tuple[Attack, ...] = (*ANYWHERE, *NEAR, *PROGRAMS, *REWRITES)
CALIBRATED = 12
"""Problems that the wordings are tried on."""

SAMPLE = 16
MOST_EACH = 32
"""Completions of one attack on one problem."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is audited, with which problems.

    ``by_value`` is whether the reward promises to accept what equals the reference in another
    form; without it such rewrites are left out. ``seconds`` is the limit of one completion,
    ``threads`` how many are asked about at once, ``heavy`` how many problems of a genre meet the
    attacks that are long or costly. ``grouped`` says that it compares the completions of a problem
    with each other by design, so that what stands beside a completion may change its reward;
    ``data`` that it reads JSON, so that right answers are rewritten as such.
    """

    verifier: Verifier
    examples: Sequence[Example]
    by_value: bool = True
    seed: int = 0
    seconds: float = 5.0
    threads: int = 2
    heavy: int = 2
    grouped: bool = False
    data: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """A case and what became of it. ``level`` is the reward from which it counts as accepted."""

    case: Case
    trial: Trial
    level: float
    accepted: bool

    @property
    def at_fault(self) -> bool:
        """Whether the verdict is the wrong one."""
        return self.case.want is not Want.SURVIVE and self.accepted != (
            self.case.want is Want.ACCEPT
        )


@dataclass(frozen=True, slots=True)
class Assessment:
    """All that an audit found. ``told_apart`` is whether a right answer, in some wording, was paid
    more than a wrong one; ``read`` are the wordings that were, by kind of problem.
    """

    targets: Sequence[Target]
    findings: Sequence[Finding]
    behaviours: Sequence[Behaviour]
    told_apart: bool
    read: Sequence[str]
    paid: Sequence[tuple[float, float]] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class _Reading:
    """How the problems of one genre are worded."""

    said: Sequence[Wording]
    told_apart: bool


def assess(
    plan: Plan,
    progress: Progress | None = None,
    probe: Callable[[Target], Behaviour] | None = None,
) -> Assessment:
    """Attacks a verifier and watches how it behaves.

    Deterministic by ``plan.seed``, as far as the verifier is. ``progress(what, done, total)`` is
    called as it goes. ``probe`` adds a check that only the caller can make.

    Raises:
        UserError: there are no problems with a reference to attack.
    """
    tell = progress or (lambda what, done, total: None)
    bare = [_bare_target(example) for example in plan.examples if _usable(example)]
    if not bare:
        raise UserError("audit: no problem has a reference or tests; give --tasks with answers")
    readings = {genre: _read(plan, bare, genre, tell) for genre in dict.fromkeys(map(_genre, bare))}
    targets = [_with_wording(target, readings[_genre(target)]) for target in bare]
    told = any(reading.told_apart for reading in readings.values())
    paid = _levels_paid(plan, targets)
    levels = [level(own, paid if told else []) for own in paid]
    cases = _cases(plan, targets, readings)
    pairs: list[Pair] = [(case.problem, case.text) for case in cases]
    trials = list(
        ask_all(plan.verifier, pairs, plan.threads, lambda n: tell("attacks", n, len(pairs)))
    )
    findings = [
        Finding(case, trial, levels[case.target], accepted(trial, levels[case.target]))
        for case, trial in zip(cases, trials, strict=True)
    ]
    behaviours = _behaviours(plan, targets, findings, tell)
    if probe is not None:
        behaviours.append(probe(targets[0]))
    read = [
        f"{wording.place}{' after a thought' if wording.thinks else ''}"
        for reading in readings.values()
        for wording in reading.said
        if reading.told_apart
    ]
    return Assessment(targets, findings, behaviours, told, read, paid)


def accepted(trial: Trial, level: float) -> bool:
    """Whether a completion was paid like a right answer."""
    return trial.reward is not None and trial.reward >= level - 1e-12


def _usable(example: Example) -> bool:
    problem = example.problem
    return bool(problem.reference) or kind_of(problem) == "code"


def _genre(target: Target) -> Kind:
    return target.kind if target.kind in ("code", "sql") else "text"


def _bare_target(example: Example) -> Target:
    problem = example.problem
    kind, gold = kind_of(problem), problem.reference or ""
    return Target(
        problem,
        kind,
        gold,
        plainly_wrong(gold, kind),
        numbers_in(problem.question),
        lambda answer: answer,
        example,
    )


def _read(plan: Plan, targets: Sequence[Target], genre: Kind, tell: Progress) -> _Reading:
    """Which wordings of a right answer are paid more than the same of a wrong one."""
    own = [target for target in targets if _genre(target) == genre and target.gold]
    of_kind = {target.kind: target for target in reversed(own)}
    first_of_kind = [target for target in own if of_kind[target.kind] is target]
    tried = (first_of_kind + [target for target in own if target not in first_of_kind])[:CALIBRATED]
    said = wordings(genre)
    pairs: list[Pair] = [
        (target.problem, wording.say(answer))
        for wording in said
        for target in tried
        for answer in (target.gold, target.wrong)
    ]
    trials = list(
        ask_all(plan.verifier, pairs, plan.threads, lambda n: tell("wordings", n, len(pairs)))
    )
    each = 2 * len(tried)
    paid = [
        paid_of(wording, [trial.reward or 0.0 for trial in trials[number * each :][:each]])
        for number, wording in enumerate(said)
    ]
    clear = readable(paid)
    return _Reading(clear or said[:1], bool(clear))


def _with_wording(target: Target, reading: _Reading) -> Target:
    """The target with the most explicit wording that its reward reads."""
    explicit = [wording for wording in reading.said if wording.place in EXPLICIT]
    wording = (explicit or list(reading.said))[0]
    return _placed(target, wording)


def _placed(target: Target, wording: Wording) -> Target:
    return Target(
        target.problem,
        target.kind,
        target.gold,
        target.wrong,
        target.numbers,
        wording.say,
        target.example,
    )


def _levels_paid(plan: Plan, targets: Sequence[Target]) -> list[tuple[float, float]]:
    """What the reference and a plainly wrong answer are paid, for each problem."""
    pairs: list[Pair] = [
        (target.problem, target.place(answer))
        for target in targets
        for answer in (target.gold, target.wrong)
    ]
    rewards = [
        trial.reward or 0.0
        for trial in ask_all(plan.verifier, pairs, plan.threads, lambda done: None)
    ]
    return list(zip(rewards[::2], rewards[1::2], strict=True))


def level(own: tuple[float, float], paid: Sequence[tuple[float, float]]) -> float:
    """The reward from which a completion counts as accepted.

    Half-way between what a right and a wrong answer are paid on the problem, which is ``own``; over
    all problems, ``paid``, where its own right answer is not paid more. If none's is, what the
    right answer is paid: then whatever gets as much is accepted as readily.
    """
    right, wrong = own
    if right > wrong:
        return (right + wrong) / 2
    apart = [(one, two) for one, two in paid if one > two]
    return sum(one + two for one, two in apart) / (2 * len(apart)) if apart else right


def _cases(plan: Plan, targets: Sequence[Target], readings: dict[Kind, _Reading]) -> list[Case]:
    cases: list[Case] = []
    heavy: dict[Kind, int] = {}
    for number, target in enumerate(targets):
        genre = _genre(target)
        heavy[genre] = heavy.get(genre, 0) + 1
        reading = readings[genre]
        seen: set[tuple[str, Want]] = set()
        for attack in (*ANYWHERE, *NEAR, *DATA_REWRITES) if plan.data else ATTACKS:
            if target.kind not in attack.kinds or (attack.by_value and not plan.by_value):
                continue
            if attack.heavy and heavy[genre] > plan.heavy:
                continue
            for text in _texts(attack, target, reading, number):
                if (text, attack.want) not in seen:
                    seen.add((text, attack.want))
                    cases.append(Case(number, target.problem, attack.name, attack.family,
                                      attack.want, text))  # fmt: skip
        for wording in _owed(target, reading):
            text = wording.say(target.gold)
            if target.gold and (text, Want.ACCEPT) not in seen:
                seen.add((text, Want.ACCEPT))
                name = f"{wording.place}{' after a thought' if wording.thinks else ''}"
                cases.append(Case(number, target.problem, name, "place", Want.ACCEPT, text))
    return cases


def _owed(target: Target, reading: _Reading) -> list[Wording]:
    """The places that an answer may stand in: those that are read, and those that a prompt of the
    user's names.
    """
    if not target.example.binding:
        return list(reading.said)
    prompt = "\n".join(message.content for message in target.problem.messages)
    named = [place for place in named_places(prompt) if _genre(target) == "text"]
    known = {wording.place for wording in reading.said}
    thinks = reading.said[0].thinks
    return [*reading.said, *(Wording(place, thinks) for place in named if place not in known)]


def _texts(attack: Attack, target: Target, reading: _Reading, number: int) -> list[str]:
    """The completions of one attack. Answers go to every place that is read, in turn; right ones
    only to places that mark where the answer begins and ends.
    """
    made = list(_bounded(attack.make(target)))
    if attack.whole:
        return made
    if attack.want is not Want.REFUSE:
        return [target.place(answer) for answer in made]
    said = reading.said
    return [said[(number + turn) % len(said)].say(answer) for turn, answer in enumerate(made)]


def _bounded(texts: Iterable[str]) -> Iterable[str]:
    for count, text in enumerate(texts):
        if count >= MOST_EACH:
            return
        yield text


def _behaviours(
    plan: Plan, targets: Sequence[Target], findings: Sequence[Finding], tell: Progress
) -> list[Behaviour]:
    done: list[tuple[Pair, Trial]] = [
        ((finding.case.problem, finding.case.text), finding.trial) for finding in findings
    ]
    light = [
        (pair, trial) for pair, trial in done if len(pair[1]) < 2000 and not trial.crashed
        and trial.seconds < plan.seconds / 4
    ]  # fmt: skip
    random.Random(plan.seed).shuffle(light)
    paid = [each for each in light if each[1].reward][: SAMPLE // 2]
    unpaid = [each for each in light if not each[1].reward][: SAMPLE - len(paid)]
    tell("behaviour", 0, 1)
    found = observed(done, plan.seconds)
    found += repeated_calls(plan.verifier, [*paid, *unpaid], plan.seed, plan.grouped)
    found.append(repetition(plan.verifier, targets[:3]))
    found.append(inputs_kept(plan.verifier, [pair for pair, _ in [*paid, *unpaid]]))
    tell("behaviour", 1, 1)
    return found
