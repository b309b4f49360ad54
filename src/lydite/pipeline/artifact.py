"""What a stage leaves: a model, or a dataset, with its lineage. A stage that left one is not done
again.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lydite
from lydite.config import UserError
from lydite.pipeline.folder import write_json

CODE = ("lydite", "code")
"""What a lineage says of the code; other code alone does not make another artifact."""

DATASET = "dataset.parquet"


@functools.cache
def source_fingerprint() -> str:
    """SHA-256, in hex, of every source file of the package, names included."""
    digest = hashlib.sha256()
    root = Path(lydite.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Lineage:
    """Everything that what a stage leaves follows from.

    ``parent`` is the fingerprint of the artifact it starts from (of the model settings, for a first
    stage); ``data`` the SHA-256 of each task by name; ``settings`` the stage's part of the recipe;
    ``code`` the SHA-256 of Lydite's own source files.
    """

    stage: str
    kind: str
    settings: Mapping[str, Any]
    parent: str
    data: Mapping[str, str]
    seed: int
    lydite: str = lydite.__version__
    code: str = dataclasses.field(default_factory=source_fingerprint)

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hex, of all of it but Lydite's version and code: an upgrade must not strand a
        run.
        """
        inputs = dataclasses.asdict(self)
        for name in CODE:
            del inputs[name]
        return fingerprint(inputs)


@dataclass(frozen=True, slots=True)
class Artifact:
    """A finished stage: the fingerprint of its lineage, and its folder's ``model`` or, where it
    samples, the file of its dataset.
    """

    fingerprint: str
    model: Path
    dataset: Path | None = None


def save_artifact(
    folder: Path, lineage: Lineage, dataset: Mapping[str, Any] | None = None
) -> Artifact:
    """Records that ``folder/model``, or the dataset that the report is of, is whole: the stage is
    done from here on.
    """
    _record(folder / "artifact.json", lineage, {} if dataset is None else {"dataset": dataset})
    return _artifact(folder, lineage)


def _artifact(folder: Path, lineage: Lineage) -> Artifact:
    dataset = folder / DATASET
    return Artifact(lineage.fingerprint, folder / "model", dataset if dataset.is_file() else None)


def load_artifact(folder: Path, lineage: Lineage) -> Artifact | None:
    """The stage's artifact if it is done, or None.

    Raises:
        UserError: it is there but was made from other inputs; nothing is written over.
    """
    path = folder / "artifact.json"
    if not path.is_file():
        return None
    _refuse_changed(path, lineage)
    return _artifact(folder, lineage)


def begin(checkpoints: Path, lineage: Lineage) -> None:
    """Records beside a stage's checkpoints what they follow from.

    Raises:
        UserError: there are checkpoints, and they follow from other inputs.
    """
    path = checkpoints / "lineage.json"
    if path.is_file() and any(checkpoints.glob("step-*")):
        _refuse_changed(path, lineage)
    else:
        _record(path, lineage)


def _record(path: Path, lineage: Lineage, report: Mapping[str, Any] | None = None) -> None:
    values = {"fingerprint": lineage.fingerprint, **dataclasses.asdict(lineage), **(report or {})}
    write_json(path, values)


def _refuse_changed(path: Path, lineage: Lineage) -> None:
    record = json.loads(path.read_text())
    if record["fingerprint"] == lineage.fingerprint:
        return
    mine = json.loads(json.dumps(dataclasses.asdict(lineage), default=str))
    changed = [k for k, value in mine.items() if k not in CODE and record.get(k) != value]
    raise UserError(
        f"{path.parent}: stage {lineage.stage!r} was made from other inputs (changed since: "
        f"{', '.join(changed)}); choose another --out, or delete the folders {lineage.stage} under "
        "stages and checkpoints to do the stage again"
    )


def fingerprint(values: Mapping[str, Any]) -> str:
    """SHA-256, in hex, of a JSON-able mapping."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()
