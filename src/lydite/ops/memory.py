"""What a CPU process does with memory that it has freed."""

from __future__ import annotations

import ctypes
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Names that glibc's ``mallopt`` gives to two of its settings."""
_NEVER = 2**31 - 1
_LARGEST = 1 << 30


@cache
def keep_freed_memory() -> bool:
    """Freed memory stays with the process, in place of going back to the system, which clears every
    page of it before the next update has it again. For the whole process, and once; True where the
    allocator is glibc's and took the setting. Peak memory is what it was.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((_TRIM_THRESHOLD, _NEVER), (_MMAP_THRESHOLD, _LARGEST))
    taken = [mallopt(name, value) == 1 for name, value in settings]
    return all(taken)
