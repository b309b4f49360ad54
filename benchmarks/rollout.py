"""Sampled tokens per second: the local engine beside `generate`, interleaved, random models.

    python benchmarks/rollout.py [--model tiny|135m] [--rounds 5] [--threads 2]

Every completion runs to its limit, so both sides sample the same number of tokens.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import lydite.model.attention  # noqa: F401  (registers the flat attention)
from lydite.model.policy import Policy
from lydite.rollout.engine import EngineConfig
from lydite.rollout.local import LocalEngine
from lydite.types import Request, SamplingParams


@dataclass(frozen=True)
class Work:
    """The model's sizes and what is asked of it."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    prompts: int
    samples: int
    prompt_tokens: tuple[int, int]
    new_tokens: int


WORK = {
    "tiny": Work(128, 352, 4, 4, 4, 40, 24, 8, (16, 32), 48),
    "135m": Work(576, 1536, 30, 9, 3, 49152, 4, 8, (40, 52), 40),
}


def make_model(work: Work) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=work.vocabulary,
            hidden_size=work.hidden,
            intermediate_size=work.inner,
            num_hidden_layers=work.layers,
            num_attention_heads=work.heads,
            num_key_value_heads=work.kv_heads,
            tie_word_embeddings=True,
            eos_token_id=None,
        )
    ).eval()


def make_prompts(work: Work) -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(1)
    low, high = work.prompt_tokens
    lengths = torch.randint(low, high + 1, (work.prompts,), generator=generator).tolist()
    return [
        tuple(torch.randint(2, work.vocabulary, (n,), generator=generator).tolist())
        for n in lengths
    ]


def make_engine(model: LlamaForCausalLM) -> LocalEngine:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"<pad>": 0}, unk_token="<pad>")),
        pad_token="<pad>",
    )
    return LocalEngine(Policy(model, tokenizer, frozenset(), context=2048), EngineConfig())


def run_engine(engine: LocalEngine, work: Work, prompts: list[tuple[int, ...]]) -> int:
    engine.policy.model.set_attn_implementation("lydite")
    params = SamplingParams(work.new_tokens)
    requests = [Request(str(i), p, work.samples, params) for i, p in enumerate(prompts)]
    groups = engine.generate(requests)
    return sum(len(completion.token_ids) for group in groups for completion in group)


def run_generate(engine: LocalEngine, work: Work, prompts: list[tuple[int, ...]]) -> int:
    model = engine.policy.model
    model.set_attn_implementation("sdpa")
    width = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([(0,) * (width - len(p)) + p for p in prompts for _ in range(work.samples)])
    mask = torch.tensor(
        [[0] * (width - len(p)) + [1] * len(p) for p in prompts for _ in range(work.samples)]
    )
    out = model.generate(
        input_ids=ids,
        attention_mask=mask,
        do_sample=True,
        top_k=0,
        max_new_tokens=work.new_tokens,
        min_new_tokens=work.new_tokens,
        pad_token_id=0,
    )
    assert isinstance(out, torch.Tensor)
    return int(out.shape[0] * (out.shape[1] - width))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(WORK), default="tiny")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--engine-only", action="store_true", help="leave `generate` out")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    work = WORK[args.model]
    model, prompts = make_model(work), make_prompts(work)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters, {work}")
    sides = {"lydite": run_engine, "generate": run_generate}
    if args.engine_only:
        del sides["generate"]
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    engine = make_engine(model)
    for round_ in range(args.rounds + 1):
        for name, side in sides.items():
            start = time.perf_counter()
            tokens = side(engine, work, prompts)
            if round_:  # the first round warms up
                speeds[name].append(tokens / (time.perf_counter() - start))
    for name, values in speeds.items():
        print(
            f"{name:9} {statistics.median(values):9.0f} tokens/s "
            f"(from {min(values):.0f} to {max(values):.0f})"
        )
    if len(speeds) == 2:
        ratios = [a / b for a, b in zip(*speeds.values(), strict=True)]
        middle, low, high = statistics.median(ratios), min(ratios), max(ratios)
        print(f"ratio     {middle:9.2f} (from {low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
