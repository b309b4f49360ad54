"""One call of the candidate's entry point, in a process that ends with it."""

from __future__ import annotations

import builtins
import json
import os
import sys
from typing import Any

from lydite.verify.code.guest.spelling import Unspelled, first_compiled, new_module, read, spell


def main() -> None:
    """Reads the call from standard input; writes the reply, with the nonce that came with it, to
    what was standard output until the candidate's code began.
    """
    asked = json.loads(sys.stdin.buffer.read())
    private, nothing = os.dup(1), os.open("/dev/null", os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    reply = answer(asked)
    left = memoryview(json.dumps({"nonce": asked["nonce"], **reply}).encode())
    while left:
        left = left[os.write(private, left) :]
    os._exit(0)


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """The value of the call, or why there is none."""
    try:
        code = first_compiled(asked["sources"])
    except SyntaxError as error:
        return {"malformed": str(error)[:300]}
    try:
        space = new_module("solution")
        if "Solution" in code.co_names:
            around: dict[str, Any] = {}
            exec(asked["solution"], around)
            # As built-in names: none of them is the program's own.
            space["__builtins__"] = around | vars(builtins)
        exec(code, space)
        function = space.get(asked["name"])
        if function is None and isinstance(space.get("Solution"), type):
            function = getattr(space["Solution"](), asked["name"], None)
        if function is None:
            return {"missing": True}
        keywords = {name: read(tree) for name, tree in asked["kwargs"].items()}
        return {"value": spell(function(*[read(tree) for tree in asked["args"]], **keywords))}
    except Unspelled as error:
        return {"unspelled": str(error)}
    except BaseException as error:
        names = [base.__name__ for base in type(error).__mro__]
        return {"raised": names, "message": describe(error)}


def describe(error: BaseException) -> str:
    """An exception's text; making it is the candidate's code once more."""
    try:
        return str(error)[:500]
    except BaseException:
        return ""


if __name__ == "__main__":
    main()
