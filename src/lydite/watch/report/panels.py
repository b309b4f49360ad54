"""Which figures of a stage are drawn together, and what has nothing to show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from lydite.watch.diagnosis.curves import Curves

Scale = Literal["plain", "share", "few", "log"]
"""``share`` goes from 0 to 1; ``few`` are shares that are small where all is well."""


@dataclass(frozen=True, slots=True)
class Panel:
    """``lines`` are metrics, each with how it is called in the legend, nothing where the title
    says it. ``stacked`` ones lie on top of each other, ``exact`` ones are not smoothed.
    ``held_out`` has the scores with their intervals and no lines.
    """

    title: str
    unit: str
    lines: tuple[tuple[str, str], ...] = ()
    scale: Scale = "plain"
    stacked: bool = False
    held_out: bool = False
    exact: bool = False


PANELS = (
    Panel("Reward", "", (("reward", ""),)),
    Panel("Accuracy in training", "", (("accuracy", ""),), "share"),
    Panel("Held out, 95% interval", "", scale="share", held_out=True),
    Panel("Loss", "nats a token", (("loss", ""),)),
    Panel("Better answers preferred", "share of pairs", (("reward_accuracy", ""),), "share"),
    Panel("KL to the teacher", "nats a token", (("kl_teacher", ""),)),
    Panel(
        "Groups",
        "",
        (
            ("informative_groups", "informative"),
            ("groups_all_right", "all right"),
            ("groups_all_wrong", "all wrong"),
        ),
        "share",
    ),
    Panel(
        "Length",
        "tokens",
        (
            ("length", "mean"),
            ("length_right", "right"),
            ("length_wrong", "wrong"),
            ("length_p99", "99th percentile"),
        ),
    ),
    Panel(
        "Text",
        "",
        (
            ("truncated", "truncated"),
            ("well_formed", "well formed"),
            ("language_share", "in the language"),
            ("repetition", "repeated"),
            ("budget_hits", "budget hits"),
            ("distinct_completions", "distinct"),
        ),
        "share",
    ),
    Panel(
        "Entropy",
        "nats a token",
        (
            ("entropy", "all tokens"),
            ("entropy_first", "first fifth"),
            ("entropy_last", "last fifth"),
            ("entropy_top", "top fifth"),
        ),
    ),
    Panel(
        "KL",
        "nats a token",
        (
            ("kl_reference", "to the reference"),
            ("kl_old", "to the step's start"),
            ("kl_behaviour", "to the sampler"),
        ),
        "log",
    ),
    Panel("Clipped tokens", "", (("clip_low", "below"), ("clip_high", "above")), "few"),
    Panel("Gradient norm", "before clipping", (("grad_norm", ""),), "log"),
    Panel("Update over weights", "ratio of norms", (("update_ratio", ""),), "log"),
    Panel("Learning rate", "", (("lr", ""),), exact=True),
    Panel(
        "Seconds a step",
        "s",
        (
            ("seconds_sample", "sample"),
            ("seconds_verify", "verify"),
            ("seconds_guide", "teacher"),
            ("seconds_judge", "critic"),
            ("seconds_update", "update"),
            ("seconds_sync", "sync"),
            ("seconds_wait", "wait"),
        ),
        stacked=True,
    ),
    Panel("Speed", "tokens/s", (("tokens_per_second", ""),)),
    Panel("Memory", "GiB", (("memory", "process"), ("memory_gpu", "GPU")), exact=True),
)
"""In the order in which a person asks."""

FEWEST_POINTS = 2
NOTHING = 1e-9
"""What a figure on a logarithmic scale must pass: kernels of one model differ by rounding alone."""


def panels_of(curves: Curves) -> list[Panel]:
    """Those with something to show, each with the lines that it has."""
    found = []
    for panel in PANELS:
        if panel.held_out:
            if any(math.isfinite(e.avg) for each in curves.evaluations.values() for e in each):
                found.append(panel)
            continue
        lines = tuple(line for line in panel.lines if _shows(curves, line[0], panel.scale))
        if lines:
            found.append(replace(panel, lines=lines))
    return found


def _shows(curves: Curves, name: str, scale: Scale) -> bool:
    values = curves.values(name)
    if len(values) < FEWEST_POINTS:
        return False
    return max(values) > NOTHING if scale in ("few", "log") else True


def smooth(values: Sequence[float], width: int) -> list[float]:
    """The mean of each value and up to ``width`` to either side, NaN left out; NaN where there is
    none.
    """
    found = []
    for place in range(len(values)):
        side = min(width, place, len(values) - 1 - place)  # Ends are not drawn to one side.
        near = [v for v in values[place - side : place + side + 1] if math.isfinite(v)]
        found.append(math.fsum(near) / len(near) if near else math.nan)
    return found
