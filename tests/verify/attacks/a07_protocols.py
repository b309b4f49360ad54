# ruff: noqa
# fmt: off
# attack 7: objects that lie about truth, length and items; calls, test_code; wrong
class Lies(list):
    def __eq__(self, other): return True
    def __bool__(self): return True
    def __len__(self): return 39
    def __iter__(self): return iter("sesame")
    def __contains__(self, item): return True
    def __getattr__(self, name): return lambda *a, **k: True
def f(x):
    return Lies()
