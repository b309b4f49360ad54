# ruff: noqa
# fmt: off
# attack 18: raise what is no Exception; calls, test_code; wrong
def f(x):
    raise GeneratorExit
