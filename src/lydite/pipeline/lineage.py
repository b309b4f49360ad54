"""What a run's artifacts follow from, read back from its folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lydite.config import UserError
from lydite.pipeline.artifact import DONE, MARK, fingerprint
from lydite.pipeline.recipe import leaves_of_kinds
from lydite.pipeline.summary import summarise
from lydite.watch.events import (
    Event,
    RunStarted,
    StageSkipped,
    StageStarted,
    StepDone,
    read_events,
)

SHOWN = 12
"""Digits of a fingerprint that are shown; all of them are in ``artifact.json``."""


@dataclass(frozen=True, slots=True)
class Node:
    """An artifact with what it follows from, a line each, and those that start from its model.
    ``facts`` is the same for programs.
    """

    name: str
    title: str
    lines: tuple[str, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    children: list[Node] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """This node and all below it."""
        return {
            "name": self.name,
            **self.facts,
            "children": [child.as_json() for child in self.children],
        }


def read_lineage(place: Path) -> Node:
    """The tree of a run's artifacts, the model that it starts from at the root; of the folder of
    one artifact, or of an exported model, wherever it lies, that artifact.

    Raises:
        UserError: the folder is none of these, or a record in it cannot be read.
    """
    try:
        for name in (DONE, MARK):
            if (place / name).is_file():
                return _alone(json.loads((place / name).read_text(encoding="utf-8")))
        path = place / "recipe.yaml"
        if not path.is_file():
            raise UserError(
                f"{place}: is no folder of a run: it has no recipe.yaml; nor is it that of an "
                f"artifact, which has {DONE} or {MARK}"
            )
        return _tree(place, path.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        if isinstance(error, UserError):
            raise
        reason = " ".join(str(error).split())
        raise UserError(f"{place}: its records cannot be read: {reason}") from error


def _tree(run: Path, text: str) -> Node:
    recipe = yaml.safe_load(text)
    stages: list[dict[str, Any]] = recipe["stages"]
    records = {stage["name"]: _record(run, stage["name"]) for stage in stages}
    origin = next((r["parent"] for r in records.values() if r), "")
    root = _root(run, recipe, hashlib.sha256(text.encode()).hexdigest(), origin)
    events = read_events(run / "events.jsonl")
    leaves = leaves_of_kinds()
    nodes = {"model": root}
    last = "model"
    for stage in stages:
        name = str(stage["name"])
        kind = f"{name} ({stage['kind']})"
        record = records[name]
        if record is None:
            node = _unfinished(name, kind, events)
        else:
            node = _node(name, kind, record, recipe["tasks"], events)
        parent = nodes[stage["start_from"] or last]
        if stage.get("model") is not None:
            parent = _own(stage)
            root.children.append(parent)
        parent.children.append(node)
        nodes[name] = node
        if leaves.get(stage["kind"], "model") == "model":
            last = name
    return root


def _alone(record: Mapping[str, Any]) -> Node:
    """An artifact by itself."""
    node = _node(record["stage"], f"{record['stage']} ({record['kind']})", record, None, ())
    start = record.get("start") or "a model"
    facts = {"state": "start", "fingerprint": record["parent"]}
    return Node(start, f"{start} {record['parent'][:SHOWN]}", (), facts, [node])


def _record(run: Path, stage: str) -> dict[str, Any] | None:
    path = run / "stages" / stage / DONE
    if not path.is_file():
        return None
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record


def _root(run: Path, recipe: Mapping[str, Any], digest: str, origin: str) -> Node:
    kept = sorted((p.name for p in (run / "superseded").glob("[0-9]*")), key=int)
    lines = (
        f"recipe {recipe['name']} {digest[:SHOWN]}, {run / 'recipe.yaml'}",
        *([f"model {origin[:SHOWN]}"] if origin else []),
        f"seed {recipe['seed']}",
        *([f"superseded before: {', '.join(kept)}, in {run / 'superseded'}"] if kept else []),
    )
    path = str(recipe["model"]["path"])
    facts = {"state": "start", "path": path, "recipe": digest, "seed": recipe["seed"]}
    return Node("model", path, lines, {**facts, "superseded": kept})


def _own(stage: Mapping[str, Any]) -> Node:
    """The model that a stage brings."""
    config = stage["model"]
    line = f"model {fingerprint(config)[:SHOWN]}"
    facts = {"state": "start", "path": config["path"]}
    return Node(f"model of {stage['name']}", str(config["path"]), (line,), facts)


def _unfinished(name: str, kind: str, events: Sequence[Event]) -> Node:
    steps = [e.step for e in events if isinstance(e, StepDone) and e.stage == name]
    begun = any(isinstance(e, StageStarted) and e.stage == name for e in events)
    count = max(steps, default=0)
    said = f", begun, {count} step{'' if count == 1 else 's'} logged" if begun else ""
    facts = {"state": "begun" if begun else "not done", "steps": count}
    return Node(name, f"{kind}, not done{said}", (), facts)


def _node(
    name: str,
    kind: str,
    record: Mapping[str, Any],
    tasks: Mapping[str, Any] | None,
    events: Sequence[Event],
) -> Node:
    """A finished stage. ``tasks`` are those of the recipe, where it is known."""
    lines = [
        f"from {record['parent'][:SHOWN]}",
        *(_input(each, digest[:SHOWN], tasks) for each, digest in record["data"].items()),
        f"settings {fingerprint(record['settings'])[:SHOWN]}, seed {record['seed']}",
        f"code lydite {record['lydite']} {record.get('code', '')[:SHOWN]}".rstrip(),
    ]
    made = record.get("dataset")
    if made is not None:
        lines.append(
            f"left {made['kept']} of {made['sampled']} samples, of {made['problems']} problems"
        )
    scores, skipped = _scores(name, events), _skipped(name, events)
    for task, score in scores.items():
        low, high = score["ci95"]
        figures = f"{100 * score['avg']:.1f}% [{100 * low:.1f}, {100 * high:.1f}]"
        change = score["change"]["mean"]
        lines.append(f"{task} {figures}, {100 * change:+.1f} points on where it starts")
    if skipped:
        lines.append("skipped at the last attempt: done before")
    facts = {
        "state": "skipped" if skipped else "done",
        **{key: value for key, value in record.items() if key not in ("stage", "report")},
        "scores": scores,
    }
    return Node(name, f"{kind} {record['fingerprint'][:SHOWN]}", tuple(lines), facts)


def _scores(stage: str, events: Sequence[Event]) -> dict[str, Any]:
    """Held-out figures after the stage and before it, by task."""
    own = [event for event in events if event.stage == stage]
    found = summarise(own)
    return {t: s.as_json() for t, s in found[0].scores.items()} if found else {}


def _skipped(stage: str, events: Sequence[Event]) -> bool:
    began = max((e.time for e in events if isinstance(e, RunStarted)), default="")
    return any(isinstance(e, StageSkipped) and e.stage == stage and e.time >= began for e in events)


def _input(name: str, digest: str, tasks: Mapping[str, Any] | None) -> str:
    """A task, or what a stage took from an earlier one."""
    taken = ("rollouts of ", "teacher ", "reward model ", "model ")
    if name.startswith(taken) and (tasks is None or name not in tasks):
        return f"{name} {digest}"
    if tasks is None:
        return f"data {name} {digest}"
    return f"data {name} {digest}{_origin(name, tasks)}"


def _origin(task: str, tasks: Mapping[str, Any]) -> str:
    """Where a task's problems come from, in a few words."""
    config = tasks.get(task)
    if config is None:
        return ", given from Python"
    if config.get("mix") is not None:
        return f", a mix of {', '.join(part + _origin(part, tasks) for part in config['mix'])}"
    if config.get("from_stage") is not None:
        return f", kept by {config['from_stage']}"
    if config.get("path") is not None:
        paths: Sequence[str] = config["path"]
        return f", {paths if isinstance(paths, str) else ', '.join(paths)}"
    for source in ("hub", "gym"):
        if config.get(source) is not None:
            return f", {source} {config[source]['name']}"
    return ", generated"
