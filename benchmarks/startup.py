"""How long a user waits: for help, for the first token of a run, for a large task.

    python benchmarks/startup.py [--rounds 3] [--problems 100000] [--json FILE]

Wall seconds, and in brackets the processor's: on a machine that others use too, only the latter can
be compared. What is measured is the command ``lydite run`` as a user gives it. The first token is
that of the quickstart (its held-out answers before the first step); the large task is generated,
and is that of a single RL stage, whose first step is waited for.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

Measured = tuple[float, float]
"""Wall seconds, processor seconds."""

# The command, which writes when its first token was drawn and when its first step was done.
COMMAND = """
import os, sys, time
from contextlib import contextmanager
began, figures, out, *overrides = sys.argv[1:]
def told():
    with open(figures, "a") as file:
        print(time.time() - float(began), time.process_time(), file=file)
from lydite.cli import starting
imports = starting.importing
@contextmanager
def importing():
    with imports():
        yield
    from lydite.rollout.rows import Rows
    from lydite.watch.console import ConsoleView
    from lydite.watch.events import StepDone
    sample, show = Rows.sample, ConsoleView.__call__
    def first(rows, logits):
        found = sample(rows, logits)
        Rows.sample = sample
        told()
        return found
    def hear(view, event):
        show(view, event)
        if isinstance(event, StepDone):
            told()
            raise KeyboardInterrupt
    Rows.sample, ConsoleView.__call__ = first, hear
starting.importing = importing
from lydite.cli.main import app
app(["run", "quickstart", *overrides, "--out", out])
"""


def run(command: Sequence[str], expected: int = 0) -> Measured:
    """A process that ends with the expected code."""
    # Modules are compiled once, as for everybody who has run it before.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    before, began = os.times(), os.times().elapsed
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    after = os.times()
    if done.returncode != expected:
        raise SystemExit(f"{' '.join(command[:2])}: {done.returncode}\n{done.stdout}{done.stderr}")
    used = after.children_user + after.children_system
    return after.elapsed - began, used - before.children_user - before.children_system


def start(overrides: Sequence[str]) -> list[Measured]:
    """To the first token, and to the end of the first step."""
    with tempfile.TemporaryDirectory() as folder:
        figures, out = Path(folder) / "figures", str(Path(folder) / "run")
        given = [str(time.time()), str(figures), out, *overrides]
        run([sys.executable, "-c", COMMAND, *given], expected=130)  # as control-C ends it
        lines = figures.read_text(encoding="utf-8").splitlines()
    return [(float(a), float(b)) for a, b in (line.split() for line in lines)]


def works(problems: int) -> dict[str, Callable[[], Measured]]:
    """What is measured, by what it is called."""
    lydite = [sys.executable, "-m", "lydite"]
    stage = "stages=[{kind: rl, task: train, steps: 2, prompts_per_step: 24, group_size: 8, "
    few = [
        "tasks.base.generated.count=100", "tasks.cold_start.generated.count=100",
        stage + "sampling: {max_tokens: 40}}]", "evaluation.tasks=[]",
    ]  # fmt: skip

    def step(count: int) -> Measured:
        return start([f"tasks.train.generated.count={count}", *few])[-1]

    return {
        "import of the command line": lambda: run([sys.executable, "-c", "import lydite.cli.main"]),
        "lydite --help": lambda: run([*lydite, "--help"]),
        "quickstart: first token": lambda: start([])[0],
        "RL on 1,000 problems: first step": lambda: step(1000),
        f"RL on {problems:,} problems: first step": lambda: step(problems),
    }


def show(name: str, values: Sequence[Measured]) -> None:
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
    parser.add_argument("--json", type=Path, help="where results go")
    args = parser.parse_args()
    found: dict[str, list[Measured]] = {}
    for name, work in works(args.problems).items():
        found[name] = [work() for _ in range(args.rounds + 1)][1:]  # the first warms up
        show(name, found[name])
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
