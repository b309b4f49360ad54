"""The verifiers of a run: the recipe's, those that stages have for themselves, and the one that
judges what is held out.

All of them are made before the run starts, so that a reference that cannot be checked is said then
and not after hours. One that asks a reward model which the run has yet to train is made again when
that model is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lydite.pipeline.problems import problems_of
from lydite.pipeline.recipe import Recipe
from lydite.tasks.task import TaskData
from lydite.types import Problem, Verifier
from lydite.verify.settings import VerifierConfig, reward_model_stages, with_reward_models
from lydite.verify.verifier import build


def verifier_uses(recipe: Recipe) -> list[tuple[VerifierConfig, list[str]]]:
    """Every verifier once, with the tasks whose answers it scores; the recipe's comes first, that
    of the held-out ones is :func:`judge_of`.
    """
    uses: list[tuple[VerifierConfig, list[str]]] = [(recipe.verifier, [])]
    asked = [pair for stage in recipe.stages for pair in stage.verifiers(recipe.verifier)]
    asked.append((judge_of(recipe), recipe.evaluation.tasks))
    for config, tasks in asked:
        known = next((use for use in uses if use[0] == config), None)
        if known is None:
            uses.append((config, list(tasks)))
        else:
            known[1].extend(task for task in tasks if task not in known[1])
    return uses


def judge_of(recipe: Recipe) -> VerifierConfig:
    """What held-out answers are judged by."""
    return recipe.evaluation.verifier or recipe.verifier


class Verifiers:
    """Made and ended together. ``given`` stands in for the recipe's own."""

    def __init__(
        self, recipe: Recipe, tasks: Mapping[str, TaskData], given: Verifier | None
    ) -> None:
        """
        Raises:
            UserError: references cannot be checked, or a reward cannot be built.
        """
        self._made: list[tuple[VerifierConfig, Verifier]] = []
        try:
            if given is not None:
                self._made.append((recipe.verifier, given))
            for config, names in verifier_uses(recipe):
                if given is None or config != recipe.verifier:
                    self._check(config, problems_of(tasks, names))
        except BaseException:
            self.close()
            raise

    def _check(self, config: VerifierConfig, problems: Sequence[Problem]) -> None:
        made = build(config, problems)
        if reward_model_stages(config):
            made.close()
        else:
            self._made.append((config, made))

    def of(self, config: VerifierConfig, models: Mapping[str, Path]) -> Verifier:
        """The verifier of these settings; ``models`` are the folders of the reward models that the
        run has trained, by stage.

        Raises:
            UserError: a reward cannot be built.
        """
        ready = with_reward_models(config, models)
        for known, made in self._made:
            if known == ready:
                return made
        made = build(ready)
        self._made.append((ready, made))
        return made

    def close(self) -> None:
        """Ends the worker processes."""
        for _, made in self._made:
            made.close()
