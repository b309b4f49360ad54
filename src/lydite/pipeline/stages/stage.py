"""What every kind of stage has, and what it works with.

A kind is a settings record with a ``run``. What the recipe, its dry run and its runner want to know
of a stage they ask it, so that a new kind is one new file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from lydite.cluster.config import ClusterConfig
from lydite.cluster.session import Session
from lydite.config import Config
from lydite.model.estimate import Workload
from lydite.model.loading import ModelConfig
from lydite.model.policy import Policy
from lydite.model.render import render_prompt
from lydite.pipeline.artifact import Artifact, Lineage
from lydite.pipeline.folder import RunFolder
from lydite.rollout.budget import Tags
from lydite.rollout.detached import DetachedLocalEngine
from lydite.rollout.engine import EngineConfig
from lydite.rollout.select import OwnEngine, engine_of
from lydite.rollout.vllm import VllmEngine
from lydite.tasks.task import TaskData
from lydite.train.collecting import STEPS_APART
from lydite.train.evaluate import Prompt
from lydite.train.loop import LoopSettings
from lydite.types import Engine, Problem, Verifier
from lydite.verify.settings import VerifierConfig, reward_weights
from lydite.watch.events import EventLog, StageStarted

if TYPE_CHECKING:
    from lydite.pipeline.recipe import Recipe

Leaves = Literal["model", "dataset", "reward_model", "report", "export"]
Names = tuple[str, ...]
Finding = tuple[str, tuple[str, ...]]
"""What a check of the dry run found: a sentence, and lines to show under it."""
Checks = Iterator[tuple[str, Callable[[], Finding]]]
"""Checks of the dry run, by name; one that fails raises ``UserError``."""


class Stage(Config):
    """What every stage has."""

    leaves: ClassVar[Leaves] = "model"
    imitates: ClassVar[bool] = False
    """Whether its task's worked solutions are what it learns from."""
    how: ClassVar[tuple[str, ...]] = ("name", "start_from")
    """Settings (dotted) that change memory or speed, and not what it leaves; see also the name and
    the start, for which the lineage has a place of its own.
    """
    late: ClassVar[tuple[str, ...]] = ()
    """Settings that come to bear only after its last step: its samples serve again."""

    on_cluster: ClassVar[bool] = False
    """Whether it works on the recipe's cluster, where there is one; else in the run's process."""

    kind: str
    name: str = Field(
        "", pattern=r"^[A-Za-z0-9_.-]*$", description="Name of the stage; its kind when not given."
    )
    start_from: str | None = Field(
        None,
        description="Stage whose model it starts from, or `model`; null: the last stage before it "
        "that left a model.",
    )
    model: ModelConfig | None = Field(
        None,
        description="A model of its own to start from, such as a smaller student; stages that "
        "start from this one go on with it. Null: as `start_from` says.",
    )

    @property
    def uses(self) -> tuple[str, ...]:
        """Tasks that it works on; what is held out may be none of them."""
        return ()

    @property
    def verified(self) -> tuple[str, ...]:
        """Those of them that it samples answers to and has verified. Such a stage leaves its
        rollouts under its own name.
        """
        return ()

    @property
    def draws(self) -> bool:
        """Whether it draws with noise of its own."""
        return bool(self.verified)

    def verifiers(self, default: VerifierConfig) -> tuple[tuple[VerifierConfig, Names], ...]:
        """What scores its answers, the main one first, each with the tasks that it scores;
        ``default`` is the recipe's.
        """
        return ((default, self.verified),) if self.verified else ()

    @property
    def reads(self) -> tuple[str, ...]:
        """Earlier stages that it needs something of beside its start and its tasks."""
        return tuple(name for name in self.takes if name != "model")

    def depends(self, recipe: Recipe) -> dict[str, Config]:
        """What of the recipe it depends on beside its own settings, its model and its verifier."""
        return {}

    def measured(self, held_out: Names) -> Names:
        """Tasks that it measures models on; ``held_out`` are the recipe's."""
        return ()

    def holds_out(self, held_out: Names) -> Names:
        """Those of them that no stage may train on."""
        return self.measured(held_out)

    def check(self, earlier: Sequence[Stage]) -> None:
        """Whether it can stand behind these stages. Raises ``ValueError``: field, fault, remedy."""

    def check_cluster(self, cluster: ClusterConfig) -> None:
        """Whether it can work so on a cluster. Raises ``ValueError``: field, fault, remedy."""

    def check_settings(self) -> None:
        """What needs more than reading the recipe, such as an extra. Raises ``UserError``."""

    def check_task(self, task: str, problems: Sequence[Problem]) -> None:
        """Whether the problems of a task have what it takes. Raises ``UserError``."""

    @property
    def takes(self) -> tuple[str, ...]:
        """Earlier stages (`model`: the recipe's) whose models it works with beside its own."""
        return ()

    def beside(self, models: Mapping[str, ModelConfig]) -> tuple[ModelConfig, ...]:
        """Models that it holds in memory beside its own and does not train; ``models`` are those
        that the stages' own descend from.
        """
        return ()

    def check_models(self, policy: Policy, others: Mapping[str, Policy]) -> None:
        """Whether the model it works on goes with those that it takes, by name. None of them may
        have weights. Raises ``UserError``.
        """

    def fit(self, policy: Policy, problems: Sequence[Problem]) -> int:
        """Tokens of the longest sequence it makes of these. The policy may have no weights.

        Raises:
            UserError: a prompt cannot be rendered, or passes the context with its completion.
        """
        return max(len(render_prompt(policy, problem)) for problem in problems)

    def shown(self, problem: Problem, prompt: str) -> str:
        """A problem in the dry run, whose prompt is rendered as given."""
        return f"{problem.id}: {prompt!r}"

    def settings_checks(self) -> Checks:
        """Checks of the dry run that need no data."""
        yield from ()

    def task_checks(self, problems: Sequence[Problem]) -> Checks:
        """Checks of the dry run that need the task's problems."""
        yield from ()

    def workload(self, engine: EngineConfig) -> Workload:
        """What it asks of the machine's memory."""
        return Workload(0, 0)

    def inputs(self, samples: Path, artifacts: Mapping[str, Artifact]) -> dict[str, str]:
        """SHA-256 by name of what it follows from beside its tasks and the artifact it starts
        from; ``samples`` is where the run's rollouts lie, ``artifacts`` are those of earlier
        stages. Raises ``UserError``.
        """
        return {}

    def files(self, home: Path) -> dict[str, Path]:
        """What a person may look for of what it leaves, by what it is; ``home`` is its folder."""
        return {}

    def run(self, at: At) -> Artifact:
        """From the artifact it starts from to its own. Raises ``UserError``."""
        raise NotImplementedError


class TaskStage(Stage):
    """A stage that works on the problems of one task."""

    task: str = Field(
        "train", description="Name under `tasks` of what it trains on, or samples answers to."
    )

    @property
    def uses(self) -> tuple[str, ...]:
        return (self.task,)


class VerifiedStage(TaskStage):
    """A stage whose model's answers to its task are verified."""

    verifier: VerifierConfig | None = Field(
        None, description="What scores its completions; the recipe's verifier when null."
    )

    @property
    def verified(self) -> tuple[str, ...]:
        return (self.task,)

    def verifiers(self, default: VerifierConfig) -> tuple[tuple[VerifierConfig, Names], ...]:
        return ((self.verifier or default, self.verified),) if self.verified else ()


@dataclass(frozen=True, slots=True)
class At:
    """Where a stage stands: the run it is part of, and the artifact it starts from.

    ``earlier`` counts the stages before it that sample, whose noise must not be drawn again;
    ``beside`` is told how long each step took, and does what can be done beside the work;
    ``artifacts`` are those of all earlier stages; ``load`` gives the policy it starts from,
    ``load_frozen`` that of an earlier stage by name (`model` is the recipe's), not to be trained;
    ``load_prompting`` the former without weights, and ``settings`` are how it is loaded;
    ``cluster`` is there where the stage works on one; ``scored_by`` are the settings of
    ``verifier``, the stage's own or the recipe's, and ``verifier_of`` gives that of other settings.
    """

    recipe: Recipe
    folder: RunFolder
    log: EventLog
    tasks: Mapping[str, TaskData]
    verifier: Verifier
    judge: Verifier
    device: str
    lineage: Lineage
    parent: Artifact
    parent_name: str
    artifacts: Mapping[str, Artifact]
    earlier: int
    load: Callable[[], Policy]
    load_prompting: Callable[[], Policy]
    settings: ModelConfig
    load_frozen: Callable[[str], Policy]
    scored_by: VerifierConfig
    verifier_of: Callable[[VerifierConfig], Verifier]
    beside: Callable[[float], None]
    cluster: Session | None

    @property
    def name(self) -> str:
        return self.lineage.stage

    @property
    def home(self) -> Path:
        """The folder of the stage's artifact."""
        return self.folder.stage(self.name)

    @property
    def noise_step(self) -> int:
        """The policy step that addresses the noise of the stage's first samples."""
        return self.earlier * STEPS_APART

    @property
    def reward_weights(self) -> dict[str, float]:
        """Of the rewards that are added up, by name."""
        return reward_weights(self.scored_by)

    def problems(self, task: str) -> tuple[Problem, ...]:
        return self.tasks[task].problems

    def prompts(self, policy: Policy, task: str) -> list[Prompt]:
        """A task's problems with what this policy is shown of them."""
        render = partial(render_prompt, policy)
        return [Prompt(problem, render) for problem in self.problems(task)]

    def engine(self, policy: Policy) -> OwnEngine:
        """The recipe's engine, with the policy's own weights or a copy of them."""
        return engine_of(policy, self.recipe.engine, self.recipe.seed)

    def sync(self, engine: Engine) -> Callable[[int], None] | None:
        """What has an engine of :meth:`engine` take over the policy's weights, as a version; None
        where it samples with them.
        """
        return engine.refresh if isinstance(engine, VllmEngine) else None

    def detached_engine(self, policy: Policy, staleness: int) -> DetachedLocalEngine | None:
        """An engine with a copy of the policy's weights, where sampling may be stale."""
        if not staleness:
            return None
        return DetachedLocalEngine(policy, self.recipe.engine, self.recipe.seed)

    def in_flight(self, policy: Policy, asynchronous: bool) -> Tags | None:
        """What reads the thoughts of completions that are made in several calls."""
        return Tags(policy.tokenizer) if asynchronous else None

    def started(self, kind: str, steps: int) -> None:
        """Says in the log that the work begins."""
        self.log.append(
            StageStarted(stage=self.name, stage_kind=kind, steps=steps, start=self.lineage.start)
        )

    def loop(self, evaluate_every: int | None, checkpoint_every: int | None) -> LoopSettings:
        """How ``run_steps`` goes through the stage."""
        return LoopSettings(
            stage=self.name,
            checkpoints=self.folder.checkpoints(self.name),
            samples=self.folder.samples,
            evaluate_every=evaluate_every,
            checkpoint_every=checkpoint_every,
            keep=self.recipe.checkpoint.keep,
            beside=self.beside,
        )
