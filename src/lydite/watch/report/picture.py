"""The course of a run's figures as a picture. matplotlib is imported where it is used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lydite.config import UserError
from lydite.watch.diagnosis.curves import Curves
from lydite.watch.report.panels import Panel, panels_of, smooth
from lydite.watch.words import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart by every kind of colour vision.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C")
_INK, _FAINT = "#222222", "#8C8C8C"
_COLUMNS = 3
_SMOOTH_FROM = 30
"""Steps from which a line is drawn smoothed, what was measured faint behind it."""


def check_drawable(option: str = "report") -> None:
    """
    Raises:
        UserError: matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise UserError(f"{option}: needs matplotlib; pip install 'lydite[plot]'") from None


def draw(curves: Curves) -> Figure:
    """One stage: a panel for each question, as far as there is something to show."""
    from matplotlib.figure import Figure

    panels = panels_of(curves)
    rows = max(1, math.ceil(len(panels) / _COLUMNS))
    figure = Figure(figsize=(13.5, 0.7 + 2.75 * rows), facecolor="white", layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)  # type: ignore[union-attr, call-arg]
    title = f"{curves.stage}  ({curves.kind}, {len(curves.steps)} steps)"
    figure.suptitle(
        title, x=0.01, ha="left", fontsize=14, fontweight="bold", color=_INK, parse_math=False
    )
    figure.supxlabel("step", fontsize=9, color=_FAINT)
    grid: Any = figure.subplots(rows, _COLUMNS, squeeze=False)
    places = [axes for row in grid for axes in row]
    for axes, panel in zip(places, panels, strict=False):
        _draw_panel(axes, curves, panel)
    for axes in places[len(panels) :]:
        axes.set_visible(False)
    return figure


def _draw_panel(axes: Axes, curves: Curves, panel: Panel) -> None:
    if panel.held_out:
        _draw_held_out(axes, curves)
    elif panel.stacked:
        _draw_stack(axes, curves, panel)
    else:
        _draw_lines(axes, curves, panel)
    _dress(axes, panel)
    evaluated = [e.step for each in curves.evaluations.values() for e in each]
    ends = [*curves.steps[:1], *curves.steps[-1:], *evaluated]
    room = 0.02 * max(1, max(ends) - min(ends))
    axes.set_xlim(min(ends) - room, max(ends) + room)  # The same in every panel.


def _draw_lines(axes: Axes, curves: Curves, panel: Panel) -> None:
    many = len(curves.steps) >= _SMOOTH_FROM and not panel.exact
    for number, (name, label) in enumerate(panel.lines):
        colour = _COLOURS[number % len(_COLOURS)]
        values = [_drawn(value, panel) for value in curves.metrics[name]]
        if many:
            axes.plot(curves.steps, values, color=colour, alpha=0.25, linewidth=0.8)
            values = smooth(values, _width(values))
        axes.plot(curves.steps, values, color=colour, linewidth=1.8, label=label or None)


def _width(values: Sequence[float]) -> int:
    return max(1, len(values) // 40)


def _drawn(value: float, panel: Panel) -> float:
    """A gap for what a logarithmic scale cannot show."""
    return math.nan if panel.scale == "log" and not value > 0 else value


def _draw_stack(axes: Axes, curves: Curves, panel: Panel) -> None:
    layers = [
        [value if math.isfinite(value) else 0.0 for value in curves.metrics[name]]
        for name, _ in panel.lines
    ]
    colours = [_COLOURS[n % len(_COLOURS)] for n in range(len(layers))]
    labels = [label for _, label in panel.lines]
    if len(curves.steps) >= _SMOOTH_FROM:
        layers = [smooth(layer, _width(layer)) for layer in layers]
    axes.stackplot(curves.steps, layers, colors=colours, labels=labels, alpha=0.85, linewidth=0)


def _draw_held_out(axes: Axes, curves: Curves) -> None:
    for number, (task, events) in enumerate(curves.evaluations.items()):
        known = [event for event in events if math.isfinite(event.avg)]
        if not known:
            continue
        colour = _COLOURS[number % len(_COLOURS)]
        means = [event.avg for event in known]
        sides = [
            [event.avg - event.lo if math.isfinite(event.lo) else 0.0 for event in known],
            [event.hi - event.avg if math.isfinite(event.hi) else 0.0 for event in known],
        ]
        axes.errorbar(
            [event.step for event in known], means, yerr=sides, color=colour, marker="o",
            markersize=4, linewidth=1.8, elinewidth=1.0, capsize=3, label=printable(task),
        )  # fmt: skip


def _dress(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import (
        FuncFormatter,
        LogLocator,
        MaxNLocator,
        NullFormatter,
        PercentFormatter,
    )

    heading = f"{panel.title}, {panel.unit}" if panel.unit else panel.title
    axes.set_title(heading, loc="left", fontsize=10.5, color=_INK)
    if panel.scale == "share":
        axes.set_ylim(-0.03, 1.03)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    elif panel.scale == "few":
        axes.set_ylim(0, max(0.01, 1.1 * axes.get_ylim()[1]))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    elif panel.scale == "log":
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=7))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    if panel.stacked:
        axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.grid(axis="y", color=_FAINT, alpha=0.25, linewidth=0.7)
    axes.tick_params(labelsize=8.5, colors=_INK, length=3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        legend = axes.legend(
            handles, labels, frameon=False, fontsize=8, labelcolor=_INK, loc="best",
            ncols=2 if len(labels) > 3 else 1,
        )  # fmt: skip
        for text in legend.get_texts():
            text.set_parse_math(False)  # The name of a task is no formula.


def as_svg(curves: Curves) -> str:
    """The picture of a stage as an SVG element, the same for the same figures."""
    import matplotlib

    held = StringIO()
    with matplotlib.rc_context({"svg.hashsalt": curves.stage, "svg.fonttype": "none"}):
        draw(curves).savefig(held, format="svg", metadata={"Date": None})
    text = held.getvalue()
    return text[text.index("<svg") :]


def as_png(stages: Sequence[Curves]) -> bytes:
    """The stages one below the other.

    Raises:
        UserError: there is no stage with anything to show.
    """
    from matplotlib import image

    shown = [curves for curves in stages if panels_of(curves)]
    if not shown:
        raise UserError("--png: nothing was measured yet; wait for the first steps")
    pictures = []
    for curves in shown:
        held = BytesIO()
        draw(curves).savefig(held, format="png", dpi=120)
        pictures.append(image.imread(BytesIO(held.getvalue())))
    if len(pictures) == 1:
        return held.getvalue()
    import numpy as np

    whole = BytesIO()
    image.imsave(whole, np.concatenate(pictures, axis=0), format="png")
    return whole.getvalue()


def save_png(stages: Sequence[Curves], path: Path) -> None:
    """Writes :func:`as_png`.

    Raises:
        UserError: matplotlib is not installed, there is nothing to show, or it is no PNG.
    """
    if path.suffix.lower() != ".png" or not path.parent.is_dir():
        raise UserError(f"--png {path}: give a .png file in a folder that exists")
    check_drawable("--png")
    path.write_bytes(as_png(stages))
