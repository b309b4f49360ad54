"""LoRA adapters in folders of their own, in PEFT's format, and merging them into plain weights."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lydite.config import UserError
from lydite.model.source import ADAPTER, BASE, one_line, quiet


def with_adapter(model: PreTrainedModel, folder: str) -> PreTrainedModel:
    """The model wrapped by the adapters of a PEFT folder.

    Raises:
        UserError: ``peft`` is not installed, or the folder cannot be read or is for another model.
    """
    try:
        import peft
    except ImportError as error:
        raise UserError(
            f"{folder} holds adapters: needs the package peft; pip install 'lydite[peft]'"
        ) from error
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            wrapped = peft.PeftModel.from_pretrained(model, folder)
    except (OSError, ValueError, KeyError, RuntimeError, TypeError) as error:
        raise UserError(
            f"{folder}: its adapters do not go with this model: {one_line(error)}"
        ) from error
    missing = [each for each in said if "missing adapter keys" in str(each.message)]
    if missing:
        raise UserError(
            f"{folder}: its adapters do not go with this model: {one_line(missing[0].message)}"
        )
    return wrapped  # type: ignore[return-value]


def merged_state(model: PreTrainedModel) -> dict[str, Tensor]:
    """The weights of a plain model with the adapters added; shares every tensor that no adapter
    touches.

    Raises:
        UserError: they do more than add to weights.
    """
    _check_adds(model)
    base = model.get_base_model()  # type: ignore[operator]
    state: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, tensor in base.state_dict().items():
            if ".lora_" not in name:
                state[name.replace(".base_layer.", ".")] = tensor
        for name, layer in base.named_modules():
            if hasattr(layer, "get_delta_weight"):
                _add_deltas(layer, f"{name}.weight", state)
    return state


def _check_adds(model: PreTrainedModel) -> None:
    """Raises ``UserError`` where adding deltas to weights would give another model than the one
    with the adapters.
    """
    wrapped: Any = model
    base = wrapped.get_base_model()
    for config in wrapped.peft_config.values():
        kind = str(getattr(config.peft_type, "value", config.peft_type))
        ends = {id(base.get_input_embeddings()), id(base.get_output_embeddings())}
        tied = bool(base.config.get_text_config().tie_word_embeddings)
        adapted = any(
            id(layer) in ends and hasattr(layer, "get_delta_weight") for layer in base.modules()
        )
        more = {
            f"adapters of the kind {kind}": kind != "LORA",
            "DoRA's magnitudes": getattr(config, "use_dora", False),
            "biases (lora_bias)": getattr(config, "lora_bias", False),
            "whole layers (modules_to_save)": bool(getattr(config, "modules_to_save", None)),
            "adapters of one of two tied embeddings": tied and adapted,
        }
        said = [what for what, there in more.items() if there]
        if said:
            raise UserError(
                f"adapters: {' and '.join(said)} cannot be added to weights here; merge them by "
                "PEFT's merge_and_unload, and name the plain model"
            )


def _add_deltas(layer: nn.Module, key: str, state: dict[str, Tensor]) -> None:
    adapted: Any = layer
    for adapter in adapted.active_adapters:
        weight, delta = state[key], adapted.get_delta_weight(adapter)
        wide = torch.promote_types(weight.dtype, torch.float32)
        state[key] = (weight.to(wide) + delta.to(wide)).to(weight.dtype)


def merged(model: PreTrainedModel) -> PreTrainedModel:
    """A plain model with the adapters added to its weights, to be saved: what is not saved with a
    model, such as tables of positions, it lacks.
    """
    base = model.get_base_model()  # type: ignore[operator]
    assert isinstance(base, PreTrainedModel)
    return _plain(model, lambda: _on_meta(base))


def merge(model: PreTrainedModel) -> PreTrainedModel:
    """Likewise a model that can be run."""
    base: Any = model.get_base_model()  # type: ignore[operator]
    return _plain(model, lambda: type(base)(base.config))


def _on_meta(base: PreTrainedModel) -> PreTrainedModel:
    with torch.device("meta"):
        return type(base)(base.config)


def _plain(model: PreTrainedModel, make: Callable[[], PreTrainedModel]) -> PreTrainedModel:
    state = merged_state(model)
    plain = make()
    plain.load_state_dict(state, assign=True)
    plain.tie_weights()
    return plain


def write_adapter(model: PreTrainedModel, folder: Path, base: str) -> None:
    """Writes the adapters of a model to ``folder``. ``base`` is the path of the model beneath;
    where it is a folder, it is found again when both are moved together.
    """
    below = Path(base).expanduser()
    local = below.is_dir()
    peft_model: Any = model
    for config in peft_model.peft_config.values():
        config.base_model_name_or_path = str(below.resolve()) if local else base
    with quiet():
        # The embeddings are not trained; PEFT would look on the hub whether they are.
        peft_model.save_pretrained(folder, save_embedding_layers=False)
    within: list[str] = []
    if local:
        # As it lies to this folder, and as it lies to one above, where the folder may be copied.
        whole = below.resolve()
        root = os.path.commonpath([whole, folder.resolve()])
        within = [os.path.relpath(whole, root), *("/".join(whole.parts[-n:]) for n in (3, 2))]
    record = {"path": str(below.resolve()) if local else base, "within": within}
    (folder / BASE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    assert (folder / ADAPTER).is_file()
