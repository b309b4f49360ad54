"""Puts away what a changed recipe does again: ``superseded/N`` holds it as it was, with the recipe
and the events of its time. Nothing is deleted but the copy of a model.

What is to be moved is written down first, and every move can be made twice, so that a kill in the
middle costs nothing: whoever opens the run next ends it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lydite.pipeline.folder import RunFolder, write_json
from lydite.pipeline.survey import Survey
from lydite.watch.events import (
    DatasetMade,
    Evaluated,
    RunDone,
    RunFailed,
    StageDone,
    StageSkipped,
    Warned,
    read_events,
)
from lydite.watch.files import fsync_directory, write_atomic

PLACE = "superseded"
JOURNAL = ".superseding.json"
RUN_ENDS = (RunDone.kind, RunFailed.kind)
STAGE_ENDS = (StageDone.kind, StageSkipped.kind, DatasetMade.kind)


def supersede(folder: RunFolder, found: Survey) -> Path:
    """Moves stages that are done again out of the way; returns where they are now."""
    place = folder.path / PLACE
    taken = [int(path.name) for path in place.glob("*") if path.name.isdigit()]
    number = max(taken, default=0) + 1
    whole = [*found.gone, *(each.stage for each in found.again if not each.serves)]
    ends = [each.stage for each in found.again if each.serves]
    folders = [
        *(f"{part}/{stage}" for stage in whole for part in ("checkpoints", "stages", "samples")),
        *(f"samples/{name}" for name in _held_out(folder, whole)),
        *(f"stages/{stage}" for stage in ends),
    ]
    plan = {"number": number, "folders": folders, "stages": whole, "ends": ends}
    write_json(folder.path / JOURNAL, plan)
    finish_superseding(folder)
    return place / str(number)


def finish_superseding(folder: RunFolder) -> None:
    """Ends what an attempt that was killed had begun to put away."""
    journal = folder.path / JOURNAL
    if not journal.is_file():
        return
    plan: Mapping[str, Any] = json.loads(journal.read_text(encoding="utf-8"))
    target = folder.path / PLACE / str(plan["number"])
    for file in (folder.recipe, folder.summary, folder.events):
        if file.is_file() and not (target / file.name).exists():
            write_atomic(target / file.name, file.read_bytes())
    for name in plan["folders"]:
        source, place = folder.path / name, target / name
        if source.exists() and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            source.rename(place)
            fsync_directory(place.parent)
    shutil.rmtree(folder.model, ignore_errors=True)
    _forget(folder.events, plan["stages"], plan["ends"])
    folder.summary.unlink(missing_ok=True)
    journal.unlink()
    fsync_directory(folder.path)


def _held_out(folder: RunFolder, stages: Iterable[str]) -> list[str]:
    """Folders under ``samples`` with the held-out answers of stages."""
    wanted = set(stages)
    measured = {
        (event.stage, event.task)
        for event in read_events(folder.events)
        if isinstance(event, Evaluated) and event.stage in wanted
    }
    return sorted(f"{stage}-{task}" for stage, task in measured)


def _forget(events: Path, stages: Iterable[str], ends: Iterable[str]) -> None:
    """Takes lines out of the log: of these stages all, and of others that they or the run ended;
    and what was said of the recipe, for the next attempt says it of the recipe that it has.
    """
    if not events.is_file():
        return
    gone, ended = set(stages), set(ends)
    kept = []
    for line in events.read_bytes().splitlines(keepends=True):
        try:
            record = json.loads(line)
            stage, kind = record.get("stage"), record.get("kind")
        except (ValueError, AttributeError):
            continue
        if stage in gone or kind in RUN_ENDS or (stage in ended and kind in STAGE_ENDS):
            continue
        if kind == Warned.kind and not stage:
            continue
        kept.append(line)
    write_atomic(events, b"".join(kept))
