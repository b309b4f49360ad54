"""Runs a recipe: stage after stage, each from an artifact to an artifact, each evaluated before and
after.

Everything it decides can be read from the run's folder, so the same command given again goes on
where the last one stopped, whatever stopped it.
"""

from __future__ import annotations

import platform
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import lydite
from lydite.cluster.session import Session
from lydite.config import UserError
from lydite.model.loading import ModelConfig, load_frozen, load_policy, load_prompting
from lydite.model.policy import Policy
from lydite.pipeline.artifact import Artifact, Lineage, begin, load_artifact
from lydite.pipeline.device import dtype_of, pick_device
from lydite.pipeline.fit import Fits
from lydite.pipeline.folder import RunFolder, write_json
from lydite.pipeline.problems import load_tasks, made_task
from lydite.pipeline.recipe import Recipe, check_tasks
from lydite.pipeline.stages.stage import At, Stage
from lydite.pipeline.summary import StageSummary, summarise
from lydite.pipeline.supersede import PLACE, finish_superseding, supersede
from lydite.pipeline.survey import data_of, lineage_of, origin_of, root_artifact, survey
from lydite.pipeline.verifiers import Verifiers, judge_of
from lydite.rollout.colocated import release
from lydite.rollout.vllm import installed_version
from lydite.tasks.task import TaskData
from lydite.types import Verifier
from lydite.verify.settings import VerifierConfig
from lydite.watch.diagnosis.live import LiveDiagnosis
from lydite.watch.events import (
    Evaluated,
    Event,
    EventLog,
    Listener,
    RunDone,
    RunFailed,
    RunStarted,
    StageDone,
    StageSkipped,
    StepDone,
    Warned,
    read_events,
)
from lydite.watch.files import write_atomic
from lydite.watch.progress import RunProgress
from lydite.watch.stages import report
from lydite.watch.trackers import Tracking, open_trackers


@dataclass(frozen=True, slots=True)
class Given:
    """What a Python caller hands over instead of naming it in the recipe: tasks by name, and the
    verifier.
    """

    tasks: Mapping[str, TaskData] = field(default_factory=dict)
    verifier: Verifier | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished run: its folder, and each stage's figures as in ``summary.json``. There is no
    folder ``model`` where no stage trained one.
    """

    folder: Path
    model: Path
    stages: tuple[StageSummary, ...]


def run_recipe(
    recipe: Recipe,
    out: Path,
    given: Given | None = None,
    listeners: Sequence[Listener] = (),
    redo: bool = False,
) -> Finished:
    """Runs or resumes a recipe in the folder ``out``. Stages that are done are skipped where their
    inputs are what they were; with ``redo`` others are done again, and what they had left is kept
    under ``superseded``.

    ``listeners`` hear every event, those of earlier attempts first.

    Raises:
        UserError: something the user can mend; what is in the folder stays, and the same call goes
            on from there.
    """
    given = given or Given()
    check_tasks(recipe, given.tasks)
    if recipe.engine.kind == "vllm":
        installed_version()
    tasks = load_tasks(recipe, given.tasks)
    folder = RunFolder(out)
    with folder.claim(recipe):
        finish_superseding(folder)
        check_standing(recipe, tasks, folder, redo)
        changed = folder.write_recipe(recipe)
        with EventLog(folder.events) as log:
            for listener in listeners:
                log.subscribe(listener, replay=True)
            diagnosis = LiveDiagnosis(log, recipe.model_dump(mode="json"), folder.path)
            log.subscribe(diagnosis, replay=True)
            diagnosis.begin()
            settings = recipe.model_dump(mode="json")
            trackers = open_trackers(recipe.report, folder.path, recipe.name, settings)
            tracking = Tracking(log, trackers)
            log.subscribe(tracking, replay=True)
            tracking.begin()
            run = _Run(recipe, folder, tasks, log, given.verifier)
            try:
                return run.execute(changed)
            except UserError as error:
                log.append(RunFailed(message=str(error)))
                raise
            finally:
                run.close()
                tracking.close()


def check_standing(
    recipe: Recipe, tasks: Mapping[str, TaskData], folder: RunFolder, redo: bool
) -> None:
    """Puts away what has to be done again. Raises ``UserError`` when ``redo`` does not allow it."""
    found = survey(recipe, tasks, folder, pick_device(recipe.device))
    if not found.again and not found.gone:
        return
    if not redo:
        raise UserError(
            f"--out {folder.path}: this recipe {found.describe()}; give --redo for that (what is "
            f"there is kept in {folder.path / PLACE}), or choose another --out"
        )
    supersede(folder, found)


class _Run:
    """One attempt at a recipe."""

    def __init__(
        self,
        recipe: Recipe,
        folder: RunFolder,
        tasks: dict[str, TaskData],
        log: EventLog,
        verifier: Verifier | None,
    ) -> None:
        self._recipe = recipe
        self._folder = folder
        self._tasks = tasks
        self._log = log
        self._device = pick_device(recipe.device)
        if recipe.threads is not None:
            torch.set_num_threads(recipe.threads)
        self._began = time.perf_counter()
        self._fits: Fits | None = None
        self._artifacts: dict[str, Artifact] = {}
        self._model = folder.model_source()
        self._verifiers = Verifiers(recipe, tasks, verifier)
        self._at_work = ""
        self._cluster: Session | None = None
        if recipe.cluster is not None:
            self._cluster = Session(recipe.cluster, folder.path, self._warn)

    def close(self) -> None:
        """Ends the worker processes, and the engine that was kept from stage to stage."""
        try:
            self._verifiers.close()
        finally:
            release()
            if self._cluster is not None:
                self._cluster.close()

    def _warn(self, code: str, message: str) -> None:
        self._log.append(Warned(stage=self._at_work, code=code, message=message))

    def execute(self, changed: tuple[str, ...]) -> Finished:
        """Every stage in order, those that are done skipped. ``changed`` is what the recipe has
        otherwise than at the last attempt.
        """
        self._announce(changed)
        self._artifacts["model"] = root_artifact(self._recipe.model)
        files: dict[str, Path] = {}
        for stage in self._recipe.stages:
            parent = self._recipe.parent_of(stage)
            self._artifacts[stage.name] = self._stage(stage, parent)
            files |= stage.files(self._folder.stage(stage.name))
            self._summarise()
        result = self._recipe.final()
        if result is not None:
            files["model"] = self._folder.model
            self._take(result)
        stages = self._summarise()
        files |= {
            "summary": self._folder.summary,
            "report": self._folder.report,
            "events": self._folder.events,
            "samples": self._folder.samples,
        }
        self._log.append(
            RunDone(
                seconds=time.perf_counter() - self._began,
                files={name: str(path) for name, path in files.items()},
                result=result or "",
            )
        )
        return Finished(self._folder.path, self._folder.model, stages)

    def _take(self, result: str) -> None:
        """The model of a stage becomes the run's, unless it is already."""
        artifact = self._artifacts[result]
        ours = {"stage": result, "fingerprint": artifact.fingerprint}
        if self._model != ours:
            self._drop_model()
        _copy_model(artifact.model, self._folder.model)
        self._model = ours

    def _drop_model(self) -> None:
        self._model = {}
        shutil.rmtree(self._folder.model, ignore_errors=True)

    def _announce(self, changed: tuple[str, ...]) -> None:
        versions = {
            "lydite": lydite.__version__,
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "transformers")},
        }
        self._log.append(
            RunStarted(
                name=self._recipe.name,
                seed=self._recipe.seed,
                stages=tuple(stage.name for stage in self._recipe.stages),
                directory=str(self._folder.path),
                versions=versions,
                changed=changed,
            )
        )
        for data in self._tasks.values():
            self._note(data)

    def _note(self, data: TaskData) -> None:
        """What a person should know of a task, once a run."""
        said = {e.message for e in read_events(self._folder.events) if isinstance(e, Warned)}
        for note in data.notes:
            if note not in said:
                self._log.append(Warned(code="task", message=note))

    def _stage(self, stage: Stage, parent: str) -> Artifact:
        for task in stage.uses:
            if task not in self._tasks:
                self._tasks[task] = made_task(self._recipe, task, self._tasks, self._dataset)
                self._note(self._tasks[task])
        origin = origin_of(stage, self._recipe, self._artifacts)
        parts = self._recipe, self._tasks, self._folder.samples, self._artifacts
        data = data_of(stage, *parts)
        lineage = lineage_of(stage, self._recipe, origin, data, self._device)
        home = self._folder.stage(stage.name)
        done = load_artifact(home, lineage)
        if done is not None:
            if not any(isinstance(event, StageDone) for event in self._events_of(stage.name)):
                self._log_done(stage.name, home)  # Killed between the artifact and its event.
            self._log.append(StageSkipped(stage=stage.name, artifact=str(home)))
            return done
        self._drop_model()  # What is done again outdates it.
        late = tuple(f"stage.{setting}" for setting in stage.late)
        begin(self._folder.checkpoints(stage.name), lineage, late)
        at, self._at_work = self._at(stage, parent, origin, lineage), stage.name
        if at.cluster is None:
            artifact = stage.run(at)
        else:
            artifact = at.cluster.persist(lambda: stage.run(at))
        self._log_done(stage.name, home)
        if self._fits is not None:
            self._fits.finish()
        return artifact

    def _at(self, stage: Stage, parent: str, origin: Artifact, lineage: Lineage) -> At:
        return At(
            recipe=self._recipe,
            folder=self._folder,
            log=self._log,
            tasks=self._tasks,
            verifier=self._verifier_of(self._scored_by(stage)),
            judge=self._verifier_of(judge_of(self._recipe)),
            device=self._device,
            lineage=lineage,
            parent=origin,
            parent_name=parent if stage.model is None else "model",
            artifacts=dict(self._artifacts),
            earlier=self._recipe.drawing_before(stage),
            beside=self._beside,
            load=lambda: self._load(stage, parent),
            load_prompting=lambda: self._load_prompting(stage, parent),
            settings=stage.model or self._settings(parent),
            cluster=self._cluster if stage.on_cluster else None,
            load_frozen=self._load_frozen,
            scored_by=self._scored_by(stage),
            verifier_of=self._verifier_of,
        )

    def _scored_by(self, stage: Stage) -> VerifierConfig:
        """The settings of the verifier that a stage has, its own or the recipe's."""
        own = stage.verifiers(self._recipe.verifier)
        return own[0][0] if own else self._recipe.verifier

    def _verifier_of(self, config: VerifierConfig) -> Verifier:
        return self._verifiers.of(config, {n: a.model for n, a in self._artifacts.items()})

    def _beside(self, seconds: float) -> None:
        if self._fits is not None:
            self._fits.go_on(seconds)

    def _dataset(self, stage: str) -> Path:
        """The file that a stage left."""
        path = self._artifacts[stage].dataset
        assert path is not None, "a stage that leaves a dataset leaves its file"
        return path

    def _check_fit(self, policy: Policy, origin: ModelConfig) -> None:
        """Once: what does not fit in a later stage is said before this one takes hours. ``origin``
        is the model that the policy descends from.
        """
        if self._fits is not None:
            return
        self._fits = Fits()
        models = self._recipe.models()
        loaded = [(origin, policy)]
        policies: dict[str, Policy] = {}
        for name, config in models.items():
            same = next((each for known, each in loaded if known == config), None)
            policies[name] = same or load_prompting(config)
            if same is None:
                loaded.append((config, policies[name]))
        for stage in self._recipe.stages:
            stage.check_models(policies[stage.name], policies)
            for task in stage.uses:
                # What is sampled in the run fits: it was sampled within the context.
                if not self._recipe.waits(task):
                    fit = partial(stage.fit, policies[stage.name])
                    self._fits.add(fit, self._tasks[task].problems)

    def _events_of(self, stage: str) -> list[Event]:
        return [event for event in read_events(self._folder.events) if event.stage == stage]

    def _log_done(self, stage: str, home: Path) -> None:
        """The stage's end, with what all attempts at it took together."""
        events = self._events_of(stage)
        steps = max((e.step for e in events if isinstance(e, StepDone)), default=0)
        seconds = sum(
            e.metrics.get("seconds", 0.0) for e in events if isinstance(e, StepDone | Evaluated)
        )
        self._log.append(
            StageDone(stage=stage, step=steps, steps=steps, seconds=seconds, artifact=str(home))
        )

    def _settings(self, name: str) -> ModelConfig:
        """How the model is loaded that a stage left, or the recipe's. Always from disk, so that a
        resumed run starts from the very same weights.
        """
        config = self._recipe.models()[name]
        if name == "model":
            return config
        path = str(self._artifacts[name].model)
        gone: dict[str, Any] = {"init": {}, "vocabulary": None, "tokenizer": None}
        return config.model_copy(update={"path": path, **gone, "dtype": dtype_of(config)})

    def _load(self, stage: Stage, parent: str) -> Policy:
        settings = stage.model or self._settings(parent)
        policy = load_policy(settings, self._device, self._recipe.seed)
        self._check_fit(policy, self._recipe.models()[stage.name])
        return policy

    def _load_prompting(self, stage: Stage, parent: str) -> Policy:
        policy = load_prompting(stage.model or self._settings(parent))
        self._check_fit(policy, self._recipe.models()[stage.name])
        return policy

    def _load_frozen(self, name: str) -> Policy:
        return load_frozen(self._settings(name), self._device, self._recipe.seed)

    def _summarise(self) -> tuple[StageSummary, ...]:
        events = list(read_events(self._folder.events))
        stages = summarise(events)
        write_json(
            self._folder.summary,
            {
                "name": self._recipe.name,
                "seed": self._recipe.seed,
                **({"model": self._model} if self._model else {}),
                "stages": [s.as_json() for s in stages],
            },
        )
        progress = RunProgress()
        for event in events:
            progress.advance(event)
        text = report(progress).encode()
        if not self._folder.report.is_file() or self._folder.report.read_bytes() != text:
            write_atomic(self._folder.report, text)
        return stages


def _copy_model(source: Path, target: Path) -> None:
    """The last stage's model again as ``model/``; whole or not at all.

    Raises:
        UserError: the disk is full.
    """
    if target.is_dir():
        return
    partial = target.with_name(f".{target.name}.partial")
    try:
        shutil.copytree(source, partial)
        partial.rename(target)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise UserError(
            f"disk: cannot write {target}: {error}; mend that and give the same command again"
        ) from error
