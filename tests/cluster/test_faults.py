"""Whatever is lost on the way, a run ends as the one that nothing happened to: the same prompts,
each trained on once, and the same answers.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import STORE
from safetensors.torch import load_file
from small_runs import Kill, recipe, rl_stage, run_and_die, write

from lydite.pipeline.recipe import load_recipe
from lydite.pipeline.runner import run_recipe
from lydite.watch.events import Event, StepDone, Warned, read_events
from lydite.watch.samples import read_samples

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.slow]
STEPS = 10
CLUSTER = {
    "mode": "separate",
    "rollout": {"workers": 2, "cpus": 1.5},
    "timeouts": {"heartbeat": 6, "start": 120, "say": 20},
    "heartbeat_every": 1,
}


def recipe_in(place: Path, cluster: dict[str, Any] | None) -> Path:
    values = recipe([rl_stage(steps=STEPS)], place, cluster=cluster)
    values["checkpoint"] = {"every": 3}
    return write(values, place / "recipe.yaml")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing happens to, in one process."""
    place = tmp_path_factory.mktemp("alone")
    return run_recipe(load_recipe(recipe_in(place, None)), place / "run").folder


def trained_on(folder: Path) -> list[tuple[Any, ...]]:
    """Every problem that was drawn, with its answers, in order."""
    return [
        (sample.step, sample.problem_id, sample.sample, sample.completion, sample.reward)
        for path in sorted((folder / "samples/rl").glob("*.parquet"))
        for sample in read_samples(path)
    ]


def assert_same(folder: Path, alone: Path) -> None:
    """The accounting: nothing is lost, nothing comes twice, and the weights are those."""
    found, expected = trained_on(folder), trained_on(alone)
    assert found == expected and len({row[:3] for row in found}) == len(found) == STEPS * 12
    steps = [e.step for e in read_events(folder / "events.jsonl") if isinstance(e, StepDone)]
    assert steps == list(range(1, STEPS + 1))
    ours, theirs = (load_file(f / "model/model.safetensors") for f in (folder, alone))
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-4, atol=1e-6)


class Saboteur:
    """Does something once, when a step is done."""

    def __init__(self, folder: Path, deeds: dict[int, Callable[[], None]]) -> None:
        self.folder = folder
        self.deeds = deeds

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepDone) and event.step in self.deeds:
            self.deeds.pop(event.step)()

    def places(self, role: str) -> list[int]:
        """Ids of the processes that have had a role, in order."""
        lines = (self.folder / "logs/cluster.log").read_text().splitlines()
        return [int(line.split()[5]) for line in lines if f" {role} is process " in line]

    def lost(self, *roles: str) -> bool:
        """Whether one of them has been lost so far: which machine each is on is Ray's choice."""
        log = (self.folder / "logs/cluster.log").read_text()
        return any(f" {role} lost while " in log for role in roles)

    def wait_for(self, roles: Sequence[str], count: int) -> None:
        """Until roles have been given so many times together."""
        end = time.monotonic() + 90
        while sum(len(self.places(role)) for role in roles) < count:
            assert time.monotonic() < end, (self.folder / "logs/cluster.log").read_text()
            time.sleep(0.1)

    def sending(self, role: str, number: int) -> Callable[[], None]:
        """Sends a signal to the process that has the role then."""
        return lambda: os.kill(self.places(role)[-1], number)


class SecondMachine:
    """A machine that dies and joins; which processes are on it is Ray's choice."""

    def __init__(self, cluster: Any, deeds: Saboteur) -> None:
        self._cluster = cluster
        self._deeds = deeds
        self._nodes: list[Any] = []
        self._add()

    def _add(self) -> None:
        self._nodes.append(self._cluster.add_node(num_cpus=2, object_store_memory=STORE))

    def dies(self) -> None:
        """Nothing where it has died already."""
        while self._nodes:
            self._cluster.remove_node(self._nodes.pop(), allow_graceful=False)

    def joins(self) -> None:
        """And takes the place of a worker that was lost, if one was and waits for room."""
        workers = ("rollout-0", "rollout-1")
        self._add()
        if self._deeds.lost(*workers):
            self._deeds.wait_for(workers, len(workers) + 1)


def test_a_machine_a_worker_and_a_rank_are_lost_and_a_machine_joins(
    ray_here: Any, alone: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    deeds = Saboteur(folder, {})
    machine = SecondMachine(ray_here, deeds)
    deeds.deeds = {
        2: machine.dies,
        4: machine.joins,
        5: deeds.sending("rollout-0", signal.SIGSTOP),
        7: deeds.sending("learner-0", signal.SIGSTOP),  # killed in the test of mode async
    }
    try:
        file = recipe_in(tmp_path, CLUSTER)
        run_recipe(load_recipe(file), folder, listeners=[deeds])
    finally:
        machine.dies()
    assert not deeds.deeds, "everything was done"
    assert_same(folder, alone)
    events = read_events(folder / "events.jsonl")
    warned = {event.code for event in events if isinstance(event, Warned)}
    assert {"rollout_worker_lost", "learner_lost"} <= warned
    log = (folder / "logs/cluster.log").read_text()
    assert "no sign of life for 6 s" in log
    all_end(deeds)


def all_end(saboteur: Saboteur) -> None:
    """Every process of the run ends, within a while."""
    roles = ("learner-0", "rollout-0", "rollout-1")
    pids = [pid for role in roles for pid in saboteur.places(role)]
    assert len(pids) >= len(roles) - 1
    end = time.monotonic() + 60
    while left := [pid for pid in pids if running(pid)]:
        assert time.monotonic() < end, left
        time.sleep(0.1)


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_driver_that_is_killed_goes_on_and_leaves_nothing(
    ray_here: Any, alone: Path, tmp_path: Path
) -> None:
    file = recipe_in(tmp_path, {**CLUSTER, "address": ray_here.address})
    folder = tmp_path / "run"
    run_and_die(file, folder, Kill("event", "step_done rl 5"))
    all_end(Saboteur(folder, {}))
    run_recipe(load_recipe(file), folder)
    assert_same(folder, alone)
