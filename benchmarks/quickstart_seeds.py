"""The quickstart over several seeds: held-out accuracy before and after RL, as a Markdown table.

    python benchmarks/quickstart_seeds.py                # seeds 11 to 15, one after another
    python benchmarks/quickstart_seeds.py --seeds 1 2 3 --out runs/seeds

A run that is already there is read, not repeated. Seconds are of the whole recipe on this machine.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lydite.pipeline.catalogue import find_recipe
from lydite.pipeline.recipe import load_recipe
from lydite.pipeline.runner import Finished, run_recipe
from lydite.watch.console import ConsoleView
from lydite.watch.events import Evaluated


def score(event: Evaluated) -> str:
    """Percent correct with its interval."""
    return f"{event.avg:.1%} [{event.lo:.1%}, {event.hi:.1%}]"


def row(seed: int, finished: Finished) -> str:
    """One line of the table."""
    rl = finished.stages[-1]
    held_out = rl.scores["heldout"]
    seconds = sum(stage.seconds for stage in finished.stages)
    return f"| {seed} | {score(held_out.before)} | {score(held_out.after)} | {seconds:.0f} s |"


def main() -> None:
    """Runs the seeds and prints the table."""
    parser = argparse.ArgumentParser(description="The quickstart over several seeds.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[11, 12, 13, 14, 15])
    parser.add_argument("--out", type=Path, default=Path("runs/quickstart_seeds"))
    given = parser.parse_args()
    rows = []
    for seed in given.seeds:
        recipe = load_recipe(find_recipe("quickstart"), [f"seed={seed}"])
        view = ConsoleView()
        with view:
            finished = run_recipe(recipe, given.out / str(seed), listeners=[view])
        rows.append(row(seed, finished))
    print("| seed | before RL | after RL | whole run |\n|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
