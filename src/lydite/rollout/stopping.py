"""Where a completion ends: a stop token, or a stop string somewhere in its text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

STOP_TOKEN = 1
MAY_COMPLETE = 2
_MARGIN = 4
"""Tokens decoded ahead of the longest stop string, since a decoder may treat its first tokens
differently.
"""


class Stopping:
    """One table over the vocabulary tells, for a whole batch at once, which rows need a closer
    look.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        stop_ids: Iterable[int],
        stops: Iterable[tuple[str, ...]],
        vocabulary: int,
    ) -> None:
        self.tokenizer = tokenizer
        codes = torch.zeros(vocabulary, dtype=torch.uint8)
        strings = {string for stop in stops for string in stop}
        if strings:
            codes[self._may_complete(strings, vocabulary)] = MAY_COMPLETE
        codes[[token for token in stop_ids if token < vocabulary]] = STOP_TOKEN
        self._codes = codes

    def codes(self, device: torch.device) -> Tensor:
        """``[V]`` uint8: 1 for a stop token, 2 for a token that could be the last of a stop string,
        else 0.
        """
        return self._codes.to(device)

    def _may_complete(self, strings: set[str], vocabulary: int) -> list[int]:
        """Tokens whose own text has the last character of a stop string, or is no whole text by
        itself.
        """
        last = {string[-1] for string in strings}
        if any(character.isspace() for character in last):
            return list(range(vocabulary))  # decoders may drop a lone token's white space
        known = min(vocabulary, len(self.tokenizer))
        pieces = self.tokenizer.batch_decode([[token] for token in range(known)])
        return [
            token
            for token, piece in enumerate(pieces)
            if "\ufffd" in piece or not last.isdisjoint(piece)
        ]

    def completed(self, stop: Sequence[str], tail: Sequence[int]) -> bool:
        """Whether the text of the last tokens holds one of the stop strings."""
        text = decode(self.tokenizer, tail)
        return any(string in text for string in stop)

    def text(self, ids: Sequence[int]) -> str:
        """See :func:`text_of`."""
        return text_of(self.tokenizer, ids)


def stop_window(stop: Sequence[str]) -> int:
    """Tokens at the end of a completion that are sure to hold a stop string that the last of them
    completes.
    """
    return max(len(string.encode()) for string in stop) + _MARGIN


def text_of(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """The text of a completion less its ending token: special tokens kept, padding left out."""
    pad = tokenizer.pad_token_id
    return decode(tokenizer, [token for token in ids if token != pad])


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """The text of tokens, special ones kept."""
    text = tokenizer.decode(
        list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    assert isinstance(text, str)
    return text
