"""A picture of an objective's surrogate and its gradient, as for a slide."""

from __future__ import annotations

import math
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lydite.config import UserError
from lydite.objective.describe import UNDER, describe
from lydite.objective.explain import Curve, clip_edges, curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from lydite.objective.objective import Objective

# Of Okabe and Ito's palette: told apart by every kind of colour vision, and in grey by the dashes.
GOOD, BAD = "#0072B2", "#D55E00"
_INK, _FAINT, _BAND = "#222222", "#8C8C8C", "#F1F1EC"
_POINTS = 601


def save(objective: Objective, path: Path) -> None:
    """Writes a PNG of 1,920 × 1,200 points.

    Raises:
        UserError: matplotlib is not installed, or the file cannot be written.
    """
    if path.suffix.lower() != ".png":
        raise UserError(f"--png: {path} is no name of a PNG; end it in .png")
    figure = draw(objective)
    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=200)
    try:
        path.write_bytes(drawn.getvalue())
    except OSError as error:
        why = error.strerror or error
        raise UserError(f"--png: cannot write {path}: {why}; name a file in a folder") from None


def draw(objective: Objective) -> Figure:
    """The surrogate above its gradient, against the ratio, for both signs of the advantage.

    Raises:
        UserError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("--png: needs the package matplotlib; pip install 'lydite[plot]'") from None
    figure = Figure(figsize=(9.6, 6.0), facecolor="white")
    top, bottom = figure.subplots(
        2, 1, sharex=True, gridspec_kw={"height_ratios": [3, 2], "hspace": 0.12}
    )
    figure.subplots_adjust(left=0.11, right=0.9, top=0.82, bottom=0.1)
    formula = next(line for line in describe(objective) if line.startswith("surrogate: "))
    _write(figure, 0.945, objective.name, (19, 48), fontweight="bold")
    _write(figure, 0.885, formula.split(": ", 1)[1], (11, 92))
    curves = [curve(objective, sign, _POINTS) for sign in (1.0, -1.0)]
    _mark(objective, (top, bottom), curves[0])
    for found, colour, style, name in zip(
        curves, (GOOD, BAD), ("-", (0, (6, 2))), ("A = +1", "A = −1"), strict=True
    ):
        for axes, values in ((top, found.values), (bottom, found.slopes)):
            axes.plot(found.ratios, values, color=colour, linestyle=style, linewidth=2.4, zorder=3)
        top.annotate(
            name,
            (found.ratios[-1], found.values[-1]),
            xytext=(8, 0),
            textcoords="offset points",
            color=colour,
            fontsize=12,
            fontweight="bold",
            va="center",
        )
    top.set_ylabel("gain, from 0 at ρ = 1")
    bottom.set_ylabel("∂ gain / ∂ log π")
    under = UNDER[objective.anchor].split("_")[1]
    bottom.set_xlabel(rf"ratio  $\rho = \pi\,/\,\pi_{{\mathrm{{{under}}}}}$")
    return figure


def _write(figure: Figure, y: float, text: str, fit: tuple[float, int], **style: Any) -> None:
    """A line at the left; ``fit`` is its size, and how many characters fit at that size."""
    size = fit[0] * min(1.0, fit[1] / len(text))
    figure.text(0.11, y, text, fontsize=size, color=_INK, va="center", **style)


def _mark(objective: Objective, panels: tuple[Axes, Axes], found: Curve) -> None:
    """Ratio 1, the clip range, the bound for A < 0, and ticks where they are."""
    from matplotlib.ticker import MaxNLocator

    start, end = found.ratios[0], found.ratios[-1]
    edges = clip_edges(objective)
    ticks = {1.0: "1"}
    if edges is not None:
        ticks |= {edge: _shown(edge, end - start) for edge in edges if start < edge < end}
    if objective.dual_clip is not None:
        ticks[objective.dual_clip] = f"{objective.dual_clip:g}"
    # Plain numbers between them, as far as there is room.
    for other in map(float, MaxNLocator(6).tick_values(start, end)):
        if start <= other <= end and min(abs(other - t) for t in ticks) > 0.07 * (end - start):
            ticks[other] = _shown(other, end - start)
    for axes in panels:
        axes.set_xlim(start, end)
        axes.axhline(0, color=_FAINT, linewidth=0.8, zorder=1)
        axes.axvline(1, color=_FAINT, linewidth=0.8, zorder=1)
        if edges is not None:
            axes.axvspan(max(edges[0], start), min(edges[1], end), color=_BAND, zorder=0)
        if objective.dual_clip is not None:
            axes.axvline(objective.dual_clip, color=BAD, linewidth=1, linestyle=":", zorder=1)
        axes.set_xticks(list(ticks), list(ticks.values()))
        axes.tick_params(labelsize=10, colors=_INK, length=3)
        axes.yaxis.label.set(color=_INK, fontsize=12)
        axes.xaxis.label.set(color=_INK, fontsize=12)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    if edges is not None:
        panels[0].annotate(
            "not clipped",
            ((max(edges[0], start) + min(edges[1], end)) / 2, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, 4),
            textcoords="offset points",
            color=_FAINT,
            fontsize=10,
            ha="center",
        )


def _shown(value: float, width: float) -> str:
    """To a hundredth of what is shown, no more."""
    digits = max(0, 2 - math.floor(math.log10(width)))
    return f"{value:.{digits}f}".rstrip("0").rstrip(".")
