"""Checkpoints that a ``kill -9`` cannot tear: written beside, fsynced, renamed.

A checkpoint is a folder ``step-000120`` with ``tensors.safetensors`` and ``state.json``. A folder
of that name is whole by construction, so a reader takes the newest one and never has to guess.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a stage needs to go on: tensors by name, and JSON state."""

    step: int
    tensors: Mapping[str, Tensor]
    state: Mapping[str, Any]


def save_checkpoint(folder: Path, checkpoint: Checkpoint, keep: int = 2) -> Path:
    """Writes a checkpoint under ``folder`` and removes all but the newest ``keep``.

    Raises:
        OSError: the disk is full or not writable; earlier checkpoints are untouched.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = f"step-{checkpoint.step:06d}"
    final, partial = folder / name, folder / f".{name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        tensors = {key: _owned(value) for key, value in checkpoint.tensors.items()}
        save_file(tensors, partial / "tensors.safetensors")
        (partial / "state.json").write_text(
            json.dumps({"step": checkpoint.step, **checkpoint.state})
        )
        for part in partial.iterdir():
            fsync(part)
        fsync(partial)
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        fsync(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    for old in _steps(folder)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest checkpoint under ``folder``, or None. Left-overs of a write that was cut short are
    ignored.
    """
    found = _steps(folder)
    if not found:
        return None
    state = json.loads((found[-1] / "state.json").read_text())
    return Checkpoint(
        step=state.pop("step"), tensors=load_file(found[-1] / "tensors.safetensors"), state=state
    )


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
