"""What is probed: a stage of a recipe, the model it starts from, its problems and its verifier."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lydite.config import UserError
from lydite.model.loading import ModelConfig
from lydite.pipeline.artifact import DONE, read_record
from lydite.pipeline.device import dtype_of, pick_device
from lydite.pipeline.folder import RunFolder
from lydite.pipeline.problems import load_one, load_tasks
from lydite.pipeline.recipe import Recipe, check_tasks
from lydite.pipeline.stages.rl import RLStage
from lydite.pipeline.survey import Survey, root_artifact, survey
from lydite.tasks.task import TaskData
from lydite.types import Problem
from lydite.verify.settings import VerifierConfig, reward_model_stages, with_reward_models


@dataclass(frozen=True, slots=True)
class Subject:
    """``index`` is the stage's place in the recipe, ``basis`` all that an answer depends on, and
    ``problems`` those that are asked, of all in ``data``.
    """

    recipe: Recipe
    stage: RLStage
    index: int
    model: ModelConfig
    verifier: VerifierConfig
    data: TaskData
    problems: tuple[Problem, ...]
    basis: Mapping[str, Any]
    device: str

    @property
    def whole(self) -> bool:
        """Whether every problem of the task is asked."""
        return len(self.problems) == len(self.data.problems)


def find_subject(
    recipe: Recipe, stage: str | None, model: str | None, run: Path | None, most: int
) -> Subject:
    """The first RL stage unless one is named; the model that it starts from, of the recipe, of the
    run's folder or as given; ``most`` of its problems, drawn by the seed.

    Raises:
        UserError: there is no such stage, its model is not there yet, or a task cannot be read.
    """
    chosen = _stage(recipe, stage)
    check_tasks(recipe)
    folder = RunFolder(run or Path("runs") / recipe.name)
    verifier = chosen.verifiers(recipe.verifier)[0][0]
    parent = "model" if chosen.model is not None else recipe.parent_of(chosen)
    judges = tuple(reward_model_stages(verifier))
    needed = (*((parent,) if model is None and parent != "model" else ()), *judges)
    if needed:
        tasks = load_tasks(recipe, {})
        _check_done(survey(recipe, tasks, folder, pick_device(recipe.device)), needed, folder)
    else:
        tasks = {}
        for name in (*recipe.parts_of(chosen.task), chosen.task):
            tasks.setdefault(name, load_one(recipe, name, tasks))
    chosen.check_task(chosen.task, tasks[chosen.task].problems)
    config, origin = _model(recipe, chosen, parent, model, folder)
    data = tasks[chosen.task]
    models = {name: folder.stage(name) / "model" for name in judges}
    basis = {
        "model": {"from": origin, "chat": config.chat, "thinking": config.thinking},
        "verifier": verifier.model_dump(mode="json"),
        "sampling": chosen.sampling.model_dump(mode="json"),
        "problems": data.fingerprint,
        "seed": recipe.seed,
    }
    return Subject(
        recipe,
        chosen,
        recipe.stages.index(chosen),
        config,
        with_reward_models(verifier, models) if judges else verifier,
        data,
        _drawn(data.problems, most, recipe.seed),
        basis,
        pick_device(recipe.device),
    )


def _stage(recipe: Recipe, name: str | None) -> RLStage:
    able = [stage for stage in recipe.stages if isinstance(stage, RLStage)]
    named = [stage for stage in able if name in (None, stage.name)]
    if named:
        return named[0]
    there = ", ".join(stage.name for stage in able)
    if name is None:
        raise UserError(f"stages: {recipe.name} has no rl stage, and only such a one is probed")
    raise UserError(f"--stage: no rl stage {name!r}; there is {there or 'none'}")


def _check_done(found: Survey, needed: tuple[str, ...], folder: RunFolder) -> None:
    for standing in found.stages:
        if standing.stage not in needed or standing.state == "done":
            continue
        if standing.state == "changed":
            raise UserError(
                f"--run {folder.path}: stage {standing.stage} was made from other settings than "
                f"this recipe's ({standing.changed[0]}); give the overrides of that run, another "
                "--run, or --model FOLDER"
            )
        raise UserError(
            f"--run {folder.path}: stage {standing.stage} is not done there, and the probed stage "
            "needs its model; run the recipe until it is (Control-C ends a run, nothing is lost), "
            "or give --model FOLDER"
        )


def _model(
    recipe: Recipe, stage: RLStage, parent: str, given: str | None, folder: RunFolder
) -> tuple[ModelConfig, str]:
    """How it is loaded, and what its answers follow from."""
    config = stage.model or recipe.models()[parent]
    if given is None and parent == "model":
        return config, root_artifact(config).fingerprint
    path = str(folder.stage(parent) / "model") if given is None else given
    gone: dict[str, Any] = {"init": {}, "vocabulary": None, "tokenizer": None}
    loaded = config.model_copy(update={"path": path, **gone, "dtype": dtype_of(config)})
    if given is not None:
        return loaded, str(Path(given).resolve()) if Path(given).exists() else given
    record = read_record(folder.stage(parent) / DONE)
    assert record is not None, "the stage is done"
    return loaded, str(record["fingerprint"])


def _drawn(problems: tuple[Problem, ...], most: int, seed: int) -> tuple[Problem, ...]:
    """A larger draw holds a smaller one, so that nothing sampled before is lost."""
    if most >= len(problems):
        return problems
    places = list(range(len(problems)))
    random.Random(f"{seed}:probe").shuffle(places)
    return tuple(problems[place] for place in sorted(places[:most]))
