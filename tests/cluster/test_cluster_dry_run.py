"""``--dry-run`` of a recipe with a cluster, without Ray."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from small_runs import recipe, rl_stage, sft_stage, write

from lydite.cluster.config import ClusterConfig
from lydite.config import UserError
from lydite.model.estimate import MemoryEstimate
from lydite.pipeline.catalogue import find_recipe
from lydite.pipeline.cluster_check import by_process
from lydite.pipeline.dry_run import Check, Mark, check_recipe
from lydite.pipeline.recipe import load_recipe


def checks(place: Path, cluster: dict[str, Any], *stages: dict[str, Any]) -> dict[str, Check]:
    values = recipe(list(stages) or [sft_stage(), rl_stage()], place, cluster=cluster)
    loaded = load_recipe(write(values, place / "recipe.yaml"))
    return {check.name: check for check in check_recipe(loaded, place / "run")}


def there(monkeypatch: pytest.MonkeyPatch, ray: bool) -> None:
    before = importlib.util.find_spec

    def find_spec(name: str, *rest: Any) -> Any:
        return (object() if ray else None) if name == "ray" else before(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)


def test_it_shows_each_process_and_what_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there(monkeypatch, ray=True)
    found = checks(tmp_path, {"rollout": {"workers": 2, "max_workers": 3}})
    cluster = found["cluster"]
    assert cluster.mark is Mark.OK
    assert cluster.text == "separate, 3 CPUs of a Ray that is started here"
    assert cluster.lines[:4] == (
        "learner: 1 × 1 CPU",
        "rollout: 2 to 3 × 1 CPU",
        "on it: rl",
        "in the run's own process: sft",
    )
    memory = found["memory of each process"]
    assert memory.mark is Mark.OK and "each rollout worker" in memory.lines[1]
    assert found["memory"].mark is Mark.OK  # of the stage in this process


def test_nothing_of_the_model_is_here_where_all_is_on_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there(monkeypatch, ray=True)
    found = checks(tmp_path, {"mode": "colocated"}, rl_stage())
    assert "memory" not in found and "memory of each process" in found


def test_without_ray_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there(monkeypatch, ray=False)
    found = checks(tmp_path, {})
    assert found["cluster"].mark is Mark.FAILED
    assert found["cluster"].text == ("cluster: Ray is not installed; pip install 'lydite[cluster]'")


def test_gpus_that_are_not_here_are_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there(monkeypatch, ray=True)
    monkeypatch.setattr("lydite.pipeline.cluster_check._gpus", lambda: 1)
    found = checks(tmp_path, {"learner": {"gpus": 1}, "rollout": {"gpus": 1}})
    assert found["cluster"].mark is Mark.FAILED
    assert "2 GPUs at least, and this machine has" in found["cluster"].text
    assert checks(tmp_path, {"learner": {"gpus": 1}})["cluster"].mark is Mark.OK


def test_a_running_ray_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there(monkeypatch, ray=True)
    found = checks(tmp_path, {"address": "auto", "learner": {"gpus": 1}})
    assert found["cluster"].mark is Mark.OK
    assert "whether it has them is seen when the run starts" in found["cluster"].lines


@pytest.mark.parametrize(
    ("mode", "staleness", "says"),
    [("colocated", 1, "staleness: 1"), ("async", 0, "staleness: 0")],
)
def test_modes_and_staleness_must_go_together(
    mode: str, staleness: int, says: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=rf"stages\.0\.{says}"):
        checks(tmp_path, {"mode": mode}, rl_stage(staleness=staleness))


def test_a_cluster_that_no_stage_uses_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there(monkeypatch, ray=True)
    assert "no stage of kind rl" in checks(tmp_path, {}, sft_stage())["cluster"].text


@pytest.mark.parametrize(
    "name",
    ["qwen_7b_8gpu", "cluster/qwen_7b_8gpu.yaml", "recipes/cluster/qwen_7b_8gpu.yaml"],
)
def test_the_recipe_that_ships_is_found_and_accepted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there(monkeypatch, ray=True)
    monkeypatch.chdir(tmp_path)
    found = list(check_recipe(load_recipe(find_recipe(name)), tmp_path / "run"))
    assert [check.name for check in found if check.mark is Mark.FAILED] == []
    assert next(c for c in found if c.name == "cluster").lines[0] == "learner: 4 × 4 CPUs and 1 GPU"


@pytest.mark.parametrize(
    ("mode", "sharding", "gpus", "learner"),
    [
        ("separate", None, 1, 100 + 300 + 7),
        ("separate", {}, 1, (100 + 300) // 4 + 40 + 7),
        ("separate", {"data": 2}, 1, (100 + 300) // 2 + 40 + 7),
        ("separate", {"tensor": 2}, 1, (100 + 300) // 4 + 20 + 7),
        ("separate", {"offload": True}, 1, 40 + 7),
        ("separate", {"offload": True}, 0, (100 + 300) // 4 + 40 + 7),
        ("colocated", {}, 1, (100 + 300) // 4 + 40 + 100 + 5 + 9),
    ],
)
def test_what_a_learner_rank_takes_in_shards(
    mode: str, sharding: dict[str, Any] | None, gpus: int, learner: int
) -> None:
    found = MemoryEstimate(
        parameters=0,
        trainable=0,
        weights=100,
        gradients=100,
        optimizer=100,
        reference=100,
        critic=0,
        copies=0,
        beside=0,
        packed=5,
        cache=9,
        activations=7,
        gathered=40,
    )
    cluster = ClusterConfig(mode=mode, learner={"ranks": 4, "gpus": gpus, "sharding": sharding})
    assert by_process(found, cluster)[0] == learner
    rollout = (("rollout", 100 + 5 + 9),) if mode == "separate" else ()
    assert by_process(found, cluster)[1] == rollout
