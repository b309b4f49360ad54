"""Progress bars on the terminal; nothing where there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Tell = Callable[[str, int, int], None]
"""Told of some work by its name how much of it is done, and how much there is."""


@contextmanager
def progress_bars() -> Iterator[Tell]:
    """A bar for each name that is told of, gone at the end."""
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    bars = progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    known: dict[str, progress.TaskID] = {}

    def tell(name: str, done: int, total: int) -> None:
        if name not in known:
            known[name] = bars.add_task(name)
        bars.update(known[name], completed=done, total=total)

    with bars:
        yield tell
