# ruff: noqa
# fmt: off
# attack 5: an object that equals everything; calls, test_code; wrong
class Yes:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __reduce__(self): return (str, ("yes",))
def f(x):
    return Yes()
