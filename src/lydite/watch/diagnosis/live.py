"""The diagnosis while a run goes on: a listener of the event log that warns through it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lydite.watch.diagnosis.diagnose import diagnose
from lydite.watch.diagnosis.own import curves_of
from lydite.watch.diagnosis.rule import Finding
from lydite.watch.events import Event, EventLog, StepDone, Warned

EVERY = 10
"""Steps between two looks."""

FIRST = 40
"""Steps of a stage before which nothing is said: a course needs some length."""

CODE = "diagnosis_"


class LiveDiagnosis:
    """Subscribe it with ``replay``, so that a resumed run knows what it has said already. It says
    each thing once a stage, and only problems that the figures leave little doubt of.
    """

    def __init__(self, log: EventLog, recipe: Mapping[str, Any], run: Path) -> None:
        self._log, self._recipe, self._run = log, recipe, run
        self._events: dict[tuple[object, ...], Event] = {}
        self._said: set[tuple[str, str]] = set()
        self._live = False

    def begin(self) -> None:
        """From now on it speaks; what is replayed before it only takes in."""
        self._live = True

    def __call__(self, event: Event) -> None:
        self._events.pop(event.identity, None)
        self._events[event.identity] = event
        if isinstance(event, Warned):
            self._said.add((event.stage, event.code))
        due = isinstance(event, StepDone) and event.step >= FIRST and event.step % EVERY == 0
        if due and self._live:
            self._look(event.stage, event.step)

    def _look(self, stage: str, step: int) -> None:
        mine = [event for event in self._events.values() if event.stage == stage]
        for finding in diagnose(curves_of(mine, self._recipe, self._run)):
            code = CODE + finding.rule
            quiet = finding.severity == "note" or finding.confidence != "high"
            if not quiet and (stage, code) not in self._said:
                message = one_line(finding)
                self._log.append(Warned(stage=stage, step=step, code=code, message=message))


def one_line(finding: Finding) -> str:
    """Symptom, the first evidence, and what to do."""
    text = f"{finding.symptom.rstrip('.')} ({finding.evidence[0]}). {finding.remedy.rstrip('.')}"
    return f"{text}: {finding.overrides[0]}" if finding.overrides else text
