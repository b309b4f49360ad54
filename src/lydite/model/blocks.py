"""Decoder layers with fewer operations, for sampling: the same sums as Transformers' own layers.

At a few dozen rows each operation of a layer moves a few kilobytes, and calling it costs more than
doing it. For layers of the Llama kind (RMS norm, rotary attention, gated MLP), recognised by their
exact class, this one forward joins query, key and value and turns the first two at once, joins gate
and up, and adds in place. No gradients: what it overwrites, a backward pass would need.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lydite.model.attention import backbone
from lydite.ops.layout import Layout
from lydite.ops.packed import PackedMlp, PackedWeight, can_pack

_KINDS = frozenset({"LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer"})
_NORMED_KINDS = frozenset({"Qwen3DecoderLayer"})
"""These also normalise each head of query and key."""
_MODELS = frozenset({"LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model"})
"""Models that are an embedding, such layers and a norm."""


def is_plain_block(layer: nn.Module) -> bool:
    """Whether this is a layer of Transformers of one of the known kinds, nothing in it replaced."""
    kind = type(layer)
    if kind.__name__ not in _KINDS | _NORMED_KINDS:
        return False
    if not kind.__module__.startswith("transformers.models."):
        return False
    return all(type(module) is nn.Linear for module in _products(layer)) and not any(
        m._forward_hooks or m._forward_pre_hooks for m in layer.modules()
    )


def has_head_norms(layer: nn.Module) -> bool:
    """Whether each head of a plain block's query and key is normalised."""
    return type(layer).__name__ in _NORMED_KINDS


def _products(layer: Any) -> list[Any]:
    attention, mlp = layer.self_attn, layer.mlp
    return [
        *(attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj),
        *(mlp.gate_proj, mlp.up_proj, mlp.down_proj),
    ]


class FastBlock:
    """``forward`` stands in for that of ``layer``; see :func:`is_plain_block`.

    ``dtype`` is the type of the products and ``few`` says that rows will be few; see
    :class:`lydite.ops.packed.PackedMlp`.
    """

    def __init__(self, layer: Any, dtype: torch.dtype, few: bool) -> None:
        attention = layer.self_attn
        q, k, v, o, gate, up, down = _products(layer)
        self._qkv = _packed([q, k, v], dtype)
        self._out = _packed([o], dtype)
        self._mlp = PackedMlp([gate, up, down], layer.mlp.act_fn, dtype, few)
        self._layer = int(attention.layer_idx)
        self._dim = int(attention.head_dim)
        self._heads = q.weight.shape[0] // self._dim
        self._turned = self._heads + k.weight.shape[0] // self._dim
        self._scaling = float(attention.scaling)
        self._norms = layer.input_layernorm, layer.post_attention_layernorm
        self._head_norms: tuple[Any, Any] | None = None
        if has_head_norms(layer):
            self._head_norms = attention.q_norm, attention.k_norm

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        layout: Layout,
        **_: Any,
    ) -> Tensor:
        """Hidden states ``[1, N, d]`` of the layer from those before it."""
        x = hidden_states[0]
        heads = self._qkv(_rms(x, self._norms[0])).unflatten(1, (-1, self._dim))
        queries_keys, values = heads[:, : self._turned], heads[:, self._turned :]
        if self._head_norms is not None:
            parts = queries_keys.split([self._heads, self._turned - self._heads], dim=1)
            normed = [_rms(p, norm) for p, norm in zip(parts, self._head_norms, strict=True)]
            queries_keys = torch.cat(normed, dim=1)
        turned = _rotated(queries_keys, *position_embeddings)
        attended = layout.attend(
            self._layer,
            turned[:, : self._heads].transpose(0, 1)[None],
            turned[:, self._heads :].transpose(0, 1)[None],
            values.transpose(0, 1)[None],
            self._scaling,
        )
        x = self._out(attended[0].flatten(1), x)
        return self._mlp(_rms(x, self._norms[1]), x)[None]


def _packed(modules: list[Any], dtype: torch.dtype) -> PackedWeight:
    return PackedWeight([m.weight for m in modules], [m.bias for m in modules], dtype)


def _rms(x: Tensor, norm: Any) -> Tensor:
    """What Transformers' RMS norms compute: mean square and root in float32."""
    if x.dtype == torch.float32:
        return torch.rms_norm(x, x.shape[-1:], norm.weight, norm.variance_epsilon)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    scale = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    scale = scale.square_().div_(x.shape[-1]).add_(norm.variance_epsilon).rsqrt_()
    scaled: Tensor = (wide * scale).to(x.dtype)
    return scaled.mul_(norm.weight)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``x cos + rotate_half(x) sin`` for ``x`` ``[N, h, D]`` and ``cos``, ``sin`` ``[1, N, D]``."""
    cos, sin = cos[0, :, None], sin[0, :, None]
    half = x.shape[-1] // 2
    out = x * cos
    out[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-1)
    out[..., half:].addcmul_(x[..., :half], sin[..., half:])
    return out


class FastBlocks:
    """Takes over all layers of known kinds, from :meth:`pack` to :meth:`close`."""

    def __init__(self, model: nn.Module, dtype: torch.dtype | None = None) -> None:
        self._dtype = dtype
        self._layers = [
            module
            for module in model.modules()
            if is_plain_block(module) and all(can_pack(m.weight) for m in _products(module))
        ]
        self.inside = {module for layer in self._layers for module in layer.modules()}
        self._blocks: list[FastBlock] = []
        self._model: Any = None
        below: Any = backbone(model)
        if (
            type(below).__name__ in _MODELS
            and list(below.layers) == self._layers
            and type(below.embed_tokens) is nn.Embedding
            and type(below.norm) is type(self._layers[0].input_layernorm)
            and not any(m._forward_hooks or m._forward_pre_hooks for m in below.modules())
        ):
            self._model = below

    def pack(self, few: bool = False) -> None:
        """Copies weights; layers go the other way from here on. ``few``: see :class:`FastBlock`."""
        for layer in self._layers:
            dtype = self._dtype or next(layer.parameters()).dtype
            self._blocks.append(FastBlock(layer, dtype, few))
            layer.forward = self._blocks[-1].forward

    def states(self, input_ids: Tensor, position_ids: Tensor, layout: Layout) -> Tensor | None:
        """What :func:`lydite.model.attention.hidden_states` gives, without the calls around the
        layers; None where the model is more than an embedding, layers of a known kind and a norm,
        or weights are not packed.
        """
        if self._model is None or not self._blocks:
            return None
        x = torch.nn.functional.embedding(input_ids, self._model.embed_tokens.weight)[None]
        rotation = self._model.rotary_emb(x, position_ids=position_ids[None])
        for block in self._blocks:
            x = block.forward(x, rotation, layout)
        return _rms(x[0], self._model.norm)

    def close(self) -> None:
        """Gives the layers their own forward back and lets go of the copies."""
        for layer in self._layers:
            vars(layer).pop("forward", None)
        self._blocks = []
