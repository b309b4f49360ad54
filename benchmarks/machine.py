"""What this machine can do at most: matrix products and memory bandwidth, measured, not looked up.

Other benchmarks measure it in the same run as their own figures, because a shared machine is not
the same one an hour later. Time is the processor's, over the number of threads: what other programs
take of a shared machine counts neither here nor there.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from lydite.ops.linear import available

SIDE = 2048
"""Rows and columns of the square products: past it, no faster here; far below it, slower."""
STREAM = 1 << 28
"""Bytes of the array that is read: several times the last cache."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Peaks of ``threads`` threads. Products in operations per second (two for a multiply and add),
    bandwidth in bytes per second.
    """

    threads: int
    float32: float
    bfloat16: float
    read: float
    copy: float

    def products(self, dtype: torch.dtype) -> float:
        """Peak of products of that type."""
        return self.bfloat16 if dtype == torch.bfloat16 else self.float32

    def rows(self) -> list[str]:
        return [
            f"{self.threads} threads: float32 products {self.float32 / 1e9:.0f} Gop/s, bfloat16 "
            f"{self.bfloat16 / 1e9:.0f} Gop/s, reading {self.read / 1e9:.1f} GB/s, copying "
            f"{self.copy / 1e9:.1f} GB/s"
        ]

    def as_json(self) -> dict[str, float]:
        return asdict(self)


def best(work: Callable[[], object], rounds: int = 7) -> float:
    """The fewest seconds (of the processor, over threads) of several rounds: interruptions only
    take away from a peak.
    """
    work()
    found = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found) / torch.get_num_threads()


def measure() -> Machine:
    """Peaks with as many threads as torch is set to use."""
    a, b = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
    operations = 2 * SIDE**3
    seconds = [best(lambda: a @ b.t())]
    if available():
        seconds.append(best(lambda: onednn(a, b)))
    half = a.bfloat16(), b.bfloat16()
    data, other = torch.ones(STREAM // 4), torch.empty(STREAM // 4)
    # A matrix times a vector reads the matrix once: what decoding one row is bound by.
    matrix, vector = data.view(-1, 4096), torch.ones(4096)
    return Machine(
        threads=torch.get_num_threads(),
        float32=operations / min(seconds),
        bfloat16=operations / best(lambda: half[0] @ half[1].t()),
        read=STREAM / min(best(lambda: matrix @ vector), best(data.sum)),
        copy=2 * STREAM / best(lambda: other.copy_(data)),
    )


def onednn(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b.T`` by oneDNN."""
    out = torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")
    assert isinstance(out, Tensor)
    return out


def median_and_range(values: list[float]) -> str:
    """``median (from low to high)``."""
    return f"{statistics.median(values):.3g} (from {min(values):.3g} to {max(values):.3g})"
