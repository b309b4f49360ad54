"""Pretraining on documents: packed into blocks of one size, loss on every token.

A block holds whole documents where they fit. None of them attends to another
(:mod:`lydite.ops.groups`), so what is packed together changes neither loss nor gradient. Blocks are
filled best fit first, longest documents first (2404.10830, §2): nothing is cut but what is longer
than a block. Such a document goes on in pieces; each begins with the last token of the one before,
so that every token but a document's first is predicted once.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from pydantic import Field

from lydite.model.policy import Policy
from lydite.model.render import render_example
from lydite.model.tiny_tokenizer import check_encodable
from lydite.train.optimizer import OptimizerConfig
from lydite.train.passes import Passes
from lydite.train.sft import Example, SFTTrainer, TextConfig
from lydite.types import Problem


class PretrainConfig(TextConfig):
    """How much text the model sees, and at once."""

    batch_size: int = Field(32, ge=1, description="Blocks per optimiser step.")
    block: int | None = Field(
        None,
        ge=2,
        description="Tokens of a block, in which documents are packed; the model's context if "
        "null. A longer document goes on in another piece.",
    )
    optimizer: OptimizerConfig = Field(
        OptimizerConfig(lr=1e-3, schedule="cosine", final_lr=0.1, warmup_steps=20),
        description="AdamW and its schedule.",
    )


def document(policy: Policy, problem: Problem) -> tuple[int, ...]:
    """Token ids of a problem as a document: a prompt with its worked solution as the model is shown
    them, or else the plain text of its messages, and the end token.

    Raises:
        UserError: the tokenizer has no token for a piece of text, or a worked solution does not fit
            the context.
    """
    if problem.worked is not None:
        return render_example(policy, problem, problem.worked)[0]
    text = "\n\n".join(message.content for message in problem.messages)
    check_encodable(policy.tokenizer, text, f"document {problem.id}")
    end = policy.tokenizer.eos_token_id
    ids = list(policy.tokenizer(text, verbose=False)["input_ids"])
    return (*ids, *([end] if ids[-1:] != [end] else []))


def pieces(ids: Sequence[int], block: int) -> list[Sequence[int]]:
    """A document in pieces of at most ``block`` tokens, each from the last token of the one
    before.
    """
    starts = range(0, max(1, len(ids) - 1), block - 1)
    return [ids[start : start + block] for start in starts]


def pack(documents: Sequence[Sequence[int]], block: int) -> list[tuple[Example, ...]]:
    """Blocks of documents, each at most ``block`` tokens. Equal input gives equal blocks."""
    cut = [piece for ids in documents for piece in pieces(ids, block) if len(piece) > 1]
    blocks: list[list[Example]] = []
    room: list[tuple[int, int]] = []  # Tokens left in a block and its number, least room first.
    for piece in sorted(cut, key=lambda ids: -len(ids)):
        place = bisect.bisect_left(room, (len(piece), -1))
        left, number = room.pop(place) if place < len(room) else (block, len(blocks))
        if number == len(blocks):
            blocks.append([])
        blocks[number].append(Example(piece[:1], piece[1:], [1] * (len(piece) - 1)))
        if left > len(piece):
            bisect.insort(room, (left - len(piece), number))
    return [tuple(each) for each in blocks]


class PretrainTrainer(SFTTrainer):
    """Trains a policy on blocks, a step at a time."""

    def __init__(
        self,
        policy: Policy,
        config: PretrainConfig,
        blocks: Sequence[tuple[Example, ...]],
        seed: int,
    ) -> None:
        super().__init__(policy, config, [each for block in blocks for each in block], seed)
        self.total = config.total_steps(len(blocks))
        self._blocks = Passes(blocks, seed)

    def batch_at(self, step: int) -> list[Example]:
        """The documents of a step's blocks."""
        taken = self._blocks.at(step, self.config.batch_size)
        return [example for block in taken for example in block]
