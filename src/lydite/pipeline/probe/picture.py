"""A probe in one picture: pass rates, pass@k, group sizes, lengths."""

from __future__ import annotations

import textwrap
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from lydite.pipeline.probe.findings import Findings
from lydite.watch.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart by every kind of colour vision.
_BLUE, _ORANGE, _GREEN, _GREY = "#0072B2", "#D55E00", "#009E73", "#8C8C8C"
_INK = "#222222"


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return False
    return True


def save(found: Findings, title: str, limit: int, path: Path) -> None:
    """Writes a PNG of 1,920 × 1,360 points; ``limit`` is the one that was sampled under."""
    drawn = BytesIO()
    draw(found, title, limit).savefig(drawn, format="png", dpi=160)
    write_atomic(path, drawn.getvalue())


def draw(found: Findings, title: str, limit: int) -> Figure:
    """Four panels."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8.5), facecolor="white")
    figure.subplots_adjust(left=0.07, right=0.93, top=0.87, bottom=0.08, hspace=0.38, wspace=0.3)
    figure.text(0.07, 0.955, title, fontsize=15, fontweight="bold", color=_INK, parse_math=False)
    said = textwrap.fill(found.skill, 150)
    figure.text(0.07, 0.94, said, fontsize=10, color=_GREY, parse_math=False, va="top")
    (rates, curve), (sizes, lengths) = figure.subplots(2, 2)
    _rates(rates, found)
    _curve(curve, found)
    _sizes(sizes, found)
    _lengths(lengths, found, limit)
    for axes in (rates, curve, sizes, lengths):
        axes.grid(axis="y", color=_GREY, alpha=0.25, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=9, colors=_INK, length=3)
        axes.title.set(fontsize=11, color=_INK)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    return figure


def _rates(axes: Axes, found: Findings) -> None:
    most = max(t.decided for t in found.tallies)
    bins = min(most, 20) + 1
    kept = set(found.band.kept) if found.band is not None else set()
    parts = [
        [t.rate for t in found.tallies if (t.problem_id in kept) is inside]
        for inside in (True, False)
    ]
    edges = [(number - 0.5) / (bins - 1) for number in range(bins + 1)]
    axes.hist(parts, bins=edges, stacked=True, color=[_GREEN, _GREY], rwidth=0.9,
              label=["worth sampling", "left out"])  # fmt: skip
    axes.set(title="Pass rates", xlabel="pass rate of a problem", ylabel="problems")
    _percent(axes, "x")
    axes.legend(frameon=False, fontsize=9)


def _curve(axes: Axes, found: Findings) -> None:
    at = [k for k, _ in found.curve]
    axes.plot(at, [i.mean for _, i in found.curve], color=_BLUE, marker="o", linewidth=2)
    axes.fill_between(at, [i.lo for _, i in found.curve], [i.hi for _, i in found.curve],
                      color=_BLUE, alpha=0.15, linewidth=0)  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks(at, [str(k) for k in at])
    axes.minorticks_off()
    axes.set(title="pass@k", xlabel="k", ylim=(0, 1.02))
    _percent(axes, "y")


def _sizes(axes: Axes, found: Findings) -> None:
    places = list(range(len(found.sizes)))
    chosen = None if found.choice is None else found.choice.size
    shares = [each.informative for each in found.sizes]
    axes.bar(
        places,
        [share.mean for share in shares],
        yerr=[[s.mean - s.lo for s in shares], [s.hi - s.mean for s in shares]],
        color=[_GREEN if each.size == chosen else _GREY for each in found.sizes],
        width=0.6,
        capsize=4,
        error_kw={"elinewidth": 1.2, "ecolor": _INK},
    )
    axes.set_xticks(places, [str(each.size) for each in found.sizes])
    axes.set(title="Informative groups, and what each costs", xlabel="completions in a group",
             ylim=(0, 1.02))  # fmt: skip
    _percent(axes, "y")
    costs = [(place, each.cost) for place, each in zip(places, found.sizes, strict=True)]
    costs = [(place, cost) for place, cost in costs if cost < float("inf")]
    right = axes.twinx()
    right.plot([p for p, _ in costs], [c for _, c in costs], color=_ORANGE, marker="D")
    right.set_ylabel("completions sampled for each", color=_ORANGE, fontsize=9)
    right.set_ylim(bottom=0)
    right.tick_params(labelsize=9, colors=_ORANGE, length=3)
    right.spines["top"].set_visible(False)


def _lengths(axes: Axes, found: Findings, limit: int) -> None:
    bins = [limit * number / 32 for number in range(33)]
    axes.hist(found.every.tokens, bins=bins, color=_GREY, label="all")
    axes.hist(found.right.tokens, bins=bins, color=_BLUE, alpha=0.8, label="right")
    axes.axvline(limit, color=_INK, linestyle=":", label=f"limit {limit}")
    if found.limit.tokens != limit:
        label = f"recommended {found.limit.tokens}"
        axes.axvline(found.limit.tokens, color=_ORANGE, linestyle="--", label=label)
    axes.set(title="Length", xlabel="tokens", ylabel="answers")
    axes.legend(frameon=False, fontsize=9)


def _percent(axes: Axes, which: str) -> None:
    from matplotlib.ticker import PercentFormatter

    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(PercentFormatter(1.0, decimals=0))
