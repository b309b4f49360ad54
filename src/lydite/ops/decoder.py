"""A decoder layer of the Llama kind for training, as two functions around its attention, with
backward passes of their own.

Autograd keeps the result of every operation: of one token in one layer about twenty hidden states'
worth. Here a layer keeps its input, queries, keys and values, what was attended, the sum in its
middle, and the two halves of the MLP; norms, rotations and activations are made again from those,
which takes a few passes over memory and no product. What a product is added to goes into the
product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lydite.ops.linear import outer, product, turn

Weights = tuple[Tensor, Tensor | None]
"""Of a product: weight ``[m, k]``, bias ``[m]`` or None."""


@dataclass(frozen=True, slots=True)
class Norm:
    """An RMS norm: ``weight`` ``[d]`` and what is added to the mean square."""

    weight: Tensor
    epsilon: float


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """Of a layer's first half. ``head_norms`` are those of each head of query and key, if any;
    ``dim`` is the size of a head.
    """

    norm: Norm
    query: Weights
    key: Weights
    value: Weights
    head_norms: tuple[Norm, Norm] | None
    dim: int


@dataclass(frozen=True, slots=True)
class MlpWeights:
    """Of a layer's second half, the product that ends attention included."""

    out: Weights
    norm: Norm
    gate: Weights
    up: Weights
    down: Weights


def attention_inputs(
    x: Tensor, weights: AttentionWeights, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rotated queries ``[N, H, D]`` and keys ``[N, H_kv, D]``, values ``[N, H_kv, D]``, and ``x``
    itself, for the layer's second half. Differentiable.

    ``x`` is ``[N, d]``, ``cos`` and ``sin`` are ``[N, D]``.
    """
    norms = [weights.norm, *(weights.head_norms or ())]
    products = (weights.query, weights.key, weights.value)
    out: tuple[Tensor, Tensor, Tensor, Tensor] = _Inputs.apply(
        (weights.dim, tuple(norm.epsilon for norm in norms)),
        *(x, cos, sin),
        *(tensor for pair in products for tensor in pair),
        *(norm.weight for norm in norms),
    )
    return out


def layer_output(attended: Tensor, x: Tensor, weights: MlpWeights) -> Tensor:
    """``[N, d]``, what leaves the layer: ``attended`` is ``[N, H·D]``, ``x`` what came in. The MLP
    is gated by SiLU. Differentiable.
    """
    out = _Outputs.apply(
        weights.norm.epsilon,
        *(attended, x, *weights.out, weights.norm.weight),
        *(*weights.gate, *weights.up, *weights.down),
    )
    assert isinstance(out, Tensor)
    return out


def rms_norm(x: Tensor, norm: Norm) -> Tensor:
    """``x`` ``[..., d]`` over its root mean square, times the weight, as Transformers' norms: in
    float32 or wider, and rounded before the weight. Differentiable.
    """
    out = _RmsNorm.apply(norm.epsilon, x, norm.weight)
    assert isinstance(out, Tensor)
    return out


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, epsilon: float, x: Tensor, weight: Tensor) -> Tensor:
        scale = _scale(x, epsilon)
        ctx.save_for_backward(x, scale, weight)
        return _normed(x, scale, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, weight = ctx.saved_tensors
        return (None, *_norm_back(grads[0], x, scale, weight, None))


class _Inputs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, how: tuple[int, tuple[float, ...]], *tensors: Any) -> tuple[Tensor, ...]:
        dim, epsilons = how
        (x, cos, sin), products, norms = tensors[:3], tensors[3:9], tensors[9:]
        scale = _scale(x, epsilons[0])
        normed = _normed(x, scale, norms[0])
        found, kept = [], []
        for index in range(3):
            weight, bias = products[2 * index : 2 * index + 2]
            heads = product(normed, weight, bias).unflatten(1, (-1, dim))
            if index < 2 and len(norms) == 3:
                own = _scale(heads, epsilons[1 + index])
                kept += [heads, own]
                heads = _normed(heads, own, norms[1 + index])
            found.append(_rotated(heads, cos, sin) if index < 2 else heads)
        ctx.save_for_backward(*tensors, scale, *kept)
        return (*found, x.view_as(x))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved, needed = ctx.saved_tensors, ctx.needs_input_grad
        count = len(needed) - 1
        (x, cos, sin), products, norms = saved[:3], saved[3:9], saved[9:count]
        scale, kept = saved[count], saved[count + 1 :]
        normed = _normed(x, scale, norms[0])
        turned = turn(normed)
        d_normed: Tensor | None = None
        d_products: list[Tensor | None] = []
        d_norms: list[Tensor | None] = []
        for index in range(3):
            grad = _turned_back(grads[index], cos, sin) if index < 2 else grads[index]
            if index < 2 and kept:
                heads, own = kept[2 * index : 2 * index + 2]
                grad, d_norm = _norm_back(grad, heads, own, norms[1 + index], None)
                d_norms.append(d_norm)
            flat = grad.reshape(len(x), -1)
            wanted = needed[4 + 2 * index : 6 + 2 * index]
            d_products += _weights_back(flat, normed, wanted, turned)
            d_normed = product(flat, products[2 * index].t(), None, d_normed)
        assert d_normed is not None
        d_x, d_norm = _norm_back(d_normed, x, scale, norms[0], grads[3])
        return (None, d_x, None, None, *d_products, d_norm, *d_norms)


class _Outputs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, epsilon: float, *tensors: Any) -> Tensor:
        attended, x, out, out_bias, norm = tensors[:5]
        gate, gate_bias, up, up_bias, down, down_bias = tensors[5:]
        middle = product(attended, out, out_bias, x)
        scale = _scale(middle, epsilon)
        normed = _normed(middle, scale, norm)
        gates, ups = product(normed, gate, gate_bias), product(normed, up, up_bias)
        ctx.save_for_backward(attended, middle, scale, gates, ups, out, norm, gate, up, down)
        return product(torch.nn.functional.silu(gates).mul_(ups), down, down_bias, middle)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        attended, middle, scale, gates, ups, out, norm, gate, up, down = ctx.saved_tensors
        needed = ctx.needs_input_grad
        grad = grads[0].contiguous()
        active = torch.nn.functional.silu(gates)
        d_down = _weights_back(grad, active * ups, needed[10:])
        inner = product(grad, down.t())
        d_ups = active.mul_(inner)
        d_gates = torch.ops.aten.silu_backward(inner.mul_(ups), gates)
        normed = _normed(middle, scale, norm)
        turned = turn(normed)
        d_gate = _weights_back(d_gates, normed, needed[6:8], turned)
        d_up = _weights_back(d_ups, normed, needed[8:10], turned)
        d_normed = product(d_gates, gate.t())
        d_normed = product(d_ups, up.t(), None, d_normed)
        d_middle, d_norm = _norm_back(d_normed, middle, scale, norm, grad)
        d_out = _weights_back(d_middle, attended, needed[3:5])
        d_attended = product(d_middle, out.t())
        return (None, d_attended, d_middle, *d_out, d_norm, *d_gate, *d_up, *d_down)


def _weights_back(
    grad: Tensor, x: Tensor, needed: Sequence[bool], turned: Tensor | None = None
) -> list[Tensor | None]:
    """Gradients of a product's weight and bias; ``turned`` is ``x`` the other way round."""
    return [
        outer(grad, x, turned).contiguous() if needed[0] else None,
        grad.sum(0) if needed[1] else None,
    ]


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _scale(x: Tensor, epsilon: float) -> Tensor:
    """One over the root mean square: ``[..., 1]``, float32 or wider."""
    length: Tensor = torch.linalg.vector_norm(_wide(x), dim=-1, keepdim=True)
    return length.square_().div_(x.shape[-1]).add_(epsilon).rsqrt_()


def _normed(x: Tensor, scale: Tensor, weight: Tensor) -> Tensor:
    scaled: Tensor = (_wide(x) * scale).to(x.dtype)
    return scaled.mul_(weight)


def _norm_back(
    grad: Tensor, x: Tensor, scale: Tensor, weight: Tensor, plus: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Gradients of a norm's input, with ``plus`` added to it, and of its weight.

    PyTorch's kernel for a layer norm, told that the mean is zero, gives those of an RMS norm, less
    the mean that it takes off each row of the first.
    """
    size = x.shape[-1]
    rows, scales = grad.reshape(-1, size), scale.reshape(-1, 1)
    wide, gain = _wide(rows), _wide(weight)
    d_x, d_weight, _ = torch.ops.aten.native_layer_norm_backward(
        *(wide, _wide(x).reshape(-1, size), [size]),
        *(torch.zeros_like(scales), scales, gain, None, [True, True, False]),
    )
    lost = (wide @ gain)[:, None].mul_(scales).div_(size)
    d_x = d_x.add_(lost).view(x.shape)
    if plus is not None:
        d_x += plus
    return d_x.to(x.dtype), d_weight.to(weight.dtype)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``x cos + rotate_half(x) sin``: ``x`` ``[N, h, D]``, ``cos`` and ``sin`` ``[N, D]``."""
    half = x.shape[-1] // 2
    out = x * cos[:, None]
    out[..., :half].addcmul_(x[..., half:], sin[:, None, :half], value=-1)
    out[..., half:].addcmul_(x[..., :half], sin[:, None, half:])
    return out


def _turned_back(grad: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The gradient of :func:`_rotated`'s input."""
    half = grad.shape[-1] // 2
    grad = grad.contiguous()
    out = grad * cos[:, None]
    out[..., :half].addcmul_(grad[..., half:], sin[:, None, half:])
    out[..., half:].addcmul_(grad[..., :half], sin[:, None, :half], value=-1)
    return out
