"""A completion that is made in several calls of an engine: what there is of it so far, what to ask
for next, and what it came to.

A call ends where a thinking budget has to be looked at, or where an engine was interrupted (to take
new weights, say). What follows is asked for as a request whose prompt is the prompt and the tokens
so far, at their position in the noise. So an engine whose noise is addressed, and whose weights are
the same, gives the tokens that one call would have given. Stop strings that begin in one call and
end in the next are found here: an engine sees the text of its own call only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lydite.rollout.budget import Plan, Tags, budget_of, next_look
from lydite.rollout.stopping import decode, stop_window, text_of
from lydite.types import Completion, FinishReason, Request

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def parts_of(index: int, request: Request, seed: int, tags: Tags) -> list[Part]:
    """The completions that a request asks for, in sample order, none of them begun; ``index`` is
    the caller's number of the request, and ``seed`` addresses drawn budgets.

    Raises:
        UserError: a budget that cannot be kept; see :meth:`lydite.rollout.budget.Tags.plan`.
    """
    thinking = request.params.thinking
    plan = None if thinking is None else tags.plan(request)
    return [
        Part(
            index,
            request,
            sample,
            tags,
            plan,
            0 if thinking is None else budget_of(thinking, seed, request, sample),
        )
        for sample in range(request.first_sample, request.first_sample + request.samples)
    ]


def calls_of(waiting: Sequence[Part]) -> list[list[Part]]:
    """Samples that can be asked for together: neighbours of one request, of which nothing is
    sampled yet and that go on alike.
    """
    calls: list[list[Part]] = []
    for part in waiting:
        last = calls[-1][-1] if calls else part
        alike = (last.index, last.until, last.tokens) == (part.index, part.until, part.tokens)
        next_to_it = part.sample == last.sample + 1
        if calls and alike and next_to_it and not any(last.mask):
            calls[-1].append(part)
        else:
            calls.append([part])
    return calls


@dataclass(slots=True)
class Part:
    """A completion so far. ``until`` is the count of tokens to ask for next (0: it has ended),
    ``begin`` where its thought was cut, ``resumed`` where it went on by itself after that;
    ``spoken`` is how many tokens its text is of. ``runs`` are (first token, version), in order.
    """

    index: int
    request: Request
    sample: int
    tags: Tags
    plan: Plan | None
    budget: int
    until: int = 0
    begin: int | None = None
    resumed: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    runs: list[tuple[int, int]] = field(default_factory=list)
    finish: FinishReason = "abort"
    text: str = ""
    spoken: int = 0

    def __post_init__(self) -> None:
        look = None if self.plan is None else self.plan.first_look(self.budget)
        self._set(look)

    @property
    def ended(self) -> bool:
        return not self.until

    @property
    def oldest(self) -> int | None:
        """The version of its first token, if it has any."""
        return self.runs[0][1] if self.runs else None

    def _set(self, look: int | None) -> None:
        """Goes on to the next look, over an injection if one is due now."""
        limit = self.request.params.max_tokens
        self.until = limit if look is None else min(look, limit)
        if look != len(self.tokens) or self.plan is None:
            return
        self.until = limit
        injection = self.plan.injection(self.budget)
        if len(self.tokens) + len(injection) < limit:
            self.begin = len(self.tokens)
            self.tokens += injection
            self.logprobs += [0.0] * len(injection)
            self.mask += [0] * len(injection)
            self.resumed = len(self.tokens)

    def request_for(self, samples: int) -> Request:
        """What to ask of the engine, for this one and those after it that go on alike."""
        have, request = len(self.tokens), self.request
        return replace(
            request,
            prompt_ids=(*request.prompt_ids, *self.tokens),
            samples=samples,
            params=replace(request.params, max_tokens=self.until - have, thinking=None),
            first_sample=self.sample,
            position=request.position + have,
        )

    def go_on(self, found: Completion, tokenizer: PreTrainedTokenizerBase) -> None:
        """Takes what the engine answered to :meth:`request_for`."""
        before, asked = len(self.tokens), self.until - len(self.tokens)
        reached = self._stopped_at(found, tokenizer)
        count = len(found.token_ids) if reached is None else reached
        self.tokens += found.token_ids[:count]
        self.logprobs += found.logprobs[:count]
        self.mask += found.loss_mask[:count]
        for place, version in [(0, found.versions[0]), *found.changes]:
            if place < count and (not self.runs or self.runs[-1][1] != version):
                self.runs.append((before + place, version))
        limit = self.request.params.max_tokens
        if reached is not None or found.finish == "stop":
            ending = 0 if reached is not None else _ending(found, tokenizer)
            self._end("stop", ending, found.text if not before and reached is None else None)
        elif found.finish == "abort" and count < asked:
            pass  # it goes on where it was
        # An engine may know of a limit of its own.
        elif count < asked or len(self.tokens) >= limit:
            self._end("length", 0, found.text if not before else None)
        elif self.plan is not None and self.begin is None:
            span = self.tags.span(self.tokens, self.plan.opened)
            self._set(next_look(span, len(self.tokens), self.budget))
        else:
            self.until = limit

    def _stopped_at(self, found: Completion, tokenizer: PreTrainedTokenizerBase) -> int | None:
        """How many of the tokens found complete a stop string that began before them, if any do."""
        stop, before = self.request.params.stop, len(self.tokens)
        if not stop or before == self.resumed:
            return None
        window = stop_window(stop)
        held = self.tokens[max(self.resumed, before - window) :]
        for count in range(1, min(window, len(found.token_ids)) + 1):
            tail = [*held, *found.token_ids[:count]][-window:]
            text = decode(tokenizer, tail)
            if any(string in text for string in stop):
                last = count == len(found.token_ids)
                return None if last and found.finish == "stop" else count
        return None

    def _end(self, finish: FinishReason, ending: int, text: str | None) -> None:
        self.until, self.finish = 0, finish
        self.spoken = len(self.tokens) - ending
        tokenizer = self.tags.tokenizer
        self.text = text_of(tokenizer, self.tokens[: self.spoken]) if text is None else text

    def whole(self) -> Completion:
        """All of it, once it has ended."""
        assert self.ended, "it goes on"
        request, thought = self.request, None
        if self.plan is not None:
            spoken = self.tokens[: self.spoken]
            span = self.tags.span(spoken, self.plan.opened)
            thought = self.plan.thought(span, self.budget, self.begin, len(spoken))
        runs = self.runs or [(0, 0)]
        return Completion(
            problem_id=request.problem_id,
            sample=self.sample,
            prompt_ids=request.prompt_ids,
            token_ids=tuple(self.tokens),
            logprobs=tuple(self.logprobs),
            loss_mask=tuple(self.mask),
            finish=self.finish,
            text=self.text,
            versions=(runs[0][1], runs[-1][1]),
            thought=thought,
            changes=tuple(runs[1:]),
        )


def _ending(found: Completion, tokenizer: PreTrainedTokenizerBase) -> int:
    """1 if its last token ended it, and so is not in its text."""
    if found.finish != "stop" or text_of(tokenizer, found.token_ids) == found.text:
        return 0
    return int(text_of(tokenizer, found.token_ids[:-1]) == found.text)
