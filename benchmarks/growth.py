"""How the cost of an update grows: seconds and peak memory against the size of a group, the lengths
of prompts and completions, and the vocabulary.

    python benchmarks/growth.py [--rounds 3] [--threads 1] [--out docs/img] [--json FILE]

A new Llama of 4 layers and 256 hidden units. Seconds are the processor's over threads, the least of
the rounds; memory is what an update takes on top of weights and AdamW's moments at its fullest.
Needs matplotlib (extra ``plot``) and Linux.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from objective_plots import COLOURS, STYLES, plt, save
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from workloads import random_batch

from lydite.model.attention import NAME
from lydite.model.policy import Policy
from lydite.objective.objective import Objective
from lydite.train.learner import Learner, UpdateConfig
from lydite.train.optimizer import OptimizerConfig

HIDDEN = 256


@dataclass(frozen=True, slots=True)
class Point:
    """Two prompts, ``group`` completions each."""

    group: int = 8
    prompt: int = 64
    completion: int = 32
    vocabulary: int = 2048


SWEEPS: dict[str, tuple[str, list[int], list[tuple[str, Point]]]] = {
    "completions of a prompt": (
        "group",
        [1, 2, 4, 8, 16, 32, 64],
        [("prompt of 16", Point(prompt=16)), ("prompt of 512", Point(prompt=512))],
    ),
    "prompt, tokens": (
        "prompt",
        [32, 64, 128, 256, 512, 1024, 2048],
        [("group of 1", Point(group=1)), ("group of 16", Point(group=16))],
    ),
    "completion, tokens": (
        "completion",
        [16, 32, 64, 128, 256, 512, 1024],
        [("group of 4", Point(group=4))],
    ),
    "vocabulary": (
        "vocabulary",
        [1000, 4000, 16000, 50000, 150000],
        [("256 tokens", Point(completion=16)), ("2,048 tokens", Point(completion=128))],
    ),
}


def learner_of(vocabulary: int) -> Learner:
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=HIDDEN,
            intermediate_size=3 * HIDDEN,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
        )
    )
    model.set_attn_implementation(NAME)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"<pad>": 0}, unk_token="<pad>")),
        pad_token="<pad>",
    )
    policy = Policy(model, tokenizer, frozenset(), context=4096)
    return Learner(policy, OptimizerConfig(), UpdateConfig())


def cost(learner: Learner, point: Point, rounds: int) -> tuple[float, float]:
    """Seconds, and bytes at the fullest moment beyond what is held between updates."""
    batch = random_batch(
        point.vocabulary, [point.prompt] * 2, [[point.completion] * point.group] * 2
    )
    objective = Objective.parse("grpo")
    seconds, peaks = [], []
    for _ in range(rounds + 1):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts here
        before = status("VmRSS")
        start = time.process_time()
        learner.update(batch, objective, (0, 1))
        seconds.append(time.process_time() - start)
        peaks.append(status("VmHWM") - before)
    return min(seconds[1:]) / torch.get_num_threads(), min(peaks[1:])


def status(name: str) -> int:
    """A line of ``/proc/self/status``, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name + ":"))


def sweep(name: str, rounds: int) -> list[dict[str, Any]]:
    """Every point of a sweep."""
    field, values, lines = SWEEPS[name]
    found = []
    for label, start in lines:
        learner: Learner | None = None
        for value in values:
            point = replace(start, **{field: value})
            if learner is None or field == "vocabulary":
                learner = learner_of(point.vocabulary)
            seconds, memory = cost(learner, point, rounds)
            row = {"sweep": name, "line": label, "value": value, "seconds": seconds}
            found.append({**row, "bytes": memory})
            print(f"{name} {value}, {label}: {seconds:.3f} s, {memory / 2**20:.0f} MiB", flush=True)
    return found


def plot(rows: list[dict[str, Any]], folder: Path) -> None:
    """Seconds above, memory below; a column for each sweep."""
    figure, grid = plt.subplots(2, 4, figsize=(11, 4.6), layout="constrained")
    held = {row["sweep"] for row in rows}
    for column, name in enumerate(name for name in SWEEPS if name in held):
        for index, (label, point) in enumerate(SWEEPS[name][2]):
            own = [row for row in rows if row["sweep"] == name and row["line"] == label]
            values = [row["value"] for row in own]
            look = {"color": COLOURS[index], "linestyle": STYLES[index], "marker": "o"}
            for axes, key, unit in (
                (grid[0][column], "seconds", 1),
                (grid[1][column], "bytes", 2**20),
            ):
                axes.plot(
                    values, [row[key] / unit for row in own], markersize=3, label=label, **look
                )
            if name == "vocabulary":
                tokens = 2 * point.group * point.completion
                logits = [4 * tokens * value / 2**20 for value in values]
                grid[1][column].plot(
                    values, logits, color=COLOURS[index], linewidth=0.8, linestyle=(0, (1, 3)),
                    label=f"logits of {label}",
                )  # fmt: skip
        for axes in (grid[0][column], grid[1][column]):
            axes.set_xscale("log")
            axes.set_yscale("log")
        grid[1][column].set_xlabel(name)
        grid[1][column].legend(fontsize=7)
    grid[0][0].set_ylabel("seconds of an update")
    grid[1][0].set_ylabel("memory of an update, MiB")
    save(figure, folder, "update_growth")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sweeps", nargs="+", choices=SWEEPS, default=list(SWEEPS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path("docs/img"))
    parser.add_argument("--json", type=Path, help="where results go, or come from with --plot-only")
    parser.add_argument("--plot-only", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.plot_only:
        rows = json.loads(args.json.read_text(encoding="utf-8"))
    else:
        rows = [row for name in args.sweeps for row in sweep(name, args.rounds)]
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    plot(rows, args.out)


if __name__ == "__main__":
    main()
