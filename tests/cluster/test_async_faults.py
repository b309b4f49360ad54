"""Rollouts in flight on a cluster: whatever is lost on the way, each draw is trained on once, and
no token is older than the stage allows.
"""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from small_runs import Kill, recipe, rl_stage, run_and_die, write
from test_faults import CLUSTER, Saboteur, SecondMachine, all_end

from lydite.pipeline.recipe import load_recipe
from lydite.pipeline.runner import run_recipe
from lydite.watch.events import Evaluated, StepDone, Warned, read_events
from lydite.watch.samples import read_samples

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.slow]
STEPS, GROUPS, SIZE, STALENESS = 10, 3, 4, 2
ASYNC = {**CLUSTER, "mode": "async"}


def recipe_in(place: Path, cluster: dict[str, Any] | None) -> Path:
    sampling = {"max_tokens": 60, "temperature": 1.0}
    objective = "grpo+tis"
    staleness = 0 if cluster is None else STALENESS
    stage = rl_stage(steps=STEPS, objective=objective, staleness=staleness, sampling=sampling)
    values = recipe([stage], place, cluster=cluster)
    values["checkpoint"] = {"every": 3}
    return write(values, place / "recipe.yaml")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> set[tuple[str, int]]:
    """What the run is to train on: the draws of one that does one thing after another."""
    place = tmp_path_factory.mktemp("alone")
    folder = run_recipe(load_recipe(recipe_in(place, None)), place / "run").folder
    return {row[1:] for row in rows_of(folder)}


def rows_of(folder: Path) -> list[tuple[int, str, int]]:
    return [
        (sample.step, sample.problem_id, sample.sample)
        for path in sorted((folder / "samples/rl").glob("*.parquet"))
        for sample in read_samples(path)
    ]


def account(folder: Path, drawn: set[tuple[str, int]]) -> None:
    """No draw is lost, none is trained on twice, each step has its groups, and none is too old."""
    rows = rows_of(folder)
    assert {row[1:] for row in rows} == drawn
    assert len(rows) == len(drawn) == STEPS * GROUPS * SIZE
    assert set(Counter(step for step, _, _ in rows).values()) == {GROUPS * SIZE}
    steps_of: dict[tuple[str, int], set[int]] = {}
    for step, problem, sample in rows:
        steps_of.setdefault((problem, sample // SIZE), set()).add(step)
    assert all(len(steps) == 1 for steps in steps_of.values()), "a group is trained on whole"
    events = read_events(folder / "events.jsonl")
    done = [event for event in events if isinstance(event, StepDone)]
    assert [event.step for event in done] == list(range(1, STEPS + 1))
    oldest = [event.metrics["staleness_max"] for event in done]
    assert all(0 <= age <= STALENESS for age in oldest)
    assert any(age > 0 for age in oldest), "sampling ran beside training"
    assert done[-1].metrics["in_flight"] == 0
    assert any(isinstance(event, Evaluated) for event in events)


def test_whatever_is_lost_each_draw_is_trained_on_once(
    ray_here: Any, drawn: set[tuple[str, int]], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    deeds = Saboteur(folder, {})
    machine = SecondMachine(ray_here, deeds)
    deeds.deeds = {
        2: machine.dies,
        4: machine.joins,
        5: deeds.sending("rollout-0", signal.SIGSTOP),
        7: deeds.sending("learner-0", signal.SIGKILL),
        8: deeds.sending("rollout-1", signal.SIGKILL),
    }
    try:
        run_recipe(load_recipe(recipe_in(tmp_path, ASYNC)), folder, listeners=[deeds])
    finally:
        machine.dies()
    assert not deeds.deeds, "everything was done"
    account(folder, drawn)
    events = read_events(folder / "events.jsonl")
    warned = {event.code for event in events if isinstance(event, Warned)}
    assert {"rollout_worker_lost", "learner_lost"} <= warned
    all_end(deeds)


def test_a_driver_that_is_killed_draws_again_what_was_in_flight(
    ray_here: Any, drawn: set[tuple[str, int]], tmp_path: Path
) -> None:
    file = recipe_in(tmp_path, {**ASYNC, "address": ray_here.address})
    folder = tmp_path / "run"
    run_and_die(file, folder, Kill("event", "step_done rl 5"))
    all_end(Saboteur(folder, {}))
    run_recipe(load_recipe(file), folder)
    account(folder, drawn)
