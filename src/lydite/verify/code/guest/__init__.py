"""What is sent into the sandbox: it needs the standard library alone, and decides nothing.

``call`` runs in the candidate's process, ``check`` in the process of the test code, which the
candidate never enters. They are compiled once here: a process lives for a few milliseconds.
"""

from __future__ import annotations

import functools
import marshal
from importlib import resources

_SPELLING = f"{__name__}.spelling"
_START = f"""\
import marshal, sys, types
with open({{name!r}}, "rb") as file:
    spelling, program = marshal.loads(file.read())
module = types.ModuleType({_SPELLING!r})
exec(spelling, module.__dict__)
sys.modules[{_SPELLING!r}] = module
exec(program)
"""


@functools.lru_cache(maxsize=4)
def guest_files(name: str) -> dict[str, bytes]:
    """The files of a guest (``call`` or ``check``): run ``{name}.py``."""
    parts = tuple(
        compile(_source(part), f"{part}.py", "exec", dont_inherit=True, optimize=0)
        for part in ("spelling", name)
    )
    start = _START.format(name=f"{name}.bin")
    return {f"{name}.py": start.encode(), f"{name}.bin": marshal.dumps(parts)}


def _source(name: str) -> str:
    return resources.files(__name__).joinpath(f"{name}.py").read_text(encoding="utf-8")
