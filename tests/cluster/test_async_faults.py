"""Rollouts in flight on a cluster: whatever is lost on the way, each draw is trained on once, and
no token is older than the stage allows.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import STORE
from small_runs import Kill, recipe, rl_stage, run_and_die, write
from test_faults import CLUSTER, Saboteur, all_end

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
    machine = [ray_here.add_node(num_cpus=2, object_store_memory=STORE)]
    folder = tmp_path / "run"
    deeds = Saboteur(folder, {})

    def machine_dies() -> None:
        ray_here.remove_node(machine.pop(), allow_graceful=False)

    def machine_joins() -> None:
        workers = ("rollout-0", "rollout-1")
        before = sum(len(deeds.places(role)) for role in workers)
        machine.append(ray_here.add_node(num_cpus=2, object_store_memory=STORE))
        end = time.monotonic() + 90
        lost = deeds.lost(*workers) and before == len(workers)
        while lost and sum(len(deeds.places(role)) for role in workers) == before:
            assert time.monotonic() < end, "a worker takes its place on the new machine"
            time.sleep(0.1)

    def send(role: str, number: int) -> Callable[[], None]:
        return lambda: os.kill(deeds.places(role)[-1], number)

    deeds.deeds = {
        2: machine_dies,
        4: machine_joins,
        5: send("rollout-0", signal.SIGSTOP),
        7: send("learner-0", signal.SIGKILL),
        8: send("rollout-1", signal.SIGKILL),
    }
    try:
        run_recipe(load_recipe(recipe_in(tmp_path, ASYNC)), folder, listeners=[deeds])
    finally:
        for node in machine:
            ray_here.remove_node(node, allow_graceful=False)
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
