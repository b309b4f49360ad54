"""One teacher, several students at equal compute, over several seeds: Markdown tables.

    python benchmarks/distill.py                         # seeds 11 to 13, one after another
    python benchmarks/distill.py --seeds 1 2 --out runs/mine
    python benchmarks/distill.py --teacher runs/distill_tiny/stages/teacher/model   # students only

A run that is already there is read, not repeated. A student costs what its own stages did:
sampling, the teacher's passes and updates, in FLOPs (two for each weight and token forward, four
backward); not what made the teacher and the start. Intervals are Student's t over seeds.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lydite.config import validate
from lydite.pipeline.catalogue import find_recipe
from lydite.pipeline.recipe import Recipe, load_recipe
from lydite.pipeline.runner import run_recipe
from lydite.watch.console import ConsoleView
from lydite.watch.events import Evaluated, Event, StepDone, read_events
from lydite.watch.intervals import Interval, paired_difference

STUDENTS: Mapping[str, tuple[str, ...]] = {
    "imitation": ("sample", "imitation"),
    "on_policy": ("on_policy",),
    "rl_alone": ("rl_alone",),
    "then_on_policy": ("then_on_policy",),
    "then_rl": ("then_rl",),
}
"""Each student's stages, the last of which leaves it."""
LABELS = {
    "imitation": "imitates verified answers",
    "on_policy": "on-policy distillation",
    "rl_alone": "RL alone",
    "then_on_policy": "imitation, then on-policy",
    "then_rl": "imitation, then RL",
}
BESIDE = {"imitation": "rl_alone", "on_policy": "rl_alone", "then_on_policy": "then_rl"}
"""The student by RL, from the same start, that another is set beside."""


@dataclass(frozen=True, slots=True)
class Student:
    """Held-out accuracy with the FLOPs spent before it, from the start to the end; ``seconds`` are
    those of all steps.
    """

    curve: tuple[tuple[float, float], ...]
    seconds: float

    @property
    def accuracy(self) -> float:
        return self.curve[-1][1]

    @property
    def flops(self) -> float:
        return self.curve[-1][0]

    def cost_of(self, accuracy: float) -> float | None:
        """FLOPs after which the student first had this accuracy, if it ever did."""
        return next((flops for flops, reached in self.curve if reached >= accuracy), None)


def student_of(events: Sequence[Event], stages: Sequence[str]) -> Student:
    """Read back from a run's log; what a resumed run did again counts once."""
    before = 0.0
    seconds = 0.0
    curve: list[tuple[float, float]] = []
    for stage in stages:
        own = [event for event in events if event.stage == stage]
        steps = {e.step: e.metrics for e in own if isinstance(e, StepDone)}
        scores = {e.step: e.avg for e in own if isinstance(e, Evaluated)}
        for at, accuracy in sorted(scores.items()):
            spent = sum(m["flops"] for step, m in steps.items() if step <= at)
            curve.append((before + spent, accuracy))
        before += sum(metrics["flops"] for metrics in steps.values())
        seconds += sum(metrics["seconds"] for metrics in steps.values())
    return Student(tuple(curve), seconds)


def last_score(events: Sequence[Event], stage: str) -> float:
    """Held-out accuracy at a stage's end; NaN where a run has no such stage."""
    found = [e for e in events if isinstance(e, Evaluated) and e.stage == stage]
    return max(found, key=lambda e: e.step).avg if found else math.nan


def over_seeds(values: Mapping[int, float]) -> Interval:
    """The mean over seeds."""
    return paired_difference({str(s): 0.0 for s in values}, {str(s): v for s, v in values.items()})


def tables(runs: Mapping[int, Sequence[Event]]) -> str:
    """Accuracy and cost of every student, and what RL alone reached at which cost."""
    found = {
        name: {seed: student_of(events, stages) for seed, events in runs.items()}
        for name, stages in STUDENTS.items()
    }
    lines = [
        "| | " + " | ".join(f"seed {seed}" for seed in runs) + " | mean | beside RL | FLOPs |",
        "| --- |" + " --- |" * (len(runs) + 3),
    ]
    for stage, label in (("teacher", "the teacher"), ("start", "the students' start")):
        scores = {seed: last_score(events, stage) for seed, events in runs.items()}
        if not any(map(math.isnan, scores.values())):
            lines.append(_row(label, scores, None, None))
    for name, students in found.items():
        scores = {seed: student.accuracy for seed, student in students.items()}
        cost = sum(s.flops for s in students.values()) / len(students)
        rival = found[BESIDE[name]] if name in BESIDE else None
        beside = (
            {seed: scores[seed] - rival[seed].accuracy for seed in runs}
            if rival is not None
            else None
        )
        lines.append(_row(LABELS[name], scores, beside, cost))
    names = [name for name in LABELS if "rl_alone" in (name, BESIDE.get(name))]
    lines += ["", "| FLOPs until first | " + " | ".join(LABELS[name] for name in names) + " |",
              "| --- |" + " --- |" * len(names)]  # fmt: skip
    for seed in runs:
        goal = found["rl_alone"][seed].accuracy
        costs = [found[name][seed].cost_of(goal) for name in names]
        shown = [f"{cost / 1e9:.0f} G" if cost is not None else "never" for cost in costs]
        lines.append(f"| seed {seed}: {goal:.1%}, RL alone's last | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def _row(
    label: str,
    scores: Mapping[int, float],
    beside: Mapping[int, float] | None,
    cost: float | None,
) -> str:
    cells = [f"{score:.1%}" for score in scores.values()]
    cells.append(_shown(over_seeds(scores), ""))
    cells.append("" if beside is None else _shown(over_seeds(beside), "+"))
    cells.append("" if cost is None else f"{cost / 1e9:.0f} G")
    return f"| {label} | " + " | ".join(cells) + " |"


def _shown(interval: Interval, sign: str) -> str:
    mean, low, high = (f"{100 * x:{sign}.1f}" for x in (interval.mean, interval.lo, interval.hi))
    return f"{mean} [{low}, {high}]"


def with_teacher(recipe: Recipe, folder: Path) -> Recipe:
    """The recipe of the students alone, taught by a model that is there."""
    values = recipe.model_dump(mode="json")
    stages = {stage["name"]: stage for stage in values["stages"]}
    for name in ("base", "cold_start", "teacher"):
        del stages[name]
    stages["sample"] |= {"start_from": None, "model": {"path": str(folder), "dtype": "float32"}}
    for name in ("on_policy", "then_on_policy"):
        stages[name]["teacher"] = {"kind": "model", "path": str(folder), "dtype": "float32"}
    return validate(Recipe, {**values, "stages": list(stages.values())})


def main() -> None:
    """Runs the seeds and prints the tables."""
    parser = argparse.ArgumentParser(description="Three students of one teacher.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[11, 12, 13])
    parser.add_argument("--out", type=Path, default=Path("runs/distill"))
    parser.add_argument("--teacher", type=Path, help="A model that is there, for all students.")
    parser.add_argument("--set", nargs="*", default=[], help="key=value, as `lydite run` takes it.")
    given = parser.parse_args()
    runs = {}
    for seed in given.seeds:
        recipe = load_recipe(find_recipe("distill_tiny"), [f"seed={seed}", *given.set])
        if given.teacher is not None:
            recipe = with_teacher(recipe, given.teacher.resolve())
        view = ConsoleView()
        with view:
            folder = run_recipe(recipe, given.out / str(seed), listeners=[view]).folder
        runs[seed] = read_events(folder / "events.jsonl")
    print(tables(runs))


if __name__ == "__main__":
    main()
