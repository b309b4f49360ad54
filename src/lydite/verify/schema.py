"""JSON schemas: which are usable, and whether data fits them. Fitting runs in the killable workers,
since a schema's patterns meet a model's text there.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from lydite.config import UserError

MAX_SCHEMA_CHARS = 100_000
MAX_SCHEMA_DEPTH = 60


def require_jsonschema() -> None:
    """
    Raises:
        UserError: `jsonschema` is not installed.
    """
    if importlib.util.find_spec("jsonschema") is None:
        raise UserError("json_schema: needs jsonschema; pip install 'lydite[schema]'")


def schema_fault(schema: Any) -> str | None:
    """Why a JSON schema cannot be used, or ``None``: too large, pointing outside itself, or none.

    Raises:
        UserError: `jsonschema` is not installed.
    """
    if not isinstance(schema, Mapping):
        return f"expected a JSON schema, an object, got {type(schema).__name__}"
    fault = next(_faults(schema, MAX_SCHEMA_DEPTH), None)
    if fault is not None:
        return fault
    try:
        written = json.dumps(schema)
    except (TypeError, ValueError) as error:
        return f"the schema is no JSON: {error}"
    if len(written) > MAX_SCHEMA_CHARS:
        return f"the schema has {len(written)} characters, more than {MAX_SCHEMA_CHARS}"
    return _dangling(json.loads(written)) or _checked(written)


def _faults(part: Any, depth: int) -> Iterator[str]:
    if depth == 0:
        yield f"the schema is nested more than {MAX_SCHEMA_DEPTH} deep"
    elif isinstance(part, Mapping):
        for key, value in part.items():
            if key in ("$ref", "$dynamicRef") and isinstance(value, str) and value[:1] != "#":
                yield f"the schema refers to {value!r:.80}; only references within it are followed"
            yield from _faults(value, depth - 1)
    elif isinstance(part, list | tuple):
        for value in part:
            yield from _faults(value, depth - 1)


def _dangling(schema: dict[str, Any]) -> str | None:
    """A reference to a place that is not in the schema. One with parts that have an ``$id`` of
    their own, which references may start from, is not looked through.
    """
    parts = list(_mappings(schema))
    if any("$id" in part for part in parts[1:]):
        return None
    anchors = {f"#{part.get(key)}" for part in parts for key in ("$anchor", "$dynamicAnchor")}
    for part in parts:
        for key in ("$ref", "$dynamicRef"):
            aim = part.get(key)
            if isinstance(aim, str) and aim not in anchors and not _points(schema, aim):
                return f"the schema refers to {aim!r:.80}, which is not in it"
    return None


def _mappings(part: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(part, Mapping):
        yield part
    for value in part.values() if isinstance(part, Mapping) else part:
        if isinstance(value, Mapping | list):
            yield from _mappings(value)


def _points(schema: Any, aim: str) -> bool:
    """Whether ``#`` or a JSON pointer such as ``#/$defs/a`` leads somewhere."""
    if aim == "#":
        return True
    if not aim.startswith("#/"):
        return False
    place = schema
    for step in unquote(aim[2:]).split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(place, list) and name.isdecimal() and int(name) < len(place):
            place = place[int(name)]
        elif isinstance(place, dict) and name in place:
            place = place[name]
        else:
            return False
    return True


@functools.lru_cache(maxsize=1024)
def _checked(written: str) -> str | None:
    require_jsonschema()
    from jsonschema import SchemaError
    from jsonschema.validators import validator_for

    schema = json.loads(written)
    kind = validator_for(schema)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        place = ".".join(map(str, error.absolute_path))
        said = " ".join(error.message.split())[:200]
        return f"no JSON schema: {place + ': ' if place else ''}{said}"
    return None


@functools.lru_cache(maxsize=256)
def _validator(written: str) -> Any:
    from jsonschema.validators import validator_for
    from referencing import Registry

    schema = json.loads(written)
    # A registry of its own retrieves nothing from the network.
    return validator_for(schema)(schema, registry=Registry())


def misfit(written_schema: str, data: Any) -> str | None:
    """Where data does not fit a schema given as JSON text, in one line; ``None`` if it fits."""
    error = next(iter(_validator(written_schema).iter_errors(data)), None)
    if error is None:
        return None
    place = ".".join(map(str, error.absolute_path))
    said = " ".join(error.message.split())
    return f"{place[:100] + ': ' if place else ''}{said[:200]}"


def checker(setup: object) -> Callable[[Any], str | None]:
    """A pool handler: a schema and data, both as JSON text, to what does not fit."""
    with contextlib.suppress(UserError):  # said when a schema is asked for
        require_jsonschema()
        # Imported before anything is timed.
        importlib.import_module("jsonschema.validators")

    def check(payload: Any) -> str | None:
        require_jsonschema()
        written_schema, written = payload
        return misfit(written_schema, json.loads(written))

    return check
