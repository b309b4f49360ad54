"""A recipe with a cluster is the run that it is without one."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from small_runs import recipe, rl_stage, sft_stage, write

from lydite.pipeline.recipe import load_recipe
from lydite.pipeline.runner import run_recipe
from lydite.watch.events import Evaluated, StepDone, read_events
from lydite.watch.samples import read_samples

pytestmark = [pytest.mark.usefixtures("ray_here"), pytest.mark.xdist_group("ray")]


OF_THE_CLOCK = re.compile("second|memory")


def stages(staleness: int) -> list[dict[str, Any]]:
    """Two optimiser steps a rollout, a reference, and groups that teach nothing."""
    rl = rl_stage(objective="grpo+kl", update={"minibatches": 2})
    # Long enough to be under way while the model is measured.
    stale = {"objective": "grpo+kl+tis", "sampling": {"max_tokens": 60}, "staleness": staleness}
    return [sft_stage(steps=2), {**rl, **stale} if staleness else rl]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """The run of one process, by its staleness."""
    return cache(lambda staleness: run(tmp_path_factory.mktemp("alone"), None, staleness))


def run(place: Path, cluster: dict[str, Any] | None, staleness: int) -> Path:
    values = recipe(stages(staleness), place, cluster=cluster)
    if staleness:
        values["evaluation"]["every"] = 1
    return run_recipe(load_recipe(write(values, place / "recipe.yaml")), place / "run").folder


def steps(folder: Path) -> list[dict[str, float]]:
    return [
        {k: v for k, v in e.metrics.items() if not OF_THE_CLOCK.search(k) and not math.isnan(v)}
        for e in read_events(folder / "events.jsonl")
        if isinstance(e, StepDone) and e.stage == "rl"
    ]


def scores(folder: Path) -> list[tuple[Any, ...]]:
    return [
        (e.stage, e.step, e.scores, [a.completion for a in e.answers])
        for e in read_events(folder / "events.jsonl")
        if isinstance(e, Evaluated)
    ]


def rollouts(folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """What was drawn, in order."""
    return {
        path.name: [(s.problem_id, s.sample, s.completion) for s in read_samples(path)]
        for path in sorted((folder / "samples/rl").glob("*.parquet"))
    }


@pytest.mark.parametrize(
    ("cluster", "staleness"),
    [
        ({"mode": "separate", "rollout": {"workers": 2}, "learner": {"ranks": 2}}, 0),
        ({"mode": "colocated", "learner": {"ranks": 2, "sharding": {}}}, 0),
        ({"mode": "separate"}, 2),
    ],
    ids=["separate", "colocated, sharded", "separate, stale"],
)
def test_data_order_and_losses_are_those_of_one_process(
    cluster: dict[str, Any], staleness: int, alone: Callable[[int], Path], tmp_path: Path
) -> None:
    folder, plain = run(tmp_path, cluster, staleness), alone(staleness)
    assert rollouts(folder) == rollouts(plain) and len(rollouts(plain)) == 4
    assert scores(folder) == scores(plain)
    found, expected = steps(folder), steps(plain)
    assert any(metrics["grad_norm"] > 0 for metrics in expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-6)
    logs = {path.name for path in (folder / "logs").iterdir()}
    assert {"learner-0.log", "cluster.log"} <= logs
