# ruff: noqa
# fmt: off
# attack 36: print nothing, or give nothing back; calls, stdio, test_code; wrong
def f(x):
    return None
