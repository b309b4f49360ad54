"""The engine for models that cannot run on flat tokens: padded batches and Transformers' own cache.

Slower than :mod:`lydite.rollout.local` (every sample runs its own copy of the prompt, padding is
computed, waves do not refill), and the same to its callers: the same noise, stopping and
log-probabilities.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lydite.config import UserError
from lydite.model.policy import Policy
from lydite.rollout.engine import (
    Draw,
    EngineConfig,
    Interruption,
    OnProgress,
    Progress,
    check_requests,
    draws_of,
    sampling_mode,
    takes_every_processor,
    unbegun,
)
from lydite.rollout.rows import Rows
from lydite.rollout.stopping import Stopping
from lydite.types import Completion, OnCompletion, Request


class PaddedEngine:
    """Implements :class:`lydite.types.Engine` for any causal language model that keeps a cache."""

    def __init__(self, policy: Policy, config: EngineConfig | None = None, seed: int = 0) -> None:
        self.version = 0
        self.policy = policy
        self._config = config or EngineConfig()
        self._seed = seed
        self._interruption = Interruption()

    @property
    def busy(self) -> bool:
        """See :class:`lydite.types.BusyEngine`."""
        return takes_every_processor(self.policy.device)

    def interrupt(self) -> None:
        """See :class:`lydite.types.InterruptibleEngine`."""
        self._interruption.ask()

    def generate(
        self, requests: Sequence[Request], on_progress: OnProgress | None = None
    ) -> list[list[Completion]]:
        """See :meth:`stream`."""
        return self.stream(requests, None, on_progress)

    def stream(
        self,
        requests: Sequence[Request],
        on_completion: OnCompletion | None,
        on_progress: OnProgress | None = None,
    ) -> list[list[Completion]]:
        """The completions of each request, in request and sample order; ``on_completion`` hears of
        each as it ends.

        Raises:
            UserError: a request that does not fit the context, settings out of range, or a model
                whose cache cannot drop rows.
            FloatingPointError: the model's logits are not finite.
        """
        check_requests(requests, self.policy.context)
        if not requests:
            return []
        draws = [
            draw for i, request in enumerate(requests) for draw in draws_of(i, request, self._seed)
        ]
        # Prompts of like length share a wave, which keeps padding small.
        draws.sort(key=lambda draw: len(requests[draw.request].prompt_ids))
        found: list[list[Completion]] = [[] for _ in requests]
        finished = sampled = 0
        interrupted = False
        versions = (self.version, self.version)
        with sampling_mode(self.policy):
            for start in range(0, len(draws), self._config.max_rows):
                part = draws[start : start + self._config.max_rows]
                if interrupted:
                    for draw in part:
                        request = requests[draw.request]
                        found[draw.request].append(unbegun(request, draw.sample, self.version))
                    continue
                wave = _Wave(self.policy, requests, part)
                while wave.rows.live:
                    interrupted = self._interruption.noticed()
                    if interrupted:
                        rows = wave.rows.unfinished()
                        for index, completion in wave.rows.completions(rows, versions):
                            found[index].append(completion)
                        break
                    for index, completion in wave.step(versions):
                        found[index].append(completion)
                        if on_completion is not None:
                            on_completion(index, completion)
                        finished += 1
                    if on_progress is not None:
                        tokens = sampled + wave.rows.sampled
                        on_progress(Progress(finished, len(draws), tokens))
                sampled += wave.rows.sampled
        return [sorted(each, key=lambda completion: completion.sample) for each in found]


class _Wave:
    """Rows that start together. Prompts are padded on the left, so that all last tokens line up."""

    def __init__(self, policy: Policy, requests: Sequence[Request], draws: Sequence[Draw]) -> None:
        self._model = policy.model
        device = torch.device(policy.device)
        # LoRA's wrapper passes all arguments on, and names none of them.
        unwrap = getattr(policy.model, "get_base_model", lambda: policy.model)
        accepted = inspect.signature(unwrap().forward).parameters
        self._takes_positions = "position_ids" in accepted
        self._keeps_last = "logits_to_keep" in accepted
        self._cache_name = "cache" if "cache" in accepted else "past_key_values"
        vocabulary = policy.head[0].shape[0]
        stops = {request.params.stop for request in requests}
        stopping = Stopping(policy.tokenizer, policy.stop_ids, stops, vocabulary)
        self.rows = Rows(requests, len(draws), stopping, device)
        self.rows.add(draws, [0] * len(draws))
        prompts = [requests[draw.request].prompt_ids for draw in draws]
        width = max(map(len, prompts))
        pads = [width - len(prompt) for prompt in prompts]
        self._cache: Any = None
        self._ids = torch.tensor(
            [(0,) * pad + prompt for pad, prompt in zip(pads, prompts, strict=True)], device=device
        )
        self._mask = torch.tensor(
            [(0,) * pad + (1,) * (width - pad) for pad in pads], device=device
        )

    def step(self, versions: tuple[int, int]) -> list[tuple[int, Completion]]:
        """One token for every row; rows that end leave the batch and the cache."""
        ended = self.rows.sample(self._logits())
        found = self.rows.completions(ended, versions) if ended else []
        if ended:
            order = list(range(self.rows.live - len(ended)))
            sources, targets = self.rows.drop(ended)
            for source, target in zip(sources, targets, strict=True):
                order[target] = source
            keep = torch.tensor(order, dtype=torch.long, device=self._mask.device)
            self._mask = self._mask[keep]
            if order:
                self._cache.reorder_cache(keep)
        self._mask = torch.cat([self._mask, self._mask.new_ones(self.rows.live, 1)], dim=1)
        self._ids = self.rows.tokens[:, None]
        return found

    def _logits(self) -> Tensor:
        """``[R, V]`` float32 for the token after the last, from the model's own head."""
        inputs: dict[str, Any] = {"input_ids": self._ids, "attention_mask": self._mask}
        if self._cache is not None and _recurrent(self._cache):
            # No past is held that a mask could hide, and Mamba misreads one in a decode step.
            del inputs["attention_mask"]
        if self._takes_positions:
            positions = (self._mask.cumsum(1) - 1).clamp(min=0)
            inputs["position_ids"] = positions[:, -self._ids.shape[1] :]
        if self._keeps_last:
            inputs["logits_to_keep"] = 1
        if self._cache is not None:
            inputs[self._cache_name] = self._cache
        out = self._model(**inputs, use_cache=True)
        self._cache = getattr(out, self._cache_name, None)
        if not hasattr(self._cache, "reorder_cache"):
            kind = type(self._model).__name__
            raise UserError(f"model: {kind} keeps no key-value cache that sampling can use")
        logits = out.logits[:, -1].float()
        assert isinstance(logits, Tensor)
        return logits


def _recurrent(cache: Any) -> bool:
    """Whether no layer keeps keys, only a state."""
    layers = getattr(cache, "layers", None) or ()
    return bool(layers) and not any(hasattr(layer, "keys") for layer in layers)
