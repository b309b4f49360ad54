"""Accuracy against thinking budget as a picture."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lydite.config import UserError
from lydite.pipeline.budgets import Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart by every kind of colour vision; markers tell them in grey.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = "osD^vP"
_INK, _FAINT = "#222222", "#8C8C8C"
_WIDE = 6.0
"""Largest over smallest budget from which the axis counts in doublings."""


def check_png(path: Path) -> None:
    """Whether a picture can be drawn into a file, to be known before an hour of sampling.

    Raises:
        UserError: no PNG, no such folder, or matplotlib is not installed.
    """
    if path.suffix.lower() != ".png" or not path.parent.is_dir():
        raise UserError(f"--png: {path}: give a .png file in a folder that exists")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise UserError("--png: needs the package matplotlib; pip install 'lydite[plot]'") from None


def save(found: Sequence[Point], model: str, path: Path) -> None:
    """Writes a PNG of 1,920 × 1,280 points.

    Raises:
        UserError: see :func:`check_png`; or the file cannot be written.
    """
    check_png(path)
    drawn = BytesIO()
    draw(found, model).savefig(drawn, format="png", dpi=200)
    try:
        path.write_bytes(drawn.getvalue())
    except OSError as error:
        raise UserError(f"--png: cannot write {path}: {error.strerror or error}") from None


def draw(found: Sequence[Point], model: str) -> Figure:
    """Accuracy with its 95% interval, above the share of completions that hit the budget. What was
    measured without a budget is a dashed line. ``model`` is what was measured.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 6.4), facecolor="white")
    top, bottom = figure.subplots(
        2, 1, sharex=True, gridspec_kw={"height_ratios": [3, 1], "hspace": 0.14}
    )
    figure.subplots_adjust(left=0.1, right=0.96, top=0.87, bottom=0.1)
    head = "Accuracy against thinking budget"
    figure.text(0.1, 0.955, head, fontsize=15, fontweight="bold", color=_INK, va="center")
    size = min(11.0, 11.0 * 100 / max(1, len(model)))
    figure.text(0.1, 0.91, model, fontsize=size, color=_FAINT, va="center", parse_math=False)
    tasks = list(dict.fromkeys(p.task for p in found))
    places = _places({p.budget for p in found if p.budget is not None})
    for number, task in enumerate(tasks):
        _draw_task((top, bottom), [p for p in found if p.task == task], places, number)
    _axes(top, bottom, places)
    if len(tasks) > 1 or any(p.budget is None for p in found):
        top.legend(frameon=False, fontsize=10, labelcolor=_INK, loc="best")
    return figure


def _places(budgets: Collection[int]) -> dict[int, float]:
    """Where each budget lies on the axis: a doubling is a step where they are far apart, and 0 lies
    a step before the smallest.
    """
    least = min((budget for budget in budgets if budget), default=1)
    if not budgets or max(budgets) < _WIDE * least:
        return {budget: float(budget) for budget in sorted(budgets)}
    return {budget: math.log2(budget / least) if budget else -1.0 for budget in sorted(budgets)}


def _draw_task(
    panels: tuple[Axes, Axes], found: Sequence[Point], places: Mapping[int, float], number: int
) -> None:
    colour, marker = _COLOURS[number % len(_COLOURS)], _MARKERS[number % len(_MARKERS)]
    bound = [p for p in found if p.budget is not None and not math.isnan(p.accuracy.mean)]
    at = [places[p.budget] for p in bound if p.budget is not None]
    means = [p.accuracy.mean for p in bound]
    below = [p.accuracy.mean - p.accuracy.lo for p in bound]
    above = [p.accuracy.hi - p.accuracy.mean for p in bound]
    style: dict[str, Any] = {"color": colour, "marker": marker, "linewidth": 2.2, "markersize": 7}
    panels[0].errorbar(
        at, means, yerr=[below, above], label=found[0].task, capsize=4, elinewidth=1.2, **style
    )
    panels[1].plot(at, [p.hits for p in bound], **style)
    for p in found:
        if p.budget is None and not math.isnan(p.accuracy.mean):
            label = f"{p.task}, no budget"
            panels[0].axhline(p.accuracy.mean, color=colour, linestyle="--", label=label)
            panels[0].axhspan(p.accuracy.lo, p.accuracy.hi, color=colour, alpha=0.08, linewidth=0)


def _axes(top: Axes, bottom: Axes, places: Mapping[int, float]) -> None:
    from matplotlib.ticker import PercentFormatter

    bottom.set_xticks(list(places.values()), [f"{budget:,}" for budget in places])
    bottom.margins(x=0.04)
    bottom.set_xlabel("thinking budget, tokens")
    top.set_ylabel("accuracy")
    bottom.set_ylabel("budget hits")
    bottom.set_ylim(-0.05, 1.05)
    bottom.set_yticks([0, 0.5, 1])
    for axes in (top, bottom):
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.grid(axis="y", color=_FAINT, alpha=0.25, linewidth=0.8)
        axes.tick_params(labelsize=10, colors=_INK, length=3)
        axes.yaxis.label.set(color=_INK, fontsize=12)
        axes.xaxis.label.set(color=_INK, fontsize=12)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
