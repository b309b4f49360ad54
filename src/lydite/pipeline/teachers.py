"""Who teaches a `distill` stage: the model of an earlier stage, another model, or one behind a
server.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from lydite.config import Config
from lydite.model.loading import ModelConfig
from lydite.rollout.remote_teacher import RemoteTeacherConfig


class StageTeacher(Config):
    """The model that an earlier stage left; `teacher: NAME` is short for it."""

    kind: Literal["stage"]
    stage: str = Field(description="Name of the stage, or `model`: the recipe's own as it is read.")


class ModelTeacher(ModelConfig):
    """Another model, in this process beside the student."""

    kind: Literal["model"]

    @property
    def settings(self) -> ModelConfig:
        """How it is loaded."""
        return ModelConfig.model_validate(self.model_dump(exclude={"kind"}))


class ServerTeacher(RemoteTeacherConfig):
    """A model behind a server that gives log-probabilities of a prompt."""

    kind: Literal["server"]


def _named(given: Any) -> Any:
    return {"kind": "stage", "stage": given} if isinstance(given, str) else given


AnyTeacher = Annotated[
    StageTeacher | ModelTeacher | ServerTeacher,
    Field(discriminator="kind"),
]
TeacherField = Annotated[AnyTeacher, BeforeValidator(_named)]
