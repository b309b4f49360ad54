"""Where an objective's settings come from, what its patches are for, how its surrogate looks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lydite.objective.aggregate import Counts
from lydite.objective.objective import Objective
from lydite.objective.patches import PATCHES
from lydite.objective.presets import PRESETS, Setting
from lydite.objective.settings import HEADS
from lydite.objective.spec import read
from lydite.objective.surrogate import SURROGATES

# The log-prob of the token that is plotted, in nats: some surrogates turn on the probability.
PLOTTED = -0.5
# Points of the integral between two that are shown.
_STEPS = 50


@dataclass(frozen=True, slots=True)
class Origin:
    """A setting by key, its value, and who set it: a preset, a patch, or the spec itself."""

    key: str
    value: Setting
    by: str


def origins(spec: object) -> list[Origin]:
    """Every setting that the spec gives, in the order of the objective's fields; all others have
    their defaults.

    Raises:
        UserError: see :meth:`Objective.parse`.
    """
    settings = Objective.parse(spec).settings
    found = read(spec, settings, HEADS)
    preset = PRESETS[found.preset]
    by = dict.fromkeys(preset.settings, found.preset)
    for name, patch in found.patches.items():
        by |= dict.fromkeys(patch.settings, name)
    by |= dict.fromkeys(found.overrides, "this spec")
    return [Origin(key, value, by[key]) for key, value in settings.items() if key in by]


def defaults(spec: object) -> dict[str, Setting]:
    """The settings that the spec leaves as they are."""
    given = {origin.key for origin in origins(spec)}
    return {key: value for key, value in Objective.defaults().items() if key not in given}


def sources(spec: object) -> list[tuple[str, str, str]]:
    """(name, what it is, its source) of the preset; then (name, the failure that it is for, its
    source) of each patch.
    """
    found = read(spec, Objective.defaults(), HEADS)
    preset = PRESETS[found.preset]
    patches = [(name, patch.why, patch.source) for name, patch in found.patches.items()]
    return [(found.preset, preset.about, preset.source), *patches]


def shown(value: Setting) -> str:
    """As a recipe writes it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def catalogue() -> list[tuple[str, str, str, str]]:
    """(kind, name, what it is or is for, source) of every preset, then of every patch."""
    presets = [("preset", name, preset.about, preset.source) for name, preset in PRESETS.items()]
    patches = [("patch", name, patch.why, patch.source) for name, patch in PATCHES.items()]
    return presets + patches


@dataclass(frozen=True, slots=True)
class Curve:
    """The surrogate of one token at each ratio, whether it has gradient there, and which by its
    log-probability.
    """

    ratios: Sequence[float]
    values: Sequence[float]
    moves: Sequence[bool]
    slopes: Sequence[float] = ()


def curve(objective: Objective, advantage: float, points: int = 61) -> Curve:
    """What one token gains or loses as its ratio leaves 1, where it starts from 0.

    The integral of the gradient, so that a surrogate with a stopped gradient is drawn as it trains.
    Without KL, corrections, filters and penalties, for a token of probability e^−½ under the old
    policy. The range shows both ends of the clip, and the bound for A < 0.
    """
    edges = clip_edges(objective)
    start, end = (0.05, 3.0) if edges is None else (2.5 * edges[0] - 1.5, 2.5 * edges[1] - 1.5)
    start, end = max(0.05, start), max(end, 1.25 * (objective.dual_clip or 0.0))
    fine = (points - 1) * _STEPS + 1
    ratios = torch.linspace(start, end, fine, dtype=torch.float64)
    slopes = _slopes(objective, advantage, ratios)
    # d log π = dρ/ρ
    areas = torch.cumulative_trapezoid(slopes / ratios, ratios)
    values = torch.cat([areas.new_zeros(1), areas])
    values = values - values[(ratios - 1).abs().argmin()]
    shown = slice(None, None, _STEPS)
    moves = slopes.abs() > 1e-9
    return Curve(*(x[shown].tolist() for x in (ratios, values, moves, slopes)))


def clip_edges(objective: Objective) -> tuple[float, float] | None:
    """Between which ratios the plotted token is not clipped; none without a clip range."""
    uses = SURROGATES[objective.surrogate]
    return uses.edges(objective.clip, math.exp(PLOTTED)) if uses.clip else None


def _slopes(objective: Objective, advantage: float, ratios: Tensor) -> Tensor:
    """``d gain / d log π`` at each ratio, of sequences of one token."""
    policy = (ratios.log() + PLOTTED)[:, None].requires_grad_()
    old = torch.full_like(policy, PLOTTED)
    loss, _ = _bare(objective).loss(
        policy=policy,
        old=old,
        behaviour=old,
        advantages=torch.full_like(ratios, advantage),
        mask=torch.ones_like(old),
        counts=Counts(1, 1, 1),
    )
    loss.backward()
    assert policy.grad is not None
    return -policy.grad[:, 0]


def _bare(objective: Objective) -> Objective:
    """The surrogate alone, summed."""
    kept = ("ratio", "anchor", "surrogate", "clip_low", "clip_high", "dual_clip")
    return Objective().changed(
        {**{key: objective.settings[key] for key in kept}, "aggregation": "token_mean"}
    )


def plot(drawn: Curve, height: int = 9) -> list[str]:
    """The curve as lines of text: ``●`` where the token has gradient, ``·`` where it has none."""
    top, bottom = max(drawn.values), min(drawn.values)
    rows = [[" "] * len(drawn.values) for _ in range(height)]
    for x, (value, moves) in enumerate(zip(drawn.values, drawn.moves, strict=True)):
        share = 0.5 if top == bottom else (top - value) / (top - bottom)
        rows[round(share * (height - 1))][x] = "●" if moves else "·"
    labels = [f"{top:.3g}", *[""] * (height - 2), f"{bottom:.3g}"]
    lines = [f"{label:>8} │{''.join(row)}" for label, row in zip(labels, rows, strict=True)]
    width = len(drawn.values)
    left, right = f"{drawn.ratios[0]:.4g}", f"{drawn.ratios[-1]:.4g}"
    axis = f"{left}{'ρ':^{width - len(left) - len(right)}}{right}"
    return [*lines, f"{'':>8} └{'─' * width}", f"{'':>10}{axis}"]
