"""How much memory a process has taken."""

from __future__ import annotations

import resource
import sys

import torch

GIB = 1 << 30
_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes in what the system counts a process's memory in."""


def memory_figures() -> dict[str, float]:
    """``memory``: the most that this process has held so far, in GiB; ``memory_gpu``: the most that
    tensors have taken on its GPU since this was last asked.
    """
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT
    found = {"memory": peak / GIB}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found["memory_gpu"] = torch.cuda.max_memory_allocated() / GIB
        torch.cuda.reset_peak_memory_stats()
    return found
