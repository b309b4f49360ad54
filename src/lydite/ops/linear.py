"""Float32 matrix products on CPUs by oneDNN where it is faster than the default BLAS.

PyTorch sends float32 products to MKL, which on AMD processors does not use AVX-512; oneDNN, which
is in every PyTorch build, does, at full float32 precision. On a Zen 5 it is 1.5 to 3 times as fast
from about a million multiplications on, and slower below, where its call overhead shows.

oneDNN builds a kernel for each new shape (a fifth of a millisecond to half of one) and remembers a
thousand. The small batches of decoding, whose row counts change all the time, would build kernels
all the time, so up to :data:`WHOLE` rows go in multiples of :data:`ROWS`, and the rest apart; with
more rows a kernel costs less than putting the parts together.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

ROWS = 32
"""Row counts above this, and below :data:`WHOLE`, are cut to a multiple of it."""
WHOLE = 256
"""Rows from which on a product is not cut."""
LEAST_WORK = 1 << 20
"""Products with fewer multiplications stay with the default BLAS."""


def available() -> bool:
    """Whether this build of PyTorch has both libraries, so that there is a choice."""
    return (
        torch.backends.mkldnn.is_available()
        and torch.backends.mkl.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


_AVAILABLE = available()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias``, differentiable: ``x`` is ``[..., k]``, ``weight`` ``[m, k]``.

    Any dtype and device; only what is float32 and on the CPU takes the other way.
    """
    if not _pays(x, weight):
        return nn.functional.linear(x, weight, bias)
    flat = x.reshape(-1, x.shape[-1])
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        out = _Linear.apply(flat, weight)
        assert isinstance(out, Tensor)
        if bias is not None:
            out = out + bias
    else:
        out = _product(flat, weight, bias)
    return out.view(*x.shape[:-1], weight.shape[0])


def product(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, plus: Tensor | None = None
) -> Tensor:
    """``x @ weight.T + bias + plus`` of matrices, in memory of its own. Like :func:`linear`, but
    not differentiable.
    """
    if _pays(x, weight):
        return _product(x, weight, bias, plus)
    out = nn.functional.linear(x, weight, bias)
    return out if plus is None else out.add_(plus)


def _pays(x: Tensor, weight: Tensor) -> bool:
    return (
        _AVAILABLE
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == "cpu"
        and x.numel() * weight.shape[0] >= LEAST_WORK
    )


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, None)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        (grad,) = grads
        grad_x = _product(grad, weight.t(), None) if ctx.needs_input_grad[0] else None
        grad_weight = outer(grad, x).contiguous() if ctx.needs_input_grad[1] else None
        return grad_x, grad_weight


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, plus: Tensor | None = None) -> Tensor:
    """:func:`product`; few rows cut to :data:`ROWS` and the rest."""
    rows = len(x)
    if rows * weight.numel() < LEAST_WORK:
        out = nn.functional.linear(x, weight, bias)
        return out if plus is None else out.add_(plus)
    if rows <= ROWS or rows >= WHOLE or rows % ROWS == 0:
        return _onednn(x, weight, bias, plus)
    whole = rows - rows % ROWS
    parts = (slice(0, whole), slice(whole, rows))
    return torch.cat(
        [_product(x[at], weight, bias, None if plus is None else plus[at]) for at in parts]
    )


def outer(a: Tensor, b: Tensor, turned: Tensor | None = None) -> Tensor:
    """``a.T @ b``, summed over tokens: of few of them a multiple of :data:`ROWS`, then the rest.

    ``a`` is ``[n, p]``, ``b`` ``[n, q]``, the result ``[p, q]``, which may be a view of a matrix
    that lies the other way. ``turned`` is what :func:`turn` gives of ``b``, for whoever needs it
    more than once. Like :func:`linear`, but not differentiable.
    """
    rows = len(a)
    whole = rows if rows >= WHOLE else rows - rows % ROWS
    eligible = _AVAILABLE and a.dtype == b.dtype == torch.float32 and a.device.type == "cpu"
    if not eligible or whole * a.shape[1] * b.shape[1] < LEAST_WORK:
        return a.t() @ b
    # oneDNN takes the second matrix of a product either way round and the first only as it lies:
    # the narrower one is turned, and the other goes second.
    if turned is None and a.shape[1] <= b.shape[1]:
        out = _onednn(turn(a[:whole]), b[:whole].t(), None)
    else:
        left = turn(b[:whole]) if turned is None else turned[:, :whole]
        out = _onednn(left, a[:whole].t(), None).t()
    return out if whole == rows else out.addmm_(a[whole:].t(), b[whole:])


def turn(x: Tensor) -> Tensor:
    """``x.T`` in memory of its own."""
    return x.t().contiguous()


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None, plus: Tensor | None = None) -> Tensor:
    if plus is None:
        out = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    else:
        out = torch.ops.mkldnn._linear_pointwise.binary(x, plus, weight, bias, "add")
    assert isinstance(out, Tensor)
    return out


@contextmanager
def fast_products(model: nn.Module) -> Iterator[None]:
    """Every plain ``nn.Linear`` of the model goes through :func:`linear` while this is open.

    A backward pass that runs forwards again (gradient checkpointing) belongs inside it too.
    """
    changed = [
        module
        for module in model.modules()
        if _AVAILABLE and type(module) is nn.Linear and "forward" not in vars(module)
    ]
    for module in changed:
        module.forward = partial(_forward, module)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for module in changed:
            del module.forward


def _forward(module: nn.Linear, x: Tensor) -> Tensor:
    return linear(x, module.weight, module.bias)
