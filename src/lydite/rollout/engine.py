"""What in-process engines have in common: settings, the check of requests, progress, logits."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from pydantic import Field
from torch import Tensor

from lydite.config import Config, UserError
from lydite.model.policy import Policy
from lydite.ops.head import raw_logits, scaled_logits
from lydite.ops.linear import fast_products
from lydite.ops.packed import LEAST_WORK, PackedWeight, can_pack
from lydite.ops.sampling import address_key
from lydite.rollout.budget import budget_of
from lydite.rollout.vllm_config import VllmConfig
from lydite.types import Completion, Engine, Request, SamplingParams

PACK_AFTER = 32
"""Steps that repay the copy of the weights: it costs as much as it saves in about 30."""

GRAPHS_FROM = 64
"""Tokens of the longest completion from which on captures are repaid."""


class EngineConfig(Config):
    """How completions are sampled. Of the local engine's settings only ``products`` changes what is
    sampled.
    """

    kind: Literal["local", "vllm"] = Field(
        default="local",
        description="`local`: in this process, with the learner's own weights. `vllm`: by vLLM "
        "(`pip install 'lydite[vllm]'`), for GPUs; see [vllm.md](vllm.md).",
    )
    vllm: VllmConfig = Field(default=VllmConfig(), description="Settings of vLLM.")
    max_rows: int = Field(
        default=256, ge=1, description="Completions that are generated at the same time, at most."
    )
    cache_gb: float = Field(
        default=4.0,
        gt=0,
        description="Memory for keys and values, in GB; fewer rows run at a time if it is short.",
    )
    prefill_tokens: int = Field(
        default=4096,
        ge=1,
        description="Prompt tokens run at once, at most; a prompt longer than that runs alone.",
    )
    refill_fraction: float = Field(
        default=0.125,
        ge=0,
        le=1,
        description="Waiting prompts enter when this share of rows is free: low refills at once, "
        "high runs fewer and larger prefills.",
    )
    pack_weights: bool = Field(
        default=True,
        description="On a CPU, copy the weights into the blocks of the product kernels, those that "
        f"share an input as one, where completions may be {PACK_AFTER} tokens or longer. The copy "
        "lives while completions are sampled.",
    )
    fast_blocks: bool = Field(
        default=True,
        description="With packed weights, run decoder layers of the Llama kind (Llama, Mistral, "
        "Qwen2, Qwen3) by a forward of our own, of fewer operations.",
    )
    products: Literal["exact", "bfloat16"] = Field(
        default="exact",
        description="`exact`: in the type of the weights, as the learner computes. `bfloat16`: "
        "faster on a CPU with float32 weights; log-probabilities then differ from the learner's by "
        "about 0.02, so add a `correction` to the objective.",
    )

    cuda_graphs: Literal["auto", "always", "never"] = Field(
        default="auto",
        description="On a GPU, replay decode steps as CUDA graphs, which saves launching each of "
        "their kernels; rows and columns are rounded up for it, and memory for keys and values is "
        f"taken at once. `auto`: where completions may be {GRAPHS_FROM} tokens or longer, and LoRA "
        "has no dropout.",
    )

    def graphs(self, max_tokens: int) -> bool:
        """Whether a call for completions of so many tokens replays graphs, on a GPU."""
        return self.cuda_graphs == "always" or (
            self.cuda_graphs == "auto" and max_tokens >= GRAPHS_FROM
        )

    def packs(self, max_tokens: int) -> bool:
        """Whether a call for completions of so many tokens copies the weights, on a CPU."""
        return self.products == "bfloat16" or (self.pack_weights and max_tokens >= PACK_AFTER)


@dataclass(frozen=True, slots=True)
class Progress:
    """Where ``generate`` stands: completions finished and asked for, tokens sampled so far."""

    finished: int
    total: int
    tokens: int


class WeightedEngine(Engine, Protocol):
    """An engine with weights of its own, which must be told of what the learner changed."""

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Samples with these from now on: every trained weight, whole, named as the policy's
        parameters.
        """
        ...


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Draw:
    """One completion to be made: which request and sample it answers, the key that addresses its
    noise, and the tokens that it may think (``None``: as many as it likes).
    """

    request: int
    sample: int
    key: int
    budget: int | None = None


def draws_of(index: int, request: Request, seed: int) -> list[Draw]:
    """The completions that a request asks for, in sample order."""
    thinking = request.params.thinking
    return [
        Draw(
            index,
            sample,
            address_key(seed, request.problem_id, sample, request.step, request.position),
            None if thinking is None else budget_of(thinking, seed, request, sample),
        )
        for sample in range(request.first_sample, request.first_sample + request.samples)
    ]


def check_requests(requests: Sequence[Request], context: int) -> None:
    """Refuses what cannot be sampled before anything is.

    Raises:
        UserError: an empty prompt, a prompt that leaves no room for ``max_tokens`` in the context,
            no samples, or
            sampling settings out of range; the problem is named.
    """
    for params in {request.params for request in requests}:
        _check_params(params)
    for request in requests:
        have, want = len(request.prompt_ids), request.params.max_tokens
        name = f"problem {request.problem_id!r}"
        if not have:
            raise UserError(f"{name}: its prompt has no tokens; give it a question")
        if have >= context:
            raise UserError(
                f"{name}: its prompt of {have} tokens is longer than the context of {context}; "
                "shorten it"
            )
        if have + want > context:
            raise UserError(
                f"{name}: its prompt of {have} tokens and max_tokens {want} pass the context of "
                f"{context}; shorten the prompt or set max_tokens to at most {context - have}"
            )
        if request.samples < 1:
            raise UserError(f"{name}: samples must be at least 1 (got {request.samples})")


def _check_params(params: SamplingParams) -> None:
    for name, valid, rule in (
        ("max_tokens", params.max_tokens >= 1, "at least 1"),
        ("temperature", 0 <= params.temperature < float("inf"), "0 (greedy) or more"),
        ("top_p", 0 < params.top_p <= 1, "above 0 and at most 1 (1 is off)"),
        ("top_k", params.top_k >= 0, "0 (off) or more"),
        ("min_p", 0 <= params.min_p <= 1, "from 0 (off) to 1"),
        ("stop", all(params.stop), "strings with at least one character"),
        (
            "thinking",
            params.thinking is None or (params.thinking.tokens and params.thinking.bounds[0] >= 0),
            "a budget of 0 tokens or more",
        ),
    ):
        if not valid:
            raise UserError(f"{name}: must be {rule} (got {getattr(params, name)!r})")


@contextmanager
def sampling_mode(policy: Policy) -> Iterator[None]:
    """No gradients, and the model in evaluation mode; the mode each module had comes back
    afterwards.
    """
    training = [module for module in policy.model.modules() if module.training]
    policy.model.eval()
    try:
        with torch.inference_mode(), fast_products(policy.model):
            yield
    finally:
        # Not `model.train()`: a module that was frozen in evaluation mode must stay there.
        for module in training:
            module.training = True


class Interruption:
    """Asked for in one thread, noticed in another: once, by the call under way or the next."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    def ask(self) -> None:
        self._asked.set()

    def noticed(self) -> bool:
        """Whether it was asked for since this was last true."""
        if not self._asked.is_set():
            return False
        self._asked.clear()
        return True


def takes_every_processor(device: str) -> bool:
    """Whether PyTorch works there with as many threads, of several, as this process may use
    processors. They wait for one another in a loop, so work beside them costs all their time.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    processors = len(affinity(0)) if affinity else os.cpu_count() or 1
    threads = torch.get_num_threads()
    return device.startswith("cpu") and threads > 1 and threads >= processors


def unbegun(request: Request, sample: int, version: int) -> Completion:
    """What an interrupted engine hands over of a completion without a token."""
    return Completion(
        request.problem_id,
        sample,
        request.prompt_ids,
        (),
        (),
        (),
        "abort",
        "",
        (version, version),
    )


class Head:
    """From final hidden states ``[n, d]`` to float32 logits ``[n, V]``, as the learner computes
    them.
    """

    def __init__(self, policy: Policy) -> None:
        self._weight, self._bias = policy.head
        self._scale = policy.head_scale()
        self._plain = self._scale.softcap is None and self._scale.scale == 1
        self._packed: PackedWeight | None = None

    @property
    def vocabulary(self) -> int:
        return self._weight.shape[0]

    def pack(self, dtype: torch.dtype | None) -> None:
        """From here on the product is one of a packed copy: see :mod:`lydite.ops.packed`."""
        if can_pack(self._weight):
            dtype = dtype or self._weight.dtype
            self._packed = PackedWeight([self._weight], [self._bias], dtype)

    def __call__(self, hidden: Tensor) -> Tensor:
        if self._packed is None or len(hidden) * self._packed.elements < LEAST_WORK:
            raw = raw_logits(hidden, self._weight, self._bias)
        else:
            raw = self._packed(hidden)
            raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
        return raw if self._plain else scaled_logits(raw, self._scale)
