"""``lydite lineage``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def lineage(
    run: Annotated[
        Path,
        typer.Argument(
            help="Folder of a run, such as runs/quickstart; of one of its stages, wherever it is "
            "now; or of an exported model."
        ),
    ],
    json: Annotated[bool, typer.Option("--json", help="Print the tree as JSON.")] = False,
) -> None:
    """Shows what a run's artifacts follow from, as a tree: models, data, settings, seeds, code,
    and held-out scores.

    A stage hangs below the model that it started from. Fingerprints are the first digits of a
    SHA-256 (all of them with --json); two artifacts with the same one are made of the same inputs.

    [bold]Examples[/]

    lydite lineage runs/quickstart

    lydite lineage runs/quickstart/stages/rl --json
    """
    from json import dumps

    from rich.console import Console
    from rich.text import Text
    from rich.tree import Tree

    from lydite.pipeline.lineage import Node, read_lineage

    def grow(branch: Tree, node: Node) -> Tree:
        for line in node.lines:
            branch.add(Text(line, style="dim"))
        for child in node.children:
            grow(branch.add(Text(child.title, style="bold")), child)
        return branch

    root = read_lineage(run)
    if json:
        typer.echo(dumps(root.as_json(), indent=2, ensure_ascii=False))
        return
    Console(highlight=False, emoji=False).print(
        grow(Tree(Text(root.title, style="bold")), root), soft_wrap=True
    )
