"""The problems of a recipe's tasks: those that are read before the run starts, and those that a
stage makes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lydite.config import UserError
from lydite.pipeline.dataset import read_dataset
from lydite.pipeline.recipe import Recipe
from lydite.tasks.bulk import uncollected
from lydite.tasks.mix import mix
from lydite.tasks.overlap import Near, near_duplicates, sentence
from lydite.tasks.select import check_disjoint
from lydite.tasks.task import TaskData, load_task
from lydite.types import Problem


@uncollected()
def load_tasks(recipe: Recipe, given: Mapping[str, TaskData]) -> dict[str, TaskData]:
    """Every task that the recipe uses and no stage makes; held-out questions are checked to be in
    no training task.

    Raises:
        UserError: a task cannot be read, has nothing to imitate where it should, or a held-out
            question is trained on.
    """
    tasks: dict[str, TaskData] = {}
    for name in recipe.task_names():
        tasks[name] = given[name] if name in given else load_one(recipe, name, tasks)
    for name in recipe.held_out():
        for source in recipe.trained_on():
            check_disjoint(tasks[source].problems, tasks[name].problems)
        tasks[name] = _noted(recipe, name, tasks)
    for stage in recipe.stages:
        for part in (part for task in stage.uses for part in recipe.parts_of(task)):
            if not recipe.waits(part):
                stage.check_task(part, tasks[part].problems)
    return tasks


def near_sources(recipe: Recipe, name: str) -> list[str]:
    """The training tasks that a held-out one is compared with for near duplicates. Problems that
    are made are not: their sides are apart by construction.
    """

    def read(task: str) -> bool:
        configs = [recipe.tasks.get(part) for part in recipe.parts_of(task)]
        return any(c is None or not (c.generated or c.courtesy or c.gym) for c in configs)

    if recipe.evaluation.near_duplicates == "ignore" or not read(name):
        return []
    return [source for source in recipe.trained_on() if read(source)]


def near_training(recipe: Recipe, name: str, tasks: Mapping[str, TaskData]) -> list[Near]:
    """The questions of a held-out task that are nearly trained on."""
    sources = [source for source in near_sources(recipe, name) if source in tasks]
    trained = [problem for source in sources for problem in tasks[source].problems]
    return near_duplicates(trained, tasks[name].problems) if trained else []


def _noted(recipe: Recipe, name: str, tasks: Mapping[str, TaskData]) -> TaskData:
    """The task with what is to be said of it, if anything is. Raises ``UserError``."""
    data = tasks[name]
    said = checked_near(recipe, name, len(data.problems), near_training(recipe, name, tasks))
    return replace(data, notes=(*data.notes, said)) if said else data


def checked_near(recipe: Recipe, name: str, count: int, near: Sequence[Near]) -> str:
    """What is said of a held-out task with so many problems; empty for nothing. Raises
    ``UserError`` where the recipe refuses it.
    """
    said = sentence(name, count, near)
    if said and recipe.evaluation.near_duplicates == "refuse":
        raise UserError(f"tasks.{said} (evaluation.near_duplicates=refuse)")
    return said


def load_one(recipe: Recipe, name: str, tasks: Mapping[str, TaskData]) -> TaskData:
    """A task by its settings; of a mix, ``tasks`` has the parts. Raises ``UserError``."""
    config = recipe.tasks[name]
    if config.mix is None:
        return load_task(name, config, recipe.seed)
    return mix(name, config, tasks, config.mix, recipe.seed)


def made_task(
    recipe: Recipe, name: str, tasks: Mapping[str, TaskData], dataset: Callable[[str], Path]
) -> TaskData:
    """A task, once the stages that it waits for are done; ``dataset`` is where one left its file.

    Raises:
        UserError: a dataset cannot be read.
    """
    if not recipe.waits(name):
        return tasks[name]
    parts = {}
    for part in recipe.parts_of(name):
        stage = recipe.made_by(part)
        if stage is None:
            parts[part] = tasks[part]
        else:
            asked = [problem for task in stage.uses for problem in tasks[task].problems]
            parts[part] = read_dataset(part, recipe.tasks[part], dataset(stage.name), asked)
    config = recipe.tasks[name]
    return parts[name] if config.mix is None else mix(name, config, parts, config.mix, recipe.seed)


def problems_of(tasks: Mapping[str, TaskData], names: Collection[str]) -> list[Problem]:
    """The problems of the named tasks, in the order of the recipe."""
    return [problem for name, data in tasks.items() if name in names for problem in data.problems]
