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
from lydite.pipeline.artifact import fingerprint

SHOWN = 12
"""Digits of a fingerprint that are shown; all of them are in ``artifact.json``."""

NO_MODEL = ("rejection_sampling", "reward_model")
"""Kinds of stage that leave no model for the next stage to start from."""


@dataclass(frozen=True, slots=True)
class Node:
    """An artifact with what it follows from, a line each, and those that start from its model."""

    name: str
    title: str
    lines: tuple[str, ...]
    children: list[Node] = field(default_factory=list)


def read_lineage(run: Path) -> Node:
    """The tree of a run's artifacts, the model that it starts from at the root.

    Raises:
        UserError: the folder is no run, or a record in it cannot be read.
    """
    path = run / "recipe.yaml"
    if not path.is_file():
        raise UserError(f"{run}: is no folder of a run: it has no recipe.yaml")
    try:
        text = path.read_text(encoding="utf-8")
        recipe = yaml.safe_load(text)
        stages: list[dict[str, Any]] = recipe["stages"]
        records = {stage["name"]: _record(run, stage["name"]) for stage in stages}
        origin = next((r["parent"] for r in records.values() if r), "")
        root = _root(run, recipe, hashlib.sha256(text.encode()).hexdigest(), origin)
        nodes = {"model": root}
        last = "model"
        for stage in stages:
            node = _node(stage, records[stage["name"]], recipe["tasks"])
            parent = nodes[stage["start_from"] or last]
            if stage.get("model") is not None:
                parent = _own(stage)
                root.children.append(parent)
            parent.children.append(node)
            nodes[stage["name"]] = node
            if stage["kind"] not in NO_MODEL:
                last = stage["name"]
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{run}: its records cannot be read: {reason}") from error
    return root


def _record(run: Path, stage: str) -> dict[str, Any] | None:
    path = run / "stages" / stage / "artifact.json"
    if not path.is_file():
        return None
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record


def _root(run: Path, recipe: Mapping[str, Any], digest: str, origin: str) -> Node:
    lines = (
        f"recipe {recipe['name']} {digest[:SHOWN]}, {run / 'recipe.yaml'}",
        *([f"model {origin[:SHOWN]}"] if origin else []),
        f"seed {recipe['seed']}",
    )
    return Node("model", str(recipe["model"]["path"]), lines)


def _own(stage: Mapping[str, Any]) -> Node:
    """The model that a stage brings."""
    config = stage["model"]
    line = f"model {fingerprint(config)[:SHOWN]}"
    return Node(f"model of {stage['name']}", str(config["path"]), (line,))


def _node(
    stage: Mapping[str, Any], record: Mapping[str, Any] | None, tasks: Mapping[str, Any]
) -> Node:
    name = str(stage["name"])
    title = f"{name} ({stage['kind']})"
    if record is None:
        return Node(name, f"{title}, not done", ())
    lines = [
        f"from {record['parent'][:SHOWN]}",
        *(_input(name, digest[:SHOWN], tasks) for name, digest in record["data"].items()),
        f"settings {fingerprint(record['settings'])[:SHOWN]}, seed {record['seed']}",
        f"code lydite {record['lydite']} {record.get('code', '')[:SHOWN]}".rstrip(),
    ]
    made = record.get("dataset")
    if made is not None:
        lines.append(
            f"left {made['kept']} of {made['sampled']} samples, of {made['problems']} problems"
        )
    return Node(name, f"{title} {record['fingerprint'][:SHOWN]}", tuple(lines))


def _input(name: str, digest: str, tasks: Mapping[str, Any]) -> str:
    """A task, or what a stage took from an earlier one."""
    if name.startswith(("rollouts of ", "teacher ")) and name not in tasks:
        return f"{name} {digest}"
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
