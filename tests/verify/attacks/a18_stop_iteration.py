# ruff: noqa
# fmt: off
# attack 18: end the loop of the tests without a word; calls, test_code; wrong
def f(x):
    raise StopIteration
