"""Reads a sharded model from safetensors files, each rank its own rows and nothing else."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel

from lydite.model.shards import local, own_part
from lydite.model.source import Source, reading
from lydite.ops.sampling import address_key

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_PLAIN = frozenset({"F64", "F32", "F16", "BF16"})
_NEW = (".lora_A.", ".lora_B.", ".lora_embedding_A.", ".lora_embedding_B.")
"""In the names of adapters' weights, which no file of the model holds."""


def files_of(source: Source, model: PreTrainedModel) -> dict[str, Path] | None:
    """The file that holds each tensor of a model, by the name that the model has for it, or None
    where they cannot be read as they are: another format, other names or shapes, quantised numbers.

    Raises:
        UserError: a model of the hub cannot be fetched.
    """
    if source.fresh or source.gguf is not None or source.adapters or _converted(model):
        return None
    folder = _folder(source.location)
    held = _held(folder)
    found: dict[str, Path] = {}
    wanted = _tensors(model)
    for file in sorted({held[name] for name in map(_name_in_file, wanted) if name in held}):
        with safe_open(folder / file, framework="pt") as opened:
            for name, tensor in wanted.items():
                key = _name_in_file(name)
                if held.get(key) != file:
                    continue
                part = opened.get_slice(key)
                if part.get_dtype() in _PLAIN and list(part.get_shape()) == list(tensor.shape):
                    found[name] = folder / file
    return found if found.keys() == wanted.keys() else None


def _converted(model: PreTrainedModel) -> bool:
    """Whether Transformers makes this model's weights out of those in the file."""
    if getattr(model.config, "quantization_config", None) is not None:
        return True
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
    except ImportError:
        return True
    unwrap = getattr(model, "get_base_model", None)
    plain = unwrap() if unwrap is not None else model
    return bool(get_model_conversion_mapping(plain, add_legacy=False))


def _folder(location: str) -> Path:
    if Path(location).is_dir():
        return Path(location)
    from huggingface_hub import snapshot_download

    patterns = ["*.safetensors", "*.json"]
    return Path(reading(location, lambda: snapshot_download(location, allow_patterns=patterns)))


def _held(folder: Path) -> Mapping[str, str]:
    """The file of each tensor, by the name it has there."""
    if (folder / _INDEX).is_file():
        index: dict[str, str] = json.loads((folder / _INDEX).read_text())["weight_map"]
        return index
    if not (folder / _SINGLE).is_file():
        return {}
    with safe_open(folder / _SINGLE, framework="pt") as opened:
        return dict.fromkeys(opened.keys(), _SINGLE)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """What a file must hold: parameters but adapters', and buffers that are saved."""
    saved = model.state_dict().keys()
    buffers = {name: b for name, b in model.named_buffers() if name in saved}
    named = {**dict(model.named_parameters()), **buffers}
    return {name: t for name, t in named.items() if not _is_new(name)}


def _is_new(name: str) -> bool:
    return any(part in f"{name}." for part in _NEW)


def _name_in_file(name: str) -> str:
    return name.removeprefix("base_model.model.").replace(".base_layer.", ".")


@torch.no_grad()
def read_rows(model: nn.Module, files: Mapping[str, Path], seed: int) -> None:
    """Fills a sharded model from ``files``; new adapters are as PEFT makes them, from ``seed``."""
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    for file in sorted(set(files.values())):
        with safe_open(file, framework="pt") as opened:
            for name in (name for name, place in files.items() if place == file):
                part = opened.get_slice(_name_in_file(name))
                if name in parameters:
                    local(parameters[name]).copy_(part[own_part(parameters[name])])
                else:
                    buffers[name].copy_(part[:])
    for name, parameter in parameters.items():
        if _is_new(name):
            local(parameter).copy_(_new_adapter(name, parameter, seed)[own_part(parameter)])


def _new_adapter(name: str, parameter: Tensor, seed: int) -> Tensor:
    """The same on every rank, which then keeps its rows."""
    whole = torch.zeros(parameter.shape)
    generator = torch.Generator().manual_seed(address_key(seed, name, 0, 0))
    if ".lora_A." in name:
        nn.init.kaiming_uniform_(whole, a=math.sqrt(5), generator=generator)
    elif ".lora_embedding_B." in f"{name}.":
        nn.init.normal_(whole, generator=generator)
    return whole
