"""An audit from what a person asked for to the files that hold what was found."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from lydite.config import UserError
from lydite.pipeline.audit.page import page
from lydite.pipeline.audit.report import Report, as_json, report_of
from lydite.pipeline.audit.rollouts import Disagreements, disagreements
from lydite.pipeline.audit.subject import Request, Subject, load_subject
from lydite.pipeline.audit.testfile import as_tests
from lydite.types import Verifier
from lydite.verify.audit import Behaviour, Plan, Target, assess
from lydite.verify.audit.probe import changed_arguments
from lydite.verify.audit.trial import Progress
from lydite.verify.function import calls_of, load_function
from lydite.watch.files import write_atomic


@dataclass(frozen=True, slots=True)
class Files:
    """Where the report goes."""

    json: Path | None = None
    pytest: Path | None = None
    html: Path | None = None

    def check(self) -> None:
        """
        Raises:
            UserError: a folder is not there, or a test file's name is none.
        """
        for option, path in (("json", self.json), ("pytest", self.pytest), ("html", self.html)):
            if path is not None and not path.parent.is_dir():
                raise UserError(f"--{option} {path}: no folder {path.parent}; make it first")
        if self.pytest is not None and self.pytest.suffix != ".py":
            raise UserError(f"--pytest {self.pytest}: give a file that ends in .py")

    def write(self, report: Report) -> list[Path]:
        """Writes what was asked for and returns the paths."""
        written: list[Path] = []
        for path, text in (
            (self.json, lambda: json.dumps(as_json(report), indent=1) + "\n"),
            (self.pytest, lambda: as_tests(report, str(self.pytest))),
            (self.html, lambda: page(report)),
        ):
            if path is not None:
                write_atomic(path, text().encode("utf-8", "backslashreplace"))
                written.append(path)
        return written


def audit_reward(
    request: Request,
    rollouts: Path | None = None,
    against: str = "math",
    progress: Progress | None = None,
) -> Report:
    """Attacks a reward; with ``rollouts`` also finds where it and ``against`` disagree on them.

    Raises:
        UserError: what is asked for is not there, or cannot be used.
    """
    if rollouts is not None and not rollouts.exists():
        raise UserError(f"--rollouts {rollouts}: no such file or folder; give runs/NAME/samples")
    subject, verifier = load_subject(request)
    limits = subject.config.limits
    try:
        plan = Plan(
            verifier, subject.examples, subject.by_value, request.seed, limits.seconds,
            limits.workers, grouped=subject.grouped, data=subject.data,
        )  # fmt: skip
        probe = _probe(subject)
        assessment = assess(plan, progress, probe)
        found = None
        if rollouts is not None:
            found = _compared(rollouts, subject, verifier, against, progress)
    finally:
        verifier.close()
    return report_of(subject, assessment, found)


def _compared(
    rollouts: Path, subject: Subject, verifier: Verifier, against: str, progress: Progress | None
) -> Disagreements:
    other, theirs = load_subject(Request(against))
    try:
        known = {example.problem.id: example.problem for example in subject.examples}
        tell = progress or (lambda what, done, total: None)
        return disagreements(
            rollouts, verifier, theirs, other.name, known,
            lambda done, total: tell("rollouts", done, total),
        )  # fmt: skip
    finally:
        theirs.close()


class _Probe:
    """Whether a user's functions change what they are given."""

    def __init__(self, subject: Subject) -> None:
        self._functions = subject.functions
        self._seconds = subject.config.limits.seconds

    def __call__(self, target: Target) -> Behaviour:
        texts = [target.place(target.gold), target.place(target.wrong)]
        (call,) = calls_of([target.problem] * 2, texts)
        for function in self._functions:
            called = load_function(function) if isinstance(function, str) else function
            names = changed_arguments(called, call, 10 * self._seconds)
            if names:
                return Behaviour("arguments stay as they are", False, f"changes {names[0]!r}")
        return Behaviour("arguments stay as they are", True)


def _probe(subject: Subject) -> _Probe | None:
    return _Probe(subject) if subject.functions else None
