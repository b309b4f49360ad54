"""Models whose weights lie in shards over the ranks of a device mesh, by PyTorch's FSDP2
(``fully_shard``; 2304.11277).

Each block of the decoder is gathered whole for its own pass and let go of after it. Embeddings,
last norm and head belong to the root and are whole for as long as a pass goes through the model.
Log-probabilities use the head's weights outside of the model's own forward pass: they do so within
:func:`inside`, which is a forward pass to FSDP, so that the weights are whole there and their
gradients find the way back into the shards.

The losses of ranks add up to the loss of a step: gradients are summed over ranks, where FSDP would
average them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lydite.config import UserError
from lydite.model.attention import NAME, backbone
from lydite.model.tensor_parallel import split_products

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from transformers import PreTrainedModel

    from lydite.model.policy import Policy

R = TypeVar("R")

_ENTRY = "run_with_whole_root"
DATA, SHARD, TENSOR = "data", "shard", "tensor"
"""Names of the mesh's dimensions: along the first there are copies of the weights; along the second
they are cut, and gathered for each pass; along the third they stay cut.
"""


_RECOMPUTED = {"gradient_checkpointing", "_gradient_checkpointing_func"}
"""What Transformers sets on modules whose activations are made again."""


@dataclass(frozen=True, slots=True)
class Shards:
    """How a policy's weights lie over ranks.

    ``mesh`` has the dimension ``shard``, and before it ``data`` and behind it ``tensor`` where they
    are above 1. ``device`` is where this
    rank computes, ``compute`` the type that it computes in (``None``: that of the weights).
    ``offload``: between passes the shards lie in the memory of the CPU. ``dtypes`` are those that
    trained weights have, by name, where they are handed out whole. ``make`` gives the plain model
    again, its parameters on the ``meta`` device.
    """

    mesh: DeviceMesh
    device: str
    compute: torch.dtype | None
    offload: bool
    dtypes: Mapping[str, torch.dtype]
    make: Callable[[], PreTrainedModel]

    @property
    def tensor(self) -> int:
        """Ranks that a single product lies over."""
        return self.mesh[TENSOR].size() if TENSOR in _names(self.mesh) else 1

    @property
    def storage(self) -> str:
        """The device that the shards lie on."""
        return "cpu" if self.offload else self.device


def inside(model: nn.Module, run: Callable[[], R]) -> R:
    """Runs what needs the weights that belong to no block, such as the head's; in a model that is
    not sharded they are always there. What is computed from them must be part of the result.
    """
    enter = vars(model).get(_ENTRY)
    if enter is None:
        return run()
    found: R = enter(run)
    let_go(model)
    return found


def let_go(model: nn.Module) -> None:
    """After a pass without gradient: the weights that belong to no block go back into shards, or a
    later pass might find them as they are now. With gradient, the backward pass does it.
    """
    if _ENTRY in vars(model) and not torch.is_grad_enabled():
        model.reshard()  # type: ignore[operator]


def recover(model: nn.Module) -> None:
    """After a pass that raised, on every rank alike: the next finds a sharded model in order."""
    if _ENTRY in vars(model):
        model.reset_iter_state()  # type: ignore[operator]


def shard(model: nn.Module, shards: Shards) -> None:
    """Cuts a model's parameters, which may be on the ``meta`` device, into shards, in place.

    Raises:
        UserError: this PyTorch cannot, or as :func:`lydite.model.tensor_parallel.split_products`.
    """
    from torch.distributed.fsdp import (
        CPUOffloadPolicy,
        FSDPModule,
        MixedPrecisionPolicy,
        OffloadPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )

    if not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"):
        raise UserError(
            f"sharding: needs PyTorch 2.9 or newer, and this is {torch.__version__}; upgrade torch"
        )
    offload = CPUOffloadPolicy(shards.device != "cpu") if shards.offload else OffloadPolicy()
    policy = MixedPrecisionPolicy(
        param_dtype=shards.compute,
        reduce_dtype=None if shards.compute is None else torch.float32,
    )
    mesh = shards.mesh
    if shards.tensor > 1:
        split_products(model, mesh[TENSOR])
        mesh = mesh[tuple(name for name in _names(mesh) if name != TENSOR)]
    for module in [*blocks_of(model), model]:
        fully_shard(module, mesh=mesh, mp_policy=policy, offload_policy=offload)
        assert isinstance(module, FSDPModule)
        # Both: a factor alone is left to an operation that gloo does not have.
        module.set_force_sum_reduction_for_comms(True)
        module.set_gradient_divide_factor(1.0)
        if hasattr(module, "set_reduce_scatter_unused_params"):
            # An expert that no token of this rank went to, and some token of another did.
            module.set_reduce_scatter_unused_params(True, recurse=False)
    setattr(model, _ENTRY, lambda run: run())
    register_fsdp_forward_method(model, _ENTRY)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The decoder's blocks, found as what holds most of the weights: the list of modules with the
    most parameters, and no list within another.
    """
    lists: list[nn.ModuleList] = []

    def search(module: nn.Module) -> None:
        for child in module.children():
            if isinstance(child, nn.ModuleList):
                lists.append(child)
            else:
                search(child)

    search(backbone(model))
    sizes = [sum(p.numel() for p in found.parameters()) for found in lists]
    return list(lists[sizes.index(max(sizes))]) if lists else []


def _names(mesh: DeviceMesh) -> tuple[str, ...]:
    return mesh.mesh_dim_names or ()


def own_part(parameter: Tensor) -> tuple[slice, ...]:
    """Which part of the whole parameter this rank's shard is, by dimension; of the last shards some
    may be smaller, or empty.
    """
    found: Any = parameter
    mesh: DeviceMesh = found.device_mesh
    bounds = [(0, size) for size in parameter.shape]
    # A product that lies over several ranks is cut first, and each part of it into shards.
    for along in reversed(range(mesh.ndim)):
        placement = found.placements[along]
        if placement.is_replicate():
            continue
        dim = placement.dim % parameter.ndim
        start, end = bounds[dim]
        size = -(-(end - start) // mesh.size(along))
        begin = min(end, start + size * mesh.get_local_rank(along))
        bounds[dim] = begin, min(end, begin + size)
    return tuple(slice(*each) for each in bounds)


def sum_over_shards(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    """The sum of what was computed of each tensor on this rank's shard of it, over all shards: each
    counts once, and one that is whole everywhere does too. A collective of their meshes; on the
    CPU.
    """
    sums: dict[tuple[DeviceMesh | None, tuple[int, ...]], Tensor] = {}
    for tensor, value in zip(tensors, values, strict=True):
        found: Any = tensor
        mesh = found.device_mesh if is_sharded(tensor) else None
        cut = tuple(
            along
            for along, placement in enumerate(found.placements if mesh is not None else ())
            if not placement.is_replicate()
        )
        so_far = sums.get((mesh, cut))
        sums[mesh, cut] = value if so_far is None else so_far + value
    total = torch.zeros_like(values[0], device="cpu")
    for (mesh, cut), value in sums.items():
        if mesh is not None:
            value = value.to(mesh.device_type)
            for along in cut:
                dist.all_reduce(value, group=mesh.get_group(along))
        total += value.cpu()
    return total


def at_hand(weight: Tensor) -> Tensor:
    """A weight that is used outside of its layer's own pass, whole where it lies over several
    ranks; differentiable. Within :func:`inside`.
    """
    found: Any = weight
    whole: Tensor = found.full_tensor() if is_sharded(weight) else weight
    return whole


def local(parameter: Tensor) -> Tensor:
    """This rank's shard, sharing memory; a parameter that is whole as it is."""
    plain: Any = parameter.detach()
    found: Tensor = plain.to_local() if is_sharded(plain) else plain
    return found


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is a shard of a larger tensor, or a copy that a mesh keeps."""
    return hasattr(tensor, "device_mesh")


def whole(tensor: Tensor, dtype: torch.dtype, device: str) -> Tensor:
    """A sharded tensor gathered on every rank of its mesh, which must all call this."""
    from torch.distributed.tensor import DTensor

    part = local(tensor).to(device=device, dtype=dtype)
    if not isinstance(tensor, DTensor):
        return part
    moved = DTensor.from_local(
        part,
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )
    found = moved.full_tensor()
    assert isinstance(found, Tensor)
    return found


@torch.no_grad()
def write(target: Tensor, value: Tensor) -> None:
    """Copies a tensor into another of the same shape, of which either may be sharded. Where a
    sharded value is not cut as the target is, this is a collective of its mesh.
    """
    to, of = _layout(target), _layout(value)
    if to == of:
        local(target).copy_(local(value))
        return
    whole = at_hand(value)
    local(target).copy_(whole if to is None else whole[own_part(target)])


def _layout(tensor: Tensor) -> Any:
    found: Any = tensor
    return (found.device_mesh, found.placements) if is_sharded(tensor) else None


def materialise(model: nn.Module, shards: Shards) -> None:
    """Gives shards on the ``meta`` device memory, and takes buffers to the computing device."""
    kept = {name: buffer for name, buffer in model.named_buffers() if not buffer.is_meta}
    model.to_empty(device=shards.storage)
    for name, buffer in kept.items():
        owner, _, key = name.rpartition(".")
        model.get_submodule(owner)._buffers[key] = buffer.to(shards.device)


def frozen_copy(policy: Policy) -> PreTrainedModel:
    """A copy of a sharded policy's model as it is now, sharded likewise and not to be trained, in
    the numbers that it is computed in. Every rank must call this.
    """
    assert policy.shards is not None
    copied = policy.shards.make()
    copied.requires_grad_(False)
    shard(copied, policy.shards)
    materialise(copied, policy.shards)
    copy_weights(policy.model, copied)
    if policy.flat:
        copied.set_attn_implementation(NAME)
    copied.eval()
    return copied


def trunk_copy(policy: Policy) -> nn.Module:
    """A copy of a sharded policy's model below its head, sharded likewise and to be trained where
    the policy is. Every rank must call this.
    """
    assert policy.shards is not None
    source, whole_copy = backbone(policy.model), policy.shards.make()
    trunk = backbone(whole_copy)
    for name, parameter in trunk.named_parameters():
        parameter.data = parameter.data.to(source.get_parameter(name).dtype)
    if policy.flat:
        trunk.set_attn_implementation(NAME)  # type: ignore[operator]
    shard(trunk, policy.shards)
    materialise(trunk, policy.shards)
    copy_weights(source, trunk)
    for module, other in zip(trunk.modules(), source.modules(), strict=True):
        for name in _RECOMPUTED & vars(other).keys():
            setattr(module, name, vars(other)[name])
    return trunk.train()


@torch.no_grad()
def copy_weights(source: nn.Module, target: nn.Module) -> None:
    """Copies shards between two models that are cut alike."""
    for name, parameter in target.named_parameters():
        local(parameter).copy_(local(source.get_parameter(name)))
    for name, buffer in target.named_buffers():
        buffer.copy_(source.get_buffer(name))


def trained_weights(policy: Policy) -> Iterator[tuple[str, Tensor]]:
    """The trained weights, whole and by name, one after another, in the type that they are handed
    out in; a collective where the policy is sharded.
    """
    for name, parameter in policy.model.named_parameters():
        if parameter.requires_grad:
            yield name, _whole_of(policy, name, parameter)


def _whole_of(policy: Policy, name: str, parameter: Tensor) -> Tensor:
    shards = policy.shards
    if shards is None:
        return parameter.detach()
    return whole(parameter, shards.dtypes.get(name, parameter.dtype), shards.device)


def whole_policy(policy: Policy) -> Policy | None:
    """A sharded policy as a plain one in the memory of the CPU, on the first rank alone; a
    collective.
    """
    assert policy.shards is not None
    first = dist.get_rank() == 0
    saved = policy.model.state_dict().keys()
    buffers = {n: b.cpu() for n, b in policy.model.named_buffers() if n in saved}
    state: dict[str, Tensor] = {}
    for name, parameter in policy.model.named_parameters():
        found = _whole_of(policy, name, parameter)
        if first:
            state[name] = found.cpu()
    if not first:
        return None
    plain = policy.shards.make()
    # A tied weight has one name of two here, and is tied again below.
    plain.load_state_dict({**buffers, **state}, assign=True, strict=False)
    unwrap = getattr(plain, "get_base_model", None)
    (unwrap() if unwrap is not None else plain).tie_weights()
    return replace(policy, model=plain, shards=None)


def agree(error: str) -> None:
    """Raises on every rank what went wrong on the first one where something did; ``""`` is nothing.

    Raises:
        UserError: it was something.
    """
    said: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(said, error)
    for message in filter(None, said):
        raise UserError(message)


def attempt(run: Callable[[], R]) -> R:
    """Runs what a rank does alone and may fail at, and then has all ranks agree: none waits for
    another that has gone.

    Raises:
        UserError: of another rank; of its own whatever ``run`` raises.
    """
    try:
        found = run()
    except Exception as error:
        with suppress(UserError):
            agree(str(error) or type(error).__name__)
        raise
    agree("")
    return found
