"""A policy sharded over the ranks of a started ``torch.distributed`` group, and those ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from pydantic import Field
from torch import Tensor

from lydite.config import Config, UserError
from lydite.model.loading import ModelConfig
from lydite.model.policy import Policy
from lydite.model.sharded_loading import load_sharded
from lydite.model.shards import DATA, SHARD, is_sharded
from lydite.train.ranks import ProcessRanks, Ranks


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

    def mesh_shape(self, ranks: int) -> tuple[int, int]:
        """Copies and ranks of each.

        Raises:
            UserError: they are not so many ranks.
        """
        shard = self.shard or max(1, ranks // self.data)
        if self.data * shard != ranks:
            written = f"data {self.data} × shard {self.shard or 'null'}"
            raise UserError(
                f"sharding: {written} does not make {ranks} ranks; give numbers whose product is "
                f"{ranks}, or leave shard null and let data divide {ranks}"
            )
        return self.data, shard


class MeshRanks(ProcessRanks):
    """The ranks of a sharded policy: every pass is a collective, and its backward pass leaves
    gradients summed over all ranks in the shards.
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

    data, shard = sharding.mesh_shape(dist.get_world_size())
    shape, names = ((data, shard), (DATA, SHARD)) if data > 1 else ((shard,), (SHARD,))
    mesh = init_device_mesh(device, shape, mesh_dim_names=names)
    recompute = model.gradient_checkpointing or sharding.recompute
    config = model.model_copy(update={"gradient_checkpointing": recompute})
    policy = load_sharded(config, mesh, device, seed, sharding.offload, dtype)
    return policy, MeshRanks()
