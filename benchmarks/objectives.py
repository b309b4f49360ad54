"""Every preset on the quickstart's RL stage, from one cold-started model, for one budget of sampled
tokens: a Markdown table and plots.

    python benchmarks/objectives.py                         # everything, about an hour on one core
    python benchmarks/objectives.py --only grpo dapo --seeds 1
    python benchmarks/objectives.py --plot docs/img         # table and plots of the runs there are

What is changed of the stage: the objective, the learning rate, which is constant, and the updates
that a rollout makes (``--minibatches``; at 1, the recipe's own, every ratio is exactly 1 and the
presets that differ in ratio and clip alone are one). The learning rate is the best of four on a
seed that is not compared, by accuracy averaged over a shorter budget: for a preset of each kind of
aggregation, whose rate the others take over. An interrupted sweep goes on: runs that are in
``OUT/runs.jsonl`` are not repeated.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import torch
from objective_runs import Bench, Run, Setting, Store, cold_start

from lydite.objective.presets import PRESETS
from lydite.watch.intervals import accuracy_interval

COMPARED = (
    "grpo", "dr_grpo", "dapo", "gspo", "rloo", "cispo", "reinforce++", "ppo", "lite_ppo", "scalerl",
)  # fmt: skip
TUNED = ("grpo", "dr_grpo", "dapo", "gspo", "rloo", "ppo")
"""A preset of each kind of aggregation, with and without a ratio: these choose learning rates."""
NEAREST = {
    "cispo": "dapo", "reinforce++": "dapo", "lite_ppo": "dapo", "scalerl": "dapo",
    "reinforce": "rloo", "opo": "rloo", "reinforce++_baseline": "dapo", "gspo_token": "gspo",
    "luspo": "gspo", "gmpo": "grpo", "sapo": "grpo", "maxrl": "grpo", "passk": "grpo",
    "deepseek_v32": "grpo", "bnpo": "dapo", "dppo": "dapo", "gpg": "dapo", "vespo": "dapo",
    "gdpo": "dapo",
}  # fmt: skip
OTHERS = tuple(name for name in NEAREST if name not in COMPARED)
RATES = (3e-5, 1e-4, 3e-4, 1e-3)
TUNING_SEED, TUNING_BUDGET = 0, 60_000
LATE = 0.2
"""The last share of a run over which its end state is averaged."""


def tuning(preset: str, minibatches: int) -> list[Setting]:
    """The runs that choose a preset's learning rate."""
    return [
        Setting("tune", preset, rate, TUNING_SEED, TUNING_BUDGET, 5_000, minibatches)
        for rate in RATES
    ]


def best_rate(runs: Sequence[Run]) -> float:
    """The learning rate whose run was right most often, averaged over its budget."""
    return max(runs, key=lambda run: run.mean_accuracy).setting.lr


def compared(preset: str, rate: float, given: argparse.Namespace) -> list[Setting]:
    """The runs of a preset that the table is made of."""
    seeds = given.seeds if preset in COMPARED else given.seeds[:1]
    return [
        Setting("preset", preset, rate, seed, given.budget, 5_000, given.minibatches)
        for seed in seeds
    ]


def late(run: Run, name: str) -> float:
    """The mean of a step's figure over the end of a run, steps without it left out."""
    values = run.column(name)
    values = values[-max(1, round(LATE * len(values))) :]
    held = [value for value in values if not math.isnan(value)]
    return fmean(held) if held else math.nan


def seed_mean(values: Sequence[float]) -> float:
    """The mean over seeds, those without a value left out."""
    held = [value for value in values if not math.isnan(value)]
    return fmean(held) if held else math.nan


def crossing(runs: Sequence[Run], level: float, unit: str, scale: float = 1.0) -> str:
    """Mean over seeds of the steps or tokens to a level of accuracy, and their range."""
    found = [run.crossing(level) for run in runs]
    held = [each[unit] / scale for each in found if each is not None]
    if not held:
        return "never"
    mean = f"{fmean(held):.1f}"
    if len(held) < len(runs):
        return f"{mean} ({len(held)} of {len(runs)})"
    return mean if len(held) == 1 else f"{mean} ({min(held):.1f} to {max(held):.1f})"


def row(preset: str, runs: Sequence[Run]) -> str:
    """One line of the table."""
    interval = accuracy_interval([list(scores) for scores in zip(*(r.scores for r in runs))])  # noqa: B905
    figure = {name: seed_mean([late(run, name) for run in runs]) for name in FIGURES}
    idle = 1 - seed_mean([fmean(run.column("informative_groups")) for run in runs])
    cells = [
        f"`{preset}`",
        f"{runs[0].setting.lr:.0e}".replace("e-0", "e-"),
        str(len(runs)),
        crossing(runs, 0.8, "step"),
        crossing(runs, 0.8, "tokens", 1e3),
        crossing(runs, 0.95, "tokens", 1e3),
        f"{fmean(run.mean_accuracy for run in runs):.1%}",
        f"{interval.mean:.1%} [{interval.lo:.1%}, {interval.hi:.1%}]",
        f"{figure['entropy']:.3f}",
        f"{figure['right']:.1f} / {figure['wrong']:.1f}",
        f"{figure['truncated']:.0%}",
        f"{idle:.0%}",
    ]
    return f"| {' | '.join(cells)} |"


FIGURES = ("entropy", "right", "wrong", "truncated")
HEADINGS = (
    "preset", "lr", "seeds", "steps to 80%", "tokens to 80%, thousands",
    "tokens to 95%, thousands", "accuracy over the budget", "held-out accuracy at the end",
    "entropy, nats", "tokens of right / wrong answers", "cut off", "groups without a signal",
)  # fmt: skip


def table(runs: dict[str, list[Run]]) -> str:
    """The table, best accuracy over the budget first."""
    order = sorted(runs, key=lambda name: -fmean(run.mean_accuracy for run in runs[name]))
    lines = [f"| {' | '.join(HEADINGS)} |", "|" + "---|" * len(HEADINGS)]
    return "\n".join(lines + [row(name, runs[name]) for name in order])


def rates_table(runs: dict[str, list[Run]]) -> str:
    """Accuracy over the tuning budget by learning rate, and the gradient norm before clipping."""
    head = [f"{rate:.0e}".replace("e-0", "e-") for rate in RATES]
    lines = [f"| preset | {' | '.join(head)} | gradient norm |", "|" + "---|" * (len(RATES) + 2)]
    for preset, found in runs.items():
        best = best_rate(found)
        cells = [
            f"**{run.mean_accuracy:.1%}**" if run.setting.lr == best else f"{run.mean_accuracy:.1%}"
            for run in found
        ]
        norms = next(run for run in found if run.setting.lr == best).column("grad_norm")
        lines.append(f"| `{preset}` | {' | '.join(cells)} | {seed_mean(norms):.2g} |")
    return "\n".join(lines)


def sweep(given: argparse.Namespace, store: Store) -> None:
    """Makes the runs that are missing, the compared presets first."""
    bench = Bench.quickstart(given.model or cold_start(given.out / "start"))

    def ensure(settings: Sequence[Setting]) -> list[Run]:
        for setting in settings:
            if setting.key not in store.runs:
                store.add(run := bench.run(setting))
                sys.stderr.write(
                    f"{setting.part} {setting.objective} lr {setting.lr:g} seed {setting.seed} "
                    f"minibatches {setting.minibatches}: {run.heldout[-1]['accuracy']:.1%}, "
                    f"{run.mean_accuracy:.1%} over the budget, {run.seconds:.0f} s\n"
                )
        return store.of(settings)

    for preset in given.only:
        rate = best_rate(ensure(tuning(NEAREST.get(preset, preset), given.minibatches)))
        ensure(compared(preset, rate, given))


def collected(given: argparse.Namespace, store: Store) -> dict[str, list[Run]]:
    """The runs that there are of each preset."""
    found = {}
    for preset in given.only:
        tuned = store.of(tuning(NEAREST.get(preset, preset), given.minibatches))
        if len(tuned) == len(RATES):
            found[preset] = store.of(compared(preset, best_rate(tuned), given))
    return {preset: runs for preset, runs in found.items() if runs}


def main() -> None:
    """Runs what is missing, then prints the tables and draws the plots."""
    everything = [name for name in (*COMPARED, *OTHERS) if name in PRESETS]
    parser = argparse.ArgumentParser(description="Every preset on the quickstart's RL stage.")
    parser.add_argument("--model", type=Path, help="cold-started model; made if not given")
    parser.add_argument("--only", nargs="+", choices=everything, default=everything)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--budget", type=int, default=120_000, help="sampled tokens of a run")
    parser.add_argument("--minibatches", type=int, default=4, help="updates that a rollout makes")
    parser.add_argument("--out", type=Path, default=Path("runs/objectives"))
    parser.add_argument("--plot", type=Path, help="no runs: the table, and plots into this folder")
    given = parser.parse_args()
    torch.set_num_threads(1)
    store = Store(given.out / "runs.jsonl")
    if given.plot is None:
        sweep(given, store)
    runs = collected(given, store)
    tuned = {name: store.of(tuning(name, given.minibatches)) for name in TUNED}
    print(table(runs))
    print("\nlearning rates\n")
    print(rates_table({name: found for name, found in tuned.items() if len(found) == len(RATES)}))
    if given.plot is not None:
        from objective_plots import plot_presets

        plot_presets(runs, given.plot, given.minibatches)


if __name__ == "__main__":
    main()
