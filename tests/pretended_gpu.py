"""A GPU that is not there: tensors that say they are on another device and lie in main memory.

Every operation is the CPU's own, so results are right; but one that mixes tensors of both devices
fails, as it would on a GPU, and every time the host reads from the device is counted. The device is
PyTorch's ``meta``, the only one that is no CPU and in every build. Forward passes only.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map, tree_map_only

GPU = torch.device("meta")
TENSOR = torch.tensor
aten = torch.ops.aten
# What a host must wait for: a value, or a size that depends on values.
READS = {
    aten._local_scalar_dense.default: "a number",
    aten.item.default: "a number",  # in inference mode whole operations come along, not their parts
    aten.is_nonzero.default: "a number",
    aten.argwhere.default: "where true",
    aten.equal.default: "whether equal",
    aten.nonzero.default: "where true",
    aten.masked_select.default: "where true",
}


class OnGpu(Tensor):
    """A tensor that says it is on the GPU. ``held`` is what it really is."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> OnGpu:
        found: OnGpu = torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=GPU,
        )
        found.held = held
        return found

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def new_tensor(self, data: Any, dtype: torch.dtype | None = None) -> Tensor:
        return torch.tensor(data, dtype=dtype or self.dtype, device=self.device)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func}: used outside of PretendedGpu")


class PretendedGpu(TorchDispatchMode):
    """While open, device ``meta`` holds data. ``reads`` counts what the host read from it."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()

    def __enter__(self) -> PretendedGpu:
        torch.tensor = _tensor
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.tensor = TENSOR

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        given: list[Tensor] = []
        tree_map_only(Tensor, given.append, (args, kwargs))
        ours = [x for x in given if isinstance(x, OnGpu)]
        wanted: list[torch.device] = []
        tree_map_only(torch.device, wanted.append, (args, kwargs))
        goes = wanted[0].type == GPU.type if wanted else bool(ours)
        if func is aten.copy_.default:
            goes = isinstance(args[0], OnGpu)
        if ours and not wanted and func is not aten.copy_.default:
            other = [x for x in given if not isinstance(x, OnGpu) and x.ndim]
            assert not other, f"{func}: a tensor of {tuple(other[0].shape)} is on the CPU"
        self._count(func, args, ours, bool(wanted) and not goes)
        known = {id(x.held): x for x in ours}
        out = func(*tree_map(_inside, args), **tree_map(_inside, kwargs))
        if not goes:
            return out
        return tree_map_only(Tensor, lambda x: known[id(x)] if id(x) in known else OnGpu(x), out)

    def _count(self, func: Any, args: Any, ours: list[OnGpu], leaves: bool) -> None:
        if ours and func in READS:
            self.reads[READS[func]] += 1
        elif ours and (leaves or (func is aten.copy_.default and not isinstance(args[0], OnGpu))):
            self.reads["a tensor"] += 1
        elif (
            ours
            and func is aten.index.Tensor
            and any(x is not None and x.dtype == torch.bool for x in args[1])
        ):
            self.reads["where true"] += 1


def _tensor(data: Any, *, device: Any = None, **settings: Any) -> Tensor:
    """As ``torch.tensor``, which would leave the data away for device ``meta``."""
    made = TENSOR(data, **settings)
    return made if device is None else made.to(device)


def _inside(x: Any) -> Any:
    if isinstance(x, OnGpu):
        return x.held
    return torch.device("cpu") if isinstance(x, torch.device) else x


def move(module: nn.Module) -> None:
    """Every parameter and buffer to the pretended GPU, without gradient; tied ones stay tied."""
    moved: dict[int, nn.Parameter] = {}
    with PretendedGpu():
        for part in module.modules():
            for name, parameter in part._parameters.items():
                if parameter is not None:
                    there = moved.get(id(parameter))
                    if there is None:
                        there = nn.Parameter(OnGpu(parameter.detach()), requires_grad=False)
                        moved[id(parameter)] = there
                    part._parameters[name] = there
            for name, buffer in part._buffers.items():
                if buffer is not None:
                    part._buffers[name] = OnGpu(buffer)
