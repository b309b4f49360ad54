"""What all stages have in common that train a model: the loop, held-out scores, and the model
saved.
"""

from __future__ import annotations

from lydite.model.policy import Policy
from lydite.model.saving import save_policy
from lydite.pipeline.artifact import Artifact, save_artifact
from lydite.pipeline.heldout import HeldOut
from lydite.pipeline.stages.stage import At
from lydite.train.loop import Trainer, run_steps
from lydite.types import Engine


def train(
    at: At, kind: str, trainer: Trainer, policy: Policy, engine: Engine, during: bool = True
) -> Artifact:
    """Runs a trainer to its end, the model measured before and after, and ``during`` it at the
    recipe's interval; leaves the model.
    """
    at.started(kind, trainer.total)
    evaluation = at.recipe.evaluation
    held_out = HeldOut(
        evaluation,
        {name: at.problems(name) for name in evaluation.tasks},
        policy,
        engine,
        at.judge,
    )
    run_steps(
        trainer,
        at.loop(evaluation.every if during else None, at.recipe.checkpoint.every),
        at.log,
        lambda step: held_out.measure(at.name, step, at.parent_name, at.log, at.folder.samples),
    )
    save_policy(policy, at.home / "model")
    return save_artifact(at.home, at.lineage)
