"""What a stage leaves: a model, or a dataset, with its lineage. A stage that left one is not done
again.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lydite
from lydite.config import UserError, differences
from lydite.pipeline.folder import write_json

DONE, BEGUN = "artifact.json", "lineage.json"
DATASET = "dataset.parquet"
MARK = "lydite.json"
"""The lineage in an exported folder, which says whose it is."""

INPUTS = ("kind", "seed", "settings", "data", "parent")
"""What of a lineage makes another artifact; other code, or another version, does not."""

MACHINE = "device"
"""The setting that work goes on with and that a finished stage no longer depends on."""


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
    stage); ``data`` the SHA-256 of each task by name; ``settings`` what it depends on in the
    recipe; ``code`` the SHA-256 of Lydite's own source files; ``start`` names the stage, or the
    model, that it starts from, for people.

    Not recorded: ``given`` are those of the settings that are not at their defaults, and ``how``
    names those (dotted) that change memory or speed and not what is made.
    """

    stage: str
    kind: str
    settings: Mapping[str, Any]
    parent: str
    data: Mapping[str, str]
    seed: int
    lydite: str = lydite.__version__
    code: str = field(default_factory=source_fingerprint)
    start: str = field(default="", compare=False)
    given: Mapping[str, Any] = field(default_factory=dict, compare=False)
    how: tuple[str, ...] = field(default=(), compare=False)

    @property
    def record(self) -> dict[str, Any]:
        """As it is written to disk."""
        values = dataclasses.asdict(self)
        del values["given"], values["how"]
        return {"fingerprint": self.fingerprint, **values}

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hex, of stage and inputs: an upgrade must not strand a run."""
        settings = without(self.settings, self.how)
        inputs = {name: getattr(self, name) for name in INPUTS}
        return fingerprint({**inputs, "stage": self.stage, "settings": settings})


@dataclass(frozen=True, slots=True)
class Artifact:
    """A finished stage: the fingerprint of its lineage, and its folder's ``model`` or, where it
    samples, the file of its dataset.
    """

    fingerprint: str
    model: Path
    dataset: Path | None = None


def save_artifact(
    folder: Path, lineage: Lineage, report: Mapping[str, Any] | None = None
) -> Artifact:
    """Records that ``folder/model``, or what else the stage leaves, is whole: it is done from here
    on. ``report`` is what there is to say of it, by name.
    """
    write_json(folder / DONE, {**lineage.record, **(report or {})})
    return artifact_of(folder, lineage.fingerprint)


def artifact_of(folder: Path, known: str) -> Artifact:
    """The artifact in a stage's folder, by its fingerprint."""
    dataset = folder / DATASET
    return Artifact(known, folder / "model", dataset if dataset.is_file() else None)


def load_artifact(folder: Path, lineage: Lineage) -> Artifact | None:
    """The stage's artifact if it is done, or None. Its fingerprint is the recorded one, so that
    settings which are new in a later version do not make what follows from it be done again.

    Raises:
        UserError: it is there but was made from other inputs; nothing is written over.
    """
    record = read_record(folder / DONE)
    if record is None:
        return None
    _refuse(folder, lineage, changes(record, lineage, (*lineage.how, MACHINE)))
    return artifact_of(folder, record["fingerprint"])


def begin(checkpoints: Path, lineage: Lineage, late: Collection[str] = ()) -> None:
    """Records beside a stage's checkpoints what they follow from. Settings in ``late`` come to bear
    only after the last checkpoint.

    Raises:
        UserError: there are checkpoints, and they follow from other inputs.
    """
    record = read_record(checkpoints / BEGUN)
    if record is not None and any(checkpoints.glob("step-*")):
        _refuse(checkpoints, lineage, changes(record, lineage, (*lineage.how, *late)))
    write_json(checkpoints / BEGUN, lineage.record)


def read_record(path: Path) -> dict[str, Any] | None:
    """A lineage as it was written, or None.

    Raises:
        UserError: the file is there and is not one.
    """
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        assert isinstance(record["fingerprint"], str)
        for name in INPUTS:
            assert name in record
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise UserError(
            f"{path}: cannot be read; delete the folders of {path.parent.name} under stages and "
            "checkpoints to do the stage again"
        ) from error
    found: dict[str, Any] = record
    return found


def changes(record: Mapping[str, Any], lineage: Lineage, besides: Collection[str]) -> list[str]:
    """Inputs that differ from a record's, settings as ``key: then, now``; those named in
    ``besides`` do not count, nor does one that the record does not know and that is at its default.
    """
    now = json.loads(json.dumps(lineage.record, default=str))
    found = [d for name in ("kind", "seed") for d in differences(record[name], now[name], name)]
    theirs, ours = record["data"], now["data"]
    found += [f"data of {k}" for k in {**theirs, **ours} if theirs.get(k) != ours.get(k)]
    for part, values in without(now["settings"], besides).items():
        if part in record["settings"]:
            before = without(record["settings"], besides)[part]
            found += differences(before, _known(values, before, lineage.given.get(part)), part)
    if record["parent"] != now["parent"]:
        found.append("the model that it starts from")
    return found


def _known(ours: Any, theirs: Any, given: Any) -> Any:
    """``ours`` without what ``theirs`` lacks and was not ``given``."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        given = given if isinstance(given, Mapping) else {}
        return {
            key: _known(value, theirs.get(key), given.get(key))
            for key, value in ours.items()
            if key in theirs or key in given
        }
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        parts = given if isinstance(given, list | tuple) else [None] * len(ours)
        if len(parts) == len(ours):
            return [_known(*three) for three in zip(ours, theirs, parts, strict=True)]
    return ours


def without(settings: Mapping[str, Any], paths: Collection[str]) -> dict[str, Any]:
    """Settings less those at dotted paths."""
    kept = dict(settings)
    for path in paths:
        head, _, rest = path.partition(".")
        if not rest:
            kept.pop(head, None)
        elif isinstance(kept.get(head), Mapping):
            kept[head] = without(kept[head], (rest,))
    return kept


def _refuse(where: Path, lineage: Lineage, changed: list[str]) -> None:
    if changed:
        raise UserError(
            f"{where}: stage {lineage.stage!r} was made from other inputs (changed since: "
            f"{'; '.join(changed)}); give --redo to do it again and keep what is there, or choose "
            "another --out"
        )


def fingerprint(values: Mapping[str, Any]) -> str:
    """SHA-256, in hex, of a JSON-able mapping."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()
