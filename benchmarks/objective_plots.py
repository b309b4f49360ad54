"""The plots of ``objectives.py`` and ``objective_effects.py``. Needs matplotlib (extra ``plot``).

Colours are Okabe and Ito's, which people with any colour vision can tell apart; a line has a style
of its own too. Lines are means over seeds, bands go from the lowest seed to the highest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from objective_runs import Run

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000")
STYLES = ("-", "--", "-.", ":", "-")
GREY = "#999999"
plt.rcParams.update(
    {
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 9,
        "axes.grid": True,
        "grid.color": "#e5e5e5",
        "legend.frameon": False,
        "savefig.dpi": 110,
    }
)
Series = Sequence[tuple[Sequence[float], Sequence[float]]]
"""For each seed, where and what."""


def smoothed(values: Sequence[float], width: int = 5) -> list[float]:
    """Means over a centred window, NaN left out."""
    found = []
    for index in range(len(values)):
        near = values[max(0, index - width // 2) : index + width // 2 + 1]
        held = [value for value in near if not math.isnan(value)]
        found.append(fmean(held) if held else math.nan)
    return found


def at(where: Sequence[float], what: Sequence[float], place: float) -> float:
    """A series on the straight line between its points; NaN outside."""
    for (x0, y0), (x1, y1) in zip(
        zip(where, what, strict=True), zip(where[1:], what[1:], strict=True), strict=False
    ):
        if x0 <= place <= x1:
            return y0 if x1 == x0 else y0 + (y1 - y0) * (place - x0) / (x1 - x0)
    return math.nan


def band(axes: Any, series: Series, colour: str, style: str, label: str | None = None) -> None:
    """Mean and range over seeds, over what all of them cover."""
    low = max(where[0] for where, _ in series)
    high = min(where[-1] for where, _ in series)
    places = [low + (high - low) * i / 100 for i in range(101)]
    values = [[at(where, what, place) for where, what in series] for place in places]
    axes.plot(places, [fmean(v) for v in values], style, color=colour, label=label, linewidth=1.6)
    if len(series) > 1:
        lows, highs = [min(v) for v in values], [max(v) for v in values]
        axes.fill_between(places, lows, highs, color=colour, alpha=0.15, linewidth=0)


def by_tokens(runs: Sequence[Run], name: str) -> Series:
    """A figure of every step, smoothed, over thousands of sampled tokens."""
    return [([t / 1e3 for t in r.column("tokens")], smoothed(r.column(name))) for r in runs]


def by_step(runs: Sequence[Run], name: str) -> Series:
    """A figure of every step, smoothed, over steps."""
    return [(list(range(1, len(r.steps) + 1)), smoothed(r.column(name))) for r in runs]


def heldout(runs: Sequence[Run], where: str = "tokens", scale: float = 1e3) -> Series:
    """Held-out accuracy in percent."""
    return [
        ([row[where] / scale for row in r.heldout], [100 * row["accuracy"] for row in r.heldout])
        for r in runs
    ]


def save(figure: Any, folder: Path, name: str) -> None:
    """Writes a picture."""
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png", metadata={"Software": None})
    plt.close(figure)


def plot_presets(runs: Mapping[str, Sequence[Run]], folder: Path, minibatches: int) -> None:
    """Learning curves of the presets that have several seeds, and one line for every preset.

    One update a rollout, and one seed throughout, have files of their own.
    """
    several = {name: found for name, found in runs.items() if len(found) > 1}
    suffix = "" if minibatches > 1 else "_on_policy"
    if several:
        _curves(several, folder, f"objectives_curves{suffix}")
    _ranking(runs, folder, f"objectives_{'ranking' if several else 'one_seed'}{suffix}")


def _curves(runs: Mapping[str, Sequence[Run]], folder: Path, name: str) -> None:
    rows = math.ceil(len(runs) / 5)
    figure, grid = plt.subplots(
        rows, 5, figsize=(10, 2.1 * rows + 0.4), sharex=True, sharey=True, layout="constrained"
    )
    for axes, (preset, found) in zip(grid.flat, runs.items(), strict=False):
        if preset != "grpo" and "grpo" in runs:
            band(axes, heldout(runs["grpo"]), GREY, ":")
        band(axes, heldout(found), COLOURS[0], "-")
        axes.set_title(preset)
        axes.set_ylim(0, 101)
        axes.set_xscale("symlog", linthresh=10)
        axes.set_xticks([0, 5, 10, 30, 100], ["0", "5", "10", "30", "100"])
        axes.minorticks_off()
    for axes in list(grid.flat)[len(runs) :]:
        axes.axis("off")
    figure.supxlabel("sampled tokens, thousands (dotted: grpo)", fontsize=9)
    figure.supylabel("held-out accuracy, %", fontsize=9)
    save(figure, folder, name)


def _ranking(runs: Mapping[str, Sequence[Run]], folder: Path, name: str) -> None:
    order = sorted(runs, key=lambda preset: fmean(r.mean_accuracy for r in runs[preset]))
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(9, 0.24 * len(order) + 0.9), sharey=True, layout="constrained"
    )
    for place, preset in enumerate(order):
        found = runs[preset]
        areas = [100 * run.mean_accuracy for run in found]
        ends = [100 * fmean(run.scores) for run in found]
        colour = COLOURS[0] if len(found) > 1 else COLOURS[1]
        marker = "o" if len(found) > 1 else "D"
        for axes, values in ((left, areas), (right, ends)):
            axes.plot(values, [place] * len(values), marker, color=colour, alpha=0.7, markersize=5)
    left.set_yticks(range(len(order)), order)
    left.set_xlabel("accuracy averaged over the budget, %")
    right.set_xlabel("held-out accuracy at the end, %")
    if len({len(found) > 1 for found in runs.values()}) > 1:
        left.plot([], [], "o", color=COLOURS[0], label="one of several seeds")
        left.plot([], [], "D", color=COLOURS[1], label="the only seed")
        left.legend(loc="upper left")
    save(figure, folder, name)


def plot_length(runs: Mapping[str, Sequence[Run]], folder: Path) -> str:
    """Lengths of wrong and of right answers, step by step, and how they end."""
    figure, axes = plt.subplots(1, 3, figsize=(10, 3), layout="constrained")
    axes[1].sharey(axes[0])
    lines = []
    for index, (label, found) in enumerate(runs.items()):
        look = COLOURS[index], STYLES[index]
        band(axes[0], by_step(found, "wrong"), *look, label)
        band(axes[1], by_step(found, "right"), *look)
        band(axes[2], _gap(found), *look)
        ends = [(_late(r, "right"), _late(r, "wrong")) for r in found]
        lines.append(f"{label}: right, wrong at the end by seed {_pairs(ends)}")
    for each, title in zip(
        axes, ("wrong answers", "right answers", "wrong less right"), strict=True
    ):
        each.set_title(title)
        each.set_xlabel("policy steps")
        each.xaxis.get_major_locator().set_params(integer=True)
    axes[0].set_ylabel("length, tokens")
    axes[2].set_ylabel("difference, tokens")
    axes[2].axhline(0, color=GREY, linewidth=0.8)
    figure.legend(loc="outside lower center", ncols=3)
    save(figure, folder, "objectives_length")
    return "\n".join(lines)


def _gap(runs: Sequence[Run]) -> Series:
    found = []
    for run in runs:
        gap = [w - r for w, r in zip(run.column("wrong"), run.column("right"), strict=True)]
        found.append((list(range(1, len(gap) + 1)), smoothed(gap)))
    return found


def _late(run: Run, name: str) -> float:
    values = [value for value in run.column(name)[-5:] if not math.isnan(value)]
    return fmean(values) if values else math.nan


def _pairs(pairs: Sequence[tuple[float, float]]) -> str:
    return "; ".join(f"{a:.1f}, {b:.1f}" for a, b in pairs)


def plot_entropy(runs: Mapping[str, Sequence[Run]], folder: Path) -> str:
    """Entropy, the share of clipped tokens, and held-out accuracy."""
    figure, axes = plt.subplots(1, 3, figsize=(10, 3), layout="constrained")
    lines = []
    for index, (label, found) in enumerate(runs.items()):
        look = COLOURS[index], STYLES[index]
        band(axes[0], by_tokens(found, "entropy"), *look, label)
        shares = [(x, [100 * y for y in ys]) for x, ys in by_tokens(found, "clip_high")]
        band(axes[1], shares, *look)
        band(axes[2], heldout(found), *look)
        ends = [(_late(r, "entropy"), 100 * fmean(r.scores)) for r in found]
        shown = "; ".join(f"{entropy:.4f}, {end:.1f}%" for entropy, end in ends)
        lines.append(f"{label}: entropy, held-out accuracy at the end by seed {shown}")
    for each, label in zip(
        axes,
        ("entropy, nats", "clipped above, % of tokens", "held-out accuracy, %"),
        strict=True,
    ):
        each.set_ylabel(label)
        each.set_xlabel("sampled tokens, thousands")
    figure.legend(loc="outside lower center", ncols=3)
    save(figure, folder, "objectives_entropy")
    return "\n".join(lines)


def plot_idle(runs: Mapping[str, Sequence[Run]], folder: Path) -> str:
    """Groups that teach in an update, and accuracy over updates and over tokens."""
    figure, axes = plt.subplots(1, 3, figsize=(10, 3), layout="constrained")
    lines = []
    for index, (label, found) in enumerate(runs.items()):
        look = COLOURS[index], STYLES[index]
        teaching = [
            (list(range(1, len(r.steps) + 1)), smoothed(_teaching(r, label))) for r in found
        ]
        band(axes[0], teaching, *look, label)
        band(axes[1], heldout(found, "step", 1), *look)
        band(axes[2], heldout(found), *look)
        idle = [1 - fmean(r.column("informative_groups")) for r in found]
        ends = [100 * fmean(r.scores) for r in found]
        crossings = [r.crossing(0.8) for r in found]
        at_80 = [(c["step"], c["tokens"] / 1e3) for c in crossings if c is not None]
        lines.append(
            f"{label}: sampled groups without a signal {fmean(idle):.0%}; groups that teach in an "
            f"update {fmean(fmean(_teaching(r, label)) for r in found):.1f}; updates in the budget "
            f"{fmean(len(r.steps) for r in found):.0f}; updates, thousand tokens to 80% by seed "
            f"{_pairs(at_80)}; at the end {', '.join(f'{end:.1f}%' for end in ends)}"
        )
    axes[0].set_ylabel("groups that teach, of an update")
    axes[0].set_ylim(bottom=0)
    for each in axes[1:]:
        each.set_ylabel("held-out accuracy, %")
    axes[0].set_xlabel("policy updates")
    axes[1].set_xlabel("policy updates")
    axes[2].set_xlabel("sampled tokens, thousands")
    figure.legend(loc="outside lower center", ncols=3)
    save(figure, folder, "objectives_idle")
    return "\n".join(lines)


def _teaching(run: Run, label: str) -> list[float]:
    """Groups with a signal that an update is made of: what is trained on, less what is idle."""
    if label == "all groups":
        pairs = zip(run.column("groups"), run.column("informative_groups"), strict=True)
        return [groups * share for groups, share in pairs]
    return run.column("groups")


EDGES = (20, 30, 35, 40, 45, 50, 55, 60, 65, 70, 77)


def plot_ratio(runs: Mapping[str, Sequence[Run]], folder: Path) -> str:
    """Standard deviation of the logs of token, sequence and product ratios by answer length."""
    figure, axes = plt.subplots(figsize=(5.2, 3.4), layout="constrained")
    seeds = [run.steps for found in runs.values() for run in found]
    lines = []
    kinds: tuple[tuple[str, Callable[[Sequence[Mapping[str, float]]], float]], ...] = (
        ("token ratio", _token_std),
        ("sequence ratio (mean of the logs)", lambda rows: pstdev(_mean_log(r) for r in rows)),
        ("product of token ratios", lambda rows: pstdev(r["sum"] for r in rows)),
    )
    bins = [
        [[r for r in rows if low <= r["length"] < high] for rows in seeds]
        for low, high in pairwise(EDGES)
    ]
    full = [cut for cut in bins if all(len(rows) >= 8 for rows in cut)]
    centres = [fmean(r["length"] for rows in cut for r in rows) for cut in full]
    for index, (label, std) in enumerate(kinds):
        series = [(centres, [std(cut[seed]) for cut in full]) for seed in range(len(seeds))]
        band(axes, series, COLOURS[index], STYLES[index], label)
        means = [fmean(values[place] for _, values in series) for place in range(len(full))]
        shown = ", ".join(f"{x:.0f}: {y:.3g}" for x, y in zip(centres, means, strict=True))
        lines.append(f"{label}: standard deviation by length {shown}")
    spreads = [fmean(_token_std(rows) for rows in cut) for cut in full]
    ideal = [spread / math.sqrt(x) for spread, x in zip(spreads, centres, strict=True)]
    axes.plot(centres, ideal, ":", color=GREY, label="token ratio ÷ √length")
    axes.set_yscale("log")
    axes.set_xlabel("length of the answer, tokens")
    axes.set_ylabel("standard deviation of the log-ratio")
    figure.legend(loc="outside lower center", ncols=2)
    save(figure, folder, "objectives_ratio")
    return "\n".join(lines)


def _token_std(rows: Sequence[Mapping[str, float]]) -> float:
    count = sum(r["length"] for r in rows)
    mean = sum(r["sum"] for r in rows) / count
    return math.sqrt(max(0.0, sum(r["squares"] for r in rows) / count - mean * mean))


def _mean_log(row: Mapping[str, float]) -> float:
    return row["sum"] / row["length"]


EFFECTS: Mapping[str, Callable[[Mapping[str, Sequence[Run]], Path], str]] = {
    "length": plot_length,
    "entropy": plot_entropy,
    "idle": plot_idle,
    "ratio": plot_ratio,
}
