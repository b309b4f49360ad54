# ruff: noqa
# fmt: off
# attack 6: built-in types with an == that says yes; calls, test_code; wrong
class Yes(str):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __str__(self): return self
    def __repr__(self): return self
def f(x):
    return Yes("no")
