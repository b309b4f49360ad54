"""Prompts in the cache, and the draws that wait for a row."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from lydite.rollout.engine import Draw, draws_of
from lydite.types import Request


@dataclass(slots=True)
class Slot:
    """A prompt in the cache: its last hidden state ``[d]``, its rows in flight, and the draws that
    wait for a row.
    """

    prompt: tuple[int, ...]
    waiting: deque[Draw]
    hidden: Tensor | None = None
    rows: int = 0


def slots_of(requests: Sequence[Request], seed: int) -> deque[Slot]:
    """One entry for each distinct prompt, in order of first appearance, with all the draws asked of
    it.
    """
    slots: dict[tuple[int, ...], Slot] = {}
    for index, request in enumerate(requests):
        slot = slots.setdefault(request.prompt_ids, Slot(request.prompt_ids, deque()))
        slot.waiting.extend(draws_of(index, request, seed))
    return deque(slots.values())
