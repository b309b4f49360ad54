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
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import torch

import lydite
from lydite.config import UserError
from lydite.model.loading import ModelConfig, load_policy
from lydite.model.policy import Policy
from lydite.model.reference import Reference
from lydite.model.render import render_prompt
from lydite.model.saving import save_policy
from lydite.pipeline.artifact import (
    Artifact,
    Lineage,
    begin,
    fingerprint,
    load_artifact,
    save_artifact,
)
from lydite.pipeline.fit import examples_of, longest
from lydite.pipeline.folder import RunFolder, resolved, write_json
from lydite.pipeline.heldout import HeldOut
from lydite.pipeline.pairs import StagePairs, rollout_files, rollouts_fingerprint
from lydite.pipeline.prefer import Source, preference_trainer
from lydite.pipeline.problems import load_tasks, made_task, problems_of
from lydite.pipeline.recipe import (
    AnyStage,
    PreferenceStage,
    Recipe,
    RejectionSamplingStage,
    RLStage,
    SFTStage,
    check_tasks,
    leaves_rollouts,
    verified_tasks,
)
from lydite.pipeline.rejection import RejectionSampling
from lydite.pipeline.summary import StageSummary, summarise
from lydite.rollout.select import local_engine
from lydite.tasks.task import TaskData
from lydite.train.evaluate import Prompt
from lydite.train.learner import Learner
from lydite.train.loop import LoopSettings, Trainer, run_steps
from lydite.train.rejection import RejectionSampler
from lydite.train.rl import STEPS_APART, RLParts, RLTrainer
from lydite.train.sft import SFTTrainer
from lydite.types import Engine, Verifier
from lydite.verify.settings import reward_names
from lydite.verify.verifier import build
from lydite.watch.events import (
    Evaluated,
    Event,
    EventLog,
    Listener,
    RunDone,
    RunFailed,
    RunStarted,
    StageDone,
    StageStarted,
    StepDone,
    Warned,
    read_events,
)


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
    recipe: Recipe, out: Path, given: Given | None = None, listeners: Sequence[Listener] = ()
) -> Finished:
    """Runs or resumes a recipe in the folder ``out``.

    ``listeners`` hear every event, those of earlier attempts first.

    Raises:
        UserError: something the user can mend; what is in the folder stays, and the same call goes
            on from there.
    """
    given = given or Given()
    check_tasks(recipe, given.tasks)
    tasks = load_tasks(recipe, given.tasks)
    folder = RunFolder(out)
    with folder.claim(recipe), EventLog(folder.events) as log:
        for listener in listeners:
            log.subscribe(listener, replay=True)
        run = _Run(recipe, folder, tasks, log, given.verifier)
        try:
            return run.execute()
        except UserError as error:
            log.append(RunFailed(message=str(error)))
            raise
        finally:
            run.close()


def pick_device(wanted: str) -> str:
    """``auto`` is the GPU if there is one.

    Raises:
        UserError: ``cuda``, and there is none.
    """
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "device: cuda was asked for and torch sees no GPU; use device=cpu or device=auto"
        )
    return wanted


def dtype_of(config: ModelConfig) -> Literal["float32", "bfloat16", "auto"]:
    """``auto`` is float32 for a new model, in later stages too, where it comes from a folder."""
    new = config.path.startswith("init:")
    return "float32" if new and config.dtype == "auto" else config.dtype


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
        self._fits = False
        self._datasets: dict[str, Path] = {}
        judge = recipe.evaluation.verifier
        held_out = set(recipe.evaluation.tasks)
        trained = verified_tasks(recipe)
        self._verifier = verifier or build(
            recipe.verifier, problems_of(tasks, trained if judge else trained | held_out)
        )
        self._judge = (
            self._verifier if judge is None else build(judge, problems_of(tasks, held_out))
        )

    def close(self) -> None:
        """Ends the worker processes."""
        self._verifier.close()
        if self._judge is not self._verifier:
            self._judge.close()

    def execute(self) -> Finished:
        """Every stage in order, those that are done skipped."""
        self._announce()
        root = Artifact(fingerprint(resolved(self._recipe)["model"]), Path(self._recipe.model.path))
        artifacts = {"model": root}
        last = "model"
        files: dict[str, Path] = {}
        for stage in self._recipe.stages:
            parent = stage.start_from or last
            made = self._stage(stage, artifacts[parent], parent)
            artifacts[stage.name] = made
            if made.dataset is None:
                last = stage.name
            else:
                self._datasets[stage.name] = files[f"dataset {stage.name}"] = made.dataset
            self._summarise()
        if last != "model":
            files["model"] = self._folder.model
            _copy_model(artifacts[last].model, self._folder.model)
        stages = self._summarise()
        files |= {
            "summary": self._folder.summary,
            "events": self._folder.events,
            "samples": self._folder.samples,
        }
        self._log.append(
            RunDone(
                seconds=time.perf_counter() - self._began,
                files={name: str(path) for name, path in files.items()},
            )
        )
        return Finished(self._folder.path, self._folder.model, stages)

    def _announce(self) -> None:
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

    def _stage(self, stage: AnyStage, parent: Artifact, parent_name: str) -> Artifact:
        if stage.task not in self._tasks:
            self._tasks[stage.task] = made_task(
                self._recipe, stage.task, self._tasks, self._datasets.__getitem__
            )
            self._note(self._tasks[stage.task])
        lineage = self._lineage(stage, parent)
        home = self._folder.stage(stage.name)
        done = load_artifact(home, lineage)
        if done is not None:
            if not any(isinstance(event, StageDone) for event in self._events_of(stage.name)):
                self._log_done(stage.name, home)  # Killed between the artifact and its event.
            return done
        # A stage that is done again outdates the run's model.
        shutil.rmtree(self._folder.model, ignore_errors=True)
        begin(self._folder.checkpoints(stage.name), lineage)
        policy = self._load(parent, fresh=parent_name == "model")
        self._check_fit(policy)
        if isinstance(stage, RejectionSamplingStage):
            artifact = self._sample(stage, policy, lineage)
        else:
            artifact = self._train(stage, policy, lineage, parent_name)
        self._log_done(stage.name, home)
        return artifact

    def _loop(self, stage: AnyStage) -> LoopSettings:
        sampling = isinstance(stage, RejectionSamplingStage)
        return LoopSettings(
            stage=stage.name,
            checkpoints=self._folder.checkpoints(stage.name),
            samples=self._folder.samples,
            evaluate_every=None if stage.kind == "sft" else self._recipe.evaluation.every,
            # Of sampling a checkpoint is but the step, and a step can take minutes.
            checkpoint_every=1 if sampling else self._recipe.checkpoint.every,
            keep=self._recipe.checkpoint.keep,
        )

    def _sample(self, stage: RejectionSamplingStage, policy: Policy, lineage: Lineage) -> Artifact:
        problems = self._tasks[stage.task].problems
        sampler = RejectionSampler(
            stage,
            local_engine(policy, self._recipe.engine, self._recipe.seed),
            self._verifier,
            [Prompt(p, render_prompt(policy, p)) for p in problems],
            self._earlier(stage) * STEPS_APART,
            self._recipe.verifier.limits.fail_rate,
        )
        self._log.append(StageStarted(stage=stage.name, stage_kind=stage.kind, steps=sampler.total))
        work = RejectionSampling(sampler, problems, self._loop(stage), self._log)
        return work.run(self._folder.stage(stage.name), lineage)

    def _earlier(self, stage: AnyStage) -> int:
        """How many stages before this one sample: each draws with noise of its own."""
        names = [each.name for each in self._recipe.stages]
        before = self._recipe.stages[: names.index(stage.name)]
        return sum(map(leaves_rollouts, before))

    def _train(
        self,
        stage: SFTStage | RLStage | PreferenceStage,
        policy: Policy,
        lineage: Lineage,
        parent_name: str,
    ) -> Artifact:
        engine = local_engine(policy, self._recipe.engine, self._recipe.seed)
        trainer = self._trainer(stage, policy, engine, lineage)
        self._log.append(StageStarted(stage=stage.name, stage_kind=stage.kind, steps=trainer.total))
        held_out = HeldOut(
            self._recipe.evaluation,
            {
                name: [Prompt(p, render_prompt(policy, p)) for p in self._tasks[name].problems]
                for name in self._recipe.evaluation.tasks
            },
            engine,
            self._judge,
        )
        run_steps(
            trainer,
            self._loop(stage),
            self._log,
            lambda step: held_out.measure(
                stage.name, step, parent_name, self._log, self._folder.samples
            ),
        )
        home = self._folder.stage(stage.name)
        save_policy(policy, home / "model")
        return save_artifact(home, lineage)

    def _lineage(self, stage: AnyStage, parent: Artifact) -> Lineage:
        data = {stage.task: self._tasks[stage.task].fingerprint}
        if isinstance(stage, PreferenceStage) and isinstance(stage.pairs, StagePairs):
            files = rollout_files(stage.name, stage.pairs, self._folder.samples)
            data[f"rollouts of {stage.pairs.stage}"] = rollouts_fingerprint(files)
        return Lineage(
            stage=stage.name,
            kind=stage.kind,
            settings={
                "stage": stage.model_dump(mode="json"),
                "verifier": self._recipe.verifier.model_dump(mode="json"),
                "device": self._device,
            },
            parent=parent.fingerprint,
            data=data,
            seed=self._recipe.seed,
        )

    def _check_fit(self, policy: Policy) -> None:
        """Once: what does not fit in a later stage is said before this one takes hours."""
        if not self._fits:
            for stage in self._recipe.stages:
                # What is sampled in the run fits: it was sampled within the context.
                if not self._recipe.waits(stage.task):
                    longest(policy, stage, self._tasks[stage.task].problems)
            self._fits = True

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

    def _load(self, parent: Artifact, fresh: bool) -> Policy:
        """The starting weights. Always from disk, so that a resumed run starts from the very same
        ones.
        """
        config = self._recipe.model
        if not fresh:
            config = config.model_copy(
                update={
                    "path": str(parent.model),
                    "init": {},
                    "vocabulary": None,
                    "tokenizer": None,
                    "dtype": dtype_of(config),
                }
            )
        return load_policy(config, self._device, self._recipe.seed)

    def _trainer(
        self,
        stage: SFTStage | RLStage | PreferenceStage,
        policy: Policy,
        engine: Engine,
        lineage: Lineage,
    ) -> Trainer:
        problems = self._tasks[stage.task].problems
        if isinstance(stage, PreferenceStage):
            source = Source(
                policy, engine, self._verifier, self._folder, self._earlier(stage) * STEPS_APART
            )
            return preference_trainer(stage, self._recipe, source, problems, lineage.fingerprint)
        if isinstance(stage, SFTStage):
            return SFTTrainer(
                policy, stage, examples_of(policy, problems, stage), self._recipe.seed
            )
        objective = stage.build_objective()
        reference = Reference(policy) if objective.needs_reference else None
        learner = Learner(
            policy, stage.optimizer, stage.update, reference, stage.build_critic(policy)
        )
        rewards = self._recipe.verifier.rewards
        parts = RLParts(
            engine,
            self._verifier,
            learner,
            objective,
            self._recipe.verifier.limits.fail_rate,
            {n: r.weight for n, r in zip(reward_names(rewards), rewards, strict=True)},
        )
        return RLTrainer(
            stage,
            parts,
            [Prompt(p, render_prompt(policy, p)) for p in problems],
            self._recipe.seed,
            earlier=self._earlier(stage),
        )

    def _summarise(self) -> tuple[StageSummary, ...]:
        stages = summarise(read_events(self._folder.events))
        write_json(
            self._folder.summary,
            {
                "name": self._recipe.name,
                "seed": self._recipe.seed,
                "stages": [s.as_json() for s in stages],
            },
        )
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
