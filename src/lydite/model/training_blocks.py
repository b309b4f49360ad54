"""Decoder layers of the Llama kind by :mod:`lydite.ops.decoder`, for training: the same function as
Transformers' own layers, with less kept for the backward pass and fewer operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from lydite.model.blocks import has_head_norms, is_plain_block
from lydite.ops.decoder import (
    AttentionWeights,
    MlpWeights,
    Norm,
    Weights,
    attention_inputs,
    layer_output,
    rms_norm,
)
from lydite.ops.layout import Layout
from lydite.ops.summed import lookup

_ACTIVATIONS = frozenset({"SiLU", "SiLUActivation"})


@contextmanager
def fast_layers(model: nn.Module, on: bool = True) -> Iterator[None]:
    """Layers on flat tokens that are of a known kind, nothing in them replaced, the norms behind
    them and the lookup before them run this way while it is open, unless not ``on``.

    A layer whose activations are recomputed (gradient checkpointing) stays as it is.
    """
    changed = list(_changed(model)) if on else []
    for module, forward in changed:
        module.forward = forward
    try:
        yield
    finally:
        for module, _ in changed:
            del module.forward


def _changed(model: nn.Module) -> Iterator[tuple[Any, Any]]:
    for module in model.modules():
        layers = getattr(module, "layers", None)
        if not isinstance(layers, nn.ModuleList) or not all(map(_fits, layers)):
            continue
        for layer in layers:
            yield layer, _Layer(layer).forward
        norm: Any = getattr(module, "norm", None)
        first: Any = layers[0]
        if type(norm) is type(first.input_layernorm) and not norm._forward_hooks:
            yield norm, _Normed(norm).forward
        found: Any = getattr(module, "embed_tokens", None)
        if type(found) is nn.Embedding and _looks_up(found):
            yield found, _Lookup(found).forward


def _fits(layer: Any) -> bool:
    return (
        is_plain_block(layer)
        and "forward" not in vars(layer)
        and type(layer.mlp.act_fn).__name__ in _ACTIVATIONS
        and not layer.gradient_checkpointing
    )


class _Layer:
    """``forward`` stands in for that of ``layer``. Weights are read when it runs: a sharded model's
    are there only then.
    """

    def __init__(self, layer: Any) -> None:
        self._module = layer
        self._own = layer.forward
        self._normed = has_head_norms(layer)

    def _before(self) -> AttentionWeights:
        attention = self._module.self_attn
        norms = (_norm(attention.q_norm), _norm(attention.k_norm)) if self._normed else None
        return AttentionWeights(
            norm=_norm(self._module.input_layernorm),
            query=_product(attention.q_proj),
            key=_product(attention.k_proj),
            value=_product(attention.v_proj),
            head_norms=norms,
            dim=int(attention.head_dim),
        )

    def _after(self) -> MlpWeights:
        mlp = self._module.mlp
        return MlpWeights(
            out=_product(self._module.self_attn.o_proj),
            norm=_norm(self._module.post_attention_layernorm),
            gate=_product(mlp.gate_proj),
            up=_product(mlp.up_proj),
            down=_product(mlp.down_proj),
        )

    def forward(
        self,
        hidden_states: Tensor,
        *args: Any,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        layout: Layout | None = None,
        **others: Any,
    ) -> Any:
        """Hidden states ``[1, N, d]`` of the layer from those before it; padded ones go the layer's
        own way.
        """
        if layout is None or position_embeddings is None:
            return self._own(
                hidden_states, *args, position_embeddings=position_embeddings, **others
            )
        cos, sin = (x[0] for x in position_embeddings)
        query, key, value, x = attention_inputs(hidden_states.squeeze(0), self._before(), cos, sin)
        q, k, v = (part.transpose(0, 1)[None] for part in (query, key, value))
        attention = self._module.self_attn
        attended = layout.attend(attention.layer_idx, q, k, v, float(attention.scaling))
        return layer_output(attended.squeeze(0).flatten(1), x, self._after())[None]


def _looks_up(embedding: Any) -> bool:
    """Whether it does nothing else."""
    return not (
        "forward" in vars(embedding)
        or embedding._forward_hooks
        or embedding.sparse
        or embedding.scale_grad_by_freq
        or embedding.max_norm is not None
    )


class _Lookup:
    def __init__(self, embedding: nn.Embedding) -> None:
        self._module = embedding

    def forward(self, ids: Tensor) -> Tensor:
        """As PyTorch's embedding."""
        return lookup(ids, self._module.weight, self._module.padding_idx)


class _Normed:
    def __init__(self, norm: Any) -> None:
        self._module = norm

    def forward(self, hidden_states: Tensor) -> Tensor:
        """As Transformers' RMS norm."""
        return rms_norm(hidden_states, _norm(self._module))


def _norm(module: Any) -> Norm:
    return Norm(module.weight, float(module.variance_epsilon))


def _product(module: Any) -> Weights:
    return module.weight, module.bias
