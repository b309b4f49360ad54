"""Measuring models as a stage, between others or at the end: it leaves a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from lydite.config import Config
from lydite.model.estimate import Workload
from lydite.pipeline.artifact import Artifact, save_artifact
from lydite.pipeline.folder import write_json
from lydite.pipeline.heldout import EvalConfig, HeldOut, basis_of
from lydite.pipeline.stages.stage import At, Checks, Finding, Leaves, Names, Stage
from lydite.pipeline.summary import compared
from lydite.rollout.engine import EngineConfig
from lydite.verify.settings import VerifierConfig
from lydite.watch.events import Evaluated, read_events
from lydite.watch.samples import join_samples, samples_path

if TYPE_CHECKING:
    from lydite.pipeline.recipe import Recipe

REPORT, ANSWERS = "report.json", "answers.parquet"


class EvaluateStage(Stage):
    """Measures one model or several on the same problems, with paired differences. It leaves
    `report.json` and every answer with its verdict in `answers.parquet`, and no model.
    """

    leaves: ClassVar[Leaves] = "report"

    kind: Literal["evaluate"]
    models: tuple[str, ...] = Field(
        (),
        description="Stages whose models are compared, or `model`, the first one with each of the "
        "others; none: the model it starts from.",
    )
    evaluation: EvalConfig | None = Field(
        None, description="On what and how; as the recipe's `evaluation` when null."
    )
    trained_on: bool = Field(
        False,
        description="Allow tasks that a stage trains on, to see what is remembered. Such figures "
        "say nothing of other problems.",
    )

    def measured(self, held_out: Names) -> Names:
        return held_out if self.evaluation is None else self.evaluation.tasks

    def holds_out(self, held_out: Names) -> Names:
        return () if self.trained_on else self.measured(held_out)

    @property
    def takes(self) -> tuple[str, ...]:
        return self.models

    def verifiers(self, default: VerifierConfig) -> tuple[tuple[VerifierConfig, Names], ...]:
        if self.evaluation is None:
            return ()
        return ((self.evaluation.verifier or default, self.evaluation.tasks),)

    def depends(self, recipe: Recipe) -> dict[str, Config]:
        config = self.evaluation or recipe.evaluation
        return {"evaluation": config, "verifier": config.verifier or recipe.verifier}

    def check(self, earlier: Sequence[Stage]) -> None:
        known = ["model", *(each.name for each in earlier if each.leaves == "model")]
        for name in self.models:
            if name not in known:
                raise ValueError(
                    f"models: no earlier stage {name!r} that leaves a model; one of "
                    f"{', '.join(known)}"
                )
        if len(set(self.models)) < len(self.models):
            raise ValueError("models: one is named twice")
        if self.models and (self.start_from or self.model):
            raise ValueError("models: start_from or model names one too; keep one of them")

    def settings_checks(self) -> Checks:
        yield f"models of {self.name}", self._said

    def _said(self) -> Finding:
        what = ", then ".join(self.models) or "the model it starts from"
        pairs = f"; {len(self.models)} compared in pairs" if len(self.models) > 1 else ""
        return f"measures {what}{pairs}", ()

    def workload(self, engine: EngineConfig) -> Workload:
        config = self.evaluation or EvalConfig()
        tokens = config.sampling.max_tokens
        return Workload(engine.max_rows * tokens, 0, packed=engine.packs(tokens))

    def inputs(self, samples: Path, artifacts: Mapping[str, Artifact]) -> dict[str, str]:
        return {f"model {name}": artifacts[name].fingerprint for name in self.models}

    def files(self, home: Path) -> dict[str, Path]:
        return {f"report {self.name}": home / REPORT}

    def run(self, at: At) -> Artifact:
        config = self.evaluation or at.recipe.evaluation
        models = self.models or (at.parent_name,)
        at.started(self.kind, 0)
        for place, name in enumerate(models):
            self._measure(at, config, place, name)
        events = [
            event
            for event in read_events(at.log.path)
            if isinstance(event, Evaluated) and event.stage == self.name
        ]
        report = compared(events)
        files: dict[tuple[str, ...], Path] = {
            (event.model, event.task): samples_path(
                at.folder.samples, f"{self.name}-{event.task}", event.step
            )
            for event in events
        }
        join_samples(at.home / ANSWERS, ("model", "task"), files)
        write_json(at.home / REPORT, report)
        return save_artifact(at.home, at.lineage, {"report": report})

    def _measure(self, at: At, config: EvalConfig, place: int, name: str) -> None:
        policy = at.load() if self.model is not None else at.load_frozen(name)
        verifier = config.verifier or at.recipe.verifier
        tasks = {task: at.tasks[task].fingerprint for task in config.tasks}
        artifact = at.parent if self.model is not None else at.artifacts[name]
        held_out = HeldOut(
            config,
            {task: at.problems(task) for task in config.tasks},
            policy,
            at.engine(policy),
            at.verifier_of(verifier),
            basis_of(config, verifier, policy, tasks),
            model=name,
        )
        held_out.measure(self.name, place, artifact.fingerprint, at.log, at.folder.samples)
