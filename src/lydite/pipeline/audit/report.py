"""What an audit comes to: rates with intervals, the worst cases, a grade."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from lydite.pipeline.audit.rollouts import Disagreements
from lydite.pipeline.audit.subject import Subject
from lydite.verify.audit import Assessment, Behaviour, Finding, Want
from lydite.watch.intervals import wilson

GRADES = (("A", 0.0, 0.02), ("B", 0.01, 0.10), ("C", 0.05, 0.25), ("D", 0.20, 0.50))
"""Grade, highest share of false accepts, highest share of false refusals, each the mean of the
families' shares: one open family is all that an optimiser needs, however many others are closed. F
is the rest.
"""

BEHAVIOUR_CAP = "C"
"""The best grade with a failed check of behaviour."""

SHOWN = 120


@dataclass(frozen=True, slots=True)
class Rate:
    """``wrong`` of ``total`` verdicts, with a 95% interval over ``problems``: the completions of
    one problem are no independent draws.
    """

    family: str
    wrong: int
    total: int
    share: float
    lo: float
    hi: float
    problems: int


@dataclass(frozen=True, slots=True)
class Worst:
    """An attack that worked, with its shortest case and how often it did."""

    attack: str
    family: str
    want: Want
    wrong: int
    total: int
    finding: Finding


@dataclass(frozen=True, slots=True)
class Report:
    """The audit of one reward."""

    subject: Subject
    grade: str
    false_accept: Rate
    false_refuse: Rate
    accepts: Sequence[Rate]
    refusals: Sequence[Rate]
    worst: Sequence[Worst]
    behaviours: Sequence[Behaviour]
    assessment: Assessment
    disagreements: Disagreements | None = None
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def failed(self) -> list[Behaviour]:
        """The checks of behaviour that it did not pass."""
        return [behaviour for behaviour in self.behaviours if not behaviour.passed]

    def past(self, most_accepted: float | None, most_refused: float | None) -> list[str]:
        """Why the audit fails against these rates: empty when it does not. With a rate set, a
        failed check of behaviour fails it too.
        """
        why = []
        for name, rate, most in (
            ("false accepts", self.false_accept, most_accepted),
            ("false refusals", self.false_refuse, most_refused),
        ):
            if most is not None and rate.share > most:
                why.append(f"{name}: {rate.share:.1%}, more than {most:.1%}")
        if most_accepted is not None or most_refused is not None:
            why += [f"behaviour: {each.name}: {each.detail}" for each in self.failed]
        return why


def report_of(
    subject: Subject, assessment: Assessment, disagreements: Disagreements | None = None
) -> Report:
    """The rates, worst cases and grade of an assessment."""
    refuse = [each for each in assessment.findings if each.case.want is Want.REFUSE]
    accept = [each for each in assessment.findings if each.case.want is Want.ACCEPT]
    accepts, refusals = _by_family(refuse), _by_family(accept)
    failed = any(not behaviour.passed for behaviour in assessment.behaviours)
    notes = list(subject.notes)
    if not assessment.told_apart:
        notes.append("in no wording is a right answer paid more than a wrong one: whatever is "
                     "paid as much as the right answer counts as accepted")  # fmt: skip
    else:
        notes.append(f"reads the answer: {', '.join(assessment.read)}")
    if subject.grouped:
        notes.append("it compares the completions of a problem: not asked whether they change "
                     "each other's rewards")  # fmt: skip
    if not subject.by_value:
        notes.append("equal values in other forms are not held against it: it compares writing")
    return Report(
        subject,
        grade_of(mean_share(accepts), mean_share(refusals), failed, assessment.told_apart),
        _rate("all", refuse),
        _rate("all", accept),
        accepts,
        refusals,
        _worst([*refuse, *accept]),
        assessment.behaviours,
        assessment,
        disagreements,
        notes,
    )


def grade_of(accepted: float, refused: float, failed: bool, told_apart: bool = True) -> str:
    """The grade for mean shares of false accepts and refusals. A reward that does not tell right
    answers from wrong ones has an F; one that misbehaves no better than C.
    """
    if not told_apart:
        return "F"
    for grade, most_accepted, most_refused in GRADES:
        if accepted <= most_accepted and refused <= most_refused:
            return max(grade, BEHAVIOUR_CAP) if failed else grade
    return "F"


def mean_share(rates: Sequence[Rate]) -> float:
    """The mean of the families' shares."""
    return sum(rate.share for rate in rates) / len(rates) if rates else 0.0


def _rate(family: str, findings: Sequence[Finding]) -> Rate:
    by_problem: dict[int, list[bool]] = {}
    for finding in findings:
        by_problem.setdefault(finding.case.target, []).append(finding.at_fault)
    wrong, total = sum(finding.at_fault for finding in findings), len(findings)
    lo, hi = clustered_interval(list(by_problem.values()))
    return Rate(family, wrong, total, wrong / total if total else 0.0, lo, hi, len(by_problem))


def clustered_interval(flags: Sequence[Sequence[bool]]) -> tuple[float, float]:
    """A 95% interval for the share of true flags, those of one problem being one cluster.

    The clustered standard error of 2411.00640, ``sqrt(sum_c (w_c - p m_c)^2) / n`` for ``w_c`` true
    of ``m_c``, put into Wilson's interval through the effective sample size, which is kept between
    the problems and the flags. 0 to 1 where there is nothing to estimate from.
    """
    total, problems = sum(map(len, flags)), len(flags)
    if not total:
        return 0.0, 1.0
    share = sum(map(sum, flags)) / total
    squared = sum((sum(each) - share * len(each)) ** 2 for each in flags) / total**2
    free = share * (1 - share)
    effective = free / squared if squared > 0 else problems if share in (0, 1) else total
    effective = min(max(effective, problems), total)
    return wilson(share * effective, effective)


def _by_family(findings: Sequence[Finding]) -> list[Rate]:
    families = dict.fromkeys(finding.case.family for finding in findings)
    return [
        _rate(family, [finding for finding in findings if finding.case.family == family])
        for family in families
    ]


def _worst(findings: Sequence[Finding]) -> list[Worst]:
    """One line an attack: those that worked most often first, false accepts before refusals."""
    groups: dict[tuple[Want, str, str], list[Finding]] = {}
    for finding in findings:
        case = finding.case
        groups.setdefault((case.want, case.family, case.attack), []).append(finding)
    found = []
    for (want, family, attack), group in groups.items():
        wrong = [finding for finding in group if finding.at_fault]
        if wrong:
            shortest = min(wrong, key=lambda each: (not each.case.text.strip(),
                                                    len(each.case.text)))  # fmt: skip
            found.append(Worst(attack, family, want, len(wrong), len(group), shortest))
    return sorted(found, key=lambda each: (each.want is not Want.REFUSE, -each.wrong / each.total))


def shown(text: str, most: int = SHOWN) -> str:
    """A hostile text for a terminal or page: what is not plain is written in escapes, and of a long
    one the middle is left out and the length given.
    """
    if len(text) <= most:
        return _plain(text)
    return f"{_plain(text[: most // 2])} … {_plain(text[-most // 4 :])} ({len(text):,} characters)"


def _plain(text: str) -> str:
    return "".join(letter if " " <= letter <= "~" else ascii(letter)[1:-1] for letter in text)


def as_json(report: Report) -> dict[str, Any]:
    """The report as plain data; every verdict that was wrong is in it, texts shortened to 4000
    characters.
    """
    return {
        "subject": report.subject.name,
        "verifier": dict(report.subject.spelling.settings),
        "grade": report.grade,
        "told_apart": report.assessment.told_apart,
        "notes": list(report.notes),
        "false_accept": asdict(report.false_accept),
        "false_refuse": asdict(report.false_refuse),
        "mean_over_families": {
            "false_accept": mean_share(report.accepts),
            "false_refuse": mean_share(report.refusals),
        },
        "families": {
            "must be refused": [asdict(rate) for rate in report.accepts],
            "must be accepted": [asdict(rate) for rate in report.refusals],
        },
        "behaviour": [asdict(behaviour) for behaviour in report.behaviours],
        "wrong": [_case(each) for each in report.assessment.findings if each.at_fault],
        "disagreements": None
        if report.disagreements is None
        else [asdict(each) for each in report.disagreements.pairs],
    }


def _case(finding: Finding) -> dict[str, Any]:
    case, trial = finding.case, finding.trial
    return {
        "problem": case.problem.id,
        "reference": case.problem.reference,
        "family": case.family,
        "attack": case.attack,
        "should": str(case.want),
        "completion": case.text[:4000],
        "length": len(case.text),
        "reward": trial.reward,
        "accepted_from": finding.level,
        "detail": trial.error or trial.detail,
    }
