"""Named tensors as plain buffers: Ray maps those into every process of a machine without a copy."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

BUCKET_BYTES = 256 << 20
"""Tensors travel in objects of about this size: few calls, and little memory beside the weights."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A tensor: its bytes, as ``uint8`` in C order, its dtype's name and its shape."""

    data: np.ndarray[Any, np.dtype[np.uint8]]
    dtype: str
    shape: tuple[int, ...]


def pack(tensor: Tensor) -> Packed:
    """A tensor's bytes; shared with it where it lies whole in main memory."""
    plain = tensor.detach().cpu().contiguous()
    data = plain.reshape(-1).view(torch.uint8).numpy()
    return Packed(data, str(plain.dtype).removeprefix("torch."), tuple(plain.shape))


def unpack(packed: Packed) -> Tensor:
    """The tensor, on the CPU. It shares the object store's memory: not to be written to."""
    dtype: torch.dtype = getattr(torch, packed.dtype)
    if not packed.data.size:
        return torch.empty(packed.shape, dtype=dtype)
    with warnings.catch_warnings():
        # What comes out of the object store is read only, which is meant.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
        return torch.from_numpy(packed.data).view(dtype).reshape(packed.shape)


def pack_all(tensors: Mapping[str, Tensor]) -> dict[str, Packed]:
    return {name: pack(tensor) for name, tensor in tensors.items()}


def unpack_all(packed: Mapping[str, Packed]) -> dict[str, Tensor]:
    return {name: unpack(each) for name, each in packed.items()}


def buckets(
    tensors: Iterable[tuple[str, Tensor]], size: int = BUCKET_BYTES
) -> Iterator[dict[str, Packed]]:
    """Tensors in order, in runs of at most ``size`` bytes; a larger one goes alone."""
    bucket: dict[str, Packed] = {}
    used = 0
    for name, tensor in tensors:
        packed = pack(tensor)
        if bucket and used + packed.data.nbytes > size:
            yield bucket
            bucket, used = {}, 0
        bucket[name] = packed
        used += packed.data.nbytes
    if bucket:
        yield bucket
