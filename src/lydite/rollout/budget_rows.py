"""The thinking budgets of an in-process engine's rows: who is due for a look, and what is forced.

Kept on the host beside :class:`lydite.rollout.rows.Rows`, which asks three vectorised questions a
step, and none at all where no request has a budget. A forced token is put in place of a drawn one,
so it goes through the model like any other and the cache holds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lydite.rollout.budget import Plan, Tags, next_look
from lydite.rollout.engine import Draw
from lydite.types import Request, Thought

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class _Held:
    """What a row with a budget has to keep to."""

    plan: Plan
    budget: int
    limit: int

    @property
    def injection(self) -> tuple[int, ...]:
        return self.plan.injection(self.budget)


class RowBudgets:
    """One entry a row, moved as the rows are. ``_look`` is the count of tokens at which a row is
    due, ``_begin`` and ``_end`` bound what is injected; all ``[capacity]``.
    """

    def __init__(
        self, requests: Sequence[Request], capacity: int, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        """
        Raises:
            UserError: a budget that cannot be kept; see :meth:`lydite.rollout.budget.Tags.plan`.
        """
        self._tags = Tags(tokenizer)
        self._limits = [request.params.max_tokens for request in requests]
        self._plans = {
            index: self._tags.plan(request)
            for index, request in enumerate(requests)
            if request.params.thinking is not None
        }
        self._held: list[_Held | None] = []
        self._look = np.full(capacity, _NEVER)
        self._begin = np.full(capacity, _NEVER)
        self._end = np.full(capacity, _NEVER)

    def add(self, draws: Sequence[Draw]) -> None:
        """Starts rows behind the live ones."""
        for draw in draws:
            row, plan = len(self._held), self._plans.get(draw.request)
            self._begin[row] = self._end[row] = self._look[row] = _NEVER
            held = None
            if plan is not None and draw.budget is not None:
                held = _Held(plan, draw.budget, self._limits[draw.request])
            self._held.append(held)
            if held is not None:
                self._plan_look(row, held, held.plan.first_look(held.budget), 0)

    def force(self, tokens: Tensor, logprobs: Tensor, counts: np.ndarray) -> np.ndarray:
        """Puts what is injected in place of what was drawn, ``tokens`` and ``logprobs`` ``[R]``
        for rows that have ``counts`` tokens so far. Returns the rows that it changed.
        """
        begins, ends = (bound[: len(counts)] for bound in (self._begin, self._end))
        rows = np.flatnonzero((begins <= counts) & (counts < ends))
        if rows.size:
            ids = [
                held.injection[counts[row] - self._begin[row]]
                for row in rows.tolist()
                if (held := self._held[row]) is not None
            ]
            where = torch.from_numpy(rows).to(tokens.device)
            tokens[where] = torch.tensor(ids, dtype=tokens.dtype, device=tokens.device)
            logprobs[where] = 0.0
        return rows

    def due(self, counts: np.ndarray) -> np.ndarray:
        """The rows to :meth:`look` at, now that they have ``counts`` tokens."""
        return np.flatnonzero(counts >= self._look[: len(counts)])

    def look(self, row: int, ids: Sequence[int]) -> None:
        """Sees whether a row with these tokens has used its budget up, and when to look again."""
        held = self._held[row]
        assert held is not None
        span = self._tags.span(ids, held.plan.opened)
        self._plan_look(row, held, next_look(span, len(ids), held.budget), len(ids))

    def _plan_look(self, row: int, held: _Held, look: int | None, count: int) -> None:
        self._look[row] = _NEVER if look is None else look
        if look != count:
            return
        self._look[row] = _NEVER
        end = count + len(held.injection)
        if end < held.limit:  # A thought that began late may leave no room for an answer.
            self._begin[row], self._end[row] = count, end

    def resumed(self, row: int) -> int:
        """How many tokens a row had when it went on by itself: 0, or where its injection ends."""
        return 0 if self._end[row] == _NEVER else int(self._end[row])

    def loss_mask(self, row: int, count: int) -> tuple[int, ...]:
        """1 on each of a row's ``count`` tokens that was sampled, 0 on those injected."""
        if self._begin[row] == _NEVER:
            return (1,) * count
        begin, end = int(self._begin[row]), int(self._end[row])
        return (1,) * begin + (0,) * (end - begin) + (1,) * (count - end)

    def thought(self, row: int, ids: Sequence[int]) -> Thought | None:
        """What a row with these tokens (its ending token left out) made of its budget."""
        held = self._held[row]
        if held is None:
            return None
        begin = None if self._begin[row] == _NEVER else int(self._begin[row])
        span = self._tags.span(ids, held.plan.opened)
        return held.plan.thought(span, held.budget, begin, len(ids))

    def move(self, sources: Sequence[int], targets: Sequence[int], left: int) -> None:
        """Puts rows in the places of others; the first ``left`` stay."""
        if sources:
            for host in (self._look, self._begin, self._end):
                host[targets] = host[sources]
            for source, target in zip(sources, targets, strict=True):
                self._held[target] = self._held[source]
        del self._held[left:]
