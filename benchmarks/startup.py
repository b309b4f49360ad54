"""How long a user waits: for help, for the first token of a run, for a large task.

    python benchmarks/startup.py [--rounds 3] [--problems 100000]

Wall seconds, and in brackets the processor's: on a machine that others use too, only the latter can
be compared. The first token is that of the quickstart (its held-out answers before the first step);
the large task is generated, and is that of a single RL stage, whose first step is waited for.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

FIRST_TOKEN = """
import sys, time
from pathlib import Path
import resource
from lydite.pipeline.catalogue import find_recipe
from lydite.pipeline.recipe import load_recipe
recipe = load_recipe(find_recipe("quickstart"), sys.argv[3:])
from lydite.pipeline.runner import run_recipe
from lydite.rollout.rows import Rows
from lydite.watch.events import StepDone
began = float(sys.argv[1])
def told():
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(time.time() - began, used.ru_utime + used.ru_stime, flush=True)
sample = Rows.sample
def first(rows, logits):
    found = sample(rows, logits)
    Rows.sample = sample
    told()
    return found
Rows.sample = first
class Stop(Exception): pass
def hear(event):
    if isinstance(event, StepDone):
        told()
        raise Stop
try:
    run_recipe(recipe, Path(sys.argv[2]), listeners=[hear])
except Stop:
    pass
"""


def run(command: Sequence[str]) -> tuple[float, float, str]:
    """Wall and processor seconds of a process, and what it printed."""
    before, began = os.times(), os.times().elapsed
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    after = os.times()
    used = after.children_user + after.children_system
    return (
        after.elapsed - began,
        used - before.children_user - before.children_system,
        done.stdout,
    )


def start(overrides: Sequence[str]) -> list[tuple[float, float]]:
    """Seconds to the first token, and to the end of the first step, of the quickstart."""

    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "run")
        command = [sys.executable, "-c", FIRST_TOKEN, str(time.time()), out, *overrides]
        lines = run(command)[2].splitlines()
    return [(float(a), float(b)) for a, b in (line.split() for line in lines)]


def show(name: str, values: Sequence[tuple[float, float]]) -> None:
    walls, cpus = zip(*values, strict=True)
    print(
        f"{name:34} {statistics.median(walls):6.2f} s (from {min(walls):.2f} to {max(walls):.2f}) "
        f"[{statistics.median(cpus):.2f} s]",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--problems", type=int, default=100_000)
    args = parser.parse_args()
    rounds = range(args.rounds)
    lydite = [sys.executable, "-m", "lydite"]
    show("import of the command line", [
        run([sys.executable, "-c", "import lydite.cli.main"])[:2] for _ in rounds])  # fmt: skip
    show("lydite --help", [run([*lydite, "--help"])[:2] for _ in rounds])
    show("quickstart: first token", [start([])[0] for _ in rounds])
    large = [
        f"tasks.train.generated.count={args.problems}", "tasks.base.generated.count=100",
        "stages=[{kind: rl, task: train, steps: 2, prompts_per_step: 24, group_size: 8, "
        "sampling: {max_tokens: 40}}]", "evaluation.tasks=[]",
        "tasks.cold_start.generated.count=100",
    ]  # fmt: skip
    few = [large[0].replace(str(args.problems), "1000"), *large[1:]]
    show("RL on 1,000 problems: first step", [start(few)[-1] for _ in rounds])
    show(f"RL on {args.problems:,} problems: first step", [start(large)[-1] for _ in rounds])


if __name__ == "__main__":
    main()
