"""A recipe: everything a run is, in one file. ``lydite run`` reads it, the Python interface builds
it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from lydite.config import Config, UserError, load_yaml, validate
from lydite.model.loading import ModelConfig
from lydite.rollout.engine import EngineConfig
from lydite.tasks.task import TaskConfig
from lydite.train.evaluate import SamplingConfig
from lydite.train.rl_config import RLConfig
from lydite.train.sft import SFTConfig
from lydite.verify.verifier import VerifierConfig

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"


class EvalConfig(Config):
    """Held-out evaluation: what is measured before, during and after every stage."""

    tasks: tuple[str, ...] = Field((), description="Names under `tasks` that no stage trains on.")
    samples: int = Field(1, ge=1, description="Completions per problem (avg@k).")
    sampling: SamplingConfig = Field(
        SamplingConfig(temperature=0.0),
        description="How held-out completions are drawn; greedy by default.",
    )
    every: int | None = Field(
        None, ge=1, description="Steps between evaluations inside a stage; null: start and end."
    )
    verifier: VerifierConfig | None = Field(
        None,
        description="A verifier of its own, for example a stricter one; the recipe's when null.",
    )


class StageBase(Config):
    """What every stage has."""

    name: str = Field(
        "", pattern=r"^[A-Za-z0-9_.-]*$", description="Name of the stage; its kind when not given."
    )
    task: str = Field("train", description="Name under `tasks` of what it trains on.")
    start_from: str | None = Field(
        None, description="Stage whose model it starts from, or `model`; null: the stage before it."
    )


class SFTStage(StageBase, SFTConfig):
    """Supervised fine-tuning on worked examples: cold start, distillation, or a rough base for a
    tiny model.
    """

    kind: Literal["sft"]


class RLStage(StageBase, RLConfig):
    """Reinforcement learning on a verifiable reward."""

    kind: Literal["rl"]


Stage = Annotated[SFTStage | RLStage, Field(discriminator="kind")]


class CheckpointConfig(Config):
    """How much work a kill can cost."""

    every: int | None = Field(
        25, ge=1, description="Steps between checkpoints; null: only at the end of a stage."
    )
    keep: int = Field(1, ge=1, description="Checkpoints kept per stage.")


class Recipe(Config):
    """The whole of a run."""

    name: str = Field(
        "run",
        pattern=NAME,
        description="Names the run; its folder is `runs/NAME` unless --out says else.",
    )
    seed: int = Field(0, description="Everything random in the run is addressed by it.")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Where the model lives.")
    threads: int | None = Field(
        None,
        ge=1,
        description="CPU threads for tensor work; all cores when null. A small model is fastest on "
        "one, above all where other programs want the cores too.",
    )
    model: ModelConfig = Field(description="What is trained.")
    tasks: dict[str, TaskConfig] = Field({}, description="Problems, by name.")
    verifier: VerifierConfig = Field(
        VerifierConfig.model_validate({"rewards": [{"kind": "math"}]}),
        description="What scores completions.",
    )
    engine: EngineConfig = Field(EngineConfig(), description="The rollout engine.")
    evaluation: EvalConfig = Field(EvalConfig(), description="Held-out evaluation.")
    checkpoint: CheckpointConfig = Field(CheckpointConfig(), description="Checkpoints.")
    stages: tuple[Stage, ...] = Field(min_length=1, description="What is done, in order.")

    @field_validator("stages", mode="before")
    @classmethod
    def _named(cls, stages: Any) -> Any:
        """A stage without a name takes its kind's, so that the resolved recipe names every one."""
        if not isinstance(stages, Iterable) or isinstance(stages, str | dict):
            raise ValueError("write a list of stages, each with a kind (sft or rl)")
        return [
            {**stage, "name": stage.get("name") or stage.get("kind", "")}
            if isinstance(stage, dict)
            else stage
            for stage in stages
        ]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names: list[str] = []
        for index, stage in enumerate(self.stages):
            if stage.name in names or stage.name == "model":
                raise ValueError(
                    f"stages.{index}.name: {stage.name!r} is taken; names are unique and not "
                    "`model`"
                )
            if stage.start_from not in (None, "model", *names):
                raise ValueError(
                    f"stages.{index}.start_from: no earlier stage {stage.start_from!r}; "
                    f"one of {', '.join(['model', *names])}"
                )
            names.append(stage.name)
        held_out = {f"{name}-{task}" for name in names for task in self.evaluation.tasks}
        taken = held_out.intersection(names)
        if taken:
            raise ValueError(
                f"stages: the name {min(taken)!r} is where held-out answers of another stage go "
                "(samples/STAGE-TASK); choose another name"
            )
        return self

    def task_names(self) -> list[str]:
        """Every task that the run reads, training ones first."""
        return list(dict.fromkeys([*(stage.task for stage in self.stages), *self.evaluation.tasks]))


def load_recipe(path: Path, overrides: Iterable[str] = ()) -> Recipe:
    """Reads and checks a recipe file.

    Raises:
        UserError: one line that names the first wrong field.
    """
    return validate(Recipe, load_yaml(path, list(overrides)), str(path))


def check_tasks(recipe: Recipe, given: Iterable[str] = ()) -> None:
    """Every task that is named is defined, and nothing held out is trained on.

    Raises:
        UserError: naming the field.
    """
    known = {*recipe.tasks, *given}
    for index, stage in enumerate(recipe.stages):
        if stage.task not in known:
            raise UserError(
                f"stages.{index}.task: no task {stage.task!r}; defined: "
                f"{', '.join(sorted(known)) or 'none'}"
            )
        if stage.task in recipe.evaluation.tasks:
            raise UserError(
                f"evaluation.tasks: {stage.task!r} is trained on by stage {stage.name!r}; hold "
                "out another"
            )
    for name in recipe.evaluation.tasks:
        if name not in known:
            raise UserError(
                f"evaluation.tasks: no task {name!r}; defined: {', '.join(sorted(known)) or 'none'}"
            )
