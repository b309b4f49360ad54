"""A recipe: everything a run is, in one file. ``lydite run`` reads it, the Python interface builds
it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, field_validator, model_validator

from lydite.cluster.config import ClusterConfig
from lydite.config import Config, UserError, load_yaml, validate
from lydite.model.loading import ModelConfig
from lydite.pipeline.heldout import EvalConfig
from lydite.pipeline.stages.distill import DistillStage
from lydite.pipeline.stages.evaluate import EvaluateStage
from lydite.pipeline.stages.export import ExportStage
from lydite.pipeline.stages.fuse_thinking import FuseThinkingStage
from lydite.pipeline.stages.merge_lora import MergeLoraStage
from lydite.pipeline.stages.preference import PreferenceStage
from lydite.pipeline.stages.pretrain import PretrainStage
from lydite.pipeline.stages.rejection import RejectionSamplingStage
from lydite.pipeline.stages.reward_model import RewardModelStage
from lydite.pipeline.stages.rl import RLStage
from lydite.pipeline.stages.sft import SFTStage
from lydite.pipeline.stages.stage import Leaves, Stage
from lydite.rollout.engine import EngineConfig
from lydite.tasks.task import TaskConfig
from lydite.verify.settings import reward_model_stages
from lydite.verify.verifier import VerifierConfig
from lydite.watch.trackers import TrackerName

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"

AnyStage = Annotated[
    SFTStage
    | RLStage
    | RejectionSamplingStage
    | PreferenceStage
    | RewardModelStage
    | DistillStage
    | FuseThinkingStage
    | PretrainStage
    | EvaluateStage
    | ExportStage
    | MergeLoraStage,
    Field(discriminator="kind"),
]
"""Every kind of stage, by its ``kind``."""


def leaves_of_kinds() -> dict[str, Leaves]:
    """What each kind of stage leaves."""
    kinds: tuple[type[Stage], ...] = get_args(get_args(AnyStage)[0])
    return {get_args(kind.model_fields["kind"].annotation)[0]: kind.leaves for kind in kinds}


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
    cluster: ClusterConfig | None = Field(
        None,
        description="Where RL stages sample and train: on processes that Ray places. Null: in this "
        "process. Needs the extra `cluster`; see [cluster.md](cluster.md).",
    )
    evaluation: EvalConfig = Field(EvalConfig(), description="Held-out evaluation.")
    checkpoint: CheckpointConfig = Field(CheckpointConfig(), description="Checkpoints.")
    report: tuple[TrackerName, ...] = Field(
        (),
        description="Where figures go beside `events.jsonl` while the run is on: `tensorboard` "
        "(files in the run's folder `tensorboard`), `wandb`, `trackio`, `mlflow`; one or a list.",
    )
    stages: tuple[AnyStage, ...] = Field(min_length=1, description="What is done, in order.")
    result: str | None = Field(
        None,
        description="Stage whose model becomes the folder `model` of the run; null: the last one "
        "that leaves a model.",
    )

    @field_validator("report", mode="before")
    @classmethod
    def _listed(cls, report: Any) -> Any:
        return (report,) if isinstance(report, str) else report

    @field_validator("stages", mode="before")
    @classmethod
    def _named(cls, stages: Any) -> Any:
        """A stage without a name takes its kind's, so that the resolved recipe names every one."""
        if not isinstance(stages, Iterable) or isinstance(stages, str | dict):
            raise ValueError("write a list of stages, each with a kind, such as rl")
        return [
            {**stage, "name": stage.get("name") or stage.get("kind", "")}
            if isinstance(stage, dict)
            else stage
            for stage in stages
        ]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names: list[str] = []
        models = ["model"]
        for index, stage in enumerate(self.stages):
            if stage.name in names or stage.name == "model":
                raise ValueError(
                    f"stages.{index}.name: {stage.name!r} is taken; names are unique and not "
                    "`model`"
                )
            if stage.start_from not in (None, *models):
                wrong = f"no earlier stage {stage.start_from!r}"
                if stage.start_from in names:
                    left = self.stages[names.index(stage.start_from)].leaves.replace("_", " ")
                    wrong = f"stage {stage.start_from!r} leaves a {left}, not a language model"
                raise ValueError(f"stages.{index}.start_from: {wrong}; one of {', '.join(models)}")
            if stage.model is not None and stage.start_from is not None:
                raise ValueError(
                    f"stages.{index}.model: start_from names a model too; keep one of them"
                )
            self._check_stage(index)
            names.append(stage.name)
            if stage.leaves == "model":
                models.append(stage.name)
        if self.result not in (None, *models[1:]):
            raise ValueError(
                f"result: no stage {self.result!r} that leaves a model; "
                + (f"one of {', '.join(models[1:])}" if models[1:] else "there is none")
            )
        judge = self.evaluation.verifier or self.verifier
        if self.evaluation.tasks and (waited := reward_model_stages(judge)):
            raise ValueError(
                "evaluation.verifier: held-out answers are scored from the start, when stage "
                f"{min(waited)!r} has trained no reward model; give evaluation.verifier other "
                "rewards"
            )
        reported = (
            name for task in self.evaluation.tasks for name in self.evaluation.reported(task)
        )
        held_out = {f"{name}-{task}" for task in reported for name in names}
        held_out |= {f"{s.name}-{task}" for s in self.stages for task in s.measured(())}
        taken = held_out.intersection(names)
        if taken:
            raise ValueError(
                f"stages: the name {min(taken)!r} is where held-out answers of another stage go "
                "(samples/STAGE-TASK); choose another name"
            )
        return self

    def _check_stage(self, index: int) -> None:
        """That what a stage needs is there when it comes. Raises ``ValueError``."""
        stage = self.stages[index]
        for task in stage.uses:
            self._check_sources(index, task)
        alone = self.cluster is None and self.engine.kind == "vllm"
        if alone and getattr(stage, "staleness", None):
            raise ValueError(
                f"stages.{index}.staleness: one vLLM in the learner's process cannot sample beside "
                "it; set it to 0, or engine.kind to local"
            )
        try:
            stage.check(self.stages[:index])
            if self.cluster is not None:
                stage.check_cluster(self.cluster)
        except ValueError as error:
            raise ValueError(f"stages.{index}.{error}") from None
        if stage.leaves == "report" and not stage.measured(self.evaluation.tasks):
            raise ValueError(
                f"stages.{index}.evaluation: nothing to measure; name tasks there, or under "
                "evaluation.tasks"
            )
        self._check_reward_models(index)

    def _check_reward_models(self, index: int) -> None:
        """That reward models are there when the stage comes. Raises ``ValueError``."""
        stage = self.stages[index]
        made = {s.name: s for s in self.stages[:index] if s.leaves == "reward_model"}
        for config, _ in stage.verifiers(self.verifier):
            for name, reward in reward_model_stages(config).items():
                where = f"stages.{index}.verifier: {reward.name or reward.kind}"
                if name not in made:
                    raise ValueError(
                        f"{where}.from_stage: no reward_model stage {name!r} before stage "
                        f"{stage.name!r}; there is {', '.join(sorted(made)) or 'none'}"
                    )
                trained = getattr(made[name], "sees", reward.sees)
                if reward.sees != trained:
                    raise ValueError(
                        f"{where}.sees: the model of stage {name!r} learned from {trained!r}, "
                        f"here it would be shown {reward.sees!r}; say sees: {trained} here"
                    )

    def _check_sources(self, index: int, task: str) -> None:
        """That a stage's task is there when the stage comes. Raises ``ValueError``."""
        stage = self.stages[index]
        for name in self.parts_of(task):
            config = self.tasks.get(name)
            if config is None:
                continue
            if config.mix is not None:
                raise ValueError(f"tasks.{task}.mix: {name!r} is a mix itself; name its parts")
            if config.from_stage is None:
                continue
            made = {s.name for s in self.stages[:index] if s.leaves == "dataset"}
            if config.from_stage not in made:
                raise ValueError(
                    f"tasks.{name}.from_stage: no rejection_sampling stage {config.from_stage!r} "
                    f"before stage {stage.name!r}; there is {', '.join(sorted(made)) or 'none'}"
                )
            if not stage.imitates:
                raise ValueError(
                    f"stages.{index}.task: {task!r} holds answers to imitate, and only an "
                    "sft stage can; name the task that was sampled"
                )

    def models(self) -> dict[str, ModelConfig]:
        """By stage, and `model`: the model that the stage's own descends from."""
        found = {"model": self.model}
        for stage in self.stages:
            found[stage.name] = stage.model or found[self.parent_of(stage)]
        return found

    def parts_of(self, task: str) -> tuple[str, ...]:
        """The tasks that a mix is made of; of another task, itself."""
        config = self.tasks.get(task)
        return (task,) if config is None or config.mix is None else tuple(config.mix)

    def parent_of(self, stage: Stage) -> str:
        """The stage whose model a stage starts from, or ``model``."""
        names = [each.name for each in self.stages]
        before = self.stages[: names.index(stage.name)]
        models = [each.name for each in before if each.leaves == "model"]
        return stage.start_from or (models[-1] if models else "model")

    def final(self) -> str | None:
        """The stage whose model is the run's, if one is."""
        models = [stage.name for stage in self.stages if stage.leaves == "model"]
        return self.result or (models[-1] if models else None)

    def drawing_before(self, stage: Stage) -> int:
        """How many stages before it draw with noise of their own."""
        names = [each.name for each in self.stages]
        return sum(each.draws for each in self.stages[: names.index(stage.name)])

    def made_by(self, task: str) -> Stage | None:
        """The stage whose dataset a task is."""
        config = self.tasks.get(task)
        wanted = None if config is None else config.from_stage
        return next((s for s in self.stages if s.name == wanted and s.leaves == "dataset"), None)

    def waits(self, task: str) -> bool:
        """Whether a task cannot be read before some stage is done."""
        return any(self.made_by(part) is not None for part in self.parts_of(task))

    def task_names(self) -> list[str]:
        """Every task that is read before the run starts, training ones first; a mix after its
        parts.
        """
        used = [*(task for stage in self.stages for task in stage.uses), *self.measured()]
        names = [part for task in used for part in (*self.parts_of(task), task)]
        return [name for name in dict.fromkeys(names) if not self.waits(name)]

    def measured(self) -> list[str]:
        """Every task that models are measured on."""
        held_out = self.evaluation.tasks
        own = (task for stage in self.stages for task in stage.measured(held_out))
        return list(dict.fromkeys([*held_out, *own]))

    def held_out(self) -> dict[str, str]:
        """Tasks that no stage may train on, each with the setting that says so."""
        held_out = self.evaluation.tasks
        found = dict.fromkeys(held_out, "evaluation.tasks")
        for stage in self.stages:
            for task in stage.holds_out(held_out):
                found.setdefault(task, f"stages.{stage.name}.evaluation.tasks")
        return found

    def sources_of(self, task: str) -> list[str]:
        """Those of :meth:`task_names` whose questions a task asks, itself where it is one."""
        if not self.waits(task):
            return [task]
        made = ((part, self.made_by(part)) for part in self.parts_of(task))
        return [
            source for part, stage in made for source in ([part] if stage is None else stage.uses)
        ]

    def trained_on(self) -> list[str]:
        """Those of :meth:`task_names` whose questions a stage asks."""
        used = (task for stage in self.stages for task in stage.uses)
        return list(dict.fromkeys(source for task in used for source in self.sources_of(task)))


def load_recipe(path: Path, overrides: Iterable[str] = ()) -> Recipe:
    """Reads and checks a recipe file.

    Raises:
        UserError: one line that names the first wrong field.
    """
    return validate(Recipe, load_yaml(path, list(overrides)), str(path))


def check_tasks(recipe: Recipe, given: Iterable[str] = ()) -> None:
    """Every task that is named is defined, nothing held out is trained on, and the filters have
    what they need.

    Raises:
        UserError: naming the field.
    """
    known = {*recipe.tasks, *given}
    held_out = recipe.held_out()
    defined = f"defined: {', '.join(sorted(known)) or 'none'}"
    for index, stage in enumerate(recipe.stages):
        for task in stage.uses:
            if task not in known:
                raise UserError(f"stages.{index}.task: no task {task!r}; {defined}")
            for part in recipe.parts_of(task):
                if part not in known:
                    raise UserError(f"tasks.{task}.mix: no task {part!r}; {defined}")
            for name in (task, *recipe.parts_of(task), *recipe.sources_of(task)):
                if name in held_out:
                    raise UserError(
                        f"{held_out[name]}: {name!r} is trained on by stage {stage.name!r}; hold "
                        "out another"
                    )
        stage.check_settings()
    if recipe.evaluation.readability is not None:
        recipe.evaluation.readability.check()
    for name in recipe.measured():
        where = held_out.get(name, "evaluation.tasks")
        if name not in known:
            raise UserError(f"{where}: no task {name!r}; {defined}")
        config = recipe.tasks.get(name)
        if config is not None and (config.mix is not None or config.from_stage is not None):
            raise UserError(
                f"{where}: {name!r} has no source of its own; name tasks that have, each "
                "is measured by itself"
            )
