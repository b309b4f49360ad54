"""Rows as they lie in files, on the hub and in reasoning-gym, each with the place to blame when it
is bad.
"""

from __future__ import annotations

import glob
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lydite.config import UserError
from lydite.types import Message, Problem


@dataclass(frozen=True, slots=True)
class Row:
    """One record, and where it is: ``file:line`` for JSONL, ``file: row n`` (from 1) otherwise."""

    where: str
    values: Mapping[str, Any]


def file_rows(paths: Sequence[str], setting: str) -> list[Row]:
    """All rows of the files, in order.

    Raises:
        UserError: no such file, an unknown extension, or a row that is not an object.
    """
    if not paths:
        raise UserError(f"{setting}: no file named; give a .jsonl, .json or .parquet file")
    rows: list[Row] = []
    for each in _matching(paths, setting):
        path = Path(each).expanduser()
        reader = _READERS.get(path.suffix.lower())
        if reader is None:
            raise UserError(f"{setting}: {each} is none of {', '.join(_READERS)}, by its extension")
        if not path.is_file():
            raise UserError(
                f"{setting}: no file {each}; paths are relative to where you run the command"
            )
        before = len(rows)
        try:
            rows.extend(reader(path))
        except UnicodeDecodeError as error:
            raise UserError(f"{each}: not UTF-8 text: {error}") from error
        except OSError as error:
            raise UserError(f"{setting}: cannot read {each}: {error.strerror}") from error
        if len(rows) == before:
            raise UserError(f"{each}: empty; it needs at least one problem")
    return rows


def _matching(paths: Sequence[str], setting: str) -> list[str]:
    """Each path, or the files that match one with ``*`` or ``?``, by name."""
    found: list[str] = []
    for each in paths:
        if Path(each).expanduser().is_file() or not any(sign in each for sign in "*?["):
            found.append(each)
            continue
        matches = sorted(glob.glob(str(Path(each).expanduser())))
        if not matches:
            raise UserError(f"{setting}: no file matches {each}")
        found += matches
    return found


def _jsonl(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                where = f"{path}:{number}"
                yield _row(where, _parse(where, line))


def _json(path: Path) -> Iterator[Row]:
    text = path.read_text(encoding="utf-8-sig")
    if text.lstrip().startswith("{"):  # One object a line is often named .json too.
        yield from _jsonl(path)
        return
    tree = _parse(str(path), text)
    if not isinstance(tree, list):
        raise UserError(f"{path}: expected a list of objects, got {type(tree).__name__}")
    for number, value in enumerate(tree, start=1):
        yield _row(f"{path}: row {number}", value)


def _parquet(path: Path) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches():
                for value in batch.to_pylist():
                    number += 1
                    yield Row(f"{path}: row {number}", value)
    except pyarrow.ArrowInvalid as error:
        raise UserError(f"{path}: not a Parquet file: {' '.join(str(error).split())}") from error


_READERS = {".jsonl": _jsonl, ".json": _json, ".parquet": _parquet}


def _parse(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not JSON: {error.msg} at column {error.colno}") from error
    except (
        RecursionError,
        ValueError,
    ) as error:  # Too deeply nested; an integer of thousands of digits.
        raise UserError(f"{where}: not usable JSON: {_first_line(error)}") from error


def _row(where: str, value: Any) -> Row:
    if not isinstance(value, dict):
        raise UserError(
            f"{where}: expected an object with named columns, got {type(value).__name__}"
        )
    return Row(where, value)


def hub_rows(name: str, subset: str | None, split: str) -> list[Row]:
    """All rows of a hub dataset's split.

    Raises:
        UserError: ``datasets`` is not installed, or the hub has no such dataset, subset or split,
            or is out of reach.
    """
    try:
        import datasets
    except ImportError as error:
        raise UserError("hub: needs the package datasets; pip install 'lydite[hub]'") from error
    # It tells of every retry of a hub that cannot be reached; the error at the end is enough.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        data = datasets.load_dataset(name, subset, split=split)
    except (
        Exception
    ) as error:  # The library raises its own, the hub client's, HTTP's and file systems' errors.
        raise UserError(f"hub: cannot read {name} ({split}): {_first_line(error)}") from error
    return [
        Row(f"{name} {split}: row {number}", dict(row)) for number, row in enumerate(data, start=1)
    ]


def gym_problems(name: str, config: Mapping[str, Any], count: int, seed: int) -> list[Problem]:
    """``count`` problems of a reasoning-gym dataset; ``fields`` keeps what its own scorer needs.

    ``fields["gym"]`` is the dataset's name, ``fields["gym_config"]`` its settings (size and seed
    included), and ``fields["metadata"]`` the entry's metadata as JSON holds it.

    Raises:
        UserError: reasoning-gym is not installed, or refuses the name or the settings.
    """
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise UserError(
            "gym: needs the package reasoning-gym; pip install 'lydite[gym]'"
        ) from error
    if name not in DATASETS:
        import difflib

        near = difflib.get_close_matches(name, DATASETS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UserError(f"gym: reasoning-gym has no dataset {name!r}{hint}")
    settings = {**config, "size": count, "seed": seed}
    try:
        data = reasoning_gym.create_dataset(name, **settings)
        entries = [data[index] for index in range(count)]
    except (
        Exception
    ) as error:  # Each dataset checks its settings its own way: assertions, TypeErrors, ...
        raise UserError(
            f"gym: {name} refuses its settings {dict(config)}: {_first_line(error)}"
        ) from error
    return [
        Problem(
            id=f"{name}-{seed}-{index}",
            question=str(entry["question"]),
            messages=(Message("user", str(entry["question"])),),
            reference=None if entry["answer"] is None else str(entry["answer"]),
            tag=name,
            fields={
                "gym": name,
                "gym_config": settings,
                "metadata": _jsonable(entry.get("metadata", {})),
            },
        )
        for index, entry in enumerate(entries)
    ]


def _jsonable(value: object) -> Any:
    return json.loads(json.dumps(value, default=_as_plain, skipkeys=True))


def _as_plain(value: Any) -> Any:
    """Numpy scalars and arrays by value, sets as sorted lists, anything else as its text."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return sorted(value, key=str) if isinstance(value, set | frozenset) else str(value)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
