"""A run's folder: who may write in it, and where everything lies."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from lydite.config import UserError, differences
from lydite.watch.files import write_atomic

if TYPE_CHECKING:
    from lydite.pipeline.recipe import Recipe

_LEFT_OVER = (
    ".*.tmp",
    ".model.partial",
    "*/.*.tmp",
    "*/*/.*.tmp",
    "checkpoints/*/.step-*.partial",
    "stages/*/.model.*",
)
"""Names that files and folders have while they are written; see ``write_atomic``,
``save_checkpoint`` and ``save_policy``.
"""


class RunFolder:
    """Paths of a run. Nothing is made before :meth:`claim`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / "recipe.yaml"
        self.events = path / "events.jsonl"
        self.samples = path / "samples"
        self.model = path / "model"
        self.summary = path / "summary.json"
        self.report = path / "report.md"

    def checkpoints(self, stage: str) -> Path:
        """Where a stage's checkpoints lie."""
        return self.path / "checkpoints" / stage

    def stage(self, stage: str) -> Path:
        """Where a stage's artifact lies: its model and ``artifact.json``."""
        return self.path / "stages" / stage

    @contextmanager
    def claim(self, recipe: Recipe) -> Iterator[None]:
        """Holds the folder, new or a run's, for one process.

        Raises:
            UserError: the folder holds something else, or another process is at work.
        """
        self.refuse_foreign(recipe)
        with ExitStack() as held:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                lock = held.enter_context((self.path / ".lock").open("w"))
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"--out {self.path}: another process is running there; wait for it or choose "
                    "another"
                ) from None
            except OSError as error:
                raise UserError(
                    f"--out {self.path}: cannot be written: {error.strerror}; choose another"
                ) from error
            self._sweep()
            yield

    def write_recipe(self, recipe: Recipe) -> tuple[str, ...]:
        """Writes ``recipe.yaml``; what differs from the one that was there, as ``key: then,
        now``.
        """
        theirs, ours = self._written(), resolved(recipe)
        if theirs != ours:
            text = yaml.safe_dump(ours, sort_keys=False, allow_unicode=True)
            write_atomic(self.recipe, text.encode())
        return () if theirs is None else tuple(differences(theirs, ours))

    def _written(self) -> dict[str, Any] | None:
        try:
            found = yaml.safe_load(self.recipe.read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError):
            return None
        return found if isinstance(found, dict) else None

    def model_source(self) -> dict[str, str]:
        """The ``stage`` whose model ``model`` is a copy of, and its ``fingerprint``; empty where
        there is none.
        """
        try:
            found = json.loads(self.summary.read_text(encoding="utf-8"))["model"]
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        return found if isinstance(found, dict) else {}

    def _idle(self) -> bool:
        """Whether it is a run of ours with no work to lose: a recipe that failed before it trained
        may be mended in place.
        """
        marks = ("checkpoints/*/step-*", "stages/*/artifact.json", "samples/*/*.parquet")
        worked = any(any(self.path.glob(mark)) for mark in marks)
        return self.events.exists() and not worked

    def _sweep(self) -> None:
        """Removes what a killed attempt was writing when it died."""
        for pattern in _LEFT_OVER:
            for path in self.path.glob(pattern):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)

    def refuse_foreign(self, recipe: Recipe) -> None:
        """Raises ``UserError`` when the folder holds something else than a run."""
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise UserError(f"--out {self.path}: is a file; choose a folder")
        if not self.recipe.exists():
            if any(item.name != ".lock" for item in self.path.iterdir()):
                raise UserError(
                    f"--out {self.path}: holds files but no recipe.yaml, so it is not a run; "
                    "choose another"
                )
            return
        written = self._written()
        if not self._idle() and written is None:
            raise UserError(
                f"--out {self.path}: its recipe.yaml cannot be read as a recipe; choose another"
            )
        if not self.events.exists() and written != resolved(recipe):
            raise UserError(
                f"--out {self.path}: its recipe.yaml is not that of a run, which would write over "
                "it; choose another"
            )


def resolved(recipe: Recipe) -> dict[str, Any]:
    """The recipe as plain data, every default written out."""
    plain: dict[str, Any] = json.loads(recipe.model_dump_json())
    return plain


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """A mapping as an indented JSON file, whole or not at all."""
    write_atomic(path, (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode())
