"""A run of ours as curves, read from its folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from lydite.config import UserError
from lydite.watch.diagnosis.curves import Curves
from lydite.watch.events import Evaluated, Event, StageStarted, StepDone, read_events
from lydite.watch.samples import Sample, read_samples, samples_path


def read_run(run: Path) -> list[Curves]:
    """The stages of a run that have begun, in order.

    Raises:
        UserError: the folder is no run, or its recipe cannot be read.
    """
    events = run / "events.jsonl"
    if not events.is_file():
        raise UserError(
            f"{run}: is no folder of a run: it has no events.jsonl; for another trainer's log "
            "name its file"
        )
    try:
        recipe = yaml.safe_load((run / "recipe.yaml").read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{run}: its recipe.yaml cannot be read: {reason}") from error
    return curves_of(read_events(events), recipe if isinstance(recipe, dict) else {}, run)


def curves_of(
    events: Sequence[Event], recipe: Mapping[str, Any], run: Path | None = None
) -> list[Curves]:
    """The stages that these events tell of. ``run`` is where the rollouts lie."""
    places = {stage["name"]: (i, stage) for i, stage in enumerate(recipe.get("stages", ()))}
    found = []
    for start in (e for e in events if isinstance(e, StageStarted)):
        mine = [e for e in events if e.stage == start.stage]
        steps = sorted((e for e in mine if isinstance(e, StepDone)), key=lambda e: e.step)
        names = dict.fromkeys(name for e in steps for name in e.metrics)
        scores: dict[str, list[Evaluated]] = {}
        for event in sorted((e for e in mine if isinstance(e, Evaluated)), key=lambda e: e.step):
            scores.setdefault(event.task, []).append(event)
        index, settings = places.get(start.stage, (None, {}))
        found.append(
            Curves(
                stage=start.stage,
                kind=start.stage_kind,
                steps=tuple(e.step for e in steps),
                metrics={n: tuple(e.metrics.get(n, math.nan) for e in steps) for n in names},
                evaluations={task: tuple(each) for task, each in scores.items()},
                settings=settings,
                index=index,
                recipe=recipe,
                samples=_samples(run, start.stage),
            )
        )
    return found


def _samples(run: Path | None, stage: str) -> Callable[[int], Sequence[Sample]]:
    def of_step(step: int) -> Sequence[Sample]:
        if run is None:
            return ()
        path = samples_path(run / "samples", stage, step)
        return read_samples(path) if path.is_file() else ()

    return of_step
