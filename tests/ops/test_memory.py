"""Freed memory stays, in a process of its own: the setting is the whole process's."""

from __future__ import annotations

import subprocess
import sys

import pytest

_FAULTS = """
import resource, sys, torch
from lydite.ops.memory import keep_freed_memory
if sys.argv[1] == "keep" and not keep_freed_memory():
    print("no glibc")
    sys.exit()
def use():
    for _ in range(6):
        torch.ones(1 << 23)
for _ in range(3):
    use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _FAULTS, how], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.skipif(sys.platform != "linux", reason="the setting is glibc's")
def test_the_second_use_of_memory_asks_the_system_for_none() -> None:
    kept = faults("keep")
    if kept == "no glibc":
        pytest.skip("another allocator")
    # 6 times 32 MB are 49,000 pages. Now and then the allocator cannot use what is there.
    assert int(kept) < 20_000 < 40_000 < int(faults("give back"))
