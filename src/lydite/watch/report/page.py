"""A run as one HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lydite.watch.diagnosis.curves import Curves
from lydite.watch.diagnosis.diagnose import diagnose
from lydite.watch.events import read_events
from lydite.watch.progress import RunProgress
from lydite.watch.report.panels import panels_of
from lydite.watch.report.picture import as_svg
from lydite.watch.stages import stage_cells, stage_rows
from lydite.watch.words import duration, printable, shortened

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ name }}</title>
<style>
:root { --ink: #1c2026; --soft: #667080; --line: #dde1e7; --bad: #b3261e; --good: #1b6e43;
  --paper: #fff; --shade: #f5f6f8; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8ec; --soft: #98a1b0; --line: #343a44;
  --bad: #ff8a80; --good: #7fd1a4; --paper: #15181d; --shade: #1d2127; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 76rem; margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .2rem; } .bad { color: var(--bad); }
.good { color: var(--good); } .soft { color: var(--soft); }
table { border-collapse: collapse; } th, td { text-align: right; padding: .3rem .9rem .3rem 0;
  border-bottom: 1px solid var(--line); font-variant-numeric: tabular-nums; }
th { color: var(--soft); font-weight: 500; }
th:first-child, td:first-child { text-align: left; }
code { font: 13px/1.4 ui-monospace, monospace; background: var(--shade); padding: .1rem .3rem;
  border-radius: .2rem; overflow-wrap: anywhere; }
ul { padding-left: 1.2rem; margin: .3rem 0; } p { margin: .3rem 0; }
.curves { background: #fff; border-radius: .4rem; padding: .4rem; margin: .6rem 0; }
.curves svg { width: 100%; height: auto; }
</style></head><body>
<h1>{{ name }}</h1><p class="soft">{{ state }}</p>
{% for task, size, cells in tables %}<h2>{{ task }} <span class="soft">({{ size }})</span></h2>
<table><tr>{% for head in cells[0] %}<th>{{ head }}</th>{% endfor %}</tr>
{% for row in cells[1:] %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table>{% endfor %}
<h2>Diagnosis</h2>
{% if not problems %}<p class="good">No problem found.</p>{% endif %}
{% for f in findings %}<h3 class="{{ 'bad' if f.severity == 'problem' else '' }}">{{ f.symptom }}
</h3><p class="soft">{{ f.stage }}: {{ f.rule }}, {{ f.confidence }} confidence</p>
<ul>{% for line in f.evidence %}<li>{{ line }}</li>{% endfor %}</ul>
<p>Why: {{ f.cause }}</p><p>Do: {{ f.remedy }}</p>
{% for each in f.overrides %}<p><code>{{ each }}</code></p>{% endfor %}
{% for row in f.examples %}<p class="soft">step {{ row.step }}, {{ row.problem_id }}:
<code>{{ short(row.completion) }}</code></p>{% endfor %}{% endfor %}
{% if warnings %}<h2>Warnings</h2><ul>{% for each in warnings %}<li>{{ each }}</li>{% endfor %}</ul>
{% endif %}
{% for stage, svg in curves %}<h2>{{ stage }}</h2><div class="curves">{{ svg | safe }}</div>
{% endfor %}
</body></html>
"""

_SHOWN_CHARACTERS = 400


def page(name: str, stages: Sequence[Curves], progress: RunProgress | None = None) -> str:
    """``progress`` is that of a run of ours; another trainer's log has none."""
    from jinja2 import Environment

    findings = diagnose(stages)
    pictures = [(c.stage, as_svg(c)) for c in stages if panels_of(c)]
    return printable(
        Environment(autoescape=True)
        .from_string(_PAGE)
        .render(
            name=printable(name),
            state=_state(stages, progress),
            tables=[] if progress is None else _tables(progress),
            findings=findings,
            problems=[finding for finding in findings if finding.severity == "problem"],
            warnings=[] if progress is None else _warnings(progress),
            curves=pictures,
            short=lambda text: shortened(printable(text), _SHOWN_CHARACTERS),
        )
    )


def run_page(run: Path, stages: Sequence[Curves]) -> str:
    """The page of a run in its folder, live or finished."""
    progress = RunProgress()
    for event in read_events(run / "events.jsonl"):
        progress.advance(event)
    return page(progress.name or run.name, stages, progress)


def _state(stages: Sequence[Curves], progress: RunProgress | None) -> str:
    steps = ", ".join(f"{c.stage} ({c.kind}, {len(c.steps)} steps)" for c in stages)
    if progress is None:
        return f"Read: {steps or 'nothing'}"
    if progress.failure:
        return f"Failed: {printable(progress.failure)}"
    if progress.done is not None:
        return f"Done in {duration(progress.done.seconds)}: {steps}"
    return f"Not done yet: {steps or 'no stage has begun'}"


def _tables(progress: RunProgress) -> list[tuple[str, str, list[list[str]]]]:
    """Each task stage by stage, with its size."""
    found: list[tuple[str, str, list[list[str]]]] = []
    for task in progress.tasks:
        rows = stage_rows(progress, task)
        if rows:
            last = rows[-1][1]
            each = f", {last.k} samples each" if last.k > 1 else ""
            found.append((task, f"{last.n} problems{each}", stage_cells(rows)))
    return found


def _warnings(progress: RunProgress) -> list[str]:
    """The last of each subject, with how often there was one."""
    found: list[Any] = []
    for warning in {w.subject: w for w in progress.warnings}.values():
        count = progress.warned(warning.subject)
        where = f"{warning.stage} step {warning.step}: " if warning.stage else ""
        times = f" ({count} times)" if count > 1 else ""
        found.append(f"{where}{printable(warning.message)}{times}")
    return found
