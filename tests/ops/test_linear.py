"""The oneDNN products against the default ones: values, gradients, and the model left as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lydite.ops import linear as room
from lydite.ops.linear import fast_products, linear


@pytest.mark.parametrize("rows", [1, 31, 32, 33, 64, 100, 257])
@pytest.mark.parametrize("bias", [False, True])
def test_values_and_gradients_are_the_plain_ones(rows: int, bias: bool) -> None:
    torch.manual_seed(0)
    made = [torch.randn(rows, 96), torch.randn(400, 96)] + [torch.randn(400)] * bias
    ours = [x.clone().requires_grad_() for x in made]
    exact = [x.double().requires_grad_() for x in made]
    out, want = linear(*ours), nn.functional.linear(*exact)
    pull = torch.randn_like(out)
    torch.testing.assert_close(out.double(), want, atol=1e-4, rtol=1e-5)
    out.backward(pull)
    want.backward(pull.double())
    for x, y in zip(ours, exact, strict=True):
        assert x.grad is not None and y.grad is not None
        torch.testing.assert_close(x.grad.double(), y.grad, atol=2e-4, rtol=1e-4)
    with torch.inference_mode():
        torch.testing.assert_close(linear(*made).double(), want, atol=1e-4, rtol=1e-5)


def test_any_leading_shape() -> None:
    x, weight = torch.randn(2, 3, 50, 96), torch.randn(400, 96)
    torch.testing.assert_close(linear(x, weight), x @ weight.t(), atol=1e-4, rtol=1e-4)
    empty = torch.randn(0, 96)
    assert linear(empty, weight).shape == (0, 400)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_take_the_plain_way(dtype: torch.dtype) -> None:
    x, weight = torch.randn(300, 96, dtype=dtype), torch.randn(400, 96, dtype=dtype)
    assert torch.equal(linear(x, weight), nn.functional.linear(x, weight))


def test_small_products_take_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_onednn", None)
    x, weight = torch.randn(4, 96), torch.randn(400, 96)
    assert torch.equal(linear(x, weight), nn.functional.linear(x, weight))


def test_a_model_is_fast_only_inside() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(96, 400), nn.ReLU(), nn.Linear(400, 96, bias=False))
    x = torch.randn(200, 96)
    want = model(x)
    state = [dict(vars(module)) for module in model]
    with fast_products(model):
        got = model(x)
        got.sum().backward()
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    assert [dict(vars(module)) for module in model] == state
    assert model[0].weight.grad is not None
