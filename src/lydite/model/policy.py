"""A loaded policy: the weights, the tokenizer, and what the rest of the house needs to know of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(slots=True)
class Policy:
    """``stop_ids`` end a completion; ``context`` is the most tokens a prompt and its completion may have together."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    stop_ids: frozenset[int]
    context: int

    @property
    def head(self) -> tuple[Tensor, Tensor | None]:
        """Weight ``[V, d]`` and bias ``[V]`` of the language-model head."""
        layer = self.model.get_output_embeddings()
        assert isinstance(layer, nn.Linear)
        return layer.weight, layer.bias

    @property
    def device(self) -> str:
        return str(next(self.model.parameters()).device)
