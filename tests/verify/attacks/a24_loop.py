# ruff: noqa
# fmt: off
# attack 24: never end; calls, stdio, test_code; timeout
def f(x):
    while True:
        pass
