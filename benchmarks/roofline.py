"""What share of the machine's own peaks the update reaches, peaks measured in the same run.

    python benchmarks/roofline.py [--settings short long quickstart] [--dtypes float32 bfloat16]
        [--threads 1] [--rounds 5] [--profile] [--json FILE]

An update's share is the operations that it cannot do without (``workloads.update_operations``) over
its seconds (the processor's, over threads: a machine may be shared), over the peak of products of
that type. ``--profile`` prints where its time goes.
Settings ``short`` and ``long`` need SmolLM2-135M (``make smollm2``, or ``--smollm2 PATH``).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from machine import Machine, measure, median_and_range
from torch.profiler import ProfilerActivity, profile
from workloads import SETTINGS, SMOLLM2, equal_batch, load, update_operations

from lydite.objective.objective import Objective
from lydite.train.learner import Learner, UpdateConfig
from lydite.train.optimizer import OptimizerConfig

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def update_share(name: str, dtype: torch.dtype, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of an update at a setting, and its share of the peak."""
    policy = load(SETTINGS[name].model, dtype, args.smollm2)
    batch = equal_batch(SETTINGS[name], policy.head[0].shape[0])
    learner = Learner(policy, OptimizerConfig(lr=1e-6), UpdateConfig())
    objective = Objective.parse("grpo")
    peaks: list[Machine] = []
    wall, busy = [], []
    for round_ in range(args.rounds + 1):
        peaks.append(measure())
        started = time.perf_counter(), time.process_time()
        learner.update(batch, objective, (0, 1))
        if round_:  # the first round warms up
            wall.append(time.perf_counter() - started[0])
            busy.append((time.process_time() - started[1]) / torch.get_num_threads())
    if args.profile:
        with profile(activities=[ProfilerActivity.CPU]) as found:
            learner.update(batch, objective, (0, 1))
        print(found.key_averages().table(sort_by="self_cpu_time_total", row_limit=25))
    operations = update_operations(policy, batch)
    peak = max(machine.products(dtype) for machine in peaks)
    return {
        "what": "update",
        "setting": name,
        "dtype": str(dtype).removeprefix("torch."),
        "operations": operations,
        "seconds": wall,
        "processor_seconds": busy,
        "peak": peak,
        "share": operations / statistics.median(busy) / peak,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--smollm2", default=SMOLLM2, help="another place of SmolLM2-135M")
    parser.add_argument("--profile", action="store_true", help="print where an update's time goes")
    parser.add_argument("--json", type=Path, help="where results go")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    machine = measure()
    print("\n".join(machine.rows()))
    rows = []
    for name in args.settings:
        for dtype in args.dtypes:
            row = update_share(name, DTYPES[dtype], args)
            rows.append(row)
            print(
                f"update, {name}, {dtype}: {median_and_range(row['processor_seconds'])} s of the "
                f"processor ({median_and_range(row['seconds'])} by the clock), "
                f"{row['operations'] / 1e9:.0f} Gop, {row['share']:.0%} of the product peak",
                flush=True,
            )
    if args.json:
        text = json.dumps({"machine": machine.as_json(), "rows": rows}, indent=1)
        args.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
