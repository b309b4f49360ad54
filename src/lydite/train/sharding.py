"""A policy sharded over the ranks of a started ``torch.distributed`` group, and those ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from pydantic import Field
from torch import Tensor

from lydite.config import Config, UserError
from lydite.model.loading import ModelConfig
from lydite.model.policy import Policy
from lydite.model.sharded_loading import load_sharded
from lydite.model.shards import DATA, SHARD, TENSOR, is_sharded
from lydite.train.ranks import ProcessRanks, Ranks

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class ShardingConfig(Config):
    """How weights, gradients and optimiser states lie over the ranks that train (FSDP2)."""

    data: int = Field(
        1,
        ge=1,
        description="Copies of the weights. Above 1 each copy lies over its own part of the ranks, "
        "such as one machine, and only gradients cross between them (HSDP).",
    )
    shard: int | None = Field(
        None,
        ge=1,
        description="Ranks that one copy lies over; null: all of them, divided by `data`.",
    )
    tensor: int = Field(
        1,
        ge=1,
        description="Ranks that every single product lies over, by Transformers' plan for the "
        "architecture; they work on the same tokens. For models with a block, or activations, that "
        "one GPU cannot hold; best within one machine.",
    )
    offload: bool = Field(
        False,
        description="Keep shards and optimiser states in the memory of the CPU, and step there: "
        "less GPU memory, slower.",
    )
    recompute: bool = Field(
        True,
        description="Recompute each block's activations in the backward pass: less memory, about a "
        "third more work.",
    )

    def mesh_shape(self, ranks: int) -> dict[str, int]:
        """The dimensions of the mesh by name: ``shard``, and others that are above 1.

        Raises:
            UserError: they are not so many ranks.
        """
        others = self.data * self.tensor
        shard = self.shard or max(1, ranks // others)
        if others * shard != ranks:
            sizes = f"data {self.data} × shard {self.shard or 'null'}"
            written = sizes if self.tensor == 1 else f"{sizes} × tensor {self.tensor}"
            raise UserError(
                f"sharding: {written} does not make {ranks} ranks; give numbers whose product is "
                f"{ranks}, or leave shard null and let the others divide {ranks}"
            )
        named = {DATA: self.data, SHARD: shard, TENSOR: self.tensor}
        return {name: size for name, size in named.items() if size > 1 or name == SHARD}

    def parts(self, ranks: int) -> int:
        """In how many parts a weight lies over so many ranks. Raises ``UserError`` likewise."""
        return self.mesh_shape(ranks)[SHARD] * self.tensor

    def share_of(self, rank: int, ranks: int) -> tuple[int, int]:
        """Which share of a rollout a rank works on, and of how many: ``tensor`` ranks next to each
        other have the same.
        """
        return rank // self.tensor, ranks // self.tensor


class MeshRanks(ProcessRanks):
    """The ranks of a sharded policy that have shares of their own: every pass is a collective, and
    its backward pass leaves gradients summed over all of them in the shards.
    """

    def passes(self, own: int) -> int:
        return max(self.gathered(own))

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Those of parameters that are whole; FSDP has summed the others."""
        super().sum_gradients([p for p in parameters if not is_sharded(p)])


def sharded_policy(
    model: ModelConfig,
    sharding: ShardingConfig,
    device: str = "cpu",
    seed: int = 0,
    dtype: torch.dtype | None = None,
) -> tuple[Policy, Ranks]:
    """The policy, its weights in shards over all ranks of the default process group, and those
    ranks. Every rank must call this; ``torch.distributed.init_process_group`` comes first.

    ``device`` is ``cpu`` (gloo) or ``cuda`` (NCCL, beside gloo for an offloaded model's
    checkpoints); on a GPU each process must have chosen its own by ``torch.cuda.set_device``.
    ``dtype`` is what is computed in, if not what ``model`` asks for.

    Raises:
        UserError: the model cannot be loaded, or the numbers of the mesh are not those of the
            ranks; on every rank.
    """
    from torch.distributed.device_mesh import init_device_mesh

    shape = sharding.mesh_shape(dist.get_world_size())
    mesh = init_device_mesh(device, tuple(shape.values()), mesh_dim_names=tuple(shape))
    recompute = model.gradient_checkpointing or sharding.recompute
    config = model.model_copy(update={"gradient_checkpointing": recompute})
    policy = load_sharded(config, mesh, device, seed, sharding.offload, dtype)
    return policy, MeshRanks(_with_shares(mesh))


def _with_shares(mesh: DeviceMesh) -> dist.ProcessGroup | None:
    """The ranks that differ in their share from this one; None: all."""
    names = mesh.mesh_dim_names or ()
    if TENSOR not in names:
        return None
    if DATA not in names:
        return mesh[SHARD].get_group()
    return mesh[DATA, SHARD]._flatten(f"{DATA}_{SHARD}").get_group()
