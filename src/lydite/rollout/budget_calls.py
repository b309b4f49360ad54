"""A thinking budget on any engine that can only generate: ask for as many tokens as the thought may
have, append what ends it, and ask for the rest.

What :mod:`lydite.rollout.local` does within one call, in two or three
(:mod:`lydite.rollout.parts`). The loss mask, the room for an answer and the noise are the same, so
an engine whose noise is addressed by :attr:`~lydite.types.Request.position` gives the same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lydite.rollout.budget import Tags
from lydite.rollout.parts import calls_of, parts_of
from lydite.types import Completion, Engine, Request

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def generate_within(
    engine: Engine,
    requests: Sequence[Request],
    tokenizer: PreTrainedTokenizerBase,
    seed: int = 0,
) -> list[list[Completion]]:
    """The completions of each request, in request and sample order, thinking budgets kept.

    ``engine`` is never shown a budget; ``seed`` is the one that addresses drawn budgets. Requests
    without a budget go through as they are.

    Raises:
        UserError: a budget that cannot be kept; see :meth:`lydite.rollout.budget.Tags.plan`.
    """
    tags = Tags(tokenizer)
    parts = [
        part
        for index, request in enumerate(requests)
        for part in parts_of(index, request, seed, tags)
    ]
    while waiting := [part for part in parts if not part.ended]:
        calls = calls_of(waiting)
        found = engine.generate([call[0].request_for(len(call)) for call in calls])
        for call, completions in zip(calls, found, strict=True):
            for part, completion in zip(call, completions, strict=True):
                part.go_on(completion, tokenizer)
    made: list[list[Completion]] = [[] for _ in requests]
    for part in parts:
        made[part.index].append(part.whole())
    return made
