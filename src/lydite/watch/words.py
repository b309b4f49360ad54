"""How numbers and a model's text are put for a person: shares, times, sparklines, text made safe to
print.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from lydite.watch.events import DatasetMade, Evaluated

_BARS = "▁▂▃▄▅▆▇█"


def share(value: float) -> str:
    """``0.613`` as ``61.3%``; a dash for NaN."""
    return "-" if math.isnan(value) else f"{100 * value:.1f}%"


def score(evaluation: Evaluated) -> str:
    """A held-out score with its 95% interval: ``61.3% [57.2, 65.3]``."""
    if math.isnan(evaluation.lo) or math.isnan(evaluation.hi):
        return share(evaluation.avg)
    return f"{share(evaluation.avg)} [{100 * evaluation.lo:.1f}, {100 * evaluation.hi:.1f}]"


def repeated(evaluation: Evaluated) -> str:
    """pass@k and maj@k of as many samples as there are, behind a comma; empty without them."""
    names = (f"{kind}@{evaluation.k}" for kind in ("pass", "maj"))
    known = [(name, evaluation.metrics[name]) for name in names if name in evaluation.metrics]
    return "".join(f", {name} {share(value)}" for name, value in known)


def selection(made: DatasetMade) -> str:
    """What filters did, in their order: ``40 of 96 samples kept, of 12 problems; dropped: …``."""
    text = f"{made.kept} of {made.sampled} samples kept, of {made.problems} problems"
    dropped = [f"{count} {name.replace('_', ' ')}" for name, count in made.dropped.items()]
    return f"{text}; dropped: {', '.join(dropped)}" if dropped else text


def duration(seconds: float) -> str:
    """``9s``, ``1m52s``, ``2h05m``, ``3d04h``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def sparkline(values: Sequence[float], width: int) -> str:
    """The course of ``values`` in at most ``width`` characters, each the mean of its stretch; gaps
    for NaN.

    The lowest stretch is the lowest bar and the highest the highest; a flat course is drawn in the
    middle.
    """
    if not values or width < 1:
        return ""
    count = min(width, len(values))
    edges = [round(i * len(values) / count) for i in range(count + 1)]
    means = [_mean(values[a:b]) for a, b in pairwise(edges)]
    known = [mean for mean in means if not math.isnan(mean)]
    if not known:
        return " " * count
    low, spread = min(known), max(known) - min(known)
    top = len(_BARS) - 1

    def bar(mean: float) -> str:
        if math.isnan(mean):
            return " "
        return _BARS[round(top * (mean - low) / spread) if spread > 0 else top // 2]

    return "".join(map(bar, means))


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return math.fsum(known) / len(known) if known else math.nan


def printable(text: str) -> str:
    """``text`` without what would command the terminal: escapes, other controls, direction
    overrides, surrogates.

    What a model writes is shown and never obeyed. Newlines stay, tabs become spaces, the rest
    becomes ``�``.
    """
    plain = text.expandtabs(4)
    return "".join(
        c if c == "\n" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in plain
    )


def shortened(text: str, characters: int) -> str:
    """``text`` in at most ``characters``, what is left out of its middle said: the ends tell the
    most.
    """
    if len(text) <= characters:
        return text
    cut = f" […{len(text) - characters} more…] "
    keep = max(2, characters - len(cut))
    return text[: keep // 2] + cut + text[len(text) - (keep - keep // 2) :]
