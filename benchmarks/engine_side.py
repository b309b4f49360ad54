"""One engine of ``engine.py``, in a process of its own: answers work on its input with figures.

    python benchmarks/engine_side.py lydite|generate|batching|vllm FOLDER DTYPE

``FOLDER`` holds a saved model. Each line of input is a list of ``[prompt, limits]``: token ids, and
how many tokens each of its completions gets. Each line of output has the tokens asked for, seconds
by the clock and of the processor. Only the side that is asked for is imported: vLLM lives in an
environment of its own.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable

Work = list[tuple[list[int], list[int]]]
Side = Callable[[Work], int]


def lydite_side(folder: str, dtype: str, settings: dict[str, object]) -> Side:
    """The engine as the loop uses it, log-probabilities included. Fields of its configuration may
    be set.
    """
    from dataclasses import replace

    from lydite.config import validate
    from lydite.model.loading import ModelConfig, load_policy
    from lydite.rollout.engine import EngineConfig
    from lydite.rollout.local import LocalEngine
    from lydite.types import Request, SamplingParams

    model = validate(ModelConfig, {"path": folder, "dtype": dtype}, "model")
    policy = replace(load_policy(model), stop_ids=frozenset())
    engine = LocalEngine(policy, validate(EngineConfig, settings, "engine"))

    def run(work: Work) -> int:
        requests = [
            Request(f"{i}", tuple(prompt), 1, SamplingParams(limit), first_sample=sample)
            for i, (prompt, limits) in enumerate(work)
            for sample, limit in enumerate(limits)
        ]
        return sum(len(c.token_ids) for group in engine.generate(requests) for c in group)

    return run


def plain_model(folder: str, dtype: str) -> tuple[object, object]:
    """The model as Transformers loads it, and settings that sample from all of its distribution and
    never stop early.
    """
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=1.0, top_k=0, top_p=1.0, eos_token_id=None, pad_token_id=0
    )
    return model, model.generation_config


def generate_side(folder: str, dtype: str, _: dict[str, object]) -> Side:
    """``generate``: all completions in one padded batch that runs until the longest has ended."""
    import torch

    model, _config = plain_model(folder, dtype)

    def run(work: Work) -> int:
        rows = [(prompt, limit) for prompt, limits in work for limit in limits]
        width = max(len(prompt) for prompt, _ in rows)
        longest = max(limit for _, limit in rows)
        ids = torch.tensor([[0] * (width - len(p)) + p for p, _ in rows])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p, _ in rows])
        with torch.inference_mode():
            out = model.generate(  # type: ignore[attr-defined]
                input_ids=ids, attention_mask=mask, max_new_tokens=longest
            )
        assert out.shape == (len(rows), width + longest)
        return sum(limit for _, limit in rows)

    return run


def batching_side(folder: str, dtype: str, _: dict[str, object]) -> Side:
    """Transformers' continuous batching, prefix sharing on."""
    from transformers import ContinuousBatchingConfig

    model, config = plain_model(folder, dtype)
    batching = ContinuousBatchingConfig(num_blocks=256, page_size=64, max_batch_tokens=1024)

    def run(work: Work) -> int:
        wanted = {}
        manager = model.continuous_batching_context_manager(  # type: ignore[attr-defined]
            generation_config=config, continuous_batching_config=batching, warmup=False
        )
        with manager as batch:
            for prompt, limits in work:
                for limit in limits:
                    wanted[f"{len(wanted)}"] = limit
                    batch.add_request(prompt, f"{len(wanted) - 1}", max_new_tokens=limit)
            waiting = set(wanted)
            while waiting:
                result = batch.get_result(timeout=600)
                assert result is not None and not result.error, result
                if result.is_finished():
                    waiting.discard(result.request_id)
                    assert len(result.generated_tokens) == wanted[result.request_id]
        return sum(wanted.values())

    return run


def vllm_side(folder: str, dtype: str, settings: dict[str, object]) -> Side:
    """vLLM for CPUs, prefix caching on; with the log-probability of each sampled token, which RL
    needs. ``settings`` are arguments of its ``LLM``, such as ``enforce_eager``.
    """
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    from vllm import LLM, SamplingParams

    plain = {"dtype": dtype, "max_model_len": 1024, "max_num_seqs": 256}
    llm = LLM(folder, **{**plain, **settings})

    def run(work: Work) -> int:
        prompts = [{"prompt_token_ids": prompt} for prompt, limits in work for _ in limits]
        params = [
            SamplingParams(max_tokens=limit, ignore_eos=True, logprobs=0)
            for _, limits in work
            for limit in limits
        ]
        out = llm.generate(prompts, params, use_tqdm=False)
        return sum(len(sample.token_ids) for found in out for sample in found.outputs)

    return run


SIDES = {
    "lydite": lydite_side,
    "generate": generate_side,
    "batching": batching_side,
    "vllm": vllm_side,
}


def main() -> None:
    name, folder, dtype = sys.argv[1:4]
    settings = json.loads(sys.argv[4]) if len(sys.argv) > 4 else {}
    # What libraries print goes to the error stream; the answers have the output to themselves.
    answers, sys.stdout = sys.stdout, sys.stderr
    side = SIDES[name](folder, dtype, settings)
    answers.write("ready\n")
    answers.flush()
    for line in sys.stdin:
        wall, busy = time.perf_counter(), time.process_time()
        tokens = side(json.loads(line))
        figures = {
            "tokens": tokens,
            "seconds": time.perf_counter() - wall,
            "processor_seconds": time.process_time() - busy,
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
        answers.write(json.dumps(figures) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
