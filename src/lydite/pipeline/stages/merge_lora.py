"""Merging LoRA adapters into a plain model as a stage."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from lydite.config import UserError
from lydite.model.adapters import merge, with_adapter
from lydite.model.saving import save_policy
from lydite.model.source import ADAPTER
from lydite.pipeline.artifact import Artifact, save_artifact
from lydite.pipeline.stages.stage import At, Checks, Finding, Stage
from lydite.pipeline.stages.training import held_out_of
from lydite.watch.events import Warned


class MergeLoraStage(Stage):
    """Leaves a plain model with adapters merged into its weights: those of the model that it starts
    from (`model.lora.save: adapter`), or those of a PEFT folder. Later stages start from it as from
    any other.
    """

    kind: Literal["merge_lora"]
    adapter: str | None = Field(
        None,
        description="PEFT folder to merge into the model that the stage starts from; null: the "
        "adapters that this model has itself.",
    )

    def check(self, earlier: Sequence[Stage]) -> None:
        if self.model is not None and self.model.lora is not None:
            raise ValueError("model.lora: nothing is trained here; leave it out")

    def settings_checks(self) -> Checks:
        yield f"adapters of {self.name}", self._said

    def _said(self) -> Finding:
        if self.adapter is None:
            return "those of the model it starts from", ()
        self._check_adapter()
        return f"{self.adapter}", ()

    def check_settings(self) -> None:
        if self.adapter is not None:
            self._check_adapter()

    def _check_adapter(self) -> None:
        folder = Path(self.adapter or "").expanduser()
        if not (folder / ADAPTER).is_file():
            raise UserError(
                f"stages.{self.name}.adapter: {self.adapter} is no folder with {ADAPTER}; name "
                "one that PEFT has saved"
            )

    def inputs(self, samples: Path, artifacts: Mapping[str, Artifact]) -> dict[str, str]:
        if self.adapter is None:
            return {}
        digest = hashlib.sha256()
        for file in sorted(Path(self.adapter).expanduser().glob("adapter_*")):
            digest.update(file.name.encode() + hashlib.sha256(file.read_bytes()).digest())
        return {f"adapter {self.adapter}": digest.hexdigest()}

    def run(self, at: At) -> Artifact:
        policy = at.load_frozen(at.parent_name) if self.model is None else at.load()
        at.started(self.kind, 0)
        if self.adapter is not None:
            held_out_of(at, policy).measure(
                at.name, 0, at.parent.fingerprint, at.log, at.folder.samples
            )
            adapted = with_adapter(policy.model, str(Path(self.adapter).expanduser()))
            policy.model = merge(adapted).to(policy.device)  # type: ignore[arg-type]
            held_out_of(at, policy).measure(
                at.name, 1, at.lineage.fingerprint, at.log, at.folder.samples
            )
        elif not (at.parent.model / ADAPTER).is_file():
            said = "nothing to merge: the model it starts from has no adapters of its own"
            at.log.append(Warned(stage=at.name, code="merge", message=f"{at.name}: {said}"))
        policy.adapter_on = ""
        save_policy(policy, at.home / "model")
        return save_artifact(at.home, at.lineage)
