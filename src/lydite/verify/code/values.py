"""Values that cross between processes: plain data, spelled as JSON, compared as spelled.

The same spelling serves data files and replies. Scalars and lists are JSON's own; what JSON lacks
is an object with one key: ``{"$tuple": [1, 2]}``, ``{"$set": [...]}``, ``{"$frozenset": [...]}``,
``{"$dict": [[key, value], ...]}``, ``{"$bytes": "00ff"}``, ``{"$int": "0x1f"}``,
``{"$float": "nan"}`` (or ``inf``, ``-inf``), ``{"$complex": [re, im]}``, ``{"$iterator": [...]}``.
In data files an object with any other keys is a dictionary with text keys.

A reply is never turned into live sets or dictionaries in the host: whole numbers that hash alike
would make those slow, and an object's own ``__eq__`` never gets here at all.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Tree = Any
"""What ``json.loads`` gives: exact built-in types only."""

MAX_DEPTH = 60
_LISTS = ("$tuple", "$set", "$frozenset", "$dict", "$iterator", "$complex")
_TEXTS = ("$bytes", "$int", "$float")


class SpellingError(ValueError):
    """A tree that spells no value."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far numbers may lie apart where a floating-point one is expected: the larger of
    ``relative`` times the larger magnitude and ``absolute``.
    """

    relative: float = 1e-6
    absolute: float = 1e-9

    def close(self, expected: float, got: float | int) -> bool:
        """NaN is close to NaN alone, an infinity to itself alone."""
        try:
            number = float(got)
        except OverflowError:
            return False
        if math.isnan(expected) or math.isnan(number):
            return math.isnan(expected) and math.isnan(number)
        return math.isclose(expected, number, rel_tol=self.relative, abs_tol=self.absolute)


def spell(value: Tree, depth: int = 0) -> Tree:
    """A value of a data file in the spelling of replies: every dictionary as ``$dict``.

    Raises:
        SpellingError: it is nested too deep, or a tag holds what it cannot.
    """
    if depth > MAX_DEPTH:
        raise SpellingError(f"nested more than {MAX_DEPTH} deep")
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, bytes):
        return {"$bytes": value.hex()}
    if isinstance(value, list):
        return [spell(item, depth + 1) for item in value]
    if isinstance(value, tuple):
        return {"$tuple": [spell(item, depth + 1) for item in value]}
    if not isinstance(value, Mapping):
        raise SpellingError(f"{type(value).__name__} is no plain data")
    tag, inside = next(iter(value.items())) if len(value) == 1 else ("", None)
    if tag in _LISTS and isinstance(inside, list):
        spelled: Tree = {tag: [spell(item, depth + 1) for item in inside]}
    elif tag in _TEXTS and isinstance(inside, str):
        spelled = {tag: inside}
    elif isinstance(tag, str) and tag in (*_LISTS, *_TEXTS):
        raise SpellingError(f"{tag} holds {type(inside).__name__}")
    elif all(isinstance(key, str) for key in value):
        return {"$dict": [[key, spell(item, depth + 1)] for key, item in value.items()]}
    else:
        raise SpellingError("an object's keys are text; write others as $dict")
    _check(spelled)
    return spelled


def _check(tree: Tree) -> None:
    """Raises ``SpellingError`` for a tagged object whose content does not fit its tag."""
    tag, inside = next(iter(tree.items()))
    try:
        if tag == "$int":
            int(inside, 16)
        elif tag == "$bytes":
            bytes.fromhex(inside)
        elif tag == "$float":
            if inside not in ("nan", "inf", "-inf"):
                raise ValueError
        elif tag == "$complex":
            if len(inside) != 2 or not all(_is_number(_scalar(part)) for part in inside):
                raise ValueError
        elif tag == "$dict":
            if not all(type(pair) is list and len(pair) == 2 for pair in inside):
                raise ValueError
            [_key(key) for key, _ in inside]
        elif tag in ("$set", "$frozenset"):
            [_key(item) for item in inside]
    except SpellingError:
        raise
    except ValueError:
        raise SpellingError(f"{tag} cannot hold {json.dumps(inside)[:60]}") from None


def same_value(expected: Tree, got: Tree, tolerance: Tolerance, depth: int = 0) -> bool:
    """Whether a reply spells the expected value.

    Whole numbers are compared exactly, also with a floating-point reply (``2`` is ``2.0``); where a
    floating-point number is expected, within ``tolerance``. True and False are no numbers. A list
    may come as a tuple, since JSON has no tuples; an expected ``$tuple`` must be one. Sets and
    dictionary keys have no order and are compared exactly. Text is not bytes.
    """
    if depth > MAX_DEPTH:
        return False
    expected, got = _scalar(expected), _scalar(got)
    if _is_number(expected) or _is_number(got):
        return _is_number(expected) and _is_number(got) and _same_number(expected, got, tolerance)
    if type(expected) is list:
        items = got["$tuple"] if _tag(got) == "$tuple" else got
        return _same_items(expected, items, tolerance, depth)
    tag = _tag(expected)
    if tag is None or tag != _tag(got):
        return type(expected) is type(got) and tag is None and bool(expected == got)
    inside, other = expected[tag], got[tag]
    if tag in ("$tuple", "$complex", "$iterator"):
        return _same_items(inside, other, tolerance, depth)
    try:
        _check(got)
        if tag in ("$set", "$frozenset"):
            return sorted({_key(item) for item in inside}) == sorted({_key(i) for i in other})
        if tag == "$dict":
            return _same_dict(inside, other, tolerance, depth)
    except (SpellingError, TypeError, AttributeError):
        return False
    return type(other) is str and bool(inside == other)


def _same_items(expected: list[Tree], got: Tree, tolerance: Tolerance, depth: int) -> bool:
    return (
        type(got) is list
        and len(expected) == len(got)
        and all(
            same_value(one, other, tolerance, depth + 1)
            for one, other in zip(expected, got, strict=True)
        )
    )


def _same_dict(expected: list[Tree], got: list[Tree], tolerance: Tolerance, depth: int) -> bool:
    wanted = {_key(key): value for key, value in expected}
    there = {_key(key): value for key, value in got}
    return wanted.keys() == there.keys() and all(
        same_value(value, there[key], tolerance, depth + 1) for key, value in wanted.items()
    )


def _scalar(tree: Tree) -> Tree:
    """The number that ``$int`` or ``$float`` spells; anything else as it is."""
    tag = _tag(tree)
    if tag in ("$int", "$float"):
        try:
            return int(tree[tag], 16) if tag == "$int" else float(tree[tag])
        except (ValueError, TypeError):
            return tree
    return tree


def _tag(tree: Tree) -> str | None:
    return next(iter(tree)) if type(tree) is dict and len(tree) == 1 else None


def _is_number(tree: Tree) -> bool:
    return type(tree) is int or type(tree) is float


def _same_number(expected: int | float, got: int | float, tolerance: Tolerance) -> bool:
    if type(expected) is int:
        return bool(expected == got)
    return tolerance.close(float(expected), got)


def _key(tree: Tree, depth: int = 0) -> str:
    """One spelling for values that are one element of a set: numbers by value, truths apart."""
    tree = _scalar(tree)
    if depth > MAX_DEPTH:
        raise SpellingError(f"nested more than {MAX_DEPTH} deep")
    if type(tree) is bool or tree is None:
        return repr(tree)
    if type(tree) is int:
        return f"n{tree:x}"
    if type(tree) is float:
        whole = math.isfinite(tree) and tree == int(tree)
        return f"n{int(tree):x}" if whole else f"f{tree!r}"
    if type(tree) is str:
        return json.dumps(tree)
    tag = _tag(tree)
    if tag in ("$tuple", "$frozenset", "$complex") and type(tree[tag]) is list:
        keys = [_key(item, depth + 1) for item in tree[tag]]
        return f"{tag}({','.join(sorted(set(keys)) if tag == '$frozenset' else keys)})"
    if tag == "$bytes" and type(tree[tag]) is str:
        return f"b{tree[tag]}"
    raise SpellingError("a set holds and a dictionary is keyed by values that do not change")


def show(tree: Tree, limit: int = 60) -> str:
    """A value as a person reads it, cut short."""
    text = json.dumps(tree, ensure_ascii=False)
    return text if len(text) <= limit else f"{text[:limit]}…"
