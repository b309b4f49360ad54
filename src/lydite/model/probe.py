"""Whether a model runs on flat tokens: tried on two short sequences, not believed from its name."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from lydite.model.attention import NAME, hidden_states
from lydite.model.policy import head_scale
from lydite.model.shards import Shards, at_hand, inside, recover
from lydite.model.source import quiet
from lydite.ops.head import logits_of
from lydite.ops.layout import Layout

# Root-mean-square difference of logits, relative to their spread, that rounding explains. Measured:
# 2e-6 in float32 and 0.03 in bfloat16 for 30 layers; a wrong scale of the scores gives 0.04 in a
# small random model and 0.5 in one with larger weights.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}
# Settings that change attention scores in ways that flat attention leaves out and that short random
# inputs are too tame to show.
UNSUPPORTED = ("attn_logit_softcapping",)
LENGTH = 6


class _TwoSequences(Layout):
    """Two sequences of ``LENGTH`` tokens, each causal to itself; notes the layers that asked, and
    the heads and dimensions of their keys.
    """

    def __init__(self) -> None:
        self.layers: list[int] = []
        self.kept: set[tuple[int, int]] = set()

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float
    ) -> Tensor:
        self.layers.append(layer)
        self.kept.add((key.shape[1], key.shape[3]))
        causal = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=query.device).tril()
        mask = torch.block_diag(causal, causal).bool()
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=scaling, enable_gqa=True
        )
        return out.transpose(1, 2)


def supports_flat(model: PreTrainedModel) -> bool:
    """Whether :func:`why_not_flat` finds nothing."""
    return not why_not_flat(model)


@torch.no_grad()
def why_not_flat(model: PreTrainedModel, shards: Shards | None = None) -> str:
    """Why a model cannot run on flat tokens, in a few words, or ``""`` when it can. Of a sharded
    model every rank must ask.

    Compares the logits of two sequences run flat with those of the model's plain forward pass.
    Leaves the attention implementation as it found it.
    """
    text = model.config.get_text_config()
    for name in UNSUPPORTED:
        if getattr(text, name, None) is not None:
            return f"{name} is set"
    if not isinstance(model.get_output_embeddings(), nn.Linear):
        return "its head is not a linear layer"
    before, training = model.config._attn_implementation, model.training
    model.eval()
    try:
        with quiet():
            if before == NAME:
                model.set_attn_implementation("sdpa")
            return _compare(model, shards)
    except Exception as error:  # Whatever an architecture trips over means the same: it cannot.
        recover(model)
        return f"it raised {type(error).__name__}: {' '.join(str(error).split())[:100]}"
    finally:
        model.train(training)
        with quiet():
            model.set_attn_implementation(before)


def _compare(model: PreTrainedModel, shards: Shards | None) -> str:
    device = next(model.parameters()).device if shards is None else torch.device(shards.device)
    vocabulary = int(model.config.get_text_config().vocab_size)
    ids = (torch.arange(2 * LENGTH, device=device) * 7919 + 5) % vocabulary
    positions = torch.arange(LENGTH, device=device).repeat(2)
    plain = model(input_ids=ids.view(2, LENGTH), use_cache=False).logits.flatten(0, 1).float()
    model.set_attn_implementation(NAME)
    layout = _TwoSequences()

    def run() -> Tensor:
        head = model.get_output_embeddings()
        assert isinstance(head, nn.Linear)
        states = hidden_states(model, ids, positions, layout)
        bias = None if head.bias is None else at_hand(head.bias)
        return logits_of(states, at_hand(head.weight), bias, head_scale(model.config))

    flat = inside(model, run)
    layers = model.config.get_text_config().num_hidden_layers
    if sorted(layout.layers) != list(range(layers)):
        return f"{len(layout.layers)} of its {layers} layers take their attention from the registry"
    heads, dimension = key_heads(model.config)
    part = heads // (1 if shards is None else shards.tensor)  # Fused products are gathered again.
    if layout.kept not in ({(heads, dimension)}, {(part, dimension)}):
        return f"its keys have (heads, dimension) {sorted(layout.kept)}, which its settings deny"
    difference = float((flat - plain).pow(2).mean().sqrt() / plain.std().clamp_min(1e-6))
    compute = None if shards is None else shards.compute
    if not difference <= TOLERANCE.get(compute or model.dtype, 1e-4):
        return f"its logits differ from the plain ones by {difference:.2g} of their spread"
    return ""


def key_heads(config: PreTrainedConfig) -> tuple[int, int]:
    """Heads of a layer's keys and the dimension of each, as the configuration has them."""
    text = config.get_text_config()
    heads: int = text.num_attention_heads
    return (
        getattr(text, "num_key_value_heads", None) or heads,
        getattr(text, "head_dim", None) or text.hidden_size // heads,
    )


def attention_window(config: PreTrainedConfig) -> int | None:
    """Tokens that a layer looks back at most, when some layer is limited: flat attention is right
    up to there.
    """
    kinds = getattr(config, "layer_types", None) or ["sliding_attention", "chunked_attention"]
    windows = [
        getattr(config, setting, None)
        for kind, setting in (
            ("sliding_attention", "sliding_window"),
            ("chunked_attention", "attention_chunk_size"),
        )
        if kind in kinds
    ]
    sizes = [size for size in windows if isinstance(size, int) and size > 0]
    return min(sizes, default=None)
