"""R1 and R1-Zero on the tiny model over several seeds, beside a control: docs/r1.md's tables.

    python benchmarks/r1.py                     # seeds 1 to 3, one after another
    python benchmarks/r1.py --seeds 4 --out runs/r1 --only zero control

For each seed: `r1_tiny`; `r1_zero_tiny` from the base that `r1_tiny` trained with that seed, which
is the same; and the control, `r1_zero_tiny` with a base that never saw the kind of problem `add`.
A run that is already there is read, not repeated. Figures are means over the seeds, in brackets the
lowest and the highest. "change" is from what the stage started with to what it left, in points of
accuracy, with a 95% interval over the seeds (Student's t).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from lydite.config import validate
from lydite.pipeline.catalogue import find_recipe
from lydite.pipeline.recipe import Recipe, load_recipe
from lydite.pipeline.runner import run_recipe
from lydite.watch.console import ConsoleView
from lydite.watch.events import Evaluated, read_events
from lydite.watch.progress import RunProgress
from lydite.watch.stages import stage_rows

SKILL = "add"
T_95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""Two-sided 95% points of Student's t, by degrees of freedom."""

FIGURES = ("accuracy", "well_formed", "mixing", "length", "reward")


def recipe_of(variant: str, seed: int, out: Path) -> Recipe:
    """What is run. ``zero`` starts from the base that ``r1`` left in ``out``."""
    if variant == "r1":
        return load_recipe(find_recipe("r1_tiny"), [f"seed={seed}"])
    values = load_recipe(find_recipe("r1_zero_tiny"), [f"seed={seed}"]).model_dump(mode="json")
    if variant == "zero":
        path = out / f"r1-{seed}" / "stages" / "base" / "model"
        values["model"] = {"path": str(path), "context": values["model"]["context"]}
        values["stages"] = [stage for stage in values["stages"] if stage["name"] != "base"]
        del values["tasks"]["base"]
        return validate(Recipe, {**values, "name": "zero"}, "zero")
    source = values["tasks"]["base_reasoning"]["generated"]
    source["kinds"] = {kind: w for kind, w in source["kinds"].items() if kind != SKILL}
    return validate(Recipe, {**values, "name": "control"}, "control")


def run(variant: str, seed: int, out: Path) -> RunProgress:
    """Runs it, or goes on, or reads what is there."""
    folder = out / f"{variant}-{seed}"
    view = ConsoleView()
    with view:
        run_recipe(recipe_of(variant, seed, out), folder, listeners=[view])
    return folded(folder)


def folded(folder: Path) -> RunProgress:
    """A run as its log tells it."""
    progress = RunProgress()
    for event in read_events(folder / "events.jsonl"):
        progress.advance(event)
    return progress


def figures(event: Evaluated) -> dict[str, float]:
    """Of one evaluation."""
    return {"accuracy": event.avg, **{k: v for k, v in event.metrics.items() if k in FIGURES}}


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and the half-width of its 95% interval over seeds."""
    if len(values) < 2:
        return values[0], math.nan
    spread = stdev(values) / math.sqrt(len(values))
    return mean(values), T_95.get(len(values) - 1, 1.96) * spread


def said(name: str, values: Sequence[float]) -> str:
    """The mean, and the lowest and the highest; shares in percent."""

    def one(value: float) -> str:
        return f"{value:.2f}" if name in ("length", "reward") else f"{100 * value:.0f}%"

    middle, low, high = (one(value) for value in (mean(values), min(values), max(values)))
    return middle if low == high else f"{middle} ({low}–{high})"


def changed(rows: Sequence[tuple[Evaluated, Evaluated | None]]) -> str:
    """Accuracy less that of the start, in points."""
    steps = [after.avg - before.avg for after, before in rows if before is not None]
    if not steps:
        return "-"
    middle, half = (100 * value for value in interval(steps))
    return f"{middle:+.0f}" if math.isnan(half) else f"{middle:+.0f} ± {half:.0f}"


def table(runs: Mapping[int, RunProgress], task: str) -> str:
    """A row per stage, over the seeds."""
    found: dict[str, list[tuple[Evaluated, Evaluated | None]]] = {}
    for progress in runs.values():
        for stage, event, before in stage_rows(progress, task):
            found.setdefault(stage, []).append((event, before))
    every = [figures(event) for rows in found.values() for event, _ in rows]
    names = [name for name in FIGURES if any(name in each for each in every)]
    heads = ["stage", "accuracy", "change", *(name.replace("_", "-") for name in names[1:])]
    lines = [heads, ["---"] * len(heads)]
    for stage, rows in found.items():
        cells = []
        for name in names:
            values = [figures(event).get(name, math.nan) for event, _ in rows]
            finite = [value for value in values if math.isfinite(value)]
            cells.append(said(name, finite) if finite else "-")
        lines.append([stage, cells[0], changed(rows), *cells[1:]])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    """Runs the seeds and prints the tables."""
    parser = argparse.ArgumentParser(description="R1 and R1-Zero on the tiny model.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=Path("runs/r1"))
    variants = ["r1", "zero", "control"]
    parser.add_argument("--only", nargs="+", choices=variants, default=variants)
    given: Any = parser.parse_args()
    runs: dict[str, dict[int, RunProgress]] = {variant: {} for variant in given.only}
    for seed in given.seeds:
        for variant in given.only:
            runs[variant][seed] = run(variant, seed, given.out)
    for variant, seeds in runs.items():
        tasks = dict.fromkeys(task for progress in seeds.values() for task in progress.tasks)
        for task in tasks:
            print(f"\n{variant}, {task}, {len(seeds)} seeds\n\n{table(seeds, task)}")


if __name__ == "__main__":
    main()
