# ruff: noqa
# fmt: off
# attack 2: end the process with success; calls, stdio, test_code; wrong
import os
def f(x):
    os._exit(0)
