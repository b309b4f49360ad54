"""JSON read strictly and compared as data."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from lydite.verify.answer import FinalAnswer, ThinkingRule, after_thinking

MAX_DEPTH = 100
MAX_DIGITS = 1000

_BLOCK = re.compile(r"```[ \t]*(json[c5]?|\w*)[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
_LONG_NUMBER = re.compile(rf"\d{{{MAX_DIGITS + 1},}}")


class NotJson(Exception):
    """A text that is no JSON, with the reason."""


@dataclass(frozen=True, slots=True)
class Leniency:
    """What may differ between two data: the order in lists, and numbers by so much relatively."""

    unordered: bool = False
    tolerance: float = 0.0


def find_json(text: str, place: str = "auto", thinking: ThinkingRule = "auto") -> FinalAnswer:
    """The text of the data that a completion gives: see
    :class:`~lydite.verify.text_config.JsonConfig`.
    """
    spoken = after_thinking(text, thinking)
    if spoken.text is None:
        return spoken
    # ``` in pairs: a block is what stands between one and the next.
    blocks = [m for m in _BLOCK.finditer(spoken.text) if m[1].lower()[:4] in ("json", "")]
    if blocks and place != "text":
        return FinalAnswer(blocks[-1][2].strip())
    if place == "block":
        return FinalAnswer(None, "there is no ```json block")
    found = spoken.text.strip()
    return FinalAnswer(found) if found else FinalAnswer(None, "the completion is empty")


def read_json(text: str, max_chars: int = 100_000) -> Any:
    """Data from strict JSON: no NaN or Infinity, no key twice, nothing behind it, bounded size.

    Raises:
        NotJson: it is none of that.
    """
    if len(text) > max_chars:
        raise NotJson(f"{len(text)} characters, more than {max_chars}")
    if _depth(text) > MAX_DEPTH:
        raise NotJson(f"nested more than {MAX_DEPTH} deep")
    if _LONG_NUMBER.search(text):
        raise NotJson(f"a number of more than {MAX_DIGITS} digits")
    try:
        return json.loads(
            text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_float
        )
    except (ValueError, RecursionError) as error:
        raise NotJson(" ".join(str(error).split())[:200]) from None


def _depth(text: str) -> int:
    """How deep brackets stand inside each other, strings included: never less than the data's."""
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        most, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {most!r:.60} occurs twice")
    return found


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _float(written: str) -> float:
    number = float(written)
    if not math.isfinite(number):
        raise ValueError(f"the number {written:.40} is too large")
    if number == 0 and re.search("[1-9]", re.split("[eE]", written)[0]):
        raise ValueError(f"the number {written:.40} is too small")  # it would be read as 0
    return number


def same_data(gold: Any, given: Any, leniency: Leniency = Leniency()) -> bool:
    """Whether two JSON data are the same: keys in any order, 1 equal to 1.0 and not to true."""
    if isinstance(gold, bool) or isinstance(given, bool):
        return gold is given
    if isinstance(gold, int | float) and isinstance(given, int | float):
        if gold == given or not leniency.tolerance:
            return gold == given
        try:
            return abs(gold - given) <= leniency.tolerance * abs(gold)
        except OverflowError:  # a whole number beyond any float
            return False
    if isinstance(gold, dict) and isinstance(given, dict):
        return gold.keys() == given.keys() and all(
            same_data(value, given[key], leniency) for key, value in gold.items()
        )
    if isinstance(gold, list) and isinstance(given, list):
        if len(gold) != len(given):
            return False
        if leniency.unordered:
            return _same_bag(gold, given, leniency)
        return all(same_data(a, b, leniency) for a, b in zip(gold, given, strict=True))
    return type(gold) is type(given) and bool(gold == given)


def _same_bag(gold: list[Any], given: list[Any], leniency: Leniency) -> bool:
    """Whether each item has one of the other list for itself; both sorted by a normal form, so
    that equal ones meet without trying all pairs.
    """
    if leniency.tolerance == 0:
        return sorted(map(_normal, gold)) == sorted(map(_normal, given))
    if len(gold) > 200:  # all pairs are tried below
        return sorted(map(_normal, gold)) == sorted(map(_normal, given))
    left = list(given)
    for item in gold:
        place = next((i for i, other in enumerate(left) if same_data(item, other, leniency)), None)
        if place is None:
            return False
        del left[place]
    return True


def _normal(data: Any) -> str:
    """A text that is the same for data that are the same, lists without order."""
    if isinstance(data, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{_normal(data[k])}" for k in sorted(data)) + "}"
    if isinstance(data, list):
        return "[" + ",".join(sorted(map(_normal, data))) + "]"
    if isinstance(data, float) and data.is_integer():
        return str(int(data))
    return json.dumps(data)
