"""What all stages have in common that train a model: the loop, held-out scores, and the model
saved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from lydite.model.policy import Policy
from lydite.model.saving import save_policy
from lydite.pipeline.artifact import Artifact, save_artifact
from lydite.pipeline.heldout import HeldOut, basis_of
from lydite.pipeline.stages.stage import At
from lydite.train.loop import Trainer, run_steps
from lydite.types import Engine


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A model whose weights are in other processes: ``trained`` gives it with them, ``write`` puts
    into a checkpoint what only those processes have.
    """

    trained: Callable[[], Policy]
    write: Callable[[Path], None]


def held_out_of(at: At, policy: Policy, engine: Engine | None = None) -> HeldOut:
    """The recipe's held-out tasks, for this policy."""
    evaluation = at.recipe.evaluation
    tasks = {name: at.tasks[name].fingerprint for name in evaluation.tasks}
    return HeldOut(
        evaluation,
        {name: at.problems(name) for name in evaluation.tasks},
        policy,
        engine or at.engine(policy),
        at.judge,
        basis_of(evaluation, at.recipe.verifier, policy, tasks),
    )


def train(
    at: At,
    kind: str,
    trainer: Trainer,
    policy: Policy,
    engine: Engine,
    during: bool = True,
    elsewhere: Elsewhere | None = None,
) -> Artifact:
    """Runs a trainer to its end, the model measured before and after, and ``during`` it at the
    recipe's interval; leaves the model. ``elsewhere`` is given where ``policy`` has no weights.
    """
    at.started(kind, trainer.total)
    evaluation = at.recipe.evaluation
    held_out = held_out_of(at, policy, engine)

    sync = at.sync(engine)

    def measure(step: int) -> None:
        if sync is not None:
            sync(engine.version)
        last = step == trainer.total or trainer.finished
        weights = at.parent.fingerprint if step == 0 else at.lineage.fingerprint if last else ""
        held_out.measure(at.name, step, weights, at.log, at.folder.samples)

    settings = at.loop(evaluation.every if during else None, at.recipe.checkpoint.every)
    if elsewhere is not None:
        settings = replace(settings, write=elsewhere.write)
    run_steps(trainer, settings, at.log, measure)
    save_policy(policy if elsewhere is None else elsewhere.trained(), at.home / "model")
    return save_artifact(at.home, at.lineage)
