"""A thinking budget on any engine that can only generate: ask for as many tokens as the thought may
have, append what ends it, and ask for the rest.

What :mod:`lydite.rollout.local` does within one call, in two or three. The loss mask, the room for
an answer and the noise are the same, so an engine whose noise is addressed by
:attr:`~lydite.types.Request.position` gives the same tokens. A stop string that would begin in one
call and end in the next is not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lydite.rollout.budget import Plan, Tags, budget_of, next_look
from lydite.rollout.stopping import text_of
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
        part for index, request in enumerate(requests) for part in _parts(index, request, seed)
    ]
    for part in parts:
        part.begin_with(tags)
    while waiting := [part for part in parts if part.until > len(part.tokens)]:
        calls = _calls(waiting)
        found = engine.generate([call[0].request_for(len(call)) for call in calls])
        for call, completions in zip(calls, found, strict=True):
            for part, completion in zip(call, completions, strict=True):
                part.go_on(completion, tags, tokenizer)
    made: list[list[Completion]] = [[] for _ in requests]
    for part in parts:
        made[part.index].append(part.whole(tags))
    return made


def _parts(index: int, request: Request, seed: int) -> list[_Part]:
    samples = range(request.first_sample, request.first_sample + request.samples)
    thinking = request.params.thinking
    return [
        _Part(
            index,
            request,
            sample,
            None if thinking is None else budget_of(thinking, seed, request, sample),
        )
        for sample in samples
    ]


def _calls(waiting: Sequence[_Part]) -> list[list[_Part]]:
    """Samples that can be asked for together: neighbours of one request, of which nothing is
    sampled yet and that go on alike.
    """
    calls: list[list[_Part]] = []
    for part in waiting:
        last = calls[-1][-1] if calls else part
        alike = (last.index, last.until, last.tokens) == (part.index, part.until, part.tokens)
        if calls and alike and not any(last.mask):
            calls[-1].append(part)
        else:
            calls.append([part])
    return calls


@dataclass(slots=True)
class _Part:
    """A completion so far. ``until`` is the count of tokens to ask for next, ``begin`` where it was
    cut, ``spoken`` how many tokens its text is of.
    """

    index: int
    request: Request
    sample: int
    budget: int | None
    plan: Plan | None = None
    until: int = 0
    begin: int | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    last: Completion | None = None
    text: str = ""
    spoken: int = 0
    first_version: int = 0

    def begin_with(self, tags: Tags) -> None:
        """Sets how far the first call goes."""
        if self.budget is None:
            self.until = self.request.params.max_tokens
        else:
            self.plan = tags.plan(self.request)
            self._set(self.plan.first_look(self.budget))

    def _set(self, look: int | None) -> None:
        """Goes on to the next look, over an injection if one is due now."""
        limit = self.request.params.max_tokens
        self.until = limit if look is None else min(look, limit)
        if look != len(self.tokens) or self.plan is None or self.budget is None:
            return
        self.until = limit
        injection = self.plan.injection(self.budget)
        if len(self.tokens) + len(injection) < limit:
            self.begin = len(self.tokens)
            self.tokens += injection
            self.logprobs += [0.0] * len(injection)
            self.mask += [0] * len(injection)

    def request_for(self, samples: int) -> Request:
        """What to ask of the engine."""
        have, request = len(self.tokens), self.request
        return replace(
            request,
            prompt_ids=(*request.prompt_ids, *self.tokens),
            samples=samples,
            params=replace(request.params, max_tokens=self.until - have, thinking=None),
            first_sample=self.sample,
            position=request.position + have,
        )

    def go_on(self, found: Completion, tags: Tags, tokenizer: PreTrainedTokenizerBase) -> None:
        """Takes what the engine answered."""
        before, asked = len(self.tokens), self.until - len(self.tokens)
        self.first_version = found.versions[0] if self.last is None else self.first_version
        self.last = found
        self.tokens += found.token_ids
        self.logprobs += found.logprobs
        self.mask += found.loss_mask
        limit = self.request.params.max_tokens
        # An engine may know of a limit of its own.
        done = found.finish == "stop" or len(found.token_ids) < asked
        if done or len(self.tokens) >= limit:
            self.until = 0
            self.spoken = len(self.tokens) - _ending(found, tokenizer)
            self.text = text_of(tokenizer, self.tokens[: self.spoken]) if before else found.text
        elif self.plan is not None and self.budget is not None and self.begin is None:
            span = tags.span(self.tokens, self.plan.opened)
            self._set(next_look(span, len(self.tokens), self.budget))
        else:
            self.until = limit

    def whole(self, tags: Tags) -> Completion:
        """All of it."""
        assert self.last is not None
        thought = None
        if self.plan is not None and self.budget is not None:
            spoken = self.tokens[: self.spoken]
            span = tags.span(spoken, self.plan.opened)
            thought = self.plan.thought(span, self.budget, self.begin, len(spoken))
        return replace(
            self.last,
            prompt_ids=self.request.prompt_ids,
            token_ids=tuple(self.tokens),
            logprobs=tuple(self.logprobs),
            loss_mask=tuple(self.mask),
            text=self.text,
            versions=(self.first_version, self.last.versions[1]),
            thought=thought,
        )


def _ending(found: Completion, tokenizer: PreTrainedTokenizerBase) -> int:
    """1 if its last token ended it, and so is not in its text."""
    if found.finish != "stop" or text_of(tokenizer, found.token_ids) == found.text:
        return 0
    return int(text_of(tokenizer, found.token_ids[:-1]) == found.text)
