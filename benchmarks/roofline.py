"""What share of the machine's own peaks update and decode reach, peaks measured in the same run.

    python benchmarks/roofline.py [--what update decode] [--settings short long quickstart]
        [--dtypes float32 bfloat16] [--groups 1 8 64] [--threads 1] [--rounds 5] [--profile]
        [--engine '{"pack_weights": false}'] [--json FILE]

An update's share is the operations that it cannot do without (``workloads.update_operations``) over
its seconds (the processor's, over threads: a machine may be shared), over the peak of products of
that type. ``--profile`` prints where its time goes.

A decode's share is the least time that the machine could take for it over its seconds: operations
over the product peak, or bytes read over the read bandwidth, whichever is more. Its seconds are
those of a whole call less those of a call for one token; the fewest of all rounds, as for peaks.
Settings ``short`` and ``long`` need SmolLM2-135M (``make smollm2``, or ``--smollm2 PATH``).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from machine import Machine, measure, median_and_range
from torch.profiler import ProfilerActivity, profile
from workloads import SETTINGS, SMOLLM2, decode_work, equal_batch, load, update_operations

from lydite.config import validate
from lydite.objective.objective import Objective
from lydite.rollout.engine import EngineConfig
from lydite.rollout.local import LocalEngine
from lydite.train.learner import Learner, UpdateConfig
from lydite.train.optimizer import OptimizerConfig
from lydite.types import Request, SamplingParams

Row = dict[str, Any]
WHAT = ("update", "decode")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def update_share(name: str, dtype: torch.dtype, args: argparse.Namespace) -> Row:
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


def decode_share(name: str, group: int, dtype: torch.dtype, args: argparse.Namespace) -> Row:
    """Seconds of decoding at a setting with that group size, and its share of the bound."""
    setting = SETTINGS[name]
    policy = replace(load(setting.model, dtype, args.smollm2), stop_ids=frozenset())
    engine = LocalEngine(policy, validate(EngineConfig, json.loads(args.engine), "engine"))
    batch = equal_batch(setting, policy.head[0].shape[0])

    def seconds(tokens: int) -> float:
        started = time.process_time()
        engine.generate(
            [
                Request(f"{i}", prompt.prompt_ids, group, SamplingParams(tokens))
                for i, prompt in enumerate(batch.groups)
            ]
        )
        return (time.process_time() - started) / torch.get_num_threads()

    peaks: list[Machine] = []
    whole, first = [], []
    for round_ in range(args.rounds + 1):
        peaks.append(measure())
        found = seconds(setting.new_tokens), seconds(1)
        if round_:  # the first round warms up
            whole.append(found[0])
            first.append(found[1])
    if args.profile:
        with profile(activities=[ProfilerActivity.CPU]) as events:
            seconds(setting.new_tokens)
        print(events.key_averages().table(sort_by="self_cpu_time_total", row_limit=25))
    work = decode_work(
        policy, setting.prompt_tokens, setting.prompts, group, setting.new_tokens - 1
    )
    bounds = {
        "products": work.operations / max(machine.products(dtype) for machine in peaks),
        "reading": work.bytes / max(machine.read for machine in peaks),
    }
    busy = min(whole) - min(first)
    return {
        "what": "decode",
        "setting": name,
        "rows": group * setting.prompts,
        "dtype": str(dtype).removeprefix("torch."),
        "processor_seconds": whole,
        "first_token_seconds": first,
        "steps": setting.new_tokens - 1,
        "bounds": bounds,
        "share": max(bounds.values()) / busy,
    }


def print_decode(row: Row) -> None:
    step = (min(row["processor_seconds"]) - min(row["first_token_seconds"])) / row["steps"]
    binding = max(row["bounds"], key=row["bounds"].get)
    print(
        f"decode, {row['setting']}, {row['rows']} rows, {row['dtype']}: {1e3 * step:.1f} ms a step "
        f"({row['rows'] / step:.0f} tokens/s), {row['share']:.0%} of the bound, which is {binding}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--what", nargs="+", choices=WHAT, default=list(WHAT))
    parser.add_argument("--groups", nargs="+", type=int, default=[1, 8, 64], help="decode only")
    parser.add_argument("--engine", default="{}", help="fields of the local engine, as JSON")
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
            if "decode" in args.what:
                for group in args.groups:
                    rows.append(decode_share(name, group, DTYPES[dtype], args))
                    print_decode(rows[-1])
            if "update" not in args.what:
                continue
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
