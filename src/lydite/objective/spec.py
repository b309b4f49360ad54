"""Reads an objective's spec: a preset, named patches and overrides become one set of settings."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lydite.config import UserError
from lydite.objective.patches import PATCHES, Patch
from lydite.objective.presets import PRESETS, Setting


@dataclass(frozen=True, slots=True)
class Spec:
    """What a spec is made of: its preset, patches by name in one order, and overrides by key."""

    preset: str
    patches: Mapping[str, Patch]
    overrides: Mapping[str, Setting]

    @property
    def name(self) -> str:
        """The spec as one line of text."""
        tuned = (f"{key}={value}" for key, value in self.overrides.items())
        return "+".join([self.preset, *self.patches, *tuned])

    @property
    def settings(self) -> dict[str, Setting]:
        """All that it sets, by key.

        Raises:
            UserError: patches or overrides that contradict each other.
        """
        merged = _merge(self.patches)
        _refuse_contradicted(self.patches, self.overrides)
        preset = PRESETS[self.preset]
        _refuse_another(self.preset, preset.fixes, self.patches, self.overrides)
        return {**preset.settings, **merged, **self.overrides}

    def check_needs(self, settings: Mapping[str, Setting]) -> None:
        """Raises:
        UserError: a patch in ``settings``, all of this spec's, that was not made for them.
        """
        for name, patch in self.patches.items():
            for key, value in patch.needs.items():
                if settings[key] != value:
                    raise UserError(
                        f"objective: {name!r} and {self._giver(key)} do not go together: the "
                        f"numbers of the one are for {key}: {value}, and the other has "
                        f"{settings[key]}; leave {name} out"
                    )

    def blame(self, keys: Iterable[str]) -> str:
        """Which names gave these settings, where it was more than one: to end a message with."""
        givers: dict[str, list[str]] = {}
        for key in keys:
            givers.setdefault(self._giver(key), []).append(key)
        givers.pop("", None)
        each = (f"{giver} sets {' and '.join(found)}" for giver, found in givers.items())
        return f" ({', '.join(each)})" if len(givers) > 1 else ""

    def _giver(self, key: str) -> str:
        """Who set it; nothing where it has its default."""
        if key in self.overrides:
            return "this spec"
        names = [repr(name) for name, patch in self.patches.items() if key in patch.settings]
        if names:
            return names[0]
        return repr(self.preset) if key in PRESETS[self.preset].settings else ""


def read(spec: object, keys: Iterable[str], heads: Mapping[str, str]) -> Spec:
    """Reads a spec: a text of names joined by ``+``, a list of such texts, or a mapping.

    A mapping has ``preset``, ``patches`` and overrides by key; ``keys`` are those there are, and
    ``heads`` gives the key of a setting that has two. The order of names does not matter.

    Raises:
        UserError: an unknown name (the nearest is given), no preset or two.
    """
    overrides: dict[str, Setting] = {}
    if isinstance(spec, Mapping):
        names, overrides = _from_mapping(_flattened(spec, heads), set(keys))
    else:
        names = _names(spec, "objective")
    preset, patches = _split(names)
    return Spec(preset, patches, overrides)


# Two signs in a row belong to a name: reinforce++, reinforce+++kl.
_BETWEEN = re.compile(r"(?<!\+)\+(?!\+)|(?<=\+\+)\+")


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name: the nearest known one, or all of them."""
    choices = sorted(known)
    near = difflib.get_close_matches(name.lower(), choices, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"valid: {', '.join(choices)}"


def _names(spec: object, where: str) -> list[str]:
    if isinstance(spec, str):
        return [part.strip() for part in _BETWEEN.split(spec)]
    if isinstance(spec, Sequence) and all(isinstance(part, str) for part in spec):
        return [part for item in spec for part in _names(item, where)]
    raise UserError(
        f"{where}: got {spec!r}; write a name such as grpo, grpo+clip_higher, "
        "or a list of such names"
    )


def _from_mapping(
    spec: Mapping[str, object], fields: set[str]
) -> tuple[list[str], dict[str, Setting]]:
    keys = {"preset", "patches", *fields}
    overrides: dict[str, Setting] = {}
    for key, value in spec.items():
        if key not in keys:
            raise UserError(f"objective: unknown key {key!r}; {nearest(str(key), keys)}")
        if key in fields:
            if not isinstance(value, str | float | int | None):
                raise UserError(f"objective.{key}: got {value!r}; give one number or name")
            overrides[key] = value
    patches = spec.get("patches")
    names = _names(spec.get("preset", "grpo"), "objective.preset")
    return names + ([] if not patches else _names(patches, "objective.patches")), overrides


def _flattened(spec: Mapping[str, object], heads: Mapping[str, str]) -> dict[str, object]:
    """``{kl: {estimator: k1}}`` as ``{kl.estimator: k1}``."""
    found: dict[str, object] = {}
    for key, value in spec.items():
        inner = {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, Mapping) else None
        for name, setting in ({key: value} if inner is None else inner).items():
            found[heads.get(name, name)] = setting
    return found


def _split(names: Sequence[str]) -> tuple[str, dict[str, Patch]]:
    for name in names:
        if not name:
            raise UserError(
                "objective: a name is missing; write a preset and patches with one + between them, "
                "such as grpo+clip_higher"
            )
        if name not in PRESETS and name not in PATCHES:
            raise UserError(
                f"objective: unknown name {name!r}; {nearest(name, [*PRESETS, *PATCHES])}"
            )
    presets = list(dict.fromkeys(name for name in names if name in PRESETS))
    if len(presets) != 1:
        found = " and ".join(map(repr, presets)) if presets else "only patches"
        raise UserError(
            f"objective: a spec has exactly one preset, got {found}; "
            f"presets: {', '.join(sorted(PRESETS))}"
        )
    return presets[0], {name: PATCHES[name] for name in sorted(set(names) & PATCHES.keys())}


def _merge(patches: Mapping[str, Patch]) -> dict[str, Setting]:
    """All that the patches set, which none of them may set twice to different values."""
    merged: dict[str, Setting] = {}
    setter: dict[str, str] = {}
    for name, patch in patches.items():
        for key, value in patch.settings.items():
            if key in merged and merged[key] != value:
                raise UserError(
                    f"objective: {setter[key]!r} and {name!r} contradict each other "
                    f"({key}: {merged[key]} against {value}); leave one out"
                )
            merged[key], setter[key] = value, name
    return merged


def _refuse_another(
    preset: str,
    fixes: Mapping[str, Setting],
    patches: Mapping[str, Patch],
    overrides: Mapping[str, Setting],
) -> None:
    """What a preset stands for cannot be patched away."""
    given = {repr(name): patch.settings for name, patch in patches.items()}
    for by, settings in {**given, "this spec": overrides}.items():
        for key, value in fixes.items():
            if settings.get(key, value) != value:
                raise UserError(
                    f"objective: {preset!r} and {by} contradict each other ({key}: {value} against "
                    f"{settings[key]}); leave one out or use another preset"
                )


def _refuse_contradicted(patches: Mapping[str, Patch], overrides: Mapping[str, Setting]) -> None:
    for name, patch in patches.items():
        for key, value in patch.fixes.items():
            if key in overrides and overrides[key] != value:
                raise UserError(
                    f"objective: patch {name!r} sets {key} to {value}, and {key}: {overrides[key]} "
                    "contradicts it; leave one out"
                )
