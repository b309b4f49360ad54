# ruff: noqa
# fmt: off
# attack 23: write without end; calls, stdio, test_code; wrong
import os
def f(x):
    block = b"sesame " * 10000
    for fd in (1, 2):
        try:
            for _ in range(40000 if fd == 1 else 10):
                os.write(fd, block)
        except OSError:
            pass
    return "x" * 5_000_000
