"""Writes a policy as a plain Hugging Face folder, all of it or nothing."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import GenerationConfig

from lydite.config import UserError
from lydite.model.adapters import merged, write_adapter
from lydite.model.policy import Policy
from lydite.model.reference import has_adapter
from lydite.model.scorer import Scorer
from lydite.model.shards import attempt, whole_policy
from lydite.model.source import quiet


def save_policy(policy: Policy, folder: Path) -> None:
    """Writes weights, configuration, tokenizer and chat template to ``folder``, replacing what is
    there.

    Everything is written and synced beside ``folder`` first and renamed into place, so that
    ``folder`` never holds half a model. LoRA adapters are merged into a copy, or where the policy
    says so saved alone; the policy itself is left as it is.

    Of a sharded policy every rank must call this; the first one gathers it in the memory of the CPU
    and writes.

    Raises:
        UserError: the disk is full or the place cannot be written.
    """
    if policy.shards is not None:
        plain = whole_policy(policy)

        def write_plain() -> None:
            if plain is not None:
                _whole(folder, lambda place: _write(plain, place))

        attempt(write_plain)
        return
    _whole(folder, lambda place: _write(policy, place))


_ONE_FILE = "50GB"
"""What Transformers puts in one file unless told else."""


@dataclass(frozen=True, slots=True)
class Packaging:
    """How a model is written for others: its number format (as it is when ``None``), the bytes of
    the largest file, and text files to put beside it, by name.
    """

    dtype: str | None
    shard_bytes: int
    texts: Mapping[str, str]


def export_policy(policy: Policy, folder: Path, packaging: Packaging, where: str) -> None:
    """Writes a policy as :func:`save_policy` does, packed. Its weights are cast in place.

    Raises:
        UserError: as :func:`save_policy`; or a weight is too large for the format. It begins with
            ``where``.
    """
    if packaging.dtype is not None:
        dtype: torch.dtype = getattr(torch, packaging.dtype)
        largest = max(float(p.detach().abs().max()) for p in policy.model.parameters())
        if largest > torch.finfo(dtype).max:
            raise UserError(
                f"{where}.dtype: a weight of {largest:g} is beyond {packaging.dtype}, which ends "
                f"at {torch.finfo(dtype).max:g}; use bfloat16"
            )
        policy.model.to(dtype)  # type: ignore[arg-type]

    def write(place: Path) -> None:
        for name, text in packaging.texts.items():
            (place / name).write_text(text, encoding="utf-8")
        _write(policy, place, packaging.shard_bytes)

    _whole(folder, write)


def save_scorer(scorer: Scorer, folder: Path) -> None:
    """Writes a reward model likewise, as a sequence classifier with its tokenizer.

    Raises:
        UserError: as :func:`save_policy`.
    """

    def write(place: Path) -> None:
        with quiet():
            scorer.model.save_pretrained(place)
            scorer.tokenizer.save_pretrained(place)
        _sync_all(place)

    _whole(folder, write)


def _whole(folder: Path, write: Callable[[Path], None]) -> None:
    """Has a folder written beside its place, and moves it there."""
    folder = Path(folder)
    temporary: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        write(temporary)
        _replace(temporary, folder)
    except (OSError, SafetensorError) as error:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        raise UserError(f"out: cannot write the model to {folder}: {error}") from error


def _write(policy: Policy, folder: Path, shard_bytes: int | None = None) -> None:
    if policy.adapter_on:
        write_adapter(policy.model, folder, policy.adapter_on)
        with quiet():
            policy.tokenizer.save_pretrained(folder)
        _sync_all(folder)
        return
    model = merged(policy.model) if has_adapter(policy.model) else policy.model
    generation = model.generation_config
    with quiet():
        try:
            model.generation_config = _generation(policy)
            model.save_pretrained(folder, max_shard_size=shard_bytes or _ONE_FILE)
        finally:
            model.generation_config = generation
        policy.tokenizer.save_pretrained(folder)
    _sync_all(folder)


def _sync_all(folder: Path) -> None:
    os.chmod(folder, 0o755)
    for path in (*folder.iterdir(), folder):
        _sync(path)


def _generation(policy: Policy) -> GenerationConfig:
    """How the saved model samples by default: as it was trained, plainly, and it ends where the
    policy ended.
    """
    tokenizer = policy.tokenizer
    return GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=sorted(policy.stop_ids),
        pad_token_id=tokenizer.pad_token_id,
        do_sample=True,
    )


def _replace(temporary: Path, folder: Path) -> None:
    if not folder.exists():
        os.rename(temporary, folder)
    else:
        old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        os.rename(folder, old / folder.name)
        os.rename(temporary, folder)
        shutil.rmtree(old, ignore_errors=True)
    _sync(folder.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
