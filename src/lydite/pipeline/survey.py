"""What a recipe finds in a run's folder: which stages are done, which are begun, and which were
made from other inputs than the recipe now has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lydite.config import Config, UserError
from lydite.model.loading import ModelConfig
from lydite.pipeline.artifact import (
    BEGUN,
    DONE,
    MACHINE,
    Artifact,
    Lineage,
    artifact_of,
    changes,
    fingerprint,
    read_record,
    without,
)
from lydite.pipeline.folder import RunFolder
from lydite.pipeline.problems import made_task
from lydite.pipeline.recipe import Recipe
from lydite.pipeline.stages.stage import Stage
from lydite.tasks.task import TaskData
from lydite.verify.settings import reward_model_stages

HOW_MODEL = ("gradient_checkpointing",)
"""Settings of a model that change memory and speed, and not what it learns."""

State = Literal["new", "begun", "done", "changed"]


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a stage stands. ``changed`` has its inputs that differ, as ``key: then, now``;
    ``serves`` says that what it sampled serves again, since they come to bear only after that.
    """

    stage: str
    state: State
    changed: tuple[str, ...] = ()
    serves: bool = False


@dataclass(frozen=True, slots=True)
class Survey:
    """Every stage of the recipe in order, and those in the folder that the recipe lacks."""

    stages: tuple[Standing, ...]
    gone: tuple[str, ...]

    @property
    def again(self) -> tuple[Standing, ...]:
        """Stages that have to be done again."""
        return tuple(stage for stage in self.stages if stage.state == "changed")

    def describe(self) -> str:
        """What would be done again and put away, and why, in one line."""
        parts = [f"{each.stage} ({_reason(each)})" for each in self.again]
        said = [f"would do again: {', '.join(parts)}"] if parts else []
        if self.gone:
            said.append(f"has no stage {', '.join(self.gone)} any more")
        return " and ".join(said)


def _reason(standing: Standing) -> str:
    first, *more = standing.changed
    return f"{first}{f' and {len(more)} more' if more else ''}"


def root_artifact(model: ModelConfig) -> Artifact:
    """A model that no stage left."""
    settings = model.model_dump(mode="json", exclude_defaults=True)
    return Artifact(fingerprint(without(settings, HOW_MODEL)), Path(model.path))


def origin_of(stage: Stage, recipe: Recipe, artifacts: Mapping[str, Artifact]) -> Artifact:
    """What a stage starts from, of the artifacts of those before it."""
    if stage.model is not None:
        return root_artifact(stage.model)
    return artifacts[recipe.parent_of(stage)]


def data_of(
    stage: Stage,
    recipe: Recipe,
    tasks: Mapping[str, TaskData],
    samples: Path,
    artifacts: Mapping[str, Artifact],
) -> dict[str, str]:
    """Fingerprints by name of what a stage works on beside the artifact that it starts from.

    Raises:
        UserError: something of it is not there.
    """
    measured = stage.measured(recipe.evaluation.tasks)
    return {
        **{task: tasks[task].fingerprint for task in (*stage.uses, *measured)},
        **{f"reward model {n}": artifacts[n].fingerprint for n in judges_of(stage, recipe)},
        **stage.inputs(samples, artifacts),
    }


def judges_of(stage: Stage, recipe: Recipe) -> list[str]:
    """Stages whose reward models score a stage's answers."""
    verifiers = (config for config, _ in stage.verifiers(recipe.verifier))
    return list(dict.fromkeys(name for each in verifiers for name in reward_model_stages(each)))


def start_of(stage: Stage, recipe: Recipe) -> str:
    """What a stage starts from, by the name of a stage or by the path of a model."""
    parent = recipe.parent_of(stage)
    model = recipe.model if stage.model is None else stage.model
    return parent if stage.model is None and parent != "model" else model.path


def lineage_of(
    stage: Stage, recipe: Recipe, origin: Artifact, data: Mapping[str, str], device: str
) -> Lineage:
    """What a stage follows from; ``data`` as :func:`data_of` gives it."""
    model = recipe.models()[stage.name]
    used: dict[str, Config] = {"stage": stage, "model": model}
    for verifier, _ in stage.verifiers(recipe.verifier)[:1]:
        used["verifier"] = verifier  # Others are among the stage's own settings.
    used |= stage.depends(recipe)
    settings: dict[str, Any] = {k: v.model_dump(mode="json") for k, v in used.items()}
    given = {k: v.model_dump(mode="json", exclude_defaults=True) for k, v in used.items()}
    on_cluster = recipe.cluster is not None and stage.on_cluster
    settings[MACHINE] = recipe.cluster.device if recipe.cluster and on_cluster else device
    if stage.draws:
        # Noise is addressed by how many stages have drawn before.
        settings["noise"] = recipe.drawing_before(stage)
    how = (*stage.how, *(f"model.{name}" for name in HOW_MODEL))
    return Lineage(
        stage=stage.name,
        kind=stage.kind,
        settings=settings,
        parent=origin.fingerprint,
        data=data,
        seed=recipe.seed,
        start=start_of(stage, recipe),
        given=given,
        how=(*(f"stage.{name}" for name in how), *(f"model.{name}" for name in HOW_MODEL)),
    )


def survey(recipe: Recipe, tasks: Mapping[str, TaskData], folder: RunFolder, device: str) -> Survey:
    """Compares a recipe with what its run's folder holds. Changes nothing.

    Raises:
        UserError: a record in the folder cannot be read.
    """
    walk = _Walk(recipe, dict(tasks), folder, device)
    stages = tuple(walk.stage(stage) for stage in recipe.stages)
    names = {stage.name for stage in recipe.stages}
    found = {
        path.name
        for part in ("stages", "checkpoints")
        for path in (folder.path / part).glob("[!.]*")
        if path.is_dir()
    }
    gone = tuple(sorted(name for name in found - names if _worked(folder, name)))
    return Survey(stages, gone)


def _worked(folder: RunFolder, stage: str) -> bool:
    """Whether there is anything of a stage but its name."""
    places = (folder.stage(stage), folder.samples / stage)
    held_out = list(folder.samples.glob(f"{stage}-*"))
    return any(folder.checkpoints(stage).glob("step-*")) or any(
        any(place.rglob("*")) for place in (*places, *held_out)
    )


class _Walk:
    """Stage after stage, with what is known of those before."""

    def __init__(
        self, recipe: Recipe, tasks: dict[str, TaskData], folder: RunFolder, device: str
    ) -> None:
        self._recipe = recipe
        self._tasks = tasks
        self._folder = folder
        self._device = device
        self._standings: dict[str, Standing] = {}
        self._artifacts = {"model": root_artifact(recipe.model)}

    def stage(self, stage: Stage) -> Standing:
        standing = self._judge(stage)
        self._standings[stage.name] = standing
        return standing

    def _judge(self, stage: Stage) -> Standing:
        name = stage.name
        home = self._folder.stage(name)
        done = read_record(home / DONE)
        record = done or read_record(self._folder.checkpoints(name) / BEGUN)
        lineage = self._lineage(stage)
        known = record["fingerprint"] if record else lineage.fingerprint if lineage else ""
        if record is None or not (done or _worked(self._folder, name)):
            self._artifacts[name] = artifact_of(home, lineage.fingerprint if lineage else "")
            return Standing(name, "new")
        self._artifacts[name] = artifact_of(home, known)
        state: State = "done" if done else "begun"
        again = [each for each in self._sources(stage) if self._state(each) == "changed"]
        if again:
            self._artifacts[name] = artifact_of(home, "")
            return Standing(name, "changed", tuple(f"it follows from {each}" for each in again))
        if lineage is None:
            # A stage before it is yet to be done; whether that changes anything is known then.
            return Standing(name, state)
        besides = (*lineage.how, *((MACHINE,) if done else ()))
        changed = changes(record, lineage, besides)
        if not changed:
            return Standing(name, state)
        self._artifacts[name] = artifact_of(home, lineage.fingerprint)
        late = tuple(f"stage.{setting}" for setting in stage.late)
        serves = bool(late) and not changes(record, lineage, (*besides, *late))
        return Standing(name, "changed", tuple(changed), serves)

    def _state(self, name: str) -> State:
        return self._standings[name].state if name in self._standings else "done"

    def _sources(self, stage: Stage) -> list[str]:
        """The stages that a stage starts from, and whose files it reads."""
        start = [] if stage.model is not None else [self._recipe.parent_of(stage)]
        names = [*start, *self._made(stage), *stage.reads, *judges_of(stage, self._recipe)]
        return list(dict.fromkeys(names))

    def _lineage(self, stage: Stage) -> Lineage | None:
        """What a stage follows from, or None where that is not known yet."""
        needed = {*stage.reads, *self._made(stage), *judges_of(stage, self._recipe)}
        if any(self._state(name) != "done" for name in needed):
            return None
        if not all(self._artifacts[n].fingerprint for n in self._sources(stage)):
            return None
        try:
            for task in stage.uses:
                if task not in self._tasks:
                    made = made_task(self._recipe, task, self._tasks, self._dataset)
                    self._tasks[task] = made
            parts = self._recipe, self._tasks, self._folder.samples, self._artifacts
            data = data_of(stage, *parts)
        except UserError:
            return None
        origin = origin_of(stage, self._recipe, self._artifacts)
        return lineage_of(stage, self._recipe, origin, data, self._device)

    def _made(self, stage: Stage) -> list[str]:
        """The stages whose datasets are among a stage's tasks."""
        parts = (part for task in stage.uses for part in self._recipe.parts_of(task))
        return [made.name for part in parts if (made := self._recipe.made_by(part)) is not None]

    def _dataset(self, stage: str) -> Path:
        path = self._artifacts[stage].dataset
        if path is None:
            raise UserError(f"{self._folder.stage(stage)}: its dataset is gone")
        return path
