"""The input of ``lydite verify``: one completion a line, read lazily, so that a file may be longer
than memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lydite.config import UserError
from lydite.types import Problem

_OWN_KEYS = frozenset({"id", "gold", "completion", "expected", "contested", "question", "tag"})


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the input. ``expected`` is whether the completion should be accepted, if the
    file says.
    """

    line: int
    id: str | int | None
    problem: Problem
    completion: str
    expected: bool | None = None
    contested: bool = False


def count_rows(path: Path) -> int:
    """How many lines the file has that are not blank, each of them read and found well.

    Raises:
        UserError: as :func:`read_rows`; also when there is none.
    """
    total = sum(1 for _ in read_rows(path))
    if not total:
        raise UserError(
            f"--input {path}: the file is empty; write a JSON object with gold and completion on "
            f"each line"
        )
    return total


def read_rows(path: Path) -> Iterator[Row]:
    """Every line of the file that is not blank, one at a time.

    Raises:
        UserError: no such file, or a bad line, named with its number.
    """
    if not path.is_file():
        raise UserError(f"--input {path}: no such file")
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield read_row(line, number, path)


def read_row(line: bytes, number: int, path: Path) -> Row:
    """One line: ``gold`` (text or a number; may be missing for rewards without a reference),
    ``completion``, and if known ``expected`` (bool), ``contested`` (bool: left out of the count),
    ``id``; every other key is a column for the rewards.

    Raises:
        UserError: not UTF-8, not a JSON object, or a key of the wrong type.
    """
    where = f"{path}:{number}"
    try:
        values = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not UTF-8 text: {error.reason}; save it as UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not JSON: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{where}: expected a JSON object, got {type(values).__name__}")
    completion = values.get("completion")
    if not isinstance(completion, str):
        raise UserError(f"{where}: completion: expected text, got {_kind(values, 'completion')}")
    gold = values.get("gold")
    if isinstance(gold, bool) or not isinstance(gold, str | int | float | None):
        raise UserError(f"{where}: gold: expected text or a number, got {_kind(values, 'gold')}")
    for key in ("expected", "contested"):
        if not isinstance(values.get(key), bool | None):
            raise UserError(f"{where}: {key}: expected true or false, got {_kind(values, key)}")
    row_id = values.get("id")
    problem = Problem(
        id=str(row_id if row_id is not None else f"line {number}"),
        question=str(values.get("question", "")),
        messages=(),
        reference=None if gold is None else str(gold),
        tag=str(values.get("tag", "")),
        fields={key: value for key, value in values.items() if key not in _OWN_KEYS},
    )
    return Row(
        number, row_id, problem, completion, values.get("expected"), bool(values.get("contested"))
    )


def _kind(values: Mapping[str, Any], key: str) -> str:
    return type(values[key]).__name__ if key in values else "nothing"
