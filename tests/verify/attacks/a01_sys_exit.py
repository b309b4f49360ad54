# ruff: noqa
# fmt: off
# attack 1: leave with success before anything is checked; calls, stdio, test_code; wrong
import sys
def f(x):
    sys.exit(0)
