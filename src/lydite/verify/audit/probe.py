"""A user's function as the audit calls it: with texts or chat messages, and watched for what it
does to its arguments.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

from lydite.verify.function import Call, call_function, load_function
from lydite.verify.pool import Handler, Item, Pool


class ChatFunction:
    """A function that takes chat messages, as TRL passes them: each completion a list of one
    assistant message, each prompt a list of one user message.
    """

    def __init__(self, name: str) -> None:
        self.__name__ = name.rpartition(":")[2]
        self._name = name

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(load_function(self._name))

    def __call__(self, **columns: Any) -> Any:
        for key, role in (("completions", "assistant"), ("prompts", "user")):
            if key in columns:
                columns[key] = [[{"role": role, "content": text}] for text in columns[key]]
        return load_function(self._name)(**columns)


def prober(function: Callable[..., Any]) -> Callable[[Call], list[str]]:
    """A pool handler: a call to the names of the arguments that the function changes."""

    def changed(call: Call) -> list[str]:
        names: set[str] = set()

        def watched(**columns: Any) -> Any:
            before = copy.deepcopy(columns)
            returned = function(**columns)
            names.update(key for key in columns if columns[key] != before[key])
            return returned

        watched.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        call_function(watched, "the function", call)
        return sorted(names)

    return changed


def changed_arguments(function: Callable[..., Any], call: Call, seconds: float) -> list[str]:
    """The arguments that a function changes when it is called, found out in a worker process.

    An async function is awaited after the comparison, so what it changes later is not seen.
    """
    pool = Pool([Handler("lydite.verify.audit.probe:prober", function)], workers=1)
    try:
        (reply,) = pool.run([Item(0, call, seconds)])
        return list(reply.value) if reply.status == "done" else []
    finally:
        pool.close()
