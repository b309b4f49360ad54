"""What a curriculum is worth: RL on problems of which half are out of reach, with and without one.

    lydite run quickstart
    python benchmarks/curriculum.py --start runs/quickstart/stages/cold_start/model

The problems are the quickstart's, which the model gets right now and then at first and nearly
always in the end, and as many additions of three digits, which it was never shown. Every arm
samples the same number of completions from the same start; what they come to in held-out accuracy
is given by sampled tokens. About a minute a run on one core.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from lydite.config import validate
from lydite.pipeline.recipe import Recipe
from lydite.pipeline.runner import run_recipe
from lydite.tasks.generated import generate
from lydite.watch.events import Evaluated, StepDone, read_events

OBJECTIVE = "grpo+clip_higher+token_mean+drop_zero_variance"
ARMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "curriculum": {"curriculum": {}},
    "power 2": {"curriculum": {"power": 2.0}},
    "dynamic sampling": {
        "objective": "grpo+clip_higher+token_mean+dynamic_sampling",
    },
    "retire": {"objective": f"{OBJECTIVE}+retire_solved"},
}


@dataclass(frozen=True)
class Curve:
    """Of a run: sampled tokens and held-out accuracy at each evaluation, and the share of
    informative groups, of all steps and of the second half.
    """

    tokens: Sequence[float]
    accuracy: Sequence[float]
    informative: float
    late: float


def problems(each: int, hard: int, path: Path) -> None:
    """``each`` of the quickstart's and ``hard`` additions of three digits, in a fixed order."""
    rng = random.Random(0)
    kinds = {"add": 0.44, "sum": 0.28, "count": 0.28}
    rows = [
        {"question": p.question, "answer": p.reference, "tag": p.tag}
        for p in generate(kinds, each, 1, "train")
    ]
    for _ in range(hard):
        a, b = rng.randint(100, 999), rng.randint(100, 999)
        rows.append({"question": f"add {a}+{b}", "answer": str(a + b), "tag": "hard"})
    rng.shuffle(rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def recipe(start: Path, task: Path, arm: Mapping[str, Any], steps: int, seed: int) -> Recipe:
    """One RL stage."""
    stage = {
        "kind": "rl", "steps": steps, "prompts_per_step": 16, "group_size": 8,
        "objective": OBJECTIVE, "sampling": {"max_tokens": 40},
        "optimizer": {"lr": 3e-4, "warmup_steps": 5, "betas": [0.9, 0.98], "weight_decay": 0.01},
        **arm,
    }  # fmt: skip
    values = {
        "name": "curriculum", "seed": seed, "threads": 1, "model": {"path": str(start)},
        "tasks": {
            "train": {"path": str(task), "tag": "tag"},
            "heldout": {"generated": {"count": 300, "split": "heldout", "seed": 0}},
        },
        "verifier": {"kind": "exact", "answer": "tag", "thinking": "required"},
        "evaluation": {"tasks": ["heldout"], "every": 10, "sampling": {"max_tokens": 40}},
        "stages": [stage],
    }  # fmt: skip
    return validate(Recipe, values)


def measure(made: Recipe) -> Curve:
    """Runs it."""
    with tempfile.TemporaryDirectory() as folder:
        done = run_recipe(made, Path(folder) / "run")
        events = list(read_events(done.folder / "events.jsonl"))
    steps = [e.metrics for e in events if isinstance(e, StepDone)]
    held_out = {e.step: e.avg for e in events if isinstance(e, Evaluated)}
    sampled = [0.0]
    for metrics in steps:
        sampled.append(sampled[-1] + metrics["tokens"])
    share = [metrics["informative_groups"] for metrics in steps]
    return Curve(
        [sampled[step] for step in held_out],
        list(held_out.values()),
        fmean(share),
        fmean(share[len(share) // 2 :]),
    )


def at(curve: Curve, tokens: float) -> float:
    """Accuracy at so many sampled tokens, between evaluations along a line."""
    points = list(zip(curve.tokens, curve.accuracy, strict=True))
    for (before, low), (after, high) in pairwise(points):
        if before <= tokens <= after:
            return low + (high - low) * (tokens - before) / (after - before)
    return points[-1][1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--start", type=Path, required=True, help="the model after a cold start")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--each", type=int, default=240, help="problems within reach")
    parser.add_argument("--hard", type=int, default=240, help="problems out of reach")
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        task = Path(folder) / "mixed.jsonl"
        problems(given.each, given.hard, task)
        found: dict[str, list[Curve]] = {arm: [] for arm in given.arms}
        for seed in range(given.seeds):
            for arm in given.arms:
                made = recipe(given.start, task, ARMS[arm], given.steps, seed)
                curve = measure(made)
                found[arm].append(curve)
                print(
                    f"seed {seed} {arm}: informative {curve.informative:.1%}, in the second half "
                    f"{curve.late:.1%}; held out {curve.accuracy[-1]:.1%} after "
                    f"{curve.tokens[-1]:,.0f} tokens",
                    flush=True,
                )
    least = min(curve.tokens[-1] for curves in found.values() for curve in curves)
    parts = [least * share for share in (0.25, 0.5, 0.75, 1.0)]
    print("\narm                informative  held out at " + "  ".join(f"{p:,.0f}" for p in parts))
    for arm, curves in found.items():
        scores = "  ".join(f"{fmean(at(c, p) for c in curves):8.1%}" for p in parts)
        print(f"{arm:<18} {fmean(c.informative for c in curves):>10.1%}  {'':12}{scores}")


if __name__ == "__main__":
    main()
