"""Lydite from Python: a model, problems, a reward and an objective, then ``.run()``.

    import lydite

    def reward(prompts, completions, answer, **columns):
        return [float(gold in text[-20:]) for text, gold in zip(completions, answer)]

    trainer = lydite.Trainer(
        model="HuggingFaceTB/SmolLM2-135M-Instruct",
        problems=[{"question": "What is 2 + 3?", "answer": "5"}, ...],
        reward=reward,
        objective="dapo",
        settings={"steps": 200},
    )
    print(trainer.run().stages[0].scores)

It builds a recipe and runs it, so a run from Python has the same folder, the same resuming and the
same checks as one from the command line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lydite.config import UserError, validate
from lydite.pipeline.recipe import Recipe
from lydite.pipeline.runner import Finished, Given, run_recipe
from lydite.tasks.task import TaskConfig, TaskData, load_task, task_of_rows
from lydite.verify.settings import VerifierConfig
from lydite.watch.events import Listener

Problems = str | Path | Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""A file, the settings of a task (as under ``tasks:`` in a recipe), or rows of data."""


@dataclass(slots=True)
class Trainer:
    """One RL stage on one model.

    Args:
        model: hub id, folder, ``.gguf`` file or ``init:…``, or the settings under ``model:`` of a
            recipe.
        problems: what to train on: see :data:`Problems`. Rows are mappings with ``question`` and
            ``answer`` (or the columns that ``columns`` names); every further column reaches the
            reward function.
        reward: a function ``reward(prompts, completions, **columns) -> list[float | None]``, sync
            or async; the name of a verifier (``"math"``); or the settings under ``verifier:`` of a
            recipe.
        objective: ``"grpo"``, ``"dapo"``, ``"grpo+clip_higher"``, a list of such names, or a
            mapping with overrides.
        heldout: problems to measure on, never trained on.
        out: the run's folder. Calling :meth:`run` again goes on from where it stopped.
        columns: names the columns of rows and files, as a task in a recipe does: ``{"prompt":
            "problem"}``.
        settings: everything else of the RL stage, such as ``steps``, ``group_size``, ``sampling``,
            ``optimizer``.
        recipe: everything else of the recipe, such as ``seed``, ``evaluation``, ``checkpoint``,
            ``engine``.

    Raises:
        UserError: a setting is wrong; one line that names it. It is a ``ValueError``.
    """

    model: str | Mapping[str, Any]
    problems: Problems
    reward: Callable[..., Any] | str | Mapping[str, Any] | Sequence[Any] = "math"
    objective: Any = "grpo"
    heldout: Problems | None = None
    out: str | Path = "runs/run"
    columns: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)

    def run(self, listeners: Sequence[Listener] = ()) -> Finished:
        """Trains, or goes on, and returns the finished run. ``listeners`` hear every event as it
        happens.
        """
        recipe, given = self.build()
        return run_recipe(recipe, Path(self.out), given, listeners)

    def build(self) -> tuple[Recipe, Given]:
        """The recipe that :meth:`run` would run, and the problems that go with it."""
        seed = int(self.recipe.get("seed", 0))
        tasks = {"train": self._task("train", self.problems, seed)}
        if self.heldout is not None:
            tasks["heldout"] = self._task("heldout", self.heldout, seed)
        evaluation = {
            "tasks": ["heldout"] if self.heldout is not None else [],
            **self.recipe.get("evaluation", {}),
        }
        stage = {"kind": "rl", "objective": self.objective, **self.settings}
        plain = {
            **self.recipe,
            "model": {"path": self.model} if isinstance(self.model, str) else dict(self.model),
            "verifier": validate(VerifierConfig, self.reward, "reward"),  # type: ignore[arg-type]
            "evaluation": evaluation,
            "stages": [stage],
        }
        return validate(Recipe, plain), Given(tasks=tasks)

    def _task(self, name: str, problems: Problems, seed: int) -> TaskData:
        if isinstance(problems, str | Path):
            problems = {"path": str(problems)}
        if isinstance(problems, Mapping):
            return load_task(name, validate(TaskConfig, {**self.columns, **problems}, name), seed)
        try:
            rows = [json.loads(json.dumps(row)) for row in problems]
        except TypeError as error:
            raise UserError(
                f"{name}: rows must hold text, numbers, lists and mappings only: {error}"
            ) from error
        return task_of_rows(name, rows, self.columns)
