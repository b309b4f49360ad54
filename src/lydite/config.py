"""Strict configuration: every room's settings derive from :class:`Config`; YAML and ``key=value``
fill them.

A user's mistake becomes a :class:`UserError`: one line that names the field, what was wrong and
what to do. The command line prints it and exits with 2. Imports without torch.
"""

from __future__ import annotations

import difflib
import json
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ConfigDict, ValidationError
from yaml import YAMLError


class UserError(ValueError):
    """Something the user can mend. One line: the field, what is wrong, the remedy."""


class Config(BaseModel):
    """Base of every settings record: unknown keys are refused and values do not change after
    loading.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


C = TypeVar("C", bound=Config)


def load_yaml(
    path: Path, overrides: Sequence[str] = (), list_key: str | None = None
) -> dict[str, Any]:
    """Reads a YAML file and applies ``key=value`` overrides (dotted keys; list items by index) and
    those of files (``@FILE``: YAML, a dotted key a line), interpolation resolved. With ``list_key``
    a file that is a list comes back under that key.

    Raises:
        UserError: the file is missing or not YAML, or an override is not ``key=value``.
    """
    if not path.is_file():
        raise UserError(f"recipe: no file {path}; `lydite recipes` lists the ones that ship")
    try:
        tree = OmegaConf.load(path)
        for override in _spelt_out(overrides):
            key, equals, _ = override.partition("=")
            if not equals or not key:
                raise UserError(
                    f"override {override!r}: write key=value, for example model.path=./my-model"
                )
            try:
                _apply(tree, override)
            except TypeError as error:  # a name where a list is counted
                raise UserError(
                    f"override {override!r}: {error}; items of a list go by number from 0, "
                    "such as stages.0.steps=50"
                ) from error
            except (YAMLError, OmegaConfBaseException) as error:
                reason = str(error).splitlines()[0]
                raise UserError(f"override {override!r}: {_one_line(reason)}") from error
        _refuse_missing(path, OmegaConf.to_container(tree, resolve=False))
        plain = OmegaConf.to_container(tree, resolve=True)
    except (YAMLError, OmegaConfBaseException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: {_one_line(error)}") from error
    if list_key is not None and isinstance(plain, list):
        return {list_key: plain}
    if not isinstance(plain, dict):
        raise UserError(
            f"{path}: expected `key: value` lines at the top, got {type(plain).__name__}"
        )
    return {str(key): value for key, value in plain.items()}


def _refuse_missing(path: Path, tree: Any, key: str = "") -> None:
    """Raises ``UserError`` for the first ``???``, a value that the file leaves to its user."""
    if tree == "???":
        raise UserError(f"{path}: {key}: not given; add {key}=VALUE")
    if isinstance(tree, list):
        tree = dict(enumerate(tree))
    for part, value in tree.items() if isinstance(tree, dict) else ():
        _refuse_missing(path, value, f"{key}.{part}" if key else str(part))


def _spelt_out(overrides: Sequence[str]) -> Iterator[str]:
    """Overrides with those of files in their place."""
    for override in overrides:
        if not override.startswith("@"):
            yield override
            continue
        path = Path(override[1:])
        if not path.is_file():
            raise UserError(f"override {override!r}: no file {path}")
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise UserError(
                f"override {override!r}: expected `dotted.key: value` lines, got "
                f"{type(found).__name__}"
            )
        # A value in JSON is one in YAML, on one line.
        yield from (f"{key}={json.dumps(value)}" for key, value in found.items())


def _apply(tree: Any, override: str) -> None:
    key, _, _ = override.partition("=")
    value = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={override.split('=', 1)[1]}"]))
    assert isinstance(value, dict)
    OmegaConf.update(tree, key, value["value"], merge=False, force_add=True)


def validate(config: type[C], values: Mapping[str, Any], source: str = "") -> C:
    """Builds ``config`` from plain values.

    Raises:
        UserError: one line for the first wrong field, the nearest valid key named for an unknown
            one.
    """
    try:
        return config.model_validate(values)
    except ValidationError as error:
        raise UserError(_explain(config, error, source, values)) from None


def _explain(config: type[Config], error: ValidationError, source: str, values: Any) -> str:
    """The first error as one line. Unknown keys come first: a misspelt key is why the right one is
    missing.
    """
    problems = sorted(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    first = problems[0]
    where = ".".join(_written(first["loc"], values, first["type"] == "missing"))
    prefix = f"{source}: " if source else ""
    if first["type"] == "extra_forbidden":
        name = str(first["loc"][-1])
        names = _keys_at(config, first["loc"][:-1])
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"valid keys: {', '.join(sorted(names))}"
        return f"{prefix}unknown key {where!r}; {hint}"
    if first["type"] == "missing":
        return f"{prefix}{where}: required, and not given"
    if first["type"] == "union_tag_not_found":
        return f"{prefix}{where}: say which by `{first['ctx']['discriminator'].strip(chr(39))}:`"
    if first["type"] == "union_tag_invalid":
        tag, kinds = str(first["ctx"]["tag"]), str(first["ctx"]["expected_tags"])
        near = difflib.get_close_matches(tag, re.findall(r"'(\w+)'", kinds), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"one of {kinds}"
        return f"{prefix}{where}: no kind {tag!r}; {hint}"
    message = first["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    got = first.get("input")
    shown = (
        "" if isinstance(got, dict | list) or first["type"] == "value_error" else f" (got {got!r})"
    )
    return _one_line(f"{prefix}{where + ': ' if where else ''}{message}{shown}")


def _written(loc: Sequence[int | str], values: Any, missing: bool) -> list[str]:
    """Those parts of an error's place that the user wrote, or for a missing key should have.

    Pydantic also names what it tried: the tags of unions, and keys that a short form stands for
    (``verifier: math`` for ``verifier.rewards.0``).
    """
    if not loc:
        return []
    part, rest = loc[0], loc[1:]
    skipped = _written(rest, values, missing)
    if isinstance(values, Mapping) and part in values:
        inside = values[part]
    elif isinstance(values, list | tuple) and part in range(len(values)):
        inside = values[int(part)]
    else:
        return [str(part)] if missing and not rest else skipped
    taken = [str(part), *_written(rest, inside, missing)]
    # A tag may have the name of a key beside the right one: what leads to the end was written.
    return max(taken, skipped, key=lambda parts: (parts[-1:] == [str(loc[-1])], len(parts)))


def _keys_at(config: type[Config], loc: Sequence[int | str]) -> list[str]:
    """The keys that are valid where an unknown one was found."""
    found: list[type[Config]] = [config]
    for part in loc:
        if isinstance(part, int):
            continue
        below: list[type[Config]] = []
        for parent in found:
            if part in parent.model_fields:
                below += list(_configs_in(parent.model_fields[part].annotation))
            elif _tag_of(parent) == part:
                below.append(parent)
        found = below or found
    return sorted({name for parent in found for name in parent.model_fields})


def _tag_of(config: type[Config]) -> str | None:
    field = config.model_fields.get("kind")
    options = get_args(field.annotation) if field is not None else ()
    return str(options[0]) if options else None


def _configs_in(annotation: Any) -> Iterator[type[Config]]:
    """Every settings record that a field's type can hold."""
    if isinstance(annotation, type) and issubclass(annotation, Config):
        yield annotation
    elif get_origin(annotation) in (Union, Annotated, list, dict, tuple, types.UnionType):
        for part in get_args(annotation):
            yield from _configs_in(part)


def _one_line(error: object) -> str:
    return " ".join(str(error).split())


def differences(ours: Any, theirs: Any, path: str = "") -> list[str]:
    """Where two plain trees differ, as ``dotted.key: ours, theirs``."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = list(dict.fromkeys([*ours, *theirs]))
        return [
            line
            for key in keys
            for line in differences(
                ours.get(key), theirs.get(key), f"{path}.{key}" if path else str(key)
            )
        ]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [
            line
            for index, (a, b) in enumerate(zip(ours, theirs, strict=True))
            for line in differences(a, b, f"{path}.{index}")
        ]
    return [] if ours == theirs else [f"{path}: {_brief(ours)}, {_brief(theirs)}"]


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
