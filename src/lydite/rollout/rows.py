"""The completions in flight, one row each: what has been sampled, and what ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lydite.ops.sampling import RowSampling, draw, uniforms
from lydite.rollout.budget_rows import RowBudgets
from lydite.rollout.engine import Draw
from lydite.rollout.stopping import STOP_TOKEN, Stopping, stop_window
from lydite.types import Completion, FinishReason, Request, SamplingParams

_KEY, _COUNT, _PROMPT, _TOKEN = range(4)


@dataclass(frozen=True, slots=True)
class Ended:
    """A row that has just sampled its last token."""

    row: int
    finish: FinishReason
    by_token: bool


class Rows:
    """A dense table: rows ``0 … live - 1`` are in flight. The token loop reads the device once a
    step.

    ``slot`` and ``count`` are kept on the host (``[capacity]``): the prompt slot of each row, and
    the tokens it has.
    """

    def __init__(
        self, requests: Sequence[Request], capacity: int, stopping: Stopping, device: torch.device
    ) -> None:
        self._requests = requests
        self._stopping = stopping
        self._device = device
        self._codes = stopping.codes(device)
        columns = max(request.params.max_tokens for request in requests)
        self._table = torch.zeros(4, capacity, dtype=torch.long, device=device)
        self._index = torch.arange(capacity, device=device)
        self._ids = torch.empty(capacity, columns, dtype=torch.int32, device=device)
        self._logprobs = torch.empty(capacity, columns, dtype=torch.float32, device=device)
        self._limit = np.zeros(capacity, dtype=np.int64)
        self._draws: list[Draw] = []
        kinds = {request.params for request in requests}
        self._only = RowSampling.of([*kinds] * capacity, device) if len(kinds) == 1 else None
        self._sampling: RowSampling | None = None
        self._budgets: RowBudgets | None = None
        if any(params.thinking is not None for params in kinds):
            self._budgets = RowBudgets(requests, capacity, stopping.tokenizer)
        self.slot = np.zeros(capacity, dtype=np.int64)
        self.count = np.zeros(capacity, dtype=np.int64)
        self.sampled = 0

    @property
    def live(self) -> int:
        return len(self._draws)

    @property
    def table(self) -> Tensor:
        """``[3, R]``: tokens of each completion, of its prompt, and its last token."""
        return self._table[_COUNT:, : self.live]

    @property
    def tokens(self) -> Tensor:
        """``[R]``: the token each row sampled last."""
        return self._table[_TOKEN, : self.live]

    @property
    def written(self) -> Tensor:
        """``[R]``: the tokens of each completion before its last, which are those that the cache
        holds.
        """
        return self._table[_COUNT, : self.live] - 1

    @property
    def positions(self) -> Tensor:
        """``[R]``: the position of each row's last token in its whole sequence."""
        return self._table[_PROMPT, : self.live] + self.written

    def add(self, draws: Sequence[Draw], slots: Sequence[int]) -> None:
        """Starts rows behind the live ones."""
        start, end = self.live, self.live + len(draws)
        owners = [self._requests[draw.request] for draw in draws]
        prompts = [len(owner.prompt_ids) for owner in owners]
        fresh = torch.tensor(
            [[draw.key for draw in draws], [0] * len(draws), prompts, [0] * len(draws)]
        )
        self._table[:, start:end] = fresh.to(self._device)
        self.slot[start:end] = slots
        self.count[start:end] = 0
        self._limit[start:end] = [owner.params.max_tokens for owner in owners]
        self._draws.extend(draws)
        if self._budgets is not None:
            self._budgets.add(draws)
        self._sampling = None

    def sample(self, logits: Tensor) -> list[Ended]:
        """Draws the next token of every live row from its logits ``[R, V]``, or puts in the one
        that a thinking budget forces, and tells which rows end with it.
        """
        rows = self.live
        index, count = self._index[:rows], self._table[_COUNT, :rows]
        tokens, logprobs = draw(logits, uniforms(self._table[_KEY, :rows], count), self._settings())
        forced: np.ndarray | None = None
        if self._budgets is not None:
            forced = self._budgets.force(tokens, logprobs, self.count[:rows])
        self._ids[index, count] = tokens.int()
        self._logprobs[index, count] = logprobs
        self._table[_TOKEN, :rows] = tokens
        count += 1
        self.count[:rows] += 1
        self.sampled += rows if forced is None else rows - len(forced)
        codes = self._codes[tokens].cpu().numpy()
        if forced is not None:
            codes[forced] = 0  # What is injected ends nothing.
        suspects = np.flatnonzero((codes != 0) | (self.count[:rows] >= self._limit[:rows]))
        ended = [
            end
            for row in suspects.tolist()
            if (end := self._verdict(row, int(codes[row]))) is not None
        ]
        if self._budgets is not None:
            self._watch_budgets(self._budgets, {end.row for end in ended})
        return ended

    def _watch_budgets(self, budgets: RowBudgets, ended: set[int]) -> None:
        """Looks at the rows that may have used their thinking budget up."""
        due = [row for row in budgets.due(self.count[: self.live]).tolist() if row not in ended]
        if due:
            where = torch.tensor(due, device=self._device)
            held = self._ids[where, : int(self.count[due].max())].tolist()
            for row, ids in zip(due, held, strict=True):
                budgets.look(row, ids[: self.count[row]])

    def _verdict(self, row: int, code: int) -> Ended | None:
        if code == STOP_TOKEN:
            return Ended(row, "stop", by_token=True)
        stop = self._params(row).stop
        if code and stop:
            end = int(self.count[row])
            begin = max(0, end - stop_window(stop))
            if self._budgets is not None:
                begin = max(begin, self._budgets.resumed(row))
            tail = self._ids[row, begin:end].tolist()
            if self._stopping.completed(stop, tail):
                return Ended(row, "stop", by_token=False)
        return Ended(row, "length", by_token=False) if self.count[row] >= self._limit[row] else None

    def _params(self, row: int) -> SamplingParams:
        return self._requests[self._draws[row].request].params

    def _settings(self) -> RowSampling:
        if self._sampling is None:
            if self._only is not None:
                self._sampling = self._only.first(self.live)
            else:
                self._sampling = RowSampling.of(
                    [self._params(row) for row in range(self.live)], self._device
                )
        return self._sampling

    def completions(
        self, ended: Sequence[Ended], versions: tuple[int, int]
    ) -> list[tuple[int, Completion]]:
        """Each ended row's completion with the index of the request it belongs to.

        Raises:
            FloatingPointError: a log-probability is not finite, which means that the model's logits
                were not.
        """
        chosen = [end.row for end in ended]
        widest = int(self.count[chosen].max())
        where = torch.tensor(chosen, device=self._device)
        ids = self._ids[where, :widest].tolist()
        logprobs = self._logprobs[where, :widest]
        finite = logprobs.isfinite().tolist()
        values = logprobs.tolist()
        found = []
        for place, end in enumerate(ended):
            origin, count = self._draws[end.row], int(self.count[end.row])
            request = self._requests[origin.request]
            if not all(finite[place][:count]):
                raise FloatingPointError(
                    f"problem {request.problem_id!r}: the model's logits are not finite; "
                    "its weights have diverged"
                )
            budgets, spoken = self._budgets, ids[place][: count - end.by_token]
            completion = Completion(
                problem_id=request.problem_id,
                sample=origin.sample,
                prompt_ids=request.prompt_ids,
                token_ids=tuple(ids[place][:count]),
                logprobs=tuple(values[place][:count]),
                loss_mask=(1,) * count if budgets is None else budgets.loss_mask(end.row, count),
                finish=end.finish,
                text=self._stopping.text(spoken),
                versions=versions,
                thought=None if budgets is None else budgets.thought(end.row, spoken),
            )
            found.append((origin.request, completion))
        return found

    def unfinished(self) -> list[Ended]:
        """Every row in flight, to be handed over as it is."""
        return [Ended(row, "abort", by_token=False) for row in range(self.live)]

    def drop(self, ended: Sequence[Ended]) -> tuple[list[int], list[int]]:
        """Removes rows; the last live ones move into the holes. Returns the rows that moved and
        where to.
        """
        gone = {end.row for end in ended}
        left = self.live - len(gone)
        targets = sorted(row for row in gone if row < left)
        sources = [row for row in range(left, self.live) if row not in gone]
        if sources:
            source, target = (
                torch.tensor(rows, device=self._device) for rows in (sources, targets)
            )
            columns = int(self.count[sources].max())
            self._table[:, target] = self._table[:, source]
            self._ids[target, :columns] = self._ids[source, :columns]
            self._logprobs[target, :columns] = self._logprobs[source, :columns]
            for host in (self.slot, self.count, self._limit):
                host[targets] = host[sources]
            for a, b in zip(sources, targets, strict=True):
                self._draws[b] = self._draws[a]
        del self._draws[left:]
        if self._budgets is not None:
            self._budgets.move(sources, targets, left)
        self._sampling = None
        return sources, targets
