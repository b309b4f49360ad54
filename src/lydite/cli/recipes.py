"""``lydite recipes``."""

from __future__ import annotations


def recipes() -> None:
    """Lists the recipes that ship, with what each is for.

    Run one by name: [bold]lydite run quickstart[/]. Copy one to start your own.
    """
    from rich.console import Console
    from rich.table import Table

    from lydite.pipeline.catalogue import list_recipes

    table = Table(box=None, pad_edge=False)
    table.add_column("recipe", style="bold")
    table.add_column("what it is for")
    table.add_column("file", style="dim", overflow="fold")
    for recipe in list_recipes():
        table.add_row(recipe.name, recipe.about, str(recipe.path))
    Console(highlight=False).print(table)
