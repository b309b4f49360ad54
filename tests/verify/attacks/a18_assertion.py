# ruff: noqa
# fmt: off
# attack 18: raise what the tests may catch; calls, stdio, test_code; wrong
class Silent(AssertionError):
    def __str__(self): return ""
def f(x):
    raise Silent
