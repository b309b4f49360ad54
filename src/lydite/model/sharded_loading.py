"""Loads a policy in shards. No rank but the first ever holds the whole model, and the first only
where the files cannot be read row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from lydite.model.attention import NAME
from lydite.model.loading import (
    ModelConfig,
    add_lora,
    check_vocabulary,
    load_policy,
    load_tokenizer,
    model_shape,
    past_window,
    policy_of,
    recompute_activations,
    weight_dtype,
)
from lydite.model.policy import Policy
from lydite.model.probe import why_not_flat
from lydite.model.row_reading import files_of, read_rows
from lydite.model.shards import Shards, attempt, local, materialise, own_part, shard
from lydite.model.source import Source, find_source, quiet, reading

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from transformers import PreTrainedTokenizerBase


def load_sharded(
    config: ModelConfig,
    mesh: DeviceMesh,
    device: str = "cpu",
    seed: int = 0,
    offload: bool = False,
    dtype: torch.dtype | None = None,
) -> Policy:
    """The policy of :func:`lydite.model.loading.load_policy`, its weights in shards over ``mesh``;
    every rank of the default process group must call this.

    What is computed in bfloat16 (``dtype``, or else what ``config`` asks for) has its trained
    weights kept in float32, so that small updates are not lost, and its gradients summed in it;
    frozen weights stay bfloat16.

    Raises:
        UserError: as :func:`lydite.model.loading.load_policy`, on every rank.
    """
    tokenizer, plan = attempt(lambda: _plan(config, mesh, device, offload, dtype))
    model = plan.make()
    attempt(lambda: check_vocabulary(model, tokenizer))
    _widen(model)
    if config.gradient_checkpointing:
        attempt(lambda: recompute_activations(model))
    _remember_attention(model)
    attempt(lambda: shard(model, plan))
    materialise(model, plan)
    files = _readable(config, model)
    if files is None:
        reason = _spread_from_first(model, plan, config, seed)
    else:
        attempt(lambda: read_rows(model, files, seed))
        reason = why_not_flat(model, plan) or past_window(config, model.config)
    if not reason:
        model.set_attn_implementation(NAME)
    model.train()
    return policy_of(config, model, tokenizer, reason, plan)


def _remember_attention(model: PreTrainedModel) -> None:
    """Transformers tells by a class's source whether its attention can be replaced, when it first
    is, and remembers it; the classes that FSDP derives have no source.
    """
    before = model.config._attn_implementation
    with quiet():
        model.set_attn_implementation(NAME)
        model.set_attn_implementation(before)


def _readable(config: ModelConfig, model: PreTrainedModel) -> dict[str, Path] | None:
    """The files that every rank can read its rows from, or None."""
    found = attempt(lambda: files_of(find_source(config.path), model))
    there: list[bool] = [False] * dist.get_world_size()
    dist.all_gather_object(there, found is not None)
    return found if all(there) else None


def _plan(
    config: ModelConfig, mesh: DeviceMesh, device: str, offload: bool, wanted: torch.dtype | None
) -> tuple[PreTrainedTokenizerBase, Shards]:
    source = find_source(config.path)
    tokenizer = load_tokenizer(config, source)
    shape = model_shape(config, source, tokenizer)
    dtype = wanted or weight_dtype(config, source, device)
    make = _maker(config, source, shape, dtype)
    half = dtype if dtype == torch.bfloat16 else None
    dtypes = {n: p.dtype for n, p in make().named_parameters() if p.requires_grad}
    return tokenizer, Shards(mesh, device, half, offload, dtypes, make)


def _maker(
    config: ModelConfig, source: Source, shape: PreTrainedConfig, dtype: torch.dtype
) -> Callable[[], PreTrainedModel]:
    def make() -> PreTrainedModel:
        with _parameters_on_meta():
            model: PreTrainedModel = reading(
                source.location, lambda: AutoModelForCausalLM.from_config(shape, dtype=dtype)
            )
            model.tie_weights()
            if config.lora is not None:
                model = add_lora(model, config.lora)
                _widen(model, dtype)
        return model

    return make


def _widen(model: nn.Module, dtype: torch.dtype = torch.float32) -> None:
    """Keeps what is trained in float32 at least."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            wide = torch.promote_types(torch.promote_types(parameter.dtype, dtype), torch.float32)
            parameter.data = parameter.data.to(wide)


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Modules made inside have their parameters on the ``meta`` device and their buffers, such as
    the frequencies of positions, which no file holds, as they should be.
    """
    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
        register(module, name, parameter)

    nn.Module.register_parameter = on_meta  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def _spread_from_first(model: PreTrainedModel, plan: Shards, config: ModelConfig, seed: int) -> str:
    """Loads the model on the first rank alone, in the memory of the CPU, and hands out its tensors
    one by one. Gives why it does not run on flat tokens.
    """
    first = dist.get_rank() == 0
    loaded = attempt(lambda: load_policy(_whole(config, plan), "cpu", seed) if first else None)
    state: Mapping[str, Tensor] = {} if loaded is None else loaded.model.state_dict()
    _spread(model, state, plan.device)
    reason = [loaded.not_flat if loaded is not None else ""]
    dist.broadcast_object_list(reason, src=0)
    return reason[0]


def _whole(config: ModelConfig, plan: Shards) -> ModelConfig:
    dtype = "float32" if plan.compute is None else "bfloat16"
    return config.model_copy(update={"dtype": dtype, "gradient_checkpointing": False})


@torch.no_grad()
def _spread(model: nn.Module, state: Mapping[str, Tensor], device: str) -> None:
    """Each tensor goes to all ranks, which keep their rows of it."""
    saved = model.state_dict().keys()
    tensors: list[tuple[str, Tensor, bool]] = [(n, p, True) for n, p in model.named_parameters()]
    tensors += [(n, b, False) for n, b in model.named_buffers() if n in saved]
    for name, tensor, cut in tensors:
        if state:
            sent = state[name].to(device=device, dtype=tensor.dtype).contiguous()
        else:
            sent = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
        dist.broadcast(sent, src=0)
        local(tensor).copy_(sent[own_part(tensor)] if cut else sent)
