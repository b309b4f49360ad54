"""Checkpoints that a ``kill -9`` cannot tear: written beside, fsynced, renamed.

A checkpoint is a folder ``step-000120`` with ``tensors.safetensors`` and ``state.json``. A folder
of that name is whole by construction, so a reader takes the newest one and never has to guess.
Sharded tensors lie in ``shards`` instead (:mod:`lydite.train.saved_shards`): all ranks write them,
and the first one renames the folder when they have. They can be read on any number of ranks.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor

from lydite.model.shards import attempt, is_sharded
from lydite.train.saved_shards import SavedShards, has_shards, save_shards


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a stage needs to go on: tensors by name, and JSON state."""

    step: int
    tensors: Mapping[str, Tensor]
    state: Mapping[str, Any]


SHARDS = "shards"
"""The folder of a checkpoint with what ranks wrote."""
_WHOLE = "tensors.safetensors"


def save_checkpoint(
    folder: Path,
    checkpoint: Checkpoint,
    keep: int = 2,
    beside: Callable[[Path], None] | None = None,
) -> Path:
    """Writes a checkpoint under ``folder`` and removes all but the newest ``keep``. Where tensors
    are sharded, every rank of the default process group must call this.

    ``beside`` writes files of its own into the checkpoint's folder, which is handed to it before it
    has its name: what ranks elsewhere hold.

    Raises:
        OSError: the disk is full or not writable; earlier checkpoints are untouched.
    """
    if any(map(is_sharded, checkpoint.tensors.values())):
        return _save_sharded(folder, checkpoint, keep)
    partial = _partial(folder, checkpoint.step)
    try:
        tensors = {key: _owned(value) for key, value in checkpoint.tensors.items()}
        save_file(tensors, partial / _WHOLE)
        if beside is not None:
            beside(partial)
        return _finish(partial, checkpoint, keep)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _save_sharded(folder: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """:func:`save_checkpoint` on every rank: the first one makes the folder and names it."""
    first = dist.get_rank() == 0
    attempt(lambda: _partial(folder, checkpoint.step) if first else None)
    place = folder / _partial_name(checkpoint.step)
    try:
        save_shards(place / SHARDS, checkpoint.tensors)
        attempt(lambda: _finish(place, checkpoint, keep) if first else None)
    except BaseException:
        if first:
            shutil.rmtree(place, ignore_errors=True)
        raise
    return folder / _name(checkpoint.step)


def _partial(folder: Path, step: int) -> Path:
    """An empty folder for a checkpoint to be written to."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / _partial_name(step)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    return partial


def _name(step: int) -> str:
    return f"step-{step:06d}"


def _partial_name(step: int) -> str:
    return f".{_name(step)}.partial"


def _finish(partial: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Gives a checkpoint whose tensors are written its state and its name."""
    folder, final = partial.parent, partial.parent / _name(checkpoint.step)
    (partial / "state.json").write_text(json.dumps({"step": checkpoint.step, **checkpoint.state}))
    for part in [*partial.rglob("*"), partial]:
        fsync(part)
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    fsync(folder)
    for old in _steps(folder)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest checkpoint under ``folder``, or None. Left-overs of a write that was cut short are
    ignored. Sharded tensors are read when they are asked for.
    """
    found = _steps(folder)
    if not found:
        return None
    newest = found[-1]
    state = json.loads((newest / "state.json").read_text())
    whole = load_file(newest / _WHOLE) if (newest / _WHOLE).is_file() else {}
    shards = newest / SHARDS
    tensors = SavedShards(shards, whole) if has_shards(shards) else whole
    return Checkpoint(step=state.pop("step"), tensors=tensors, state=state)


def fsync(path: Path) -> None:
    """Forces a file or folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _steps(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*")) if folder.is_dir() else []


def _owned(tensor: Tensor) -> Tensor:
    """Safetensors refuses tensors that share storage; tied weights are saved once by the caller,
    views copied here.
    """
    plain = tensor.detach()
    whole = plain.untyped_storage().nbytes() == plain.numel() * plain.element_size()
    return (
        plain.contiguous()
        if whole and plain.is_contiguous()
        else plain.clone(memory_format=torch.contiguous_format)
    )
