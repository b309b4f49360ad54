from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from small_runs import preference_stage, recipe, rl_stage, sft_stage, write

from lydite.pipeline.recipe import load_recipe
from lydite.pipeline.runner import Finished, run_recipe


@dataclass(frozen=True)
class Run:
    """A recipe file and the run that came of it, never killed."""

    file: Path
    finished: Finished

    @property
    def folder(self) -> Path:
        return self.finished.folder


SHARED: list[Path] = []
"""Folders of the runs that all tests share."""


def shared_run(file: Path, out: Path) -> Run:
    """A run that tests read; one that is to change it copies its folder first."""
    run = Run(file, run_recipe(load_recipe(file), out))
    SHARED.append(run.folder)
    return run


def held(folders: Sequence[Path]) -> dict[Path, tuple[int, int]]:
    """What runs hold: when each file was written, and its size."""
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in files}


@pytest.fixture(autouse=True)
def shared_runs_stay() -> Iterator[None]:
    """Names the test that changes a shared run, rather than those that fail after it."""
    folders = tuple(SHARED)
    before = held(folders)
    yield
    changed = sorted({path for path, _ in before.items() ^ held(folders).items()})
    assert not changed, f"this test changed a run that others read: {changed[0]}"


@pytest.fixture(scope="session")
def plain_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two SFT stages and GRPO. Tests read it and change nothing in it."""
    place = tmp_path_factory.mktemp("plain")
    stages = [sft_stage(name="base"), sft_stage(name="cold"), rl_stage(name="rl")]
    file = write(recipe(stages, place), place / "recipe.yaml")
    return shared_run(file, place / "run")


@pytest.fixture(scope="session")
def dynamic_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Dynamic sampling, two epochs of two minibatches each over every rollout, and all that an
    objective carries from step to step: a renewed reference, an entropy bonus that grows, prompts
    that retire.
    """
    place = tmp_path_factory.mktemp("dynamic")
    names = "clip_higher+dynamic_sampling+kl+reference_refresh+adaptive_entropy+retire_solved"
    objective = {
        "patches": names,
        "kl": {"coefficient": 0.1, "refresh": 3},
        "entropy_bonus": {"target": 9.0, "step": 0.002},
        "group_filter": {"retire_at": 0.5},
    }
    update = {"minibatches": 2, "epochs": 2}
    rl = rl_stage(steps=5, objective=objective, update=update)
    file = write(recipe([sft_stage(steps=2), rl], place), place / "recipe.yaml")
    return shared_run(file, place / "run")


@pytest.fixture(scope="session")
def lora_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Adapters in both stages, with a KL term to the model without them, and then to the one with
    them as they were after three steps; sampled two updates behind, problems by a curriculum.
    """
    place = tmp_path_factory.mktemp("lora")
    objective = {"patches": "tis", "kl": {"coefficient": 0.1, "refresh": 3}}
    rl = rl_stage(steps=5, objective=objective, staleness=2, curriculum={"half_life": 2.0})
    values = recipe([sft_stage(steps=2), rl], place)
    values["model"] = {**values["model"], "lora": {"rank": 2}}
    file = write(values, place / "recipe.yaml")
    return shared_run(file, place / "run")


@pytest.fixture(scope="session")
def critic_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """PPO: a value model and two epochs over every rollout, with adapters and a KL in the reward;
    then a head on the policy's own states.
    """
    place = tmp_path_factory.mktemp("critic")
    whole = rl_stage(objective="ppo+kl_in_reward", update={"minibatches": 2, "epochs": 2})
    head = rl_stage(name="head", objective="ppo", critic={"kind": "head"})
    values = recipe([sft_stage(steps=2), whole, head], place)
    values["model"] = {**values["model"], "lora": {"rank": 2}}
    file = write(values, place / "recipe.yaml")
    return shared_run(file, place / "run")


@pytest.fixture(scope="session")
def preference_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Adapters and dropout; DPO on pairs of an RL stage's rollouts, then IPO on fresh ones."""
    place = tmp_path_factory.mktemp("preference")
    fresh = {"kind": "sampled", "samples": 6, "sampling": {"max_tokens": 6}}
    fresh["allow_cut_off"] = True
    stages = [
        sft_stage(steps=2),
        rl_stage(steps=3),
        preference_stage(name="dpo"),
        preference_stage(name="ipo", steps=3, loss="ipo", pairs=fresh),
    ]
    values = recipe(stages, place)
    values["model"] = {**values["model"], "lora": {"rank": 2, "dropout": 0.1}}
    file = write(values, place / "recipe.yaml")
    return shared_run(file, place / "run")
