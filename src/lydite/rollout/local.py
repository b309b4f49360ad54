"""The in-process engine: samples with the learner's own weights, so syncing is free and mismatch is
zero.

A prompt goes through the model once, however many samples are asked of it; every later step runs
one token of each live row, and nothing else. A row that ends leaves at once, and waiting prompts
take its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import numpy as np
import torch
from torch import Tensor

from lydite.model.attention import hidden_states
from lydite.model.blocks import FastBlocks
from lydite.model.policy import Policy
from lydite.model.probe import key_heads
from lydite.ops.decode import (
    DecodeLayout,
    KeyValueCache,
    KeyValueShape,
    OwnLayout,
    Sharing,
)
from lydite.ops.layout import Layout
from lydite.ops.packed import TURN_ROWS, PackedProducts
from lydite.ops.prefill import PrefillLayout
from lydite.rollout.engine import (
    Draw,
    EngineConfig,
    Head,
    Interruption,
    OnProgress,
    Progress,
    check_requests,
    sampling_mode,
    takes_every_processor,
    unbegun,
)
from lydite.rollout.graphs import GraphedDecode, Shape, Standing, graphs_of
from lydite.rollout.rows import Ended, Rows
from lydite.rollout.slots import Slot, slots_of
from lydite.rollout.stopping import Stopping
from lydite.types import Completion, OnCompletion, Request

OWN_ROWS = True
"""Whether rows whose prompt nobody shares go on in its place in the cache: one attention, not two.
"""
_KEEP_BYTES = {"cpu": 64 << 20}
_KEEP_MORE_BYTES = 256 << 20
"""A cache up to this size is kept for the next call: small models spend a while on fresh pages, and
on a GPU what is captured needs it. A larger one makes room for the update.
"""


class LocalEngine:
    """Implements :class:`lydite.types.Engine` for any model whose attention runs on flat tokens.

    ``version`` is the policy version stamped on what is sampled; whoever updates the weights counts
    it up.
    """

    def __init__(self, policy: Policy, config: EngineConfig | None = None, seed: int = 0) -> None:
        self.version = 0
        self.policy = policy
        self._config = config or EngineConfig()
        self._seed = seed
        self._kept: KeyValueCache | None = None
        self._graphs: GraphedDecode | None = None
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
            UserError: a request that does not fit the context, or settings out of range.
            FloatingPointError: the model's logits are not finite.
        """
        check_requests(requests, self.policy.context)
        if not requests:
            return []
        with sampling_mode(self.policy):
            cache, self._kept = self._take_cache(), None
            found: list[list[Completion]] = [[] for _ in requests]
            total = sum(request.samples for request in requests)
            finished = 0
            self._graphs = graphs_of(self._graphs, self.policy.model, self._config, requests)
            wave = _Wave(self.policy, self._config, requests, self._seed, cache)
            wave.graphs = self._graphs
            with closing(wave):
                while finished < total:
                    if self._interruption.noticed():
                        for index, completion in wave.hand_over(self.version):
                            found[index].append(completion)
                        break
                    for index, completion in wave.step((self.version, self.version)):
                        found[index].append(completion)
                        if on_completion is not None:
                            on_completion(index, completion)
                        finished += 1
                    if on_progress is not None:
                        on_progress(Progress(finished, total, wave.rows.sampled))
        if cache.bytes <= _KEEP_BYTES.get(cache.shape.device.type, _KEEP_MORE_BYTES):
            self._kept = cache
        elif self._graphs is not None:
            self._graphs.clear()
        return [sorted(each, key=lambda completion: completion.sample) for each in found]

    def _take_cache(self) -> KeyValueCache:
        """The one kept from the last call, unless the model's dtype or device has changed since."""
        shape = cache_shape(self.policy)
        if self._kept is not None and self._kept.shape == shape:
            return self._kept
        return KeyValueCache(shape)


class _Wave:
    """One call of ``generate``: a queue of prompts, the cache, and the rows in flight."""

    def __init__(
        self,
        policy: Policy,
        config: EngineConfig,
        requests: Sequence[Request],
        seed: int,
        cache: KeyValueCache,
    ) -> None:
        self._policy = policy
        self._config = config
        self._device = torch.device(policy.device)
        self._head = Head(policy)
        self._requests = requests
        self._queue = slots_of(requests, seed)
        self._prompts = len(self._queue)
        self._cache = cache
        self._longest = max(request.params.max_tokens for request in requests)
        self._longest_prompt = max(len(request.prompt_ids) for request in requests)
        # Where no prompt is shared, row and slot are one: a row goes on in its prompt's slot.
        self._own = OWN_ROWS and all(len(slot.waiting) == 1 for slot in self._queue)
        self._columns = self._longest_prompt
        self._most_columns = self._longest_prompt + self._longest * self._own
        self._capacity = self._row_limit(requests, cache.shape)
        self.graphs: GraphedDecode | None = None
        stops = {request.params.stop for request in requests}
        stopping = Stopping(policy.tokenizer, policy.stop_ids, stops, self._head.vocabulary)
        self.rows = Rows(requests, self._capacity, stopping, self._device)
        self._slots: list[Slot] = []
        self._sharing: Sharing | None = None
        self._hidden: Tensor | None = None
        self._dtype = torch.bfloat16 if config.products == "bfloat16" else None
        self._products: PackedProducts | None = None
        self._blocks: FastBlocks | None = None
        if config.packs(self._longest):
            blocks = FastBlocks(policy.model, self._dtype) if config.fast_blocks else None
            self._blocks = blocks
            inside = blocks.inside if blocks is not None else frozenset()
            self._products = PackedProducts(policy.model, self._dtype, inside)
            self._head.pack(self._dtype)

    def close(self) -> None:
        """Gives the model its own products back."""
        if self._products is not None:
            self._products.close()
        if self._blocks is not None:
            self._blocks.close()

    def _row_limit(self, requests: Sequence[Request], shape: KeyValueShape) -> int:
        """Rows that fit the memory for the cache if all of them run to the end, a share of their
        prompt included.
        """
        total = sum(request.samples for request in requests)
        row_tokens = self._longest + self._longest_prompt * len(self._queue) / total
        fitting = int(self._config.cache_gb * 1e9 / (shape.token_bytes * row_tokens))
        return max(1, min(self._config.max_rows, total, fitting))

    def step(self, versions: tuple[int, int]) -> list[tuple[int, Completion]]:
        """One token for every row: refill, sample, let go of rows that ended, run the rest through
        the model.
        """
        logits = [] if self._hidden is None else [self._head(self._hidden)]
        logits += self._refill()
        ended = self.rows.sample(logits[0] if len(logits) == 1 else torch.cat(logits))
        found = []
        if ended:
            found = self.rows.completions(ended, versions)
            self._retire(ended)
        self._hidden = self._decode() if self.rows.live else None
        return found

    def hand_over(self, version: int) -> list[tuple[int, Completion]]:
        """Every completion that has not ended, as far as it is."""
        rows = self.rows.unfinished()
        found = self.rows.completions(rows, (version, version)) if rows else []
        for slot in [*self._slots, *self._queue]:
            for draw in slot.waiting:
                request = self._requests[draw.request]
                found.append((draw.request, unbegun(request, draw.sample, version)))
        return found

    def _refill(self) -> list[Tensor]:
        """Starts rows in free places. Returns the logits of their first tokens, in row order, in
        parts.
        """
        free = self._capacity - self.rows.live
        waiting = sum(len(slot.waiting) for slot in [*self._slots, *self._queue])
        least = min(waiting, max(1, int(self._config.refill_fraction * self._capacity)))
        if not waiting or free < least:
            return []
        parts = []
        for index, slot in enumerate(self._slots):
            if slot.waiting and free:
                parts.append(self._start([index], free))
                free = self._capacity - self.rows.live
        while free and self._queue:
            first = len(self._slots)
            self._prefill(self._next_prompts(free))
            parts.append(self._start(range(first, len(self._slots)), free))
            free = self._capacity - self.rows.live
        self._sharing = None
        return parts

    def _next_prompts(self, free: int) -> list[Slot]:
        """Waiting prompts that fill the free rows, up to the tokens that may be run at once."""
        taken: list[Slot] = []
        tokens = draws = 0
        while self._queue and draws < free:
            tokens += len(self._queue[0].prompt)
            if taken and tokens > self._config.prefill_tokens:
                break
            taken.append(self._queue.popleft())
            draws += len(taken[-1].waiting)
        return taken

    def _prefill(self, taken: list[Slot]) -> None:
        """Runs prompts through the model, packed, into new slots of the cache."""
        first, lengths = len(self._slots), [len(slot.prompt) for slot in taken]
        arena = self._cache.prompts
        arena.reserve(first + len(taken), max(lengths), self._most_columns)
        ids = np.concatenate([np.asarray(slot.prompt, dtype=np.int64) for slot in taken])
        positions = np.concatenate([np.arange(length) for length in lengths])
        layout = PrefillLayout(arena, first, lengths, self._device)
        states = hidden_states(
            self._policy.model, self._to_device(ids), self._to_device(positions), layout
        )
        last = states[self._to_device(np.cumsum(lengths) - 1)]
        for slot, hidden in zip(taken, last, strict=True):
            slot.hidden = hidden
        self._slots.extend(taken)

    def _start(self, indices: Sequence[int], free: int) -> Tensor:
        """Gives waiting draws of some slots a row each. Returns logits ``[n, V]``, made once a
        prompt.
        """
        draws: list[Draw] = []
        owners: list[int] = []
        for index in indices:
            slot = self._slots[index]
            for _ in range(min(len(slot.waiting), free - len(draws))):
                draws.append(slot.waiting.popleft())
                owners.append(index)
                slot.rows += 1
        self.rows.add(draws, owners)
        used, counts = np.unique(owners, return_counts=True)
        hidden = torch.stack(
            [state for index in used if (state := self._slots[index].hidden) is not None]
        )
        return self._head(hidden).repeat_interleave(self._to_device(counts), dim=0)

    def _retire(self, ended: Sequence[Ended]) -> None:
        """Frees the rows that ended, and the prompts that no row needs any more."""
        for end in ended:
            self._slots[self.rows.slot[end.row]].rows -= 1
        sources, targets = self.rows.drop(ended)
        if sources and not self._own:
            columns = (
                int(self.rows.count[targets].max()) - 1
            )  # the last token is not in the cache yet
            self._cache.completions.move(self._index(sources), self._index(targets), columns)
        self._sharing = None
        done = [
            index for index, slot in enumerate(self._slots) if not slot.rows and not slot.waiting
        ]
        if done:
            self._free_slots(set(done))

    def _free_slots(self, done: set[int]) -> None:
        left = len(self._slots) - len(done)
        targets = sorted(index for index in done if index < left)
        sources = [index for index in range(left, len(self._slots)) if index not in done]
        if sources:
            columns = max(len(self._slots[index].prompt) for index in sources)
            columns = self._columns if self._own else columns
            self._cache.prompts.move(self._index(sources), self._index(targets), columns)
            renamed = np.arange(len(self._slots))
            renamed[sources] = targets
            live = self.rows.slot[: self.rows.live]
            live[:] = renamed[live]
            for source, target in zip(sources, targets, strict=True):
                self._slots[target] = self._slots[source]
        del self._slots[left:]

    def _decode(self) -> Tensor:
        """Runs the last token of every live row through the model. Returns hidden states ``[R,
        d]``.
        """
        if self._products is not None and not self._products.packed:
            # The prefill that came before this first step has shown which products go together.
            self._products.pack()
            if self._blocks is not None:
                self._blocks.pack(few=self._capacity < TURN_ROWS)
        if self.graphs is None or not self.graphs.on:
            return self._run()
        rows, counts = self.rows, self.rows.count[: self.rows.live]
        prompts, sharing, columns = self._longest_prompt, None, self._longest
        if self._own:
            prompts, columns = 0, self._most_columns
            counts = counts + np.array([len(slot.prompt) for slot in self._slots])
            self._columns = int(counts.max())
        else:
            sharing = self._shares()
        most = Shape(self._capacity, columns, prompts, self._prompts, self._capacity)
        at = Standing(rows.table, int(counts.max()), sharing, rows.slot[: rows.live])
        return self.graphs.states(at, self._cache, most, self._run)

    def _run(self) -> Tensor:
        rows = self.rows
        layout = self._own_layout() if self._own else self._shared_layout()
        if self._blocks is not None:
            found = self._blocks.states(rows.tokens, rows.positions, layout)
            if found is not None:
                return found
        return hidden_states(self._policy.model, rows.tokens, rows.positions, layout)

    def _own_layout(self) -> Layout:
        """Of rows that stand in their prompts' slots."""
        rows = self.rows
        lengths = np.array([len(slot.prompt) for slot in self._slots])
        held = lengths + rows.count[: rows.live] - 1
        longest = int(held.max())
        self._columns = longest + 1
        arena = self._cache.prompts
        arena.reserve(rows.live, self._columns, self._most_columns)
        return OwnLayout(arena, rows.positions, longest, longest == int(held.min()))

    def _shares(self) -> Sharing:
        if self._sharing is None:
            lengths = np.array([len(slot.prompt) for slot in self._slots])
            self._sharing = Sharing.of(self.rows.slot[: self.rows.live], lengths, self._device)
        return self._sharing

    def _shared_layout(self) -> Layout:
        rows = self.rows
        counts = rows.count[: rows.live]
        longest, shortest = int(counts.max()) - 1, int(counts.min()) - 1
        self._cache.completions.reserve(self._capacity, longest + 1, self._longest)
        return DecodeLayout(self._cache, self._shares(), rows.written, longest, longest == shortest)

    def _index(self, rows: Sequence[int]) -> Tensor:
        return torch.tensor(rows, dtype=torch.long, device=self._device)

    def _to_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._device)


def cache_shape(policy: Policy) -> KeyValueShape:
    """What the model's layers leave in the cache, read from its configuration."""
    config = policy.model.config
    heads, dim = key_heads(config)
    return KeyValueShape(
        layers=config.get_text_config().num_hidden_layers,
        heads=heads,
        dim=dim,
        dtype=next(policy.model.parameters()).dtype,
        device=torch.device(policy.device),
    )
