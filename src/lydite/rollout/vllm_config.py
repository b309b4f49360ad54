"""The settings of the vLLM engine. Read without vLLM, and without torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lydite.config import Config


class VllmConfig(Config):
    """How vLLM is started. Memory for its cache is `memory_share` on a GPU and `cache_gb` of the
    engine on a CPU; `max_rows` of the engine are the sequences that it runs at a time.
    """

    memory_share: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="Share of a GPU's memory that vLLM takes, weights included. Beside a learner "
        "on the same GPU about half; with `sleep` it is free again while the learner works.",
    )
    tensor_parallel: int = Field(
        default=1, ge=1, description="GPUs that share the model's weights."
    )
    max_model_len: int | None = Field(
        default=None,
        ge=1,
        description="Most tokens of a prompt with its completion; null: the model's context.",
    )
    enforce_eager: bool | None = Field(
        default=None,
        description="Without compilation and CUDA graphs: starts sooner, samples slower. Null: so "
        "on a CPU, where compiling takes minutes.",
    )
    dtype: Literal["model", "float32", "bfloat16", "float16"] = Field(
        default="model", description="Number format of its weights; `model`: as the policy's."
    )
    quantization: str | None = Field(
        default=None,
        description="A way of quantising weights that vLLM knows, such as `fp8`; null: none. What "
        "it rounds is mismatch: give the objective a `correction`.",
    )
    sleep: Literal["never", "offload", "discard"] = Field(
        default="offload",
        description="What a vLLM in the learner's process does with the GPU's memory while it does "
        "not sample: keep it; move weights to the CPU's memory and drop the cache (sleep level 1); "
        "or drop both and take the learner's weights again (level 2). A CPU has no sleep.",
    )
    lora: Literal["adapter", "merge"] = Field(
        default="adapter",
        description="How a LoRA run's weights reach vLLM: as an adapter that is swapped while the "
        "model stays, or added to the model's weights, for models whose adapters vLLM cannot run.",
    )
    start_seconds: float = Field(
        default=1800.0, gt=0, description="Seconds that starting it may take."
    )
