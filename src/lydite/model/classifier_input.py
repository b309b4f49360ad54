"""How a prompt and a completion become the input of a sequence classifier, in training as in use.

What is too long is cut by one rule: first the front of the prompt, so that what is scored stays
whole; only a completion that is too long by itself loses its end. A completion is text, whatever it
holds: special tokens that it spells out are taken out of it, since it could close its turn with
them and open another's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jinja2 import TemplateError
from torch import Tensor

from lydite.config import UserError
from lydite.model.source import one_line
from lydite.types import Message

Layout = Literal["auto", "chat", "pair", "template"]
Key = tuple[tuple[int, ...], tuple[int, ...]]
UNBOUNDED = 4096
"""Tokens of a sequence where neither model nor tokenizer says how far positions go."""


@dataclass(frozen=True, slots=True)
class ClassifierSpec:
    """Which model, and how text becomes its input. ``field`` names the setting in errors.

    ``layout``: ``chat`` (the tokenizer's chat template, the completion as the assistant's turn),
    ``pair`` (two segments, as the tokenizer joins them), ``template`` (``template`` with
    ``{prompt}`` and ``{completion}`` in it), or ``auto``: chat if there is a chat template, else
    template. ``max_tokens`` of ``None`` is the model's own limit. A forward pass takes at most
    ``batch_tokens`` tokens, padding included, or one sequence.
    """

    path: str
    tokenizer: str | None = None
    layout: Layout = "auto"
    template: str = "{prompt}\n\n{completion}"
    max_tokens: int | None = None
    batch_tokens: int = 16_384
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    device: str = "auto"
    field: str = "reward_model"


@dataclass(frozen=True, slots=True)
class Encoded:
    """A classifier's input: token ids, segments where the tokenizer marks them, and how many
    characters of prompt and completion were cut.
    """

    ids: tuple[int, ...]
    segments: tuple[int, ...]
    cut_prompt: int
    cut_completion: int

    @property
    def key(self) -> Key:
        """What the model sees: inputs with one key get one number."""
        return self.ids, self.segments


class Encoder:
    """The input side of a classifier: a tokenizer, and a model's configuration ``shape``."""

    def __init__(self, spec: ClassifierSpec, tokenizer: Any, shape: Any) -> None:
        """
        Raises:
            UserError: the layout or the length does not fit the tokenizer or the model.
        """
        self._spec = spec
        self._tokenizer = tokenizer
        self._shape = shape
        self._own_pad: int | None = shape.pad_token_id
        self._layout = self._chosen_layout()
        self.max_tokens = self._longest()
        self._special = _special_texts(tokenizer)

    def _chosen_layout(self) -> Layout:
        layout, template = self._spec.layout, self._tokenizer.chat_template
        if layout == "chat" and template is None:
            raise UserError(
                f"{self._spec.field}.layout: the tokenizer has no chat template; set layout to "
                "template or pair"
            )
        return layout if layout != "auto" else "template" if template is None else "chat"

    def _longest(self) -> int:
        own = getattr(self._shape, "max_position_embeddings", None)
        limits = [n for n in (own, self._tokenizer.model_max_length) if n and 0 < n < 10**9]
        longest = int(min(limits, default=UNBOUNDED))
        wanted = self._spec.max_tokens
        if wanted is not None and own and wanted > own:
            raise UserError(
                f"{self._spec.field}.max_tokens: {wanted} is past the model's longest, {own}"
            )
        return longest if wanted is None else wanted

    def encode(self, messages: Sequence[Message], completion: str) -> Encoded:
        """The input, cut to fit."""
        completion = _without(completion, self._special)
        whole = sum(len(message.content) for message in messages)

        def ids(cut: int, end: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
            return self._ids(_cut_front(messages, cut), completion[: len(completion) - end])

        found = ids(0, 0)
        if len(found[0]) <= self.max_tokens:
            return Encoded(*found, 0, 0)
        cut = _least(whole, lambda n: len(ids(n, 0)[0]) <= self.max_tokens)
        end = 0
        if cut is None:
            cut = whole
            shortest = _least(len(completion), lambda n: len(ids(whole, n)[0]) <= self.max_tokens)
            if shortest is None:
                raise UserError(
                    f"{self._spec.field}.max_tokens: {self.max_tokens} leaves no room beside the "
                    "template; raise it"
                )
            end = shortest
        return Encoded(*ids(cut, end), cut, end)

    def _ids(
        self, messages: Sequence[Message], completion: str
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if self._layout == "chat":
            text = self._chat(messages, completion)
            encoded = self._tokenizer(text, add_special_tokens=False)
        else:
            prompt = "\n\n".join(message.content for message in messages)
            if self._layout == "pair":
                encoded = self._tokenizer(prompt, completion)
            else:
                parts = {"{prompt}": prompt, "{completion}": completion}
                text = re.sub(
                    r"\{prompt\}|\{completion\}", lambda m: parts[m[0]], self._spec.template
                )
                encoded = self._tokenizer(text)
        return tuple(encoded["input_ids"]), tuple(encoded.get("token_type_ids", ()))

    def _chat(self, messages: Sequence[Message], completion: str) -> str:
        turns = [{"role": m.role, "content": m.content} for m in messages]
        turns.append({"role": "assistant", "content": completion})
        try:
            return str(self._tokenizer.apply_chat_template(turns, tokenize=False))
        except (TemplateError, TypeError, ValueError) as error:
            raise UserError(
                f"{self._spec.field}: its chat template refuses these messages: {one_line(error)}"
            ) from error

    def tensors(self, batch: Sequence[Encoded]) -> Mapping[str, Tensor]:
        """A batch as the model takes it ``[B, T]``, padded on the right: a decoder's numbers are
        read at its last token.
        """
        longest = max(len(each.ids) for each in batch)
        pad = self._pad({token for each in batch for token in each.ids})
        rows = [[*each.ids, *[pad] * (longest - len(each.ids))] for each in batch]
        mask = [[1] * len(each.ids) + [0] * (longest - len(each.ids)) for each in batch]
        given = {"input_ids": rows, "attention_mask": mask}
        if batch[0].segments:
            given["token_type_ids"] = [
                [*each.segments, *[0] * (longest - len(each.segments))] for each in batch
            ]
        return {key: torch.tensor(value) for key, value in given.items()}

    def _pad(self, used: set[int]) -> int:
        """The model's own, or one that no sequence holds: where a decoder's sequence ends is told
        by the padding.
        """
        if self._own_pad is not None:
            return self._own_pad
        free = next(token for token in range(len(used) + 1) if token not in used)
        self._shape.pad_token_id = free
        return free


def _special_texts(tokenizer: Any) -> tuple[str, ...]:
    """What the tokenizer takes for control tokens, wherever it stands in a text."""
    added = [str(t.content) for t in tokenizer.added_tokens_decoder.values() if t.special]
    return tuple(sorted({*added, *tokenizer.all_special_tokens} - {""}, key=len, reverse=True))


def _without(text: str, special: Sequence[str]) -> str:
    """The text without any of these, also where taking one out would make another."""
    before = None
    while before != text:
        before = text
        for token in special:
            text = text.replace(token, "")
    return text


def _cut_front(messages: Sequence[Message], count: int) -> list[Message]:
    """The messages without their first ``count`` characters."""
    found = []
    for message in messages:
        taken = min(count, len(message.content))
        count -= taken
        found.append(Message(message.role, message.content[taken:]))
    return found


def _least(most: int, fits: Callable[[int], bool]) -> int | None:
    """The least number up to ``most`` that fits, if what is cut more fits too."""
    if not fits(most):
        return None
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
