"""Four claims about the GRPO family, each as a small controlled experiment with its plot.

    python benchmarks/objective_effects.py                  # all four, about half an hour on a core
    python benchmarks/objective_effects.py --only length --seeds 1 2 3
    python benchmarks/objective_effects.py --plot docs/img  # plots of the runs there are

``length``: does averaging over each sample make wrong answers longer? ``entropy``: does symmetric
clipping lose entropy that clip-higher keeps? ``idle``: do groups without a signal waste samples,
and does dynamic sampling recover them? ``ratio``: do sequence ratios vary less than token ratios on
long answers? The arms of an experiment differ in one thing and share their seeds. Runs that are in
``OUT/effects.jsonl`` are not repeated.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from objective_runs import Bench, Run, Setting, Store, cold_start
from objective_tasks import ROOM, free_length, mixed_difficulty

from lydite.model.scoring import score
from lydite.rollout.select import local_engine
from lydite.types import Completion, Engine, Request

SYMMETRIC = "grpo+token_mean"
WIDE = {"objective": {"preset": "grpo", "patches": ["token_mean"], "clip_high": 0.5}}
ROOMY = {"sampling": {"max_tokens": ROOM}}


@dataclass(frozen=True, slots=True)
class Arm:
    """One side of a comparison: what the plot calls it, its objective, and what else differs."""

    label: str
    objective: str
    stage: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Experiment:
    """``base`` is what its arms share: everything of a :class:`Setting` but objective and seed."""

    arms: tuple[Arm, ...]
    base: Mapping[str, object]
    start: Callable[[Bench, Path], Bench]
    measure: Callable[[Bench, Setting], Run]

    def settings(self, name: str, each: Arm, seeds: Sequence[int]) -> list[Setting]:
        """The runs of an arm."""
        stage = {**self.base.get("stage", {}), **each.stage}  # type: ignore[dict-item]
        shared = {**self.base, "stage": stage}
        return [Setting(part=name, objective=each.objective, seed=s, **shared) for s in seeds]  # type: ignore[arg-type]


def ratios(bench: Bench, setting: Setting) -> Run:
    """One rollout and its updates; then how far each answer's tokens have moved.

    A row for each answer: its ``length`` in tokens, and over its tokens the ``sum`` of the logs of
    their ratios to the policy that sampled them, and of their ``squares``. The log of the
    product of the ratios is the sum, that of the sequence ratio the sum by the length.
    """
    began = time.perf_counter()
    policy = bench.policy()
    engine = Recorder(local_engine(policy, bench.recipe.engine, setting.seed))
    trainer = bench.trainer(setting, policy, engine)
    trainer.step(0)
    rows = []
    for group in engine.last:
        with torch.no_grad():
            answers = [c.token_ids for c in group]
            logprobs, _ = score(policy, [group[0].prompt_ids], [answers])
        for present, completion in zip(logprobs, group, strict=True):
            length = len(completion.token_ids)
            moved = present[:length].double() - torch.tensor(
                completion.logprobs, dtype=torch.float64
            )
            squares = moved.square().sum().item()
            rows.append({"length": float(length), "sum": moved.sum().item(), "squares": squares})
    return Run(setting, rows, [], [], time.perf_counter() - began)


class Recorder:
    """An engine that remembers what it sampled last."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.version = engine.version
        self.last: list[list[Completion]] = []

    def generate(self, requests: Sequence[Request]) -> list[list[Completion]]:
        """What the engine samples."""
        self.last = self._engine.generate(requests)
        return self.last


EXPERIMENTS = {
    "length": Experiment(
        arms=(
            Arm("mean of each sample (GRPO)", "grpo+no_std"),
            Arm("constant length (Dr. GRPO)", "dr_grpo"),
            Arm("mean over tokens (DAPO)", "grpo+no_std+token_mean"),
        ),
        base={"lr": 3e-4, "budget": 120_000, "every": 10**9, "stage": ROOMY},
        start=free_length,
        measure=Bench.run,
    ),
    "entropy": Experiment(
        arms=(
            Arm("0.2 below, 0.2 above", SYMMETRIC),
            Arm("0.2 below, 0.28 above (clip-higher)", f"{SYMMETRIC}+clip_higher"),
            Arm(
                "0.2 below, 0.5 above",
                f"{SYMMETRIC}, clip_high 0.5",
                WIDE,
            ),
        ),
        base={"lr": 3e-4, "budget": 60_000, "every": 10_000, "minibatches": 8, "epochs": 2},
        start=lambda bench, _: bench,
        measure=Bench.run,
    ),
    "idle": Experiment(
        arms=(
            Arm("all groups", "grpo"),
            Arm("idle groups dropped", "grpo+drop_zero_variance"),
            Arm("dynamic sampling", "grpo+dynamic_sampling"),
        ),
        # Without a warm-up: it is counted in updates, of which dynamic sampling makes fewer.
        base={
            "lr": 3e-4,
            "budget": 80_000,
            "every": 10_000,
            "stage": {"optimizer": {"warmup_steps": 0}},
        },
        start=lambda bench, _: mixed_difficulty(bench),
        measure=Bench.run,
    ),
    "ratio": Experiment(
        arms=(Arm("free length", "grpo"),),
        base={
            "lr": 3e-4,
            "budget": 0,
            "minibatches": 8,
            "epochs": 2,
            "stage": {**ROOMY, "prompts_per_step": 64},
        },
        start=free_length,
        measure=ratios,
    ),
}


def runs_of(store: Store, name: str, seeds: Sequence[int]) -> dict[str, list[Run]]:
    """The runs that there are of an experiment, by arm."""
    experiment = EXPERIMENTS[name]
    found = {
        each.label: store.of(experiment.settings(name, each, seeds)) for each in experiment.arms
    }
    return {label: runs for label, runs in found.items() if runs}


def main() -> None:
    """Makes the runs that are missing, or draws them."""
    parser = argparse.ArgumentParser(description="Four claims about the GRPO family.")
    parser.add_argument("--model", type=Path, help="cold-started model; made if not given")
    parser.add_argument("--only", nargs="+", choices=list(EXPERIMENTS), default=list(EXPERIMENTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=Path("runs/objectives"))
    parser.add_argument("--plot", type=Path, help="no runs: plots into this folder, and figures")
    given = parser.parse_args()
    torch.set_num_threads(1)
    store = Store(given.out / "effects.jsonl")
    if given.plot is not None:
        from objective_plots import EFFECTS

        for name in given.only:
            print(f"{name}\n{EFFECTS[name](runs_of(store, name, given.seeds), given.plot)}\n")
        return
    start = Bench.quickstart(given.model or cold_start(given.out / "start"))
    for name in given.only:
        experiment = EXPERIMENTS[name]
        bench = experiment.start(start, given.out)
        # Seeds outside: an interrupted experiment has whole comparisons.
        for seed in given.seeds:
            for each in experiment.arms:
                (setting,) = experiment.settings(name, each, [seed])
                if setting.key not in store.runs:
                    store.add(run := experiment.measure(bench, setting))
                    sys.stderr.write(f"{name}, {each.label}, seed {seed}: {run.seconds:.0f} s\n")


if __name__ == "__main__":
    main()
