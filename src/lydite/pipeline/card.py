"""A model card: what a run's model was made of and how well it does, from the run's own records."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

import lydite
from lydite.pipeline.artifact import DONE, read_record
from lydite.pipeline.folder import RunFolder, resolved
from lydite.pipeline.recipe import Recipe
from lydite.pipeline.summary import StageSummary, summarise
from lydite.watch.events import read_events

SHOWN = 12


def ancestors(recipe: Recipe, stage: str) -> list[str]:
    """The stages that the model of one follows from, the first of them first, itself last."""
    by_name = {each.name: each for each in recipe.stages}
    chain: list[str] = []
    while stage in by_name:
        chain.insert(0, stage)
        found = by_name[stage]
        stage = "model" if found.model is not None else recipe.parent_of(found)
    return chain


def model_card(recipe: Recipe, folder: RunFolder, stage: str) -> str:
    """Markdown with a header that model hubs read. ``stage`` is the one whose model it is, or
    ``model``.
    """
    chain = ancestors(recipe, stage)
    summaries = {each.name: each for each in summarise(read_events(folder.events))}
    start = recipe.models()[chain[0] if chain else "model"].path
    parts = [
        _header(start),
        f"# {recipe.name}",
        f"A language model made with Lydite {lydite.__version__} from `{start}`"
        + (f", in {len(chain)} stages." if len(chain) > 1 else "."),
        _stages(recipe, folder, chain),
        _scores([summaries[name] for name in chain if name in summaries]),
        "## Recipe",
        "Every setting, as it was run:",
        "```yaml\n" + _plain(resolved(recipe)).strip() + "\n```",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _header(start: str) -> str:
    values: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["lydite", "reasoning"],
    }
    hub = start.count("/") == 1 and ":" not in start and not start.startswith((".", "/", "~"))
    if hub:
        values["base_model"] = start
    return f"---\n{_plain(values)}---"


def _stages(recipe: Recipe, folder: RunFolder, chain: Sequence[str]) -> str:
    if not chain:
        return ""
    rows = [["stage", "kind", "starts from", "data (SHA-256)", "seed", "fingerprint"]]
    for name in chain:
        record = read_record(folder.stage(name) / DONE)
        if record is None:
            continue
        stage = next(each for each in recipe.stages if each.name == name)
        origin = recipe.parent_of(stage) if stage.model is None else stage.model.path
        data = ", ".join(f"{task} `{key[:SHOWN]}`" for task, key in record["data"].items())
        fingerprint = f"`{record['fingerprint'][:SHOWN]}`"
        rows.append([name, stage.kind, origin, data, str(record["seed"]), fingerprint])
    return "## How it was made\n\n" + _table(rows)


def _scores(stages: Sequence[StageSummary]) -> str:
    rows = [["task", "stage", "before", "after", "change, in points", "problems", "samples each"]]
    for stage in stages:
        for task, score in stage.scores.items():
            after, change = score.after, score.change
            rows.append(
                [
                    task,
                    stage.name,
                    _percent(score.before.avg, score.before.lo, score.before.hi),
                    _percent(after.avg, after.lo, after.hi),
                    f"{100 * change.mean:+.1f} [{100 * change.lo:+.1f}, {100 * change.hi:+.1f}]",
                    str(after.n),
                    str(after.k),
                ]
            )
    if len(rows) == 1:
        return ""
    said = "Accuracy on held-out problems with 95% intervals; changes are of the same problems."
    return f"## Scores\n\n{said}\n\n{_table(rows)}"


def _percent(mean: float, low: float, high: float) -> str:
    return f"{100 * mean:.1f}% [{100 * low:.1f}, {100 * high:.1f}]"


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]])


def _plain(values: Mapping[str, Any]) -> str:
    text: str = yaml.safe_dump(json.loads(json.dumps(values)), sort_keys=False, allow_unicode=True)
    return text
