"""Tensors on disk as the ranks of a mesh left them, each its shards, readable on any other number
of ranks: ``torch.distributed.checkpoint``.

The folder must be one that all ranks see.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lydite.model.shards import is_sharded

_METADATA = ".metadata"


def save_shards(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes each rank's shards of ``tensors`` to ``folder``, and whole ones once, synced to disk.
    A collective of the default process group.

    Raises:
        OSError: the disk is full or not writable, or the ranks do not see one folder.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    try:
        save(dict(tensors), storage_writer=FileSystemWriter(folder, sync_files=True))
    except CheckpointException as error:
        rank, (reason, _) = next(iter(error.failures.items()))
        raise OSError(f"rank {rank}: {reason}") from error
    found = FileSystemReader(folder).read_metadata() if (folder / _METADATA).is_file() else None
    places = {} if found is None else found.storage_data or {}
    seen = found is not None and all((folder / p.relative_path).is_file() for p in places.values())
    everywhere: list[bool] = [True] * dist.get_world_size()
    dist.all_gather_object(everywhere, seen)
    if not all(everywhere):
        raise OSError(
            f"the ranks do not all see what the others wrote to {folder}; put the run on storage "
            "that they share"
        )


def has_shards(folder: Path) -> bool:
    """Whether a folder holds what :func:`save_shards` writes."""
    return (folder / _METADATA).is_file()


class SavedShards(Mapping[str, Tensor]):
    """The tensors of such a folder, each read when it is asked for: whole, or where it belongs to a
    sharded parameter (:meth:`on`) only this rank's part. Ranks read on their own. ``beside`` are
    tensors that are whole already, such as those of a process that has no shards.
    """

    def __init__(self, folder: Path, beside: Mapping[str, Tensor] | None = None) -> None:
        from torch.distributed.checkpoint.filesystem import FileSystemReader

        self.folder = folder
        self._beside = beside or {}
        self._reader = FileSystemReader(folder)
        metadata = self._reader.read_metadata()
        # It would be read again for each tensor.
        self._reader.read_metadata = lambda *_, **__: metadata  # type: ignore[method-assign]
        self._found = metadata.state_dict_metadata
        self._like: Mapping[str, Tensor] = {}

    def on(self, parameters: Mapping[str, Tensor]) -> SavedShards:
        """The same tensors, cut as sharded parameters are whose name theirs ends with."""
        found = copy.copy(self)
        found._like = parameters
        return found

    def __iter__(self) -> Iterator[str]:
        return iter({**self._found, **self._beside})

    def __len__(self) -> int:
        return len({**self._found, **self._beside})

    def __contains__(self, name: object) -> bool:
        return name in self._found or name in self._beside

    def __getitem__(self, name: str) -> Tensor:
        from torch.distributed.checkpoint.metadata import TensorStorageMetadata
        from torch.distributed.checkpoint.state_dict_loader import load

        if name in self._beside:
            return self._beside[name]
        found = self._found[name]
        assert isinstance(found, TensorStorageMetadata), f"{name} is no tensor"
        like, rest = self._like.get(name), name
        while like is None and "." in rest:
            rest = rest.partition(".")[2]
            like = self._like.get(rest)
        dtype = found.properties.dtype
        if like is not None and like.shape == found.size:
            target = torch.empty_like(like.detach(), dtype=dtype)
        else:
            target = torch.empty(found.size, dtype=dtype)
        with warnings.catch_warnings():  # It remarks that it reads in a process on its own.
            warnings.simplefilter("ignore", UserWarning)
            load({name: target}, storage_reader=self._reader, no_dist=True)
        return target


def cut_for(model: nn.Module, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Saved shards as a sharded model's ranks need them; anything else as it is."""
    if not isinstance(tensors, SavedShards):
        return tensors
    return tensors.on({name: p for name, p in model.named_parameters() if is_sharded(p)})
