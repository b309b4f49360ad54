# ruff: noqa
# fmt: off
# attack 3: say that all passed and end with success; calls, stdio, test_code; wrong
import os, sys
def f(x):
    for fd in (1, 2):
        os.write(fd, b"OK\n1 passed\nAll tests passed!\n")
    os.kill(os.getpid(), 0)
    os._exit(0)
