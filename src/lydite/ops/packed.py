"""Weights laid out once for the CPU's product kernels, and weights that multiply the same input
joined into one, for decoding, which uses every weight many times between two updates.

oneDNN copies a plain weight into its own blocks at every call; at a few dozen rows that costs a
fifth to a half of the product. Query, key and value (and gate and up) projections read the same
input: as one matrix they are one call, with rows long enough to fill the kernel. Which modules
share an input is not guessed from names but seen in a forward pass: they are handed the same
tensor object.

The copies are as large as the weights and are made anew for each use, since an update changes the
weights in place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lydite.ops.linear import WHOLE, available, linear

LEAST_WORK = 1 << 19
"""Products with fewer multiplications go to the plain weights: there the call is what costs."""
_PACK_ROWS = 32
"""oneDNN chooses the blocks for a row count; from 8 to 256 it chooses the same."""
_RECENT = 4
"""Inputs that are remembered while modules are watched: those of one layer's projections."""
TURN_ROWS = 12
"""From so many rows on a large gated MLP is computed turned, from the weights as they are."""
TURN_FROM = 1 << 19
"""Elements of a weight that is large in this sense."""
_LANES = 16
"""Float32 numbers in a register: turned, rows are computed in multiples of it."""
_PACK_CALLS = 24
"""A copy of an MLP costs about as much as turned products of few rows lose in so many calls."""


def can_pack(weight: Tensor) -> bool:
    """Whether this weight has packed kernels here."""
    return (
        available()
        and weight.device.type == "cpu"
        and weight.dtype in (torch.float32, torch.bfloat16)
    )


class PackedWeight:
    """``x @ concatenate(weights).T + biases`` for ``x`` ``[n, k]``; weights are ``[m_i, k]``.

    ``dtype`` is the type that the product is computed in (sums in float32); the result comes back
    in that of ``x``.
    """

    def __init__(
        self, weights: Sequence[Tensor], biases: Sequence[Tensor | None], dtype: torch.dtype
    ) -> None:
        joined = weights[0] if len(weights) == 1 else torch.cat(list(weights))
        self.elements = joined.numel()
        self._dtype = dtype
        # Of one weight this is no copy; of several it is small where few rows are small work.
        few = self.elements < LEAST_WORK and joined.dtype == dtype
        self._plain = joined if few else None
        self._weight = torch.ops.mkldnn._reorder_linear_weight(joined.to(dtype), _PACK_ROWS)
        self._bias: Tensor | None = None
        if any(bias is not None for bias in biases):
            parts = [
                weight.new_zeros(len(weight)) if bias is None else bias
                for weight, bias in zip(weights, biases, strict=True)
            ]
            self._bias = torch.cat(parts).to(dtype)

    def __call__(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        """The product, and ``plus`` (``[n, sum(m_i)]``) on top."""
        rows = len(x)
        if self._plain is not None and rows * self.elements < LEAST_WORK and x.dtype == self._dtype:
            out = nn.functional.linear(x, self._plain, self._bias)
            return out if plus is None else out.add_(plus)
        padded = padded_rows(rows)
        if plus is not None and padded == rows and x.dtype == plus.dtype == self._dtype:
            added = torch.ops.mkldnn._linear_pointwise.binary(
                x, plus, self._weight, self._bias, "add"
            )
            assert isinstance(added, Tensor)
            return added
        inside = x if x.dtype == self._dtype else x.to(self._dtype)
        if padded > rows:
            inside = torch.cat([inside, inside.new_zeros(padded - rows, x.shape[1])])
        out = torch.ops.mkldnn._linear_pointwise(inside, self._weight, self._bias, "none", [], "")
        assert isinstance(out, Tensor)
        out = out[:rows].to(x.dtype)
        return out if plus is None else out.add_(plus)


class PackedMlp:
    """``down(activation(gate(x)) · up(x)) + plus`` for ``x`` ``[n, d]``, of a gated MLP's modules.

    With a dozen rows or more, large float32 weights are used as they are: oneDNN takes the left
    matrix of a product without a copy, so the product is computed turned, ``weight @ x.T``, as fast
    as from a packed copy that need not be made. With fewer rows than registers have lanes this is
    slow: those go to packed copies, made at once (``few``) or after :data:`_PACK_CALLS` such calls.
    """

    def __init__(
        self,
        modules: Sequence[nn.Linear],
        activation: Callable[[Tensor], Tensor],
        dtype: torch.dtype,
        few: bool,
    ) -> None:
        self._modules, self._activation, self._dtype = modules, activation, dtype
        weights = [module.weight for module in modules]
        self._large = min(weight.numel() for weight in weights) >= TURN_FROM
        biases: list[Tensor | None] = [module.bias for module in modules]
        exact = all(weight.dtype == dtype == torch.float32 for weight in weights)
        self._turns = self._large and exact and all(bias is None for bias in biases)
        self._calls_left = _PACK_CALLS
        self._packed: tuple[list[PackedWeight], PackedWeight] | None = None
        if few or not self._turns:
            self._packed = self._pack()

    def _pack(self) -> tuple[list[PackedWeight], PackedWeight]:
        """Gate and up joined where they are small (a call costs more than the copy), else apart."""
        gate, up, down = self._modules
        groups = [[gate], [up]] if self._large else [[gate, up]]
        inner = [
            PackedWeight([m.weight for m in group], [m.bias for m in group], self._dtype)
            for group in groups
        ]
        return inner, PackedWeight([down.weight], [down.bias], self._dtype)

    def __call__(self, x: Tensor, plus: Tensor) -> Tensor:
        if self._turns:
            if len(x) >= TURN_ROWS:
                return self._turned(x, plus)
            if self._packed is None:
                self._calls_left -= 1
                if self._calls_left >= 0:
                    return self._turned(x, plus)
                self._packed = self._pack()
        assert self._packed is not None
        inner, down = self._packed
        if len(inner) == 1:
            gate, up = inner[0](x).chunk(2, dim=1)
        else:
            gate, up = inner[0](x), inner[1](x)
        return down(self._activation(gate).mul_(up), plus)

    def _turned(self, x: Tensor, plus: Tensor) -> Tensor:
        rows = len(x)
        gate, up, down = (module.weight for module in self._modules)
        padded = -(-rows // _LANES) * _LANES if rows < WHOLE else rows
        if padded > rows:
            x = torch.cat([x, x.new_zeros(padded - rows, x.shape[1])])
        inner = self._activation(_product(gate, x)).mul_(_product(up, x))
        return plus + _product(down, inner.t()).t()[:rows]


def _product(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b.T`` by oneDNN, which copies ``b`` into its blocks."""
    out = torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")
    assert isinstance(out, Tensor)
    return out


def padded_rows(rows: int) -> int:
    """Rows that are computed for so many: at most a quarter more, so that the kernels, each built
    at its first use, stay few.
    """
    for limit, multiple in ((8, 1), (32, 4), (64, 8), (128, 16)):
        if rows <= limit:
            return -(-rows // multiple) * multiple
    return -(-rows // 32) * 32


class PackedProducts:
    """Takes over a model's plain ``nn.Linear`` modules: first watches which of them share an input,
    then, from :meth:`pack` to :meth:`close`, computes their products from packed weights.

    ``dtype`` is the type of the products; None means that of the weights, which changes results by
    no more than rounding. Modules in ``skip`` are left alone.
    """

    def __init__(
        self,
        model: nn.Module,
        dtype: torch.dtype | None = None,
        skip: Container[nn.Module] = frozenset(),
    ) -> None:
        self._dtype = dtype
        self._recent: deque[tuple[Tensor, list[nn.Linear]]] = deque(maxlen=_RECENT)
        self._groups: list[list[nn.Linear]] = []
        self._seen: set[nn.Linear] = set()
        self._before: list[tuple[nn.Linear, Any]] = []
        self._hooks = [
            module.register_forward_pre_hook(self._watch)
            for module in model.modules()
            if type(module) is nn.Linear and can_pack(module.weight) and module not in skip
        ]
        self.packed = False

    def _watch(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        assert isinstance(module, nn.Linear)
        if module in self._seen:
            return
        self._seen.add(module)
        for held, group in self._recent:
            if held is args[0] and group[0].weight.dtype == module.weight.dtype:
                group.append(module)
                return
        self._groups.append([module])
        self._recent.append((args[0], self._groups[-1]))

    def pack(self) -> None:
        """Copies the weights of every module that has run so far."""
        self._stop_watching()
        for group in self._groups:
            dtype = self._dtype or group[0].weight.dtype
            packed = PackedWeight([m.weight for m in group], [m.bias for m in group], dtype)
            for module, forward in zip(group, _forwards(group, packed), strict=True):
                # `forward` may be set already (fast products), or be the class's own.
                self._before.append((module, vars(module).get("forward")))
                _set_forward(module, forward)
        self.packed = True

    def _stop_watching(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._recent.clear()

    def close(self) -> None:
        """Gives the modules their own products back and lets go of the copies."""
        self._stop_watching()
        for module, forward in self._before:
            if forward is None:
                del module.forward
            else:
                _set_forward(module, forward)
        self._before, self._groups = [], []


def _set_forward(module: nn.Module, forward: Callable[[Tensor], Tensor]) -> None:
    module.forward = forward


def _forwards(group: Sequence[nn.Linear], packed: PackedWeight) -> list[Callable[[Tensor], Tensor]]:
    """A forward for each module: the first computes the products of all, the others take theirs."""
    sizes = [module.out_features for module in group]
    ready: dict[int, Tensor] = {}
    source: list[Tensor | None] = [None]

    def plain(module: nn.Linear, x: Tensor) -> Tensor:
        return linear(x, module.weight, module.bias)

    def first(x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        if len(flat) * packed.elements < LEAST_WORK:
            return plain(group[0], x)
        out: Tensor = packed(flat).view(*x.shape[:-1], -1)
        if len(sizes) == 1:
            return out
        parts: tuple[Tensor, ...] = out.split(sizes, dim=-1)
        source[0] = x
        ready.update(enumerate(parts[1:], start=1))
        return parts[0]

    def follow(index: int) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            if source[0] is not x or index not in ready:
                return plain(group[index], x)
            part = ready.pop(index)
            if not ready:
                source[0] = None
            return part

        return forward

    return [first, *(follow(index) for index in range(1, len(group)))]
