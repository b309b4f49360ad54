"""Writes docs/recipe.md, the recipe reference, from the settings classes: `make docs`.

Each settings record is a section with its docstring and a table of its fields. Nothing of the page
is written by hand, so it says what the code does; a test compares them.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from lydite.config import Config
from lydite.objective import Objective
from lydite.objective.settings import BOUNDS, CHOICES, RECORDS, WHOLE, canonical
from lydite.pipeline.recipe import Recipe
from lydite.pipeline.stages.rl import RLStage

PAGE = Path(__file__).with_name("recipe.md")

HEAD = """# Recipe reference

*Generated from the settings classes by `make docs`; do not edit.*

A recipe is one YAML file. Any value can be given on the command line as `key=value`, with dots into
records and numbers into lists: `lydite run recipes/quickstart.yaml seed=3 stages.1.steps=50`.
Unknown keys are refused. Every default below is part of a working recipe.
"""


def page(root: type[Config]) -> str:
    """The reference of ``root`` and of every record that its fields hold."""
    records = _records(root)
    sections = [_section(config) for config in records]
    return "\n".join([HEAD, *sections, *([objective_section()] if RLStage in records else [])])


OBJECTIVE = """## Objective

What a mapping under `objective` may set beside `preset` and `patches`, which set the most of it:
`lydite objective SPEC` shows what they come to, [objectives.md](objectives.md) what they mean.
A key with a dot may be written nested; `kl: 0.01` is its coefficient. The defaults are `grpo`'s.

| key | values | default | what it does |
| --- | --- | --- | --- |
"""


def objective_section() -> str:
    """Every setting of an objective, by key."""
    about = _descriptions()
    rows = [
        _cells(f"`{key}`", _values(key), f"`{_plain(default)}`", about[key])
        for key, default in Objective.defaults().items()
    ]
    return OBJECTIVE + "\n".join([*rows, ""])


def _descriptions() -> dict[str, str]:
    found = {}
    for field in dataclasses.fields(Objective):
        found[field.name] = field.metadata["description"]
        for inner in dataclasses.fields(RECORDS[field.name]) if field.name in RECORDS else ():
            found[canonical(f"{field.name}.{inner.name}")] = inner.metadata["description"]
    return found


def _values(key: str) -> str:
    if key in CHOICES:
        return ", ".join(f"`{name}`" for name in CHOICES[key])
    if key not in BOUNDS:
        return "true or false"
    low, closed, high, optional = BOUNDS[key]
    most = "" if high == math.inf else f", ≤ {high:g}"
    kind = "whole number" if key in WHOLE else "number"
    return f"{kind} {'≥' if closed else '>'} {low:g}{most}" + (" or null" if optional else "")


def _records(root: type[Config]) -> list[type[Config]]:
    found = [root]
    for config in found:
        for field in config.model_fields.values():
            found += [below for below in _configs_in(field.annotation) if below not in found]
    return list(dict.fromkeys(found))


def _configs_in(annotation: Any) -> Iterator[type[Config]]:
    if isinstance(annotation, type) and issubclass(annotation, Config):
        yield annotation
    for part in get_args(annotation):
        yield from _configs_in(part)


def _section(config: type[Config]) -> str:
    rows = [_row(name, field) for name, field in config.model_fields.items()]
    table = ["| key | type | default | what it does |", "| --- | --- | --- | --- |", *rows]
    return "\n".join([f"## {title(config)}", "", _docstring(config), "", *table, ""])


def title(config: type[Config]) -> str:
    """``RLStage`` as ``RLStage``, with its kind where it is one of several."""
    kind = config.model_fields.get("kind")
    options = get_args(kind.annotation) if kind is not None else ()
    return f"{config.__name__} (`kind: {options[0]}`)" if len(options) == 1 else config.__name__


def _docstring(config: type[Config]) -> str:
    text = (config.__doc__ or "").strip()
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    return "\n\n".join(paragraphs).replace("``", "`")


def _row(name: str, field: FieldInfo) -> str:
    about = " ".join((field.description or "").split())
    return _cells(f"`{name}`", _type(field.annotation), _default(field), about + _limits(field))


def _cells(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _type(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0])
    if origin in (Union, types.UnionType):
        shown = [_type(part) for part in arguments if part is not type(None)]
        return " or ".join(dict.fromkeys([*shown, *(["null"] if type(None) in arguments else [])]))
    if origin is Literal:
        return ", ".join(f"`{_plain(option)}`" for option in arguments)
    if origin in (list, tuple):
        return f"list of {_type(arguments[0])}" if arguments else "list"
    if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return f"mapping of name to {_type(arguments[1])}"
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return f"[{annotation.__name__}](#{_anchor(annotation)})"
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return ", ".join(f"`{option.value}`" for option in annotation)
    names = {str: "text", int: "whole number", float: "number", bool: "true or false", Path: "path"}
    if annotation is Any or annotation is object:
        return "anything"
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _anchor(config: type[Config]) -> str:
    """GitHub's anchor of a heading: lower case, signs dropped, spaces as hyphens."""
    kept = (c for c in title(config).lower() if c.isalnum() or c in " -_")
    return "".join(kept).replace(" ", "-")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return ""
    if isinstance(value, BaseModel) and not _changed(value):
        return "its defaults"
    return f"`{_plain(value)}`"


def _changed(record: BaseModel) -> dict[str, Any]:
    """What differs from a record's own defaults, and its kind where it is one of several."""
    changed = record.model_dump(exclude_defaults=True, mode="json")
    return {"kind": record.kind, **changed} if hasattr(record, "kind") else changed


def _plain(value: Any) -> str:
    """A default as YAML writes it in one line; of a record, what differs from its own."""
    if isinstance(value, BaseModel):
        return _plain(_changed(value))
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_plain(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple | set | frozenset):
        return "[" + ", ".join(map(_plain, value)) + "]"
    if isinstance(value, float):
        return f"{value:g}"
    text = str(value)
    bare = text and text == text.strip()
    shown = text.replace("\n", "\\n")
    return shown if bare else f"'{shown}'"


def _limits(field: FieldInfo) -> str:
    """Bounds that pydantic checks, such as ``≥ 1``."""
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    found = [
        f"{sign} {getattr(limit, name):g}"
        for limit in field.metadata
        for name, sign in signs.items()
        if getattr(limit, name, None) is not None
    ]
    return f" ({', '.join(found)})" if found else ""


if __name__ == "__main__":
    PAGE.write_text(page(Recipe), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE}\n")
