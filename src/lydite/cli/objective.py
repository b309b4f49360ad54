"""``lydite objective``: what a spec is."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from lydite.objective import Objective

# Keys of a recipe's objective that hold names.
NAMES = ("preset", "patches")


def objective(
    spec: Annotated[
        list[str] | None,
        typer.Argument(
            help="A preset and patches, `dapo` or `grpo+clip_higher`, then settings as `key=value`."
        ),
    ] = None,
    list_all: Annotated[
        bool, typer.Option("--list", help="Print the presets and patches, a line each.")
    ] = False,
    png: Annotated[
        Path | None,
        typer.Option("--png", help="Draw the surrogate and its gradient into this file instead."),
    ] = None,
) -> None:
    """Say what an objective is: its formula, where each setting comes from, its surrogate's plot.

    Example:

        lydite objective dapo

        lydite objective grpo+clip_higher+tis clip_high=0.3

        lydite objective gspo --png gspo.png

        lydite objective --list
    """
    if list_all:
        _list()
        return
    from lydite.config import UserError

    if not spec:
        raise UserError("objective: name a preset, such as grpo, or give --list")
    whole = _read(spec)
    found = _explain(whole)
    if png is None:
        _plot(found)
    else:
        _draw(found, png)


def _read(words: list[str]) -> dict[str, object]:
    """Names, and ``key=value`` settings read as YAML reads them."""
    import yaml

    from lydite.config import UserError

    names = [word for word in words if "=" not in word]
    overrides: dict[str, object] = {}
    for key, value in (word.split("=", 1) for word in words if "=" in word):
        if key in NAMES:
            names.append(value)
            continue
        if key in overrides:
            raise UserError(f"objective.{key}: is given twice; leave one out")
        try:
            overrides[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise UserError(
                f"objective.{key}: {value!r} is no value; give a number or name"
            ) from None
    return {**overrides, "preset": names or "grpo"}


def _explain(whole: dict[str, object]) -> Objective:
    from lydite.objective import Objective, describe
    from lydite.objective.explain import defaults, origins, shown, sources

    found = Objective.parse(whole)
    typer.echo(f"{found.name}\n")
    for line in describe(found):
        typer.echo(f"  {line}")
    rows, rest = origins(whole), defaults(whole)
    key_width = max(len(row.key) for row in rows)
    value_width = max(len(shown(row.value)) for row in rows)
    typer.echo("\nsettings, and where they come from\n")
    for row in rows:
        typer.echo(f"  {row.key:<{key_width}}  {shown(row.value):<{value_width}}  {row.by}")
    typer.echo("\n  the defaults of all others:")
    text = ", ".join(f"{key}={shown(value)}" for key, value in rest.items())
    typer.echo(textwrap.fill(text, 78, initial_indent="  ", subsequent_indent="  "))
    typer.echo("\nthe preset, what it is; each patch, the failure that it is for\n")
    for name, about, source in sources(whole):
        typer.echo(f"  {name}: {about}; {source}")
    return found


def _plot(found: Objective) -> None:
    from lydite.objective.explain import curve, plot

    typer.echo(
        "\nthe surrogate of one token against its ratio ρ, from 0 at ρ = 1; · has no gradient"
    )
    for sign, advantage in (("A = +1", 1.0), ("A = −1", -1.0)):
        typer.echo(f"\n  {sign}")
        for line in plot(curve(found, advantage)):
            typer.echo(line)


def _draw(found: Objective, path: Path) -> None:
    from lydite.objective.picture import save

    save(found, path)
    typer.echo(f"\npicture of the surrogate and its gradient: {path}")


def _list() -> None:
    from lydite.objective.explain import catalogue

    rows = catalogue()
    width = max(len(name) for _, name, _, _ in rows)
    for wanted, title in (
        ("preset", "presets, each a whole algorithm"),
        ("patch", "patches, to add to a preset: grpo+clip_higher"),
    ):
        typer.echo(title)
        for kind, name, about, source in rows:
            if kind == wanted:
                typer.echo(f"  {name:<{width}}  {about}; {source}")
