"""What vLLM is started with, and how it is asked for log-probabilities. Read without vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lydite.rollout.engine import EngineConfig
from lydite.types import SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
    # Forked, a process with threads (Ray's, a GPU's) may hang.
    "VLLM_WORKER_MULTIPROCESSING_METHOD": "spawn",
}
"""Variables of the environment, where they are not set."""


@dataclass(frozen=True, slots=True)
class Served:
    """What vLLM is to serve: a folder with configuration and tokenizer, and weights unless they are
    loaded later. ``dtype`` is the policy's, ``adapter`` the configuration of its LoRA adapters, if
    it has any, in which case the folder's model is the one beneath.
    """

    folder: Path
    tokenizer: PreTrainedTokenizerBase
    stop_ids: frozenset[int]
    context: int
    dtype: torch.dtype = torch.bfloat16
    adapter: Mapping[str, Any] | None = None


def llm_settings(
    served: Served, config: EngineConfig, seed: int, on_gpu: bool, empty: bool
) -> dict[str, Any]:
    """What ``vllm.LLM`` is made with; ``empty``: its weights come later."""
    own = config.vllm
    dtype = str(served.dtype).removeprefix("torch.") if own.dtype == "model" else own.dtype
    settings: dict[str, Any] = {
        "model": str(served.folder),
        "dtype": dtype,
        "seed": seed % 2**32,
        "max_model_len": own.max_model_len or served.context,
        "max_num_seqs": config.max_rows,
        "tensor_parallel_size": own.tensor_parallel,
        "quantization": own.quantization,
        "enforce_eager": not on_gpu if own.enforce_eager is None else own.enforce_eager,
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
        "load_format": "dummy" if empty else "auto",
        "disable_log_stats": True,
    }
    if on_gpu:
        settings["gpu_memory_utilization"] = own.memory_share
        settings["enable_sleep_mode"] = empty and own.sleep != "never"
    else:
        settings["kv_cache_memory_bytes"] = int(config.cache_gb * 1e9)
    if served.adapter is not None and own.lora == "adapter":
        rank = max(8, 1 << (int(served.adapter["r"]) - 1).bit_length())
        settings |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": rank}
    return settings


def mode_of(params: SamplingParams) -> tuple[str, float]:
    """How vLLM must be asked for the log-probabilities of these samples: its mode, and the factor
    of its logits. See :mod:`lydite.rollout.vllm`.
    """
    truncated = params.top_p < 1 or params.top_k > 0 or params.min_p > 0
    if params.temperature == 0 or not truncated:
        return "processed_logprobs", 1.0
    return "raw_logprobs", 1.0 / params.temperature
