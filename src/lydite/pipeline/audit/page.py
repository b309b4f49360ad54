"""The audit as one HTML page that needs nothing else."""

from __future__ import annotations

from typing import Any

from lydite.pipeline.audit.report import GRADES, Report, mean_share, shown
from lydite.verify.audit import Want

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Audit of {{ name }}</title>
<style>
:root { --ink: #1c2026; --soft: #667080; --line: #dde1e7; --bad: #b3261e; --good: #1b6e43;
  --paper: #fff; --shade: #f5f6f8; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8ec; --soft: #98a1b0; --line: #343a44;
  --bad: #ff8a80; --good: #7fd1a4; --paper: #15181d; --shade: #1d2127; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 70rem; margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
.top { display: flex; gap: 1.4rem; align-items: center; }
.grade { font-size: 2.6rem; font-weight: 700; width: 4.5rem; height: 4.5rem; line-height: 4.5rem;
  text-align: center; border: 2px solid; border-radius: .6rem; flex: none; }
.bad { color: var(--bad); } .good { color: var(--good); } .soft { color: var(--soft); }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .7rem .3rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { color: var(--soft); font-weight: 500; } td.n, th.n { text-align: right;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
code { font: 13px/1.4 ui-monospace, monospace; background: var(--shade); padding: .1rem .3rem;
  border-radius: .2rem; overflow-wrap: anywhere; }
.bar { display: block; position: relative; width: 11rem; height: .8rem; background: var(--shade); }
.bar i { position: absolute; height: 100%; background: var(--line); }
.bar b { position: absolute; width: 3px; height: 100%; background: var(--bad); }
ul { padding-left: 1.2rem; margin: .6rem 0; }
</style></head><body>
<div class="top"><div class="grade {{ 'good' if grade in 'AB' else 'bad' }}">{{ grade }}</div>
<div><h1>{{ name }}</h1>
<div>accepted wrongly: <b>{{ percent(accept.share) }}</b> <span class="soft">({{ accept.wrong }} of
{{ accept.total }}; 95% {{ percent(accept.lo) }} to {{ percent(accept.hi) }})</span> &nbsp;
refused wrongly: <b>{{ percent(refuse.share) }}</b> <span class="soft">({{ refuse.wrong }} of
{{ refuse.total }}; 95% {{ percent(refuse.lo) }} to {{ percent(refuse.hi) }})</span></div></div>
</div>
<ul>{% for note in notes %}<li class="soft">{{ note }}</li>{% endfor %}</ul>
{% for title, verb, rates in families %}<h2>{{ title }}</h2>
<table><tr><th>family</th><th class="n">{{ verb }}</th><th class="n">share</th>
<th class="n">95% interval</th><th>0 … 100%</th></tr>
{% for rate in rates %}<tr><td>{{ rate.family }}</td>
<td class="n">{{ rate.wrong }} of {{ rate.total }}</td>
<td class="n {{ 'bad' if rate.wrong else '' }}">{{ percent(rate.share) }}</td>
<td class="n soft">{{ percent(rate.lo) }} – {{ percent(rate.hi) }}</td>
<td><span class="bar"><i style="left:{{ 100 * rate.lo }}%;width:{{ 100 * (rate.hi - rate.lo) }}%">
</i><b style="left:{{ 98 * rate.share }}%"></b></span></td></tr>
{% endfor %}</table>{% endfor %}
<h2>Worst cases</h2>
{% if worst %}<table><tr><th>attack</th><th class="n">worked</th><th>reference</th>
<th>completion</th><th class="n">reward</th></tr>
{% for each in worst %}<tr><td><span class="bad">{{ each.verdict }}</span><br>{{ each.attack }}
<br><span class="soft">{{ each.family }}</span></td><td class="n">{{ each.count }}</td>
<td><code>{{ each.reference }}</code><br><span class="soft">{{ each.question }}</span></td>
<td><code>{{ each.text }}</code><br><span class="soft">{{ each.detail }}</span></td>
<td class="n">{{ each.reward }}</td></tr>
{% endfor %}</table>{% else %}<p class="good">None: every verdict was right.</p>{% endif %}
<h2>Behaviour</h2><table>{% for each in behaviours %}<tr>
<td class="{{ 'good' if each.passed else 'bad' }}">{{ 'ok' if each.passed else 'failed' }}</td>
<td>{{ each.name }}</td><td class="soft">{{ shown(each.detail, 300) }}</td></tr>{% endfor %}</table>
{% if pairs is not none %}<h2>Rollouts on which it and {{ against }} disagree</h2>
<p class="soft">{{ counts }}</p>
<table><tr><th>taken by</th><th class="n">times</th><th>reference</th><th>completion</th></tr>
{% for each in pairs %}<tr><td>{{ 'this reward only' if each.accepted else against + ' only' }}
</td><td class="n">{{ each.times }}</td><td><code>{{ shown(each.reference or '', 80) }}</code></td>
<td><code>{{ shown(each.completion, 600) }}</code></td></tr>{% endfor %}</table>{% endif %}
<h2>What the grade says</h2>
<p>{% for letter, most_accepted, most_refused in grades %}<b>{{ letter }}</b>: at most
{{ percent(most_accepted) }} accepted wrongly and {{ percent(most_refused) }} refused wrongly.
{% endfor %}<b>F</b>: more, or right answers are not told from wrong ones. These are means of the
families' shares: here {{ percent(means[0]) }} and {{ percent(means[1]) }}. A failed check of
behaviour leaves no more than C. The rates are of hostile cases made for this purpose: they are no
rates of a real run, and an A is no proof that there is no other hole.</p>
</body></html>
"""


def page(report: Report, pairs: int = 200) -> str:
    """The page's source. Texts of completions are escaped twice: as Python writes them, and for
    HTML.
    """
    from jinja2 import Environment

    environment = Environment(autoescape=True)
    found = report.disagreements
    return environment.from_string(_PAGE).render(
        name=report.subject.name,
        grade=report.grade,
        grades=GRADES,
        means=[mean_share(report.accepts), mean_share(report.refusals)],
        accept=report.false_accept,
        refuse=report.false_refuse,
        notes=report.notes,
        families=[
            ("Must be refused", "accepted", report.accepts),
            ("Must be accepted", "refused", report.refusals),
        ],
        worst=[_worst(each) for each in report.worst],
        behaviours=report.behaviours,
        against=found.against if found else "",
        pairs=found.pairs[:pairs] if found else None,
        counts=f"{found.total} rollouts: both take {found.both}, neither {found.neither}; "
        f"{len(found.pairs)} different answers divide them" if found else "",
        percent=lambda share: f"{share:.1%}",
        shown=shown,
    )  # fmt: skip


def _worst(each: Any) -> dict[str, str]:
    case, trial = each.finding.case, each.finding.trial
    return {
        "verdict": "accepted" if each.want is Want.REFUSE else "refused",
        "attack": each.attack,
        "family": each.family,
        "count": f"{each.wrong} of {each.total}",
        "reference": shown(case.problem.reference or ""),
        "question": shown(case.problem.question, 160),
        "text": shown(case.text, 400),
        "detail": shown(trial.error or trial.detail, 200),
        "reward": "none" if trial.reward is None else f"{trial.reward:g}",
    }
