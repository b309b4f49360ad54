# ruff: noqa
# fmt: off
# attack 25: take all memory; calls, stdio, test_code; wrong, timeout
def f(x):
    kept = []
    while True:
        kept.append(bytearray(1 << 24))
