# ruff: noqa
# fmt: off
# attack 12: replace the functions of whatever runs the candidate; calls, stdio, test_code; wrong
import sys
def yes(*args, **kwargs):
    return {"value": True, "passed": True, "reward": 1.0}
frame = sys._getframe()
while frame is not None:
    for name in list(frame.f_globals):
        if name in ("answer", "spell", "read", "main", "check", "run_tests", "compare", "report"):
            frame.f_globals[name] = yes
    frame = frame.f_back
for module in list(sys.modules.values()):
    for name in ("spell", "read", "answer", "check", "run_tests", "evaluate", "run"):
        if getattr(module, name, None) is not None and "lydite" in getattr(module, "__name__", ""):
            setattr(module, name, yes)
def f(x):
    return "nothing"
