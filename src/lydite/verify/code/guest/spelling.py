"""Live values to plain data and back; see lydite.verify.code.values for the spelling."""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from typing import Any

MAX_DEPTH = 60
MAX_ITEMS = 100_000


class Unspelled(Exception):
    """A value that is no plain data."""


class TooLarge(Unspelled):
    """Plain data that is nested too deep, or does not end."""


def spell(value: Any, depth: int = 0) -> Any:
    """What a built-in type itself holds: methods of subclasses are not asked."""
    if depth > MAX_DEPTH:
        raise TooLarge(f"a value nested more than {MAX_DEPTH} deep")
    if value is None or value is True or value is False:
        return value
    kind = type(value)
    for base, scalar in SCALARS.items():
        if issubclass(kind, base):
            return scalar(value)
    for base, tag in COLLECTIONS.items():
        if issubclass(kind, base):
            items = [spell(item, depth + 1) for item in base.__iter__(value)]
            return items if tag is None else {tag: items}
    if issubclass(kind, dict):
        pairs = dict.items(value)
        return {"$dict": [[spell(k, depth + 1), spell(v, depth + 1)] for k, v in pairs]}
    if hasattr(kind, "__next__") or kind in VIEWS:
        return {"$iterator": items_of(value, depth)}
    raise Unspelled(f"{kind.__name__!s:.60}, which is no plain data")


def spell_int(value: int) -> Any:
    number = int.__add__(value, 0)
    return number if number.bit_length() < 4000 else {"$int": hex(number)}


def spell_float(value: float) -> Any:
    number = float.__add__(value, 0.0)
    finite = float("-inf") < number < float("inf")
    return number if finite else {"$float": float.__repr__(number)}


def spell_complex(value: complex) -> Any:
    number = complex.__add__(value, 0j)
    return {"$complex": [spell_float(number.real), spell_float(number.imag)]}


def spell_bytes(value: Any) -> Any:
    return {"$bytes": bytes(memoryview(value)).hex()}


SCALARS: dict[Any, Any] = {
    int: spell_int,
    float: spell_float,
    str: str.__str__,
    bytes: spell_bytes,
    bytearray: spell_bytes,
    complex: spell_complex,
}
COLLECTIONS: dict[Any, Any] = {list: None, tuple: "$tuple", set: "$set", frozenset: "$frozenset"}
VIEWS: tuple[Any, ...] = (type({}.keys()), type({}.values()), type({}.items()), range)


def items_of(values: Any, depth: int) -> list[Any]:
    """An iterator's items, to its end."""
    items: list[Any] = []
    for item in values:
        if len(items) == MAX_ITEMS:
            raise TooLarge(f"an iterator of more than {MAX_ITEMS} items")
        items.append(spell(item, depth + 1))
    return items


def read(tree: Any) -> Any:
    """The live value, of exact built-in types."""
    if isinstance(tree, list):
        return [read(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    ((tag, inside),) = tree.items()
    if tag == "$dict":
        return {read(key): read(value) for key, value in inside}
    if tag == "$int":
        return int(inside, 16)
    if tag == "$float":
        return float(inside)
    if tag == "$bytes":
        return bytes.fromhex(inside)
    items = [read(item) for item in inside]
    if tag == "$complex":
        return complex(*items)
    makers: dict[str, Any] = {
        "$tuple": tuple,
        "$set": set,
        "$frozenset": frozenset,
        "$iterator": iter,
    }
    return makers[tag](items)


def first_compiled(sources: Sequence[str]) -> types.CodeType:
    """The first of the sources that is Python.

    Raises:
        SyntaxError: none is; the error of the first.
    """
    fault: Exception | None = None
    for source in sources:
        try:
            return compile(source, "main.py", "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            fault = fault or error
    raise SyntaxError(str(fault))


def new_module(name: str) -> dict[str, Any]:
    """The namespace of an empty module. It is not ``__main__``: what a program does when it is
    started as a script is not wanted when its functions are called.
    """
    module = types.ModuleType(name)
    sys.modules[name] = module
    sys.argv = [f"{name}.py"]
    return module.__dict__
