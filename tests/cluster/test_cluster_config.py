"""What a cluster's settings mean, and which of them cannot be."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lydite.cluster.config import ClusterConfig, TimeoutsConfig
from lydite.cluster.placement import check_room, describe, roles, total
from lydite.cluster.remote_learner import PHASES
from lydite.cluster.session import Session
from lydite.config import UserError, validate


def config(**values: Any) -> ClusterConfig:
    return validate(ClusterConfig, values)


def test_counts_follow_from_what_is_given() -> None:
    plain = config()
    assert (plain.mode, plain.workers, plain.fewest, plain.most) == ("separate", 1, 1, 1)
    four = config(rollout={"workers": 4, "max_workers": 6, "min_workers": 2}, learner={"ranks": 2})
    assert (four.workers, four.fewest, four.most) == (4, 2, 6)
    assert total(four) == (6.0, 0.0) and total(four, fewest=True) == (4.0, 0.0)
    assert config(learner={"ranks": 3}).workers == 3
    assert config(learner={"gpus": 1}).device == "cuda" and plain.device == "cpu"


def test_colocated_processes_do_both() -> None:
    both = config(mode="colocated", learner={"ranks": 2, "cpus": 3})
    assert [role.name for role in roles(both)] == ["learner and rollout"]
    assert total(both) == (6.0, 0.0)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"mode": "colocated", "rollout": {"workers": 2}}, "set learner.ranks"),
        ({"rollout": {"workers": 2, "min_workers": 3}}, "rollout.min_workers: 3"),
        ({"rollout": {"workers": 2, "max_workers": 1}}, "rollout.max_workers: 1"),
        ({"rollout": {"gpus": 1.5}}, "rollout.gpus: 1.5"),
        ({"learner": {"gpus": 2}}, "learner.ranks to the number of GPUs"),
        ({"timeouts": {"heartbeat": 8}}, "two heartbeats"),
        ({"rollout": {"cpus": 0}}, "rollout.cpus"),
        ({"timeouts": {"sampling": 0}}, "timeouts.sampling"),
    ],
)
def test_impossible_settings_are_one_line(values: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as error:
        config(**values)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_a_cluster_without_room_says_what_it_has() -> None:
    wanted = config(learner={"ranks": 2, "gpus": 1}, rollout={"workers": 2, "gpus": 1})
    with pytest.raises(UserError, match=r"no machine has them \(the lab has 8 CPUs on 1 machine\)"):
        check_room(wanted, {"a": (8, 0)}, "the lab")
    with pytest.raises(UserError, match=r"asks for 3 CPUs and 3 GPUs at least, and the lab has"):
        check_room(wanted, {"a": (8, 1), "b": (8, 1)}, "the lab")


def test_room_for_the_fewest_is_room() -> None:
    wanted = config(rollout={"workers": 4})
    later = check_room(wanted, {"a": (1, 0), "b": (2, 0)}, "the lab")
    assert later is not None and "going on with fewer workers" in later
    assert check_room(wanted, {"a": (5, 0)}, "the lab") is None


def test_one_process_must_fit_on_one_machine() -> None:
    wide = config(rollout={"cpus": 6})
    with pytest.raises(UserError, match=r"cluster\.rollout: each takes 6 CPUs"):
        check_room(wide, {"a": (4, 0), "b": (4, 0)}, "the lab")


def test_amounts_are_words() -> None:
    assert describe(1, 0) == "1 CPU" and describe(8, 1) == "8 CPUs and 1 GPU"
    assert describe(0.5, 0.25) == "0.5 CPUs and 0.25 GPUs"


def test_every_wait_is_in_the_documentation_by_its_name_and_its_limit() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/cluster.md").read_text(encoding="utf-8")
    table = page.partition("| wait |")[2].partition("\n\n")[0]
    named = {*PHASES.values(), "sampling", "weights", "starting"}
    assert [name for name in sorted(named) if f"`{name}`" not in table] == []
    limits = set(TimeoutsConfig.model_fields) - {"say"}
    assert [limit for limit in sorted(limits) if f"`{limit}`" not in table] == []


@pytest.mark.parametrize(("given", "asked"), [(None, "local"), ("auto", "auto")])
def test_without_an_address_no_ray_is_joined_that_runs_already(
    given: str | None, asked: str, tmp_path: Path
) -> None:
    """With no address at all Ray joins whatever it finds on the machine, or in RAY_ADDRESS."""
    found: dict[str, Any] = {}
    session = Session(config(address=given), tmp_path, lambda code, message: None)
    session._connect(SimpleNamespace(init=lambda **settings: found.update(settings)))
    assert found["address"] == asked
