"""docs/metrics.md and docs/diagnosis.md name what there is."""

from __future__ import annotations

import re
from pathlib import Path

from lydite.watch.diagnosis.diagnose import RULES
from lydite.watch.events import StepDone, read_events

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "tests" / "watch" / "recorded"


def documented() -> list[str]:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    page = page.partition("## Held-out evaluation")[0]  # Those are of another record.
    cells = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


def test_every_figure_of_recorded_runs_is_documented() -> None:
    names = documented()
    assert len(names) == len(set(names)) > 50
    patterns = [re.sub(r"(PART|TAG|OUTCOME)$", r"[\\w.]+", name) for name in names]
    logged = {
        metric
        for path in RECORDED.rglob("events.jsonl")
        for event in read_events(path)
        if isinstance(event, StepDone)
        for metric in event.metrics
    }
    assert len(logged) > 40
    assert not [n for n in logged if not any(re.fullmatch(p, n) for p in patterns)]


def test_the_page_of_the_diagnosis_has_every_rule() -> None:
    page = (ROOT / "docs" / "diagnosis.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.MULTILINE))
    assert list(rows) == [rule.name for rule in RULES]
    assert [rows[rule.name] for rule in RULES] == [f"{r.symptom} {r.cause}" for r in RULES]
