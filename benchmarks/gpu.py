"""Sampling and updates on one GPU: tokens per second, share of the chip's peaks, peak memory.

    python benchmarks/gpu.py [--device cuda] [--model tiny|135m|0.5b|1.5b] [--rounds 2]

Models are new, of the shapes of SmolLM2-135M, Qwen2.5-0.5B and -1.5B, in bfloat16. Every completion
runs to its limit. ``generate`` is Transformers' own, on the same prompts. Sampling is measured with
CUDA graphs and without, updates with attention that needs no padding and with a mask.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

import lydite.model.attention  # noqa: F401  (registers the flat attention)
from lydite.model.policy import Policy
from lydite.objective.objective import Objective
from lydite.ops import varlen
from lydite.rollout.engine import EngineConfig
from lydite.rollout.local import LocalEngine
from lydite.train.learner import Learner, UpdateConfig
from lydite.train.optimizer import OptimizerConfig
from lydite.types import Request, SamplingParams, TrainBatch, TrainGroup, TrainSequence


@dataclass(frozen=True)
class Shape:
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int


@dataclass(frozen=True)
class Run:
    """Where, and how often each thing is measured; what it is compared with is measured once."""

    device: str
    rounds: int

    @property
    def cuda(self) -> bool:
        return self.device.startswith("cuda")


SHAPES = {
    "tiny": Shape(64, 128, 2, 4, 2, 100),
    "135m": Shape(576, 1536, 30, 9, 3, 49152),
    "0.5b": Shape(896, 4864, 24, 14, 2, 151936),
    "1.5b": Shape(1536, 8960, 28, 12, 2, 151936),
}


def policy_of(shape: Shape, device: str) -> Policy:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        tie_word_embeddings=True,
        eos_token_id=None,
    )
    model = Qwen2ForCausalLM(config).to(device=device, dtype=torch.bfloat16)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"<pad>": 0}, unk_token="<pad>")),
        pad_token="<pad>",
    )
    return Policy(model, tokenizer, frozenset(), context=4096)


def wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def seconds(work: Callable[[], object], device: str, rounds: int) -> float:
    """The median; the first time warms up."""
    found = []
    for _ in range(rounds + 1):
        wait(device)
        began = time.perf_counter()
        work()
        wait(device)
        found.append(time.perf_counter() - began)
    return statistics.median(found[1:])


def ids(count: int, vocabulary: int, seed: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(2, vocabulary, (count,), generator=generator).tolist())


class Figures:
    """Prints all there are, as one line, whenever one comes in: of a run that is cut short, the
    last line has most.
    """

    def __init__(self, device: str, model: str) -> None:
        self._device = torch.cuda.get_device_name() if device.startswith("cuda") else "CPU"
        self._model = model
        self._found: dict[str, float] = {}

    def __setitem__(self, name: str, value: float) -> None:
        self._found[name] = round(value, 3)
        print(json.dumps({"device": self._device, "model": self._model} | self._found), flush=True)


def sampling(policy: Policy, shape: Shape, run: Run, found: Figures) -> None:
    """Tokens per second for several numbers of rows, and of ``generate`` with as many."""
    settings: dict[str, Any] = {"max_rows": 512, "cache_gb": 16}
    graphs = "auto" if run.cuda else "never"
    engines = {
        "decode": LocalEngine(policy, EngineConfig(cuda_graphs=graphs, **settings)),
        "plain_decode": LocalEngine(policy, EngineConfig(cuda_graphs="never", **settings)),
    }
    new = 16 if shape is SHAPES["tiny"] else 128
    for prompts, group in ((1, 1), (4, 8), (32, 8)):
        params = SamplingParams(new)
        shown = [ids(200, shape.vocabulary, n) for n in range(prompts)]
        requests = [Request(str(n), p, group, params) for n, p in enumerate(shown)]
        policy.model.set_attn_implementation("lydite")
        rows = prompts * group
        for name, engine in engines.items():
            rounds = run.rounds if name == "decode" else 1
            took = seconds(partial(engine.generate, requests), run.device, rounds)
            found[f"{name}_{rows}_rows"] = rows * new / took
        policy.model.set_attn_implementation("sdpa")
        batch = torch.tensor([p for p in shown for _ in range(group)], device=run.device)

        def plain(batch: torch.Tensor = batch) -> None:
            policy.model.generate(
                input_ids=batch, do_sample=True, top_k=0, max_new_tokens=new, pad_token_id=0
            )

        found[f"generate_{rows}_rows"] = rows * new / seconds(plain, run.device, 1)
    policy.model.set_attn_implementation("lydite")


def updating(policy: Policy, shape: Shape, run: Run, found: Figures) -> None:
    """Trained tokens per second, and operations per second that an update cannot do without."""
    prompts, group, length, new = 8, 8, 200, 128
    groups = [
        TrainGroup(
            ids(length, shape.vocabulary, n),
            [
                TrainSequence(ids(new, shape.vocabulary, s), (1,) * new, (-1.0,) * new, 1.0 - s % 2)
                for s in range(group)
            ],
        )
        for n in range(prompts)
    ]
    config = UpdateConfig(tokens_per_micro_batch=16384)
    learner = Learner(policy, OptimizerConfig(lr=1e-6), config)
    objective = Objective.parse("grpo+drop_zero_variance").with_limit(new)
    head = policy.head[0].numel()
    body = sum(p.numel() for p in policy.model.parameters()) - head
    tokens = prompts * (length + group * new)
    operations = 6 * (body * tokens + head * prompts * group * new)

    def update() -> None:
        learner.update(TrainBatch(groups), objective, (0, 1))

    for name, on, rounds in (("update", True, run.rounds), ("masked_update", False, 1)):
        varlen.ON = on
        if run.cuda:
            torch.cuda.reset_peak_memory_stats()
        took = seconds(update, run.device, rounds)
        found[f"{name}_tokens"] = tokens / took
        found[f"{name}_tera_operations"] = operations / took / 1e12
        if run.cuda:
            found[f"{name}_peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
    varlen.ON = True


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", choices=sorted(SHAPES), default="135m")
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    shape, run = SHAPES[args.model], Run(args.device, args.rounds)
    policy, found = policy_of(shape, args.device), Figures(args.device, args.model)
    updating(policy, shape, run, found)
    sampling(policy, shape, run, found)


if __name__ == "__main__":
    main()
