"""A decoder layer's two functions: their backward passes against numbers, and against autograd."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from lydite.ops.decoder import (
    AttentionWeights,
    MlpWeights,
    Norm,
    attention_inputs,
    layer_output,
    rms_norm,
)

TOKENS, SIZE, DIM, HEADS, KEY_HEADS, INNER = 5, 6, 4, 2, 1, 7
EPSILON = 1e-2


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def plain_norm(x: Tensor, norm: Norm) -> Tensor:
    return norm.weight * x * (x.pow(2).mean(-1, keepdim=True) + norm.epsilon).rsqrt()


def plain_inputs(x: Tensor, w: AttentionWeights, cos: Tensor, sin: Tensor) -> list[Tensor]:
    found = []
    for index, (weight, bias) in enumerate((w.query, w.key, w.value)):
        heads = torch.nn.functional.linear(plain_norm(x, w.norm), weight, bias)
        heads = heads.unflatten(1, (-1, w.dim))
        if index < 2:
            if w.head_norms is not None:
                heads = plain_norm(heads, w.head_norms[index])
            first, second = heads.chunk(2, -1)
            turned = torch.cat([-second, first], -1)
            heads = heads * cos[:, None] + turned * sin[:, None]
        found.append(heads)
    return found


def plain_output(attended: Tensor, x: Tensor, w: MlpWeights) -> Tensor:
    linear = torch.nn.functional.linear
    middle = x + linear(attended, *w.out)
    normed = plain_norm(middle, w.norm)
    gated = torch.nn.functional.silu(linear(normed, *w.gate)) * linear(normed, *w.up)
    return middle + linear(gated, *w.down)


def before(bias: bool, normed: bool) -> AttentionWeights:
    def pair(heads: int) -> tuple[Tensor, Tensor | None]:
        return draw(heads * DIM, SIZE), draw(heads * DIM) if bias else None

    norms = (Norm(draw(DIM), EPSILON), Norm(draw(DIM), 2 * EPSILON)) if normed else None
    return AttentionWeights(
        Norm(draw(SIZE), EPSILON), pair(HEADS), pair(KEY_HEADS), pair(KEY_HEADS), norms, DIM
    )


def after(bias: bool) -> MlpWeights:
    shapes = (SIZE, HEADS * DIM), (INNER, SIZE), (INNER, SIZE), (SIZE, INNER)
    out, gate, up, down = ((draw(*s), draw(s[0]) if bias else None) for s in shapes)
    return MlpWeights(out, Norm(draw(SIZE), EPSILON), gate, up, down)


def leaves(weights: AttentionWeights | MlpWeights) -> list[Tensor]:
    """The tensors of a record."""
    found: list[Tensor] = []
    for name in type(weights).__slots__:
        value = getattr(weights, name)
        parts = value if isinstance(value, tuple) else (value,)
        for part in parts:
            found += [part.weight] if isinstance(part, Norm) else []
            found += [part] if isinstance(part, Tensor) else []
    return found


@pytest.mark.parametrize(("bias", "normed"), [*itertools.product([False, True], repeat=2)])
def test_attention_inputs_are_those_of_autograd(bias: bool, normed: bool) -> None:
    torch.manual_seed(0)
    x, weights = draw(TOKENS, SIZE), before(bias, normed)
    angles = torch.rand(TOKENS, DIM, dtype=torch.float64)  # halves differ: neither may stand in
    cos, sin = angles.cos(), angles.sin()
    *found, same = attention_inputs(x, weights, cos, sin)
    want = plain_inputs(x, weights, cos, sin)
    assert torch.equal(same, x)
    upstream = [torch.randn_like(part) for part in (*want, x)]
    inputs = [x, *leaves(weights)]
    grads = torch.autograd.grad([*found, same], inputs, upstream)
    expected = torch.autograd.grad([*want, x * 1.0], inputs, upstream)
    for a, b in zip([*found, *grads], [*want, *expected], strict=True):
        torch.testing.assert_close(a, b, atol=1e-11, rtol=1e-9)
    assert len(inputs) == 5 + 3 * bias + 2 * normed


@pytest.mark.parametrize("bias", [False, True])
def test_layer_output_is_that_of_autograd(bias: bool) -> None:
    torch.manual_seed(0)
    attended, x, weights = draw(TOKENS, HEADS * DIM), draw(TOKENS, SIZE), after(bias)
    found, want = layer_output(attended, x, weights), plain_output(attended, x, weights)
    inputs, upstream = [attended, x, *leaves(weights)], torch.randn_like(want)
    grads = torch.autograd.grad(found, inputs, upstream)
    expected = torch.autograd.grad(want, inputs, upstream)
    for a, b in zip([found, *grads], [want, *expected], strict=True):
        torch.testing.assert_close(a, b, atol=1e-11, rtol=1e-9)
    assert len(inputs) == 7 + 4 * bias


def test_backward_passes_agree_with_differences() -> None:
    torch.manual_seed(0)
    first, second = before(True, True), after(True)
    cos, sin = torch.rand(2, TOKENS, DIM, dtype=torch.float64)

    def layer(x: Tensor, *_: Tensor) -> Tensor:
        query, key, value, same = attention_inputs(x, first, cos, sin)
        mixed = query * key + value
        return layer_output(mixed.flatten(1), same, second)

    x = draw(TOKENS, SIZE)
    assert torch.autograd.gradcheck(layer, (x, *leaves(first), *leaves(second)))
    norm = Norm(draw(SIZE), EPSILON)
    assert torch.autograd.gradcheck(lambda x, _: rms_norm(x, norm), (x, norm.weight))


def test_frozen_weights_get_no_gradient() -> None:
    torch.manual_seed(0)
    attended, x, weights = draw(TOKENS, HEADS * DIM), draw(TOKENS, SIZE), after(True)
    for tensor in leaves(weights):
        tensor.requires_grad_(False)
    weights.up[0].requires_grad_(True)
    layer_output(attended, x, weights).sum().backward()
    assert [t.grad is not None for t in leaves(weights)] == [
        t is weights.up[0] for t in leaves(weights)
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_types_are_as_near_as_autograd(dtype: torch.dtype) -> None:
    """Against float64, whose error is nil beside theirs: no worse than the plain way in the type,
    with room for luck.
    """
    torch.manual_seed(0)
    attended, x, weights = draw(64, HEADS * DIM), draw(64, SIZE), after(True)
    inputs = [attended, x, *leaves(weights)]
    upstream = torch.randn(64, SIZE, dtype=torch.float64)
    for tensor in (*inputs, upstream):
        tensor.data = tensor.data.to(dtype).double()  # what both ways start from
    exact = torch.autograd.grad(plain_output(attended, x, weights), inputs, upstream)
    for tensor in inputs:
        tensor.data = tensor.data.to(dtype)
    narrow = [tensor.detach().requires_grad_() for tensor in inputs]
    pairs = iter(narrow)
    attended, x, out, out_bias, norm = (next(pairs) for _ in range(5))
    rest = [(next(pairs), next(pairs)) for _ in range(3)]
    weights = MlpWeights((out, out_bias), Norm(norm, EPSILON), *rest)
    errors = []
    for way in (layer_output, plain_output):
        grads = torch.autograd.grad(way(attended, x, weights), narrow, upstream.to(dtype))
        errors.append(
            [float((a.double() - b).norm() / b.norm()) for a, b in zip(grads, exact, strict=True)]
        )
    assert all(a <= 1.5 * b for a, b in zip(*errors, strict=True)), errors
