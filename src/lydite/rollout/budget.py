"""A thinking budget: a thought that is still open after so many tokens is ended by force, and the
answer follows. As in Qwen3 (arXiv 2505.09388, section 4.3), with these choices of ours:

- A budget is a number of tokens between the tags. Whether a thought is open is read off the text,
  so a closing tag may be one token or several; it is read when the budget is used up, once or
  twice a completion, and never token by token.
- What is injected is a phrase and ``</think>``. A budget of 0 has no phrase: the thought is closed
  as soon as it is open. A completion that never opens a thought is left alone, and so is one whose
  prompt has already closed it.
- Injected tokens count in ``max_tokens``. Their loss mask and their log-probability are 0.
- Noise is addressed by position, so up to the smaller of two budgets nothing depends on them.
- A token that ends the completion, or a stop string, ends it within a thought too. What is
  injected ends nothing, and a stop string does not reach back over it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lydite.config import UserError
from lydite.model.thinking import CLOSE, OPEN
from lydite.model.tiny_tokenizer import check_encodable
from lydite.ops.sampling import address_key
from lydite.rollout.stopping import decode
from lydite.types import Request, ThinkingBudget, Thought

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PHRASE = "\n\nMy time to think is up, so I answer from what I have worked out so far.\n"
"""What is said before the closing tag where nobody says otherwise."""
_EMPTY = "\n\n"
"""What templates put between the tags of a thought that is left out."""
_TAIL = 32
"""Tokens at the end of a prompt that are sure to hold a tag and the white space after it."""


def budget_of(budget: ThinkingBudget, seed: int, request: Request, sample: int) -> int:
    """The tokens that a sample may think: one of the budget's, all equally likely.

    Drawn by address, as all noise: by run seed, policy step and problem, so that the samples of a
    group share it and a resumed run draws it again; with ``per_sample`` by sample number too.
    """
    if len(budget.tokens) == 1:
        return budget.tokens[0]
    who = f"{sample}" if budget.per_sample else "group"
    key = address_key(seed, f"thinking budget of {who}\x1f{request.problem_id}", 0, request.step)
    return budget.tokens[(key % 2**64) * len(budget.tokens) >> 64]


@dataclass(frozen=True, slots=True)
class Span:
    """Where the first thought of a completion lies, in tokens: after the opening tag (0 if the
    prompt opened it), and up to and with the closing one (``None``: still open).
    """

    start: int
    end: int | None


def next_look(span: Span | None, count: int, budget: int) -> int | None:
    """The number of tokens at which a completion of ``count`` tokens has to be looked at again:
    ``count`` if its budget is used up now, ``None`` if it never will be.

    A thought that is not open yet cannot use its budget up before one token has opened it.
    """
    if span is None:
        return count + 1 + budget
    return None if span.end is not None else max(count, span.start + budget)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a budget comes to behind one prompt. ``opened`` and ``closed`` say what the prompt has
    done; ``cut`` and ``empty`` are the token ids that end a thought: at a budget above 0, and at 0.
    ``close`` counts the tokens of the bare tag.
    """

    opened: bool
    closed: bool
    cut: tuple[int, ...]
    empty: tuple[int, ...]
    close: int

    def first_look(self, budget: int) -> int | None:
        """See :func:`next_look`, before there is any token."""
        return None if self.closed else next_look(Span(0, None) if self.opened else None, 0, budget)

    def injection(self, budget: int) -> tuple[int, ...]:
        """What ends a thought."""
        return self.cut if budget else self.empty

    def thought(self, span: Span | None, budget: int, begin: int | None, count: int) -> Thought:
        """What a completion of ``count`` tokens (its ending token left out) made of its budget;
        ``begin`` is where it was cut, if it was.
        """
        if span is None or self.closed:
            return Thought(budget, 0, cut=False)
        if begin is not None:
            return Thought(budget, begin - span.start, cut=True)
        end = count if span.end is None else span.end - self.close
        return Thought(budget, max(0, end - span.start), cut=False)


class Tags:
    """The tags of a thought as a tokenizer reads and writes them."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self._ids = {tag: self._encode(tag) for tag in (OPEN, CLOSE)}
        self._plans: dict[tuple[str | None, bool, bool, str], Plan] = {}

    def span(self, ids: Sequence[int], opened: bool) -> Span | None:
        """Where the first thought lies in a completion; ``None`` if it has none. ``opened``: the
        prompt opened it.
        """
        start = 0 if opened else self._reach(ids, OPEN)
        if start is None:
            return None
        length = self._reach(ids[start:], CLOSE)
        return Span(start, None if length is None else start + length)

    def _reach(self, ids: Sequence[int], tag: str) -> int | None:
        """How many tokens it takes until their text holds a tag."""
        own = self._ids[tag]
        if len(own) == 1 and own[0] in ids:
            return ids.index(own[0]) + 1
        if tag not in decode(self.tokenizer, ids):
            return None
        return bisect_left(
            range(len(ids) + 1), True, key=lambda n: tag in decode(self.tokenizer, ids[:n])
        )

    def plan(self, request: Request) -> Plan:
        """What the request's budget comes to behind its prompt.

        Raises:
            UserError: the tokenizer cannot write the closing tag or the phrase, or ``max_tokens``
                leaves no room for an answer behind the largest budget.
        """
        budget = request.params.thinking
        assert budget is not None
        shown = decode(self.tokenizer, request.prompt_ids[-_TAIL:])
        before = shown.rstrip()
        opened, closed = before.endswith(OPEN), before.endswith(CLOSE)
        space = shown[len(before) :] if opened else ""
        key = (budget.phrase, opened, closed, space)
        if key not in self._plans:
            gap = _EMPTY.removeprefix(space) if _EMPTY.startswith(space) else ""
            self._plans[key] = Plan(
                opened,
                closed,
                cut=self._ending(PHRASE, must=False)
                if budget.phrase is None
                else self._ending(budget.phrase, must=True),
                empty=self._ending(gap, must=False),
                close=len(self._ids[CLOSE]),
            )
        plan = self._plans[key]
        if not closed:
            self._check_room(request, plan)
        return plan

    def _ending(self, phrase: str, must: bool) -> tuple[int, ...]:
        """A phrase and the closing tag; the tag alone where the phrase need not be and no tokens
        stand for it.
        """
        if must:
            check_encodable(self.tokenizer, phrase, "budget_phrase")
        ids = self._encode(phrase + CLOSE)
        if self._says(ids, phrase.strip()):
            return ids
        if phrase and must:
            raise UserError(
                f"budget_phrase: the tokenizer has no tokens for {phrase!r}; say it in "
                "others, or set it to ''"
            )
        if not self._says(self._ids[CLOSE], ""):
            raise UserError(
                f"thinking_budget: the tokenizer has no tokens for {CLOSE}, so a thought "
                "cannot be ended; leave the budget out"
            )
        return self._ids[CLOSE]

    def _says(self, ids: Sequence[int], phrase: str) -> bool:
        text = decode(self.tokenizer, ids)
        return self.tokenizer.unk_token_id not in ids and phrase in text and CLOSE in text

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _check_room(self, request: Request, plan: Plan) -> None:
        budget = request.params.thinking
        assert budget is not None
        most = budget.bounds[1]
        ending = len(plan.injection(most)) + (0 if plan.opened else len(self._ids[OPEN]))
        need = most + ending + 1
        if need > request.params.max_tokens:
            raise UserError(
                f"thinking_budget: {most} tokens of thought and {ending} around it leave "
                f"no room for an answer in max_tokens {request.params.max_tokens}; raise "
                f"max_tokens to {need} at least, or lower the budget"
            )


def check_budgets(tokenizer: PreTrainedTokenizerBase, requests: Sequence[Request]) -> None:
    """Whether the budgets of these requests can be kept, to be known before any is sent.

    Raises:
        UserError: see :meth:`Tags.plan`.
    """
    tags = Tags(tokenizer)
    for request in requests:
        if request.params.thinking is not None:
            tags.plan(request)
