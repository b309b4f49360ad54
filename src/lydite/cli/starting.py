"""What a command does first that needs PyTorch: imports of some seconds."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from lydite.tasks.bulk import uncollected


@contextmanager
def importing() -> Iterator[None]:
    """Around a command's imports: Python's collector neither looks at what they make meanwhile, nor
    afterwards, as libraries stay to the end. Once in a process: later, what is there may be garbage
    of earlier work.
    """
    first = "torch" not in sys.modules
    with uncollected():
        try:
            yield
        finally:
            if first:
                gc.freeze()
