"""What ``model.path`` points at, and the architecture and tokenizer found there.

A path is ``init:ARCHITECTURE``, ``package:NAME/FILE`` (a file that an installed Python package
carries), a ``.gguf`` file, a local folder, or a hub id. Everything that can go wrong here is the
user's to mend, in one line.
"""

from __future__ import annotations

import difflib
import functools
import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from logging import ERROR, getLogger
from pathlib import Path
from typing import Any, TypeVar

from transformers import AutoConfig, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging

from lydite.config import UserError

R = TypeVar("R")

# A model from nothing is for learning on a laptop: what the recipe does not say is small.
SMALL: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "tie_word_embeddings": True,
}


HUB_SECONDS = 10.0
"""How long the hub may take to say whether it has a model."""

ADAPTER, BASE = "adapter_config.json", "lydite_base.json"
"""In a folder of adapters: PEFT's settings, and which model they go on."""


@dataclass(frozen=True, slots=True)
class Source:
    """``location`` is the folder, hub id or model type; ``gguf`` a file's name in the folder.
    ``adapters`` are folders of LoRA adapters that go on it, in order.
    """

    location: str
    gguf: str | None = None
    fresh: bool = False
    adapters: tuple[str, ...] = ()

    @property
    def tokenizer(self) -> str:
        """Where the tokenizer is: with the last adapter that brings one, or with the model."""
        own = [each for each in self.adapters if (Path(each) / "tokenizer_config.json").is_file()]
        return own[-1] if own else self.location

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments that every ``from_pretrained`` of this source needs."""
        return {} if self.gguf is None else {"gguf_file": self.gguf}


def find_source(path: str) -> Source:
    """Raises ``UserError`` for a file, folder, package or architecture that does not exist."""
    if path.startswith("init:"):
        return Source(_architecture_name(path.removeprefix("init:")), fresh=True)
    file = _in_package(path) if path.startswith("package:") else Path(path).expanduser()
    if file.suffix.lower() == ".gguf":
        if not file.is_file():
            raise UserError(f"model.path: no file {path}")
        return Source(str(file.parent), gguf=file.name)
    if (file / ADAPTER).is_file() and not (file / "config.json").is_file():
        below = find_source(_base_of(file))
        return replace(below, adapters=(*below.adapters, str(file)))
    if file.is_dir():
        if not (file / "config.json").is_file():
            inside = file / "model"
            hint = f"; did you mean {inside}?" if (inside / "config.json").is_file() else ""
            raise UserError(
                f"model.path: {path} has no config.json, so it is not a model folder{hint}"
            )
        return Source(str(file))
    if file.is_file():
        raise UserError(f"model.path: {path} is a file; give a folder, a .gguf file or a hub id")
    if path.startswith((".", "/", "~", "package:")) or path.count("/") > 1:
        raise UserError(f"model.path: no folder {path}")
    return Source(path)


def _base_of(folder: Path) -> str:
    """The model that a folder of adapters goes on: one that lies to it as when it was written, or
    else where it lay.

    Raises:
        UserError: it is not said, or not there.
    """
    file = folder / BASE if (folder / BASE).is_file() else folder / ADAPTER
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        base, within = record.get("path") or record["base_model_name_or_path"], record.get("within")
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise UserError(f"model.path: {file} does not say which model it goes on") from error
    for near in (p / name for p in folder.resolve().parents for name in within or ()):
        if (near / "config.json").is_file() or (near / ADAPTER).is_file():
            return str(near)
    if not isinstance(base, str) or (base.startswith("/") and not Path(base).exists()):
        raise UserError(
            f"model.path: {folder} holds adapters, and the model they go on is not at {base}; move "
            f"it back, or write its place as base_model_name_or_path into {folder / ADAPTER}"
            + (f" and delete {folder / BASE}" if file.name == BASE else "")
        )
    return base


def _architecture_name(name: str) -> str:
    if name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return name
    near = difflib.get_close_matches(name, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, n=1)
    hint = f"did you mean init:{near[0]}?" if near else "for example init:llama or init:qwen3"
    raise UserError(f"model.path: Transformers has no causal language model {name!r}; {hint}")


def _in_package(path: str) -> Path:
    """The file, found without importing the package: what it would import need not be installed."""
    package, _, file = path.removeprefix("package:").partition("/")
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not folders or not file:
        raise UserError(
            f"model.path: {path}: no installed package {package!r} with files; pip install it first"
        )
    return Path(folders[0]) / file


def architecture(
    source: Source, overrides: Mapping[str, Any], defaults: Mapping[str, Any]
) -> PreTrainedConfig:
    """The model's Transformers configuration, its dropout set to zero.

    ``overrides`` are the user's, ``defaults`` what follows from the tokenizer; both are for a fresh
    model only. Dropout would make the policy that is trained another one than the policy that
    sampled.
    """
    if source.fresh:
        config = _fresh(source.location, overrides, defaults)
    elif overrides:
        raise UserError(
            "model.init: only for a model from nothing (path: init:…); this one has its own shape"
        )
    else:
        config = reading(
            source.location, lambda: AutoConfig.from_pretrained(source.location, **source.arguments)
        )
    for part in {id(c): c for c in (config, config.get_text_config())}.values():
        for key, value in vars(part).items():
            if "drop" in key and isinstance(value, float):
                setattr(part, key, 0.0)
    return config


def _fresh(
    name: str, overrides: Mapping[str, Any], defaults: Mapping[str, Any]
) -> PreTrainedConfig:
    kind = CONFIG_MAPPING[name]
    with quiet():
        plain = kind()
    known = {*plain.to_dict(), *plain.attribute_map}
    for key in overrides:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UserError(f"model.init: {name} has no setting {key!r}{hint}")
    own_names = {value: key for key, value in plain.attribute_map.items()}
    given = {own_names.get(key, key): value for key, value in overrides.items()}
    wanted = {**SMALL, **defaults, **given}
    heads = wanted["num_attention_heads"]
    wanted = {"num_key_value_heads": heads, "head_dim": wanted["hidden_size"] // heads, **wanted}
    try:
        with quiet():
            return kind(**{key: value for key, value in wanted.items() if key in known})
    except Exception as error:  # Configuration classes check themselves each in their own way.
        raise UserError(f"model.init: {name} refuses it: {one_line(error)}") from error


def reading(location: str, read: Callable[[], R], field: str = "model.path") -> R:
    """Runs a ``from_pretrained``; what it raises for a bad or unreachable model is one line."""
    local = Path(location).is_dir() or location in CONFIG_MAPPING
    if not local:
        _check_hub(location, field)
    with quiet():
        try:
            return read()
        except ImportError as error:
            extra = "gguf" if "gguf" in str(error).lower() else None
            hint = f"; pip install 'lydite[{extra}]'" if extra else ""
            raise UserError(f"{field}: {location}: {one_line(error)}{hint}") from error
        except (OSError, ValueError, KeyError, RuntimeError, TypeError) as error:
            where = "" if local else " (no such folder here, so it was looked for on the hub)"
            raise UserError(f"{field}: cannot load {location}{where}: {one_line(error)}") from error


@functools.cache
def _check_hub(location: str, field: str) -> None:
    """Asks the hub once, since Transformers would ask a hub that is out of reach for a minute.
    Models that are on this machine already are not asked for.

    Raises:
        UserError: it cannot be reached. What it answers is for Transformers to tell.
    """
    from huggingface_hub import HfApi, constants, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if constants.HF_HUB_OFFLINE:
        return
    try:
        if try_to_load_from_cache(location, "config.json") is None:
            HfApi().model_info(location, timeout=HUB_SECONDS)
    except (HfHubHTTPError, HFValidationError):
        return
    except Exception as error:  # whatever its client makes of a network that is not there
        raise UserError(
            f"{field}: cannot load {location} (no such folder here, so it was looked for on the "
            f"hub, which cannot be reached): {one_line(error)}"
        ) from ConnectionError(f"couldn't reach the hub: {error}")


@contextmanager
def quiet() -> Iterator[None]:
    """Without Transformers' progress bars and remarks: the terminal belongs to the run."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    # It tells of every retry of a hub that cannot be reached; the error at the end is enough.
    hub = getLogger("huggingface_hub")
    hub_level = hub.level
    hub.setLevel(ERROR)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        hub.setLevel(hub_level)
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def one_line(error: object) -> str:
    """A library's message on one line, at most 200 characters of it."""
    text = " ".join(str(error).split())
    return text if 0 < len(text) <= 200 else f"{text[:200]}…" if text else type(error).__name__
