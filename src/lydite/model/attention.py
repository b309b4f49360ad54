"""Makes a Transformers model run on flat tokens: one registered attention function that asks the
layout.

Models that take their attention from Transformers' registry (Llama, Qwen, Mistral, SmolLM, OLMo,
Phi and most others) pass unknown keyword arguments through to it, so the layout reaches every layer
without a global, and gradient checkpointing, which re-runs layers in the backward pass, keeps it.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from lydite.ops.layout import Layout

NAME = "lydite"


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    layout: Layout | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    assert layout is not None, "a flat forward needs a layout; use hidden_states()"
    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer = module.layer_idx
    assert isinstance(layer, int)
    return layout.attend(layer, query, key, value, factor), None


AttentionInterface.register(NAME, _attention)


def backbone(model: nn.Module) -> nn.Module:
    """The model below its language-model head, LoRA adapters (which live inside its layers)
    included.
    """
    unwrap = getattr(model, "get_base_model", None)
    plain = unwrap() if callable(unwrap) else model
    assert isinstance(plain, PreTrainedModel)
    below = plain.base_model
    assert isinstance(below, nn.Module)
    return below


def hidden_states(
    model: nn.Module, input_ids: Tensor, position_ids: Tensor, layout: Layout
) -> Tensor:
    """Final hidden states of flat tokens: ``input_ids`` and ``position_ids`` are ``[N]``, the
    result ``[N, d]``.
    """
    out = backbone(model)(
        input_ids=input_ids[None], position_ids=position_ids[None], use_cache=False, layout=layout
    )
    states = out.last_hidden_state
    assert isinstance(states, Tensor)
    # Not ``states[0]``, whose backward pass fills a tensor of zeros and copies into it.
    return states.squeeze(0)
