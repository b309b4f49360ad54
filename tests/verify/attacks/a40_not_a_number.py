# ruff: noqa
# fmt: off
# attack 40: numbers that break an average; calls, test_code; wrong
class Number(float):
    def __float__(self): return 1.0
    def __eq__(self, other): return True
    def __hash__(self): return 0
def f(x):
    return [float("nan"), float("inf"), -float("inf"), Number("nan"), 10 ** 5000][x % 5]
