"""Weights on their way to vLLM: LoRA's adapters apart from what is beneath them, and files that
several processes read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

Weights = Iterable[tuple[str, Tensor]]
_PART_BYTES = 4 << 30


def beneath(weights: Weights, adapters: list[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """The weights beneath LoRA's adapters as they were named without them; adapters are put
    aside.
    """
    for name, tensor in weights:
        if ".lora_" in name:
            adapters.append((name, tensor))
        else:
            yield name.removeprefix("base_model.model.").replace(".base_layer.", "."), tensor


def write_parts(weights: Weights, folder: Path) -> None:
    """Writes tensors as safetensors files of a few gigabytes each, as they come."""
    part: dict[str, Tensor] = {}
    number = size = 0
    for name, tensor in weights:
        part[name] = tensor.detach().to("cpu", copy=True).contiguous()
        size += tensor.nbytes
        if size >= _PART_BYTES:
            save_file(part, folder / f"part-{number}.safetensors")
            part, number, size = {}, number + 1, 0
    if part:
        save_file(part, folder / f"part-{number}.safetensors")


def read_parts(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """What :func:`write_parts` wrote, a tensor at a time."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as part:
            for name in part.keys():  # noqa: SIM118
                yield name, part.get_tensor(name)


def write_adapter(weights: Weights, config: Mapping[str, Any] | None, folder: Path) -> None:
    """LoRA's tensors among the weights as an adapter's folder, as PEFT writes it."""
    tensors = {
        name.replace(".default.", "."): tensor.detach().to("cpu", copy=True).contiguous()
        for name, tensor in weights
        if ".lora_" in name
    }
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    written = json.dumps(config, default=_plain)
    (folder / "adapter_config.json").write_text(written, encoding="utf-8")


def _plain(value: object) -> object:
    """What JSON lacks, as PEFT's own files write it."""
    return sorted(value) if isinstance(value, set | frozenset) else str(value)
