"""Exporting a model as a stage: a folder for others, with a model card."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from lydite.config import UserError
from lydite.model.saving import Packaging, export_policy
from lydite.pipeline.artifact import MARK, Artifact, save_artifact
from lydite.pipeline.stages.stage import At, Checks, Finding, Leaves, Stage


class ExportStage(Stage):
    """Writes the model that it starts from as a Hugging Face folder for others: in another number
    format, in files of a size, with a model card from the run's own records. Later stages go on
    with the model as it was.
    """

    leaves: ClassVar[Leaves] = "export"

    kind: Literal["export"]
    dtype: Literal["bfloat16", "float16", "float32"] | None = Field(
        None, description="Number format of the weights; as they are when null."
    )
    shard_gb: float = Field(
        5.0, gt=0, description="Largest safetensors file, in GB (10⁹ bytes); more make several."
    )
    to: str | None = Field(
        None,
        description="Folder to write; `stages/NAME/model` in the run's folder when null. One that "
        "is there is replaced only if this stage of this recipe has written it.",
    )
    card: bool = Field(
        True, description="Write README.md: stages, data, scores with intervals, recipe."
    )

    def check(self, earlier: Sequence[Stage]) -> None:
        if self.model is not None:
            raise ValueError("model: export writes what a stage left; leave it out")

    def check_settings(self) -> None:
        if self.to is not None:
            self._refuse_others(Path(self.to).expanduser(), None)

    def settings_checks(self) -> Checks:
        yield f"export of {self.name}", self._said

    def _said(self) -> Finding:
        if self.to is not None:
            self._refuse_others(Path(self.to).expanduser(), None)
        where = self.to or f"stages/{self.name}/model"
        return f"{self.dtype or 'the weights as they are'}, into {where}", ()

    def files(self, home: Path) -> dict[str, Path]:
        return {f"export {self.name}": self._place(home)}

    def _place(self, home: Path) -> Path:
        return home / "model" if self.to is None else Path(self.to).expanduser()

    def _refuse_others(self, place: Path, run: str | None) -> None:
        """Raises ``UserError`` where somebody else's files are; ``run`` is the recipe's name."""
        if not place.exists() or (place.is_dir() and not any(place.iterdir())):
            return
        try:
            mark = json.loads((place / MARK).read_text(encoding="utf-8"))
            ours = mark["stage"] == self.name and run in (None, mark["run"])
        except (OSError, ValueError, KeyError, TypeError):
            ours = False
        if not ours:
            raise UserError(
                f"stages.{self.name}.to: {place} is there and not what this stage has written; "
                "choose another, or move it away"
            )

    def run(self, at: At) -> Artifact:
        # Here: the card reads recipes, which hold this kind of stage.
        from lydite.pipeline.card import model_card

        place = self._place(at.home)
        self._refuse_others(place, at.recipe.name)
        at.started(self.kind, 0)
        policy = at.load_frozen(at.parent_name)
        mark = {"run": at.recipe.name, "stage": self.name, **at.lineage.record}
        texts = {MARK: json.dumps(mark, indent=2, ensure_ascii=False) + "\n"}
        if self.card:
            texts["README.md"] = model_card(at.recipe, at.folder, at.parent_name)
        packaging = Packaging(self.dtype, round(self.shard_gb * 1e9), texts)
        export_policy(policy, place, packaging, f"stages.{self.name}")
        return save_artifact(at.home, at.lineage, {"export": {"path": str(place)}})
