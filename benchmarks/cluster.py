"""What a cluster costs and what it overlaps: steps a second, and where the time of a step goes, for
each mode with 1, 2 and 4 rollout workers, beside one process; and whether accuracy is the same.

    python benchmarks/cluster.py                                   # makes its own cold start first
    python benchmarks/cluster.py --model runs/quickstart/stages/cold_start/model --workers 1 2

On a machine of few cores this shows overhead and overlap, not speed: four workers on two cores
sample no faster than one process. The same RL stage (the quickstart's, shorter) every time, from
the same cold-started model. `synced` are the bytes of weights that are handed over after a step.
Accuracy is held-out accuracy at each evaluation; synchronous modes must have that of one process,
within what rounding makes of it, `async` within the noise of a seed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lydite.config import UserError, load_yaml, validate
from lydite.pipeline.catalogue import find_recipe
from lydite.pipeline.recipe import Recipe
from lydite.pipeline.runner import run_recipe
from lydite.watch.events import Evaluated, StepDone, read_events

PHASES = ("sample", "verify", "wait", "update", "sync")
STALENESS = 2


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run: medians over its steps but the first, in seconds; ``accuracy`` by step."""

    name: str
    steps_per_second: float
    seconds: dict[str, float]
    accuracy: dict[int, float]
    grad_norm: tuple[float, ...]
    staleness: float


def variants(workers: Sequence[int], modes: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names, and what of the recipe each has of its own."""
    yield "one process", {}
    for count in workers:
        for mode in modes:
            cluster: dict[str, Any] = {"mode": mode, "object_store_gb": 0.2}
            if mode == "colocated":
                cluster["learner"] = {"ranks": count}
            else:
                cluster["rollout"] = {"workers": count}
            name = f"{mode}, {count} worker{'' if count == 1 else 's'}"
            yield name, {"cluster": cluster, "stale": mode == "async"}


def recipe_of(model: Path, steps: int, changes: dict[str, Any]) -> Recipe:
    """The quickstart's RL stage alone, from a cold-started model."""
    values = load_yaml(find_recipe("quickstart"))
    stage = {**values["stages"][-1], "steps": steps}
    if changes.get("stale"):
        stage |= {"staleness": STALENESS, "objective": f"{stage['objective']}+tis"}
    evaluation = {**values["evaluation"], "every": max(1, steps // 4)}
    rest = {
        "model": {"path": str(model), "context": values["model"]["context"]},
        "stages": [stage],
        "evaluation": evaluation,
        "checkpoint": {"every": None},
    }
    own = {"cluster": changes["cluster"]} if "cluster" in changes else {}
    return validate(Recipe, {**values, **rest, **own})


def cold_start(folder: Path) -> Path:
    """A model that has the form and guesses, made in a minute or two."""
    values = load_yaml(find_recipe("quickstart"))
    base, cold, _ = values["stages"]
    stages = [{**base, "steps": 500}, cold]
    run_recipe(validate(Recipe, {**values, "stages": stages}), folder)
    return folder / "stages/cold_start/model"


def measure(name: str, recipe: Recipe, out: Path) -> Figures:
    """Runs it."""
    run_recipe(recipe, out)
    events = read_events(out / "events.jsonl")
    steps = [e.metrics for e in events if isinstance(e, StepDone)][1:]
    seconds = {
        phase: statistics.median(step.get(f"seconds_{phase}", 0.0) for step in steps)
        for phase in PHASES
    }
    return Figures(
        name,
        1 / statistics.median(step["seconds"] for step in steps),
        seconds,
        {e.step: e.avg for e in events if isinstance(e, Evaluated)},
        tuple(step.get("grad_norm", 0.0) for step in steps),
        statistics.mean(step.get("staleness", 0.0) for step in steps),
    )


def table(found: Sequence[Figures], synced: int) -> str:
    """A row a run."""
    heads = ["run", "steps/s", *(f"{phase} s" for phase in PHASES), "staleness", "accuracy"]
    lines = [f"| {' | '.join(heads)} |", f"| {' | '.join('---' for _ in heads)} |"]
    for each in found:
        accuracy = " → ".join(f"{value:.1%}" for value in each.accuracy.values())
        cells = [
            each.name,
            f"{each.steps_per_second:.2f}",
            *(f"{each.seconds[phase]:.3f}" for phase in PHASES),
            f"{each.staleness:.1f}",
            accuracy,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    first = found[0]
    for each in found[1:]:
        if each.staleness == 0:
            pairs = zip(each.grad_norm, first.grad_norm, strict=True)
            apart = max(abs(ours - theirs) for ours, theirs in pairs)
            lines.append(f"\n{each.name}: gradient norms differ by at most {apart:.2g}")
    lines.append(f"\nsynced: {synced / 1e6:.1f} MB a step")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--model", type=Path, help="a cold-started model; made here if not given")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument(
        "--modes", nargs="+", default=["separate", "colocated", "async"], help="of the cluster"
    )
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        model = given.model or cold_start(place / "cold")
        found = []
        for number, (name, changes) in enumerate(variants(given.workers, given.modes)):
            recipe = recipe_of(model, given.steps, changes)
            found.append(measure(name, recipe, place / f"run-{number}"))
            print(f"{name}: {found[-1].steps_per_second:.2f} steps/s", file=sys.stderr)
        print(table(found, (model / "model.safetensors").stat().st_size))
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(each) for each in found], indent=1))


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"cluster: {error}")
