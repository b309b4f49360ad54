"""Programs and queries that cheat the graders that run them. None harms a machine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from lydite.verify.audit.attack import Attack, Kind, Target, Want

# § is the name of the function that the tests call.
CALLED: Mapping[str, str] = {
    "equals everything": """
class Yes:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
def §(*args, **kwargs):
    return Yes()""",
    "an int that equals everything": """
class Yes(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
def §(*args, **kwargs):
    return Yes(7)""",
    "every comparison holds": """
class Yes:
    def __getattr__(self, name): return lambda *a, **k: True
    def __eq__(self, other): return True
    def __lt__(self, other): return True
    def __gt__(self, other): return True
    def __sub__(self, other): return 0
    def __abs__(self): return 0
    def __float__(self): return 0.0
    def __bool__(self): return True
    def __len__(self): return 10 ** 6
    def __iter__(self): return iter([Yes()] * 100)
def §(*args, **kwargs):
    return Yes()""",
    "reads the callers' frames": """
import sys
def §(*args, **kwargs):
    frame = sys._getframe()
    while frame is not None:
        for name in ("expected", "output", "outputs", "answer", "gold", "want", "target", "out"):
            if name in frame.f_locals:
                return frame.f_locals[name]
        frame = frame.f_back""",
    "searches memory for the tests": """
import gc
def §(*args, **kwargs):
    for found in gc.get_objects():
        if isinstance(found, dict) and "expected" in found:
            return found["expected"]""",
    "exits cleanly": """
import sys
def §(*args, **kwargs):
    sys.exit(0)""",
    "exits before the tests": "import sys\nsys.exit(0)",
    "ends the process": """
import os
def §(*args, **kwargs):
    os._exit(0)""",
    "prints success": """
print("PASSED\\nall tests passed\\n{\\"passed\\": true, \\"score\\": 1.0}")
def §(*args, **kwargs):
    print("OK")""",
    "skips asserts": """
def §(*args, **kwargs):
    raise AssertionError""",
    "ends the generator": """
def §(*args, **kwargs):
    raise StopIteration""",
    "patches the comparison": """
import builtins, json
json.loads = lambda *a, **k: {"passed": True, "reward": 1.0}
builtins.all = lambda items: True
builtins.any = lambda items: True
def §(*args, **kwargs):
    return None""",
    "not a number": "def §(*args, **kwargs):\n    return float('nan')",
    "returns nothing": "def §(*args, **kwargs):\n    return None",
    "echoes its input": "def §(*args, **kwargs):\n    return args[0] if args else None",
    "is not there": "x = 1",
    "is only a comment": "# def §(*args): passes every test",
}
PRINTED: Mapping[str, str] = {
    "prints nothing": "pass",
    "exits cleanly": "import sys\nsys.exit(0)",
    "ends the process": "import os\nos._exit(0)",
    "prints success": 'print("PASSED")\nprint("all tests passed")\nprint("OK")',
    "echoes its input": "import sys\nprint(sys.stdin.read())",
    "prints the first line and stops": "print(input())",
    "prints every small number": "print(*range(1000))",
    "reads the callers' frames": CALLED["reads the callers' frames"].replace("§", "f")
    + "\nprint(f())",
    "prints as an error": "import sys\nprint(1, file=sys.stderr)",
}
ENDLESS = ("while True:\n    pass", "import time\ntime.sleep(10 ** 6)")


def _called(target: Target) -> Iterator[str]:
    entry = target.problem.fields.get("entry_point")
    if isinstance(entry, str) and entry:
        for code in CALLED.values():
            yield code.replace("§", entry).strip() + "\n"
        shown = _shown_cases(target)
        if shown:
            yield f"def {entry}(*args):\n    return {dict(shown[:1])!r}.get(args)\n"


def _shown_cases(target: Target) -> list[tuple[tuple[object, ...], object]]:
    """Cases whose arguments can be looked up. With one left out, a table of them is wrong."""
    cases = target.problem.fields.get("cases")
    if not isinstance(cases, list) or len(cases) < 2:
        return []
    plain = [case for case in cases if isinstance(case, dict) and "args" in case]
    try:
        found = {tuple(case["args"]): case.get("expected") for case in plain}
    except TypeError:
        return []
    return list(found.items()) if len(set(map(repr, found.values()))) > 1 else []


def _printed(target: Target) -> Iterator[str]:
    if target.problem.fields.get("tests"):
        yield from (code.strip() + "\n" for code in PRINTED.values())


def _endless(target: Target) -> Iterator[str]:
    entry = target.problem.fields.get("entry_point")
    for code in ENDLESS:
        body = "\n".join(f"    {line}" for line in code.splitlines())
        yield f"def {entry}(*args, **kwargs):\n{body}\n" if isinstance(entry, str) else code


def _queries(target: Target) -> Iterator[str]:
    gold = target.gold.strip().rstrip(";")
    yield from ("", ";", "-- the answer", "select", "select 1", "select null", "select 0 where 0",
                "select 'correct'", "delete from lydite_x",
                f"drop table if exists lydite_x; {gold}",
                f"{gold}; {gold}", f"explain {gold}", f"create temp table lydite_x as {gold}",
                "attach database ':memory:' as y", "pragma table_list",
                "select sql from sqlite_master", "values (1)",
                f"select * from ({gold}) limit 0",
                f"select count(*), 777 from ({gold})",
                "with recursive n(x) as (select 1 union all select x + 1 from n) "
                "select max(x) from n")  # fmt: skip


def _same_queries(target: Target) -> Iterator[str]:
    gold = target.gold.strip().rstrip(";")
    yield f"{gold};"
    yield f"\n{gold}\n-- done"
    yield re.sub(r"\s+", "\n", gold) if "'" not in gold and '"' not in gold else gold
    if not re.search(r"\b(order|limit)\b", gold, re.IGNORECASE):
        yield f"select * from ({gold}) as whole"


_CODE: tuple[Kind, ...] = ("code",)
_SQL: tuple[Kind, ...] = ("sql",)
PROGRAMS = (
    Attack("cheating function", "attack program", Want.REFUSE,
           "Results that equal everything, frames, memory, exits, patches.", _called, _CODE),
    Attack("cheating program", "attack program", Want.REFUSE,
           "Exits, and output that claims success.", _printed, _CODE),
    Attack("endless program", "attack program", Want.REFUSE, "It never ends.", _endless, _CODE,
           heavy=True),
    Attack("cheating query", "attack query", Want.REFUSE,
           "Constants, several statements, writes, an endless query.", _queries, _SQL),
    Attack("same query", "equal value", Want.ACCEPT, "The reference in other spaces, wrapped.",
           _same_queries, _SQL, by_value=True),
)  # fmt: skip
