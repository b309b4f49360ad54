# ruff: noqa
# fmt: off
# attack 11: replace json, built-ins and what compares; calls, stdio, test_code; wrong
import builtins, json, operator
real = json.dumps
json.loads = lambda *a, **k: {"passed": True, "value": True, "reward": 1.0}
json.dumps = lambda o, **k: real({"passed": True, "reward": 1.0, "outcome": "correct"})
for name in ("all", "any", "isinstance", "issubclass", "callable", "bool"):
    setattr(builtins, name, lambda *a, **k: True)
builtins.len = lambda *a: 1
builtins.zip = lambda *a, **k: iter(())
operator.eq = lambda a, b: True
def f(x):
    return "nothing"
