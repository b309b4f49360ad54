"""Packed and joined products against each module's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from lydite.ops import packed
from lydite.ops.linear import fast_products
from lydite.ops.packed import PackedMlp, PackedProducts, PackedWeight, can_pack, padded_rows

pytestmark = pytest.mark.skipif(
    not can_pack(torch.empty(1)), reason="this build of PyTorch has no packed products"
)


@pytest.fixture(autouse=True)
def _small_products(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(packed, "LEAST_WORK", 0)
    with torch.inference_mode():
        yield


class Block(nn.Module):
    """Three projections of one input, one of them with a bias, and one of what they give."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(24, 16), nn.Linear(24, 8, bias=False)
        self.c, self.out = nn.Linear(24, 40, bias=False), nn.Linear(64, 24)
        self.scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        inside = x * self.scale
        parts = [self.a(inside), self.b(inside), self.c(inside)]
        return x + self.out(torch.cat(parts, dim=-1))


def test_rows_are_padded_by_a_quarter_at_most() -> None:
    for rows in range(1, 600):
        assert rows <= padded_rows(rows) <= max(rows + 3, rows * 1.25)
    assert len({padded_rows(rows) for rows in range(1, 257)}) <= 26


@pytest.mark.parametrize("rows", [3, 8, 9, 33])
def test_what_is_added_is_added(rows: int) -> None:
    torch.manual_seed(0)
    weight, bias, x, plus = (torch.randn(n, 24) for n in (24, 1, rows, rows))
    want = x @ weight.T + bias[0] + plus
    for dtype, close in ((torch.float32, 1e-5), (torch.bfloat16, 0.2)):
        found = PackedWeight([weight], [bias[0]], dtype)(x, plus)
        torch.testing.assert_close(found, want, atol=close, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 5, 33, 70])
def test_a_packed_weight_is_the_joined_product(dtype: torch.dtype, rows: int) -> None:
    torch.manual_seed(0)
    weights = [torch.randn(n, 24, dtype=dtype) for n in (7, 16)]
    bias = torch.randn(7, dtype=dtype)
    x = torch.randn(rows, 24, dtype=dtype)
    found = PackedWeight(weights, [bias, None], dtype)(x)
    want = torch.cat([x @ weights[0].T + bias, x @ weights[1].T], dim=1)
    close = {torch.float32: 1e-5, torch.bfloat16: 0.1}[dtype]
    assert found.dtype == dtype and found.shape == (rows, 23)
    torch.testing.assert_close(found, want, atol=close, rtol=0)


def test_bfloat16_products_of_float32_models_are_near() -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(16, 24), torch.randn(5, 24)
    found = PackedWeight([weight], [None], torch.bfloat16)(x)
    assert found.dtype == torch.float32
    gap = (found - x @ weight.T).abs().max()
    assert 1e-4 < gap < 0.1


@pytest.mark.parametrize("fast", [False, True])
def test_modules_of_one_input_are_one_product(fast: bool) -> None:
    model = nn.Sequential(Block(), Block())
    x = torch.randn(1, 9, 24)
    want = model(x)
    products = PackedProducts(model)
    if fast:
        with fast_products(model):
            _check_products(model, products, x, want)
            assert all("forward" in vars(block.a) for block in model)
    else:
        _check_products(model, products, x, want)
    assert not any("forward" in vars(module) for module in model.modules())
    torch.testing.assert_close(model(x), want)


def _check_products(model: nn.Module, products: PackedProducts, x: Tensor, want: Tensor) -> None:
    calls: list[tuple[int, ...]] = []

    class Counted(PackedWeight):
        def __call__(self, x: Tensor) -> Tensor:
            out = super().__call__(x)
            calls.append(tuple(out.shape))
            return out

    model(x)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "PackedWeight", Counted)
        products.pack()
    torch.testing.assert_close(model(x), want)
    assert calls == [(9, 64), (9, 24)] * 2
    products.close()


def test_a_module_that_is_called_apart_computes_its_own() -> None:
    block = Block()
    x, y = torch.randn(4, 24), torch.randn(4, 24)
    want = block.a(x), block.b(y), block.c(x)
    products = PackedProducts(block)
    block(x)
    products.pack()
    # Out of step: another input for one, and what was left over from the last call for another.
    for found, expected in zip((block.a(x), block.b(y), block.c(x)), want, strict=True):
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(block.b(x), block.b(x.clone()))
    products.close()


def test_what_did_not_run_while_watched_keeps_its_own_product() -> None:
    block = Block()
    products = PackedProducts(block)
    block.a(torch.randn(2, 24))
    products.pack()
    assert "forward" in vars(block.a) and "forward" not in vars(block.b)
    products.close()


def test_small_products_go_to_the_plain_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "LEAST_WORK", 1 << 30)
    monkeypatch.setattr(PackedWeight, "__call__", None)
    block, x = Block(), torch.randn(4, 24)
    want = block(x)
    products = PackedProducts(block)
    block(x)
    products.pack()
    assert torch.equal(block(x), want)
    products.close()


def _mlp(bias: bool = False, dtype: torch.dtype = torch.float32) -> list[nn.Linear]:
    torch.manual_seed(0)
    sizes = (24, 40), (24, 40), (40, 24)
    return [nn.Linear(*size, bias=bias, dtype=dtype) for size in sizes]


def _plain_mlp(modules: list[nn.Linear], x: Tensor, plus: Tensor) -> Tensor:
    gate, up, down = modules
    return plus + down(nn.functional.silu(gate(x)) * up(x))


@pytest.mark.parametrize("rows", [1, 5, 11, 12, 17, 33, 300])
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_gated_mlp_is_its_modules(
    rows: int, large: bool, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "TURN_FROM", 0 if large else 1 << 30)
    modules = _mlp(bias)
    x, plus = torch.randn(rows, 24), torch.randn(rows, 24)
    before = x.clone(), plus.clone()
    found = PackedMlp(modules, nn.functional.silu, torch.float32, few=False)(x, plus)
    torch.testing.assert_close(found, _plain_mlp(modules, x, plus), atol=1e-5, rtol=0)
    assert torch.equal(x, before[0]) and torch.equal(plus, before[1])


def test_a_large_mlp_is_copied_only_for_many_calls_of_few_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packed, "TURN_FROM", 0)
    made: list[int] = []

    class Counted(PackedWeight):
        def __init__(self, *args: object) -> None:
            super().__init__(*args)  # type: ignore[arg-type]
            made.append(self.elements)

    monkeypatch.setattr(packed, "PackedWeight", Counted)
    modules = _mlp()
    many, few = torch.randn(packed.TURN_ROWS, 24), torch.randn(packed.TURN_ROWS - 1, 24)
    mlp = PackedMlp(modules, nn.functional.silu, torch.float32, few=False)
    for _ in range(40):
        mlp(many, many)
    for _ in range(packed._PACK_CALLS):
        mlp(few, few)
    assert made == []
    for x in (few, many, few):
        torch.testing.assert_close(mlp(x, x), _plain_mlp(modules, x, x), atol=1e-5, rtol=0)
    assert made == [960, 960, 960]
    PackedMlp(modules, nn.functional.silu, torch.float32, few=True)
    assert len(made) == 6
    # Other products than the weights' own need a copy whatever the rows.
    found = PackedMlp(modules, nn.functional.silu, torch.bfloat16, few=False)(many, many)
    assert len(made) == 9
    assert (found - _plain_mlp(modules, many, many)).abs().max() > 1e-4
