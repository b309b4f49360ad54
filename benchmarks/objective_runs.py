"""One run of an objective on a small task, and the file that keeps what came of it.

``objectives.py`` and ``objective_effects.py`` share this: the quickstart's RL stage with another
objective, learning rate, seed or task, driven through Lydite's own ``RLTrainer`` until a budget of
sampled tokens is spent. Every finished run is one line of JSON, so that what was interrupted goes
on with the runs that are missing.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lydite.config import validate
from lydite.model.loading import load_policy
from lydite.model.policy import Policy
from lydite.model.reference import Reference
from lydite.model.render import render_prompt
from lydite.pipeline.catalogue import find_recipe
from lydite.pipeline.recipe import Recipe, load_recipe
from lydite.pipeline.runner import run_recipe
from lydite.pipeline.stages.rl import RLStage
from lydite.rollout.select import local_engine
from lydite.tasks.task import load_task
from lydite.train.evaluate import Prompt, evaluate
from lydite.train.learner import Learner
from lydite.train.loop import StepResult
from lydite.train.rl import RLParts, RLTrainer
from lydite.types import Engine, Outcome, Problem, Verifier
from lydite.verify.verifier import build
from lydite.watch.console import ConsoleView

START_SEED = 11
MANY = 10**6
"""Steps that no run takes: it ends with its budget, and the learning rate is constant."""
EARLY = 6
"""Evaluations after which they are made a third as often: most is learned before."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is varied. ``budget`` is in sampled tokens, ``every`` in sampled tokens between held-out
    evaluations at the beginning; ``stage`` overrides settings of the RL stage, ``part`` names the
    comparison.
    """

    part: str
    objective: str
    lr: float
    seed: int
    budget: int
    every: int = 20_000
    minibatches: int = 1
    epochs: int = 1
    stage: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """What tells two runs apart."""
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run.

    ``steps`` has one row per policy step and ``heldout`` one per evaluation; in both ``tokens`` is
    what was sampled up to there. ``scores`` is 1 or 0 for each held-out problem at the end.
    """

    setting: Setting
    steps: list[dict[str, float]]
    heldout: list[dict[str, float]]
    scores: list[float]
    seconds: float

    def column(self, name: str) -> list[float]:
        """A figure of every step; NaN where a step has none."""
        return [row.get(name, math.nan) for row in self.steps]

    def crossing(self, level: float) -> dict[str, float] | None:
        """Steps and tokens at which held-out accuracy first reaches ``level``, on the straight line
        between two evaluations; ``None`` if it never does.
        """
        for before, after in zip([None, *self.heldout], self.heldout, strict=False):
            if after["accuracy"] < level:
                continue
            if before is None:
                return {"step": after["step"], "tokens": after["tokens"]}
            share = (level - before["accuracy"]) / (after["accuracy"] - before["accuracy"])
            return {
                name: before[name] + share * (after[name] - before[name])
                for name in ("step", "tokens")
            }
        return None

    @property
    def mean_accuracy(self) -> float:
        """Held-out accuracy averaged over the budget: the area under the learning curve."""
        pairs = list(zip(self.heldout, self.heldout[1:], strict=False))
        area = sum(
            (b["accuracy"] + a["accuracy"]) / 2 * (b["tokens"] - a["tokens"]) for a, b in pairs
        )
        return area / (self.heldout[-1]["tokens"] - self.heldout[0]["tokens"])


class Store:
    """Runs in a JSON-lines file, each appended when it is finished."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.runs: dict[str, Run] = {}
        lines = path.read_text().splitlines() if path.is_file() else []
        for line in lines:
            try:
                row = json.loads(line)
            except json.JSONDecodeError:  # torn by a kill: that run is done again
                continue
            run = Run(**{**row, "setting": Setting(**row["setting"])})
            self.runs[run.setting.key] = run

    def add(self, run: Run) -> None:
        """Appends a run. A torn last line is ended first."""
        row = json.dumps(asdict(run))
        with self._path.open("a+b") as file:
            file.seek(0, 2)
            if file.tell():
                file.seek(-1, 2)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            file.write(row.encode() + b"\n")
        self.runs[run.setting.key] = run

    def of(self, settings: Iterable[Setting]) -> list[Run]:
        """The runs that there are, in the order of the settings."""
        return [self.runs[s.key] for s in settings if s.key in self.runs]


@dataclass(slots=True)
class Bench:
    """A start and a task: where runs begin, what they train on and what they are measured on."""

    recipe: Recipe
    model: Path
    problems: Sequence[Problem]
    heldout: Sequence[Problem]
    verifier: Verifier

    @classmethod
    def quickstart(cls, model: Path) -> Bench:
        """The quickstart's RL stage from a cold-started model."""
        recipe = load_recipe(find_recipe("quickstart"), [f"seed={START_SEED}"])
        train, heldout = (
            load_task(name, recipe.tasks[name], recipe.seed).problems
            for name in (recipe.stages[-1].task, recipe.evaluation.tasks[0])
        )
        return cls(recipe, model, train, heldout, build(recipe.verifier, [*train, *heldout]))

    def policy(self, model: Path | None = None) -> Policy:
        """A model folder loaded as the recipe's later stages load it."""
        config = self.recipe.model.model_copy(
            update={"path": str(model or self.model), "init": {}, "vocabulary": None}
        )
        return load_policy(config, "cpu", self.recipe.seed)

    def stage(self, setting: Setting) -> RLStage:
        """The recipe's RL stage with what the setting changes."""
        stage = self.recipe.stages[-1].model_dump()
        stage["optimizer"] |= {"lr": setting.lr, "schedule": "constant"}
        stage["update"] |= {"minibatches": setting.minibatches, "epochs": setting.epochs}
        stage |= {"objective": setting.objective, "steps": MANY}
        for name, value in setting.stage.items():
            whole = name == "objective" or not isinstance(value, Mapping)
            stage[name] = value if whole else {**stage[name], **value}
        return validate(RLStage, stage, setting.objective)

    def trainer(self, setting: Setting, policy: Policy, engine: Engine) -> RLTrainer:
        """Lydite's RL loop for the setting, on a policy and the engine that samples from it."""
        stage = self.stage(setting)
        objective = stage.build_objective()
        reference = Reference(policy) if objective.needs_reference else None
        critic = stage.build_critic(policy)
        learner = Learner(policy, stage.optimizer, stage.update, reference, critic)
        parts = RLParts(engine, self.verifier, learner, objective)
        prompts = [Prompt(p, render_prompt(policy, p)) for p in self.problems]
        return RLTrainer(stage, parts, prompts, setting.seed)

    def run(self, setting: Setting) -> Run:
        """Trains until the budget is spent, or every problem is retired."""
        began = time.perf_counter()
        policy = self.policy()
        engine = local_engine(policy, self.recipe.engine, setting.seed)
        trainer = self.trainer(setting, policy, engine)
        heldout = [Prompt(p, render_prompt(policy, p)) for p in self.heldout]
        params = self.recipe.evaluation.sampling.params()
        steps: list[dict[str, float]] = []
        curve: list[dict[str, float]] = []
        scores: list[float] = []
        tokens, due = 0.0, 0.0
        while True:
            spent = tokens >= setting.budget or trainer.finished
            if tokens >= due or spent:
                result = evaluate("heldout", heldout, engine, self.verifier, params, 1)
                scores = [found[0] for found in result.scores.values()]
                accuracy = sum(scores) / len(scores)
                curve.append({"step": len(steps), "tokens": tokens, "accuracy": accuracy})
                due += setting.every * (1 if tokens < EARLY * setting.every else 3)
            if spent:
                return Run(setting, steps, curve, scores, time.perf_counter() - began)
            found = trainer.step(len(steps))
            tokens += found.metrics["tokens"]
            steps.append(figures(found, tokens))


KEPT = {
    "accuracy", "entropy", "length", "truncated", "informative_groups", "groups", "rounds",
    "clip_high", "clip_low", "ratio", "kl_old", "grad_norm",
}  # fmt: skip


def figures(result: StepResult, tokens: float) -> dict[str, float]:
    """What is kept of a step: some of its metrics, and lengths of right and wrong answers."""
    found = {name: value for name, value in result.metrics.items() if name in KEPT}
    found["tokens"] = tokens
    for name, right in (("right", True), ("wrong", False)):
        lengths = [s.tokens for s in result.samples if (s.outcome == Outcome.CORRECT) is right]
        if lengths:
            found[name] = sum(lengths) / len(lengths)
    return found


def cold_start(out: Path) -> Path:
    """The quickstart up to its RL stage; a run that is there is read, not repeated."""
    recipe = load_recipe(find_recipe("quickstart"), [f"seed={START_SEED}"])
    recipe = recipe.model_copy(update={"stages": recipe.stages[:-1]})
    view = ConsoleView()
    with view:
        return run_recipe(recipe, out, listeners=[view]).model
