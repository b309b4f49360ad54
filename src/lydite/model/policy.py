"""A loaded policy: the weights, the tokenizer, and what the rest of the house needs to know of
them.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor, nn

from lydite.model.shards import Shards
from lydite.ops.head import HeadScale

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


@dataclass(slots=True)
class Policy:
    """``stop_ids`` end a completion; ``context`` is the most tokens a prompt and its completion may
    have together.

    ``end_id`` is the one of them that training examples end with (the tokenizer's end-of-text token
    when ``None``). ``chat`` says whether prompts go through the chat template, ``thinking`` is its
    ``enable_thinking`` (``None``: not passed). ``flat`` says whether the model runs on flat tokens;
    one that does not needs padding, and ``not_flat`` says why. ``adapter_on`` is the path of the
    model beneath where adapters are saved alone, empty where they are merged.
    ``shards`` are there where the weights lie over several ranks: then each pass is a collective.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    stop_ids: frozenset[int]
    context: int
    end_id: int | None = None
    chat: bool = True
    thinking: bool | None = None
    flat: bool = True
    not_flat: str = ""
    adapter_on: str = ""
    shards: Shards | None = None

    @property
    def head(self) -> tuple[Tensor, Tensor | None]:
        """Weight ``[V, d]`` and bias ``[V]`` of the language-model head. Where the policy is
        sharded they can be computed with only within :func:`lydite.model.shards.inside`.
        """
        layer = self.model.get_output_embeddings()
        assert isinstance(layer, nn.Linear)
        return layer.weight, layer.bias

    def head_scale(self, temperature: float = 1.0) -> HeadScale:
        """What comes between head and softmax, the temperature included."""
        return head_scale(self.model.config, temperature)

    def detached(self) -> Policy:
        """The same policy with a copy of its trained weights, which no training changes; frozen
        ones are shared. Not for a sharded policy.
        """
        assert self.shards is None, "what samples beside sharded weights has weights of its own"
        shared = {id(p): p for p in self.model.parameters() if not p.requires_grad}
        model = copy.deepcopy(self.model, shared)
        model.requires_grad_(False)
        return replace(self, model=model)

    @property
    def device(self) -> str:
        """Where it computes."""
        if self.shards is not None:
            return self.shards.device
        return str(next(self.model.parameters()).device)


def head_scale(config: PreTrainedConfig, temperature: float = 1.0) -> HeadScale:
    """What an architecture does to its logits: Gemma's soft cap, Cohere's factor, Granite's
    divisor.
    """
    text = config.get_text_config()
    factor = float(getattr(text, "logit_scale", None) or 1.0)
    divisor = float(getattr(text, "logits_scaling", None) or 1.0)
    return HeadScale(temperature, factor / divisor, getattr(text, "final_logit_softcapping", None))
