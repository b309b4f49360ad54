"""How the cost of sampling grows: with the group, the prompt, the completion, what is alive, the
vocabulary.

    python benchmarks/decode_growth.py [--rounds 3] [--threads 1] [--json FILE] [--plot FILE]

A small random Llama (4 layers, 128 wide), on which attention weighs far more than on a large one,
so that what grows with lengths shows. Seconds are the processor's, the fewest of all rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lydite.config import validate
from lydite.model.loading import ModelConfig, load_policy
from lydite.model.policy import Policy
from lydite.rollout.engine import EngineConfig
from lydite.rollout.local import LocalEngine
from lydite.types import Request, SamplingParams

GROUPS = (1, 2, 4, 8, 16, 32, 64)
PROMPTS = (32, 64, 128, 256, 512, 1024, 2048)
COMPLETIONS = (16, 32, 64, 128, 256, 512)
VOCABULARIES = (1000, 4000, 16000, 50000, 150000)
CONTEXT = 4096


def make_policy(vocabulary: int) -> Policy:
    """A new model whose completions never stop early."""
    config = validate(
        ModelConfig,
        {
            "path": "init:llama",
            "vocabulary": ["a", "b"],
            "context": CONTEXT,
            "init": {
                "hidden_size": 128,
                "intermediate_size": 384,
                "num_hidden_layers": 4,
                "num_attention_heads": 4,
                "tie_word_embeddings": True,
            },
        },
        "model",
    )
    policy = load_policy(config)
    policy.model.resize_token_embeddings(vocabulary, mean_resizing=False)
    return replace(policy, stop_ids=frozenset())


class Bench:
    """Times calls of an engine on one model."""

    def __init__(self, vocabulary: int, rounds: int) -> None:
        self._engine = LocalEngine(make_policy(vocabulary), EngineConfig())
        self._rounds = rounds
        self._vocabulary = vocabulary

    def seconds(self, prompt: int, limits: Sequence[int]) -> float:
        """One prompt, a completion for each limit."""
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(self._vocabulary, (prompt,), generator=generator).tolist()
        requests = [
            Request("0", tuple(ids), 1, SamplingParams(limit), first_sample=sample)
            for sample, limit in enumerate(limits)
        ]
        found = []
        for _ in range(self._rounds + 1):  # the first warms up
            started = time.process_time()
            self._engine.generate(requests)
            found.append(time.process_time() - started)
        return min(found[1:]) / torch.get_num_threads()

    def parts(self, prompt: int, group: int, length: int) -> tuple[float, float]:
        """Seconds to the first tokens, and seconds a step from there on."""
        first = self.seconds(prompt, [1] * group)
        step = (self.seconds(prompt, [length] * group) - first) / (length - 1)
        print(
            f"  {group} x {length} tokens after {prompt}, vocabulary {self._vocabulary}: "
            f"{1e3 * first:.1f} ms, {1e3 * step:.2f} ms a step",
            file=sys.stderr,
            flush=True,
        )
        return first, step


def measure(rounds: int) -> dict[str, Any]:
    """All curves: for each, what is varied and the two parts of :meth:`Bench.parts`."""
    bench = Bench(1000, rounds)
    curves = {
        "group": [(g, *bench.parts(512, g, 33)) for g in GROUPS],
        "prompt": [(p, *bench.parts(p, 8, 33)) for p in PROMPTS],
        "completion": [(n, *bench.parts(64, 8, n)) for n in COMPLETIONS],
        "vocabulary": [(v, *Bench(v, rounds).parts(64, 8, 33)) for v in VOCABULARIES],
    }
    rows = 64
    lives = {
        "64 rows of 128 tokens": [128] * rows,
        "32 of 128, 32 of 16": [128, 16] * (rows // 2),
        "4 of 128, 60 of 16": [128] * 4 + [16] * (rows - 4),
        "64 rows of 16 tokens": [16] * rows,
    }
    alive = [
        {"what": name, "tokens": sum(limits), "seconds": bench.seconds(64, limits)}
        for name, limits in lives.items()
    ]
    return {"curves": curves, "alive": alive}


def plot(found: dict[str, Any], file: Path) -> None:
    """Four panels, both axes logarithmic: what grows in proportion has slope 1."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullFormatter

    names = {
        "group": "completions of a prompt of 512 tokens",
        "prompt": "prompt tokens (8 completions)",
        "completion": "completion tokens (8 completions)",
        "vocabulary": "vocabulary (8 completions)",
    }
    figure, axes = plt.subplots(1, 4, figsize=(15, 3.4), sharey=True, layout="constrained")
    for axis, (name, label) in zip(axes, names.items(), strict=True):
        x, first, step = zip(*found["curves"][name], strict=True)
        axis.loglog(x, [1e3 * v for v in first], "o-", label="to the first tokens")
        axis.loglog(x, [1e3 * v for v in step], "s-", label="a step")
        axis.set_xlabel(label)
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("processor ms")
    axes[0].legend()
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where results go")
    parser.add_argument("--plot", type=Path, help="where the picture goes")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    found = measure(args.rounds)
    for name, points in found["curves"].items():
        print(f"{name}: first tokens ms, step ms")
        for x, first, step in points:
            print(f"  {x:6} {1e3 * first:8.1f} {1e3 * step:8.2f}")
    for row in found["alive"]:
        each = 1e6 * row["seconds"] / row["tokens"]
        print(
            f"{row['what']:22} {row['tokens']:5} tokens, {row['seconds']:.3f} s, {each:.0f} us each"
        )
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if args.plot:
        plot(found, args.plot)


if __name__ == "__main__":
    main()
