"""How much memory a run will need, from the model's shape alone: no weight is allocated or
downloaded.

Weights, gradients and AdamW as in ZeRO (1910.02054, §3.1): with bfloat16 weights 2 + 2 + 12 bytes a
parameter (float32 master and two moments), with float32 weights 4 + 4 + 8. Activations as in
2205.05198 (eq. 2 and §5, without the attention scores, which fused attention does not keep): 34
bytes a token and hidden unit in each layer at 16 bit, or, with checkpointing, 2 in each layer and
34 in the one at work. Derived for a GELU MLP of four times the hidden size, so a little high for
most. What the allocator and libraries hold comes on top.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from lydite.model.attention import backbone
from lydite.model.loading import (
    ModelConfig,
    add_lora,
    load_tokenizer,
    model_shape,
    shell,
    weight_dtype,
)
from lydite.model.shards import blocks_of
from lydite.model.source import find_source
from lydite.ops.head import CHUNK_ELEMENTS

# Float32 copies of a chunk of logits that are alive at once: logits, their softmax, and its
# gradient.
HEAD_COPIES = 3
ACTIVATION_BYTES, CHECKPOINT_BYTES = 34, 2  # A token and hidden unit, in each layer, at 16 bit.
_CRITICS = (None, "head", "model")  # By what they need.


@dataclass(frozen=True, slots=True)
class Workload:
    """What a step asks of the machine.

    ``cache_tokens`` is how many tokens rollout keeps keys and values of at once, ``train_tokens``
    the size of a micro-batch, ``reference`` whether a KL term needs a frozen reference,
    ``refreshed`` whether that is renewed; ``critic`` is the kind of PPO's, if there is one;
    ``copies`` of the trained weights are kept where sampling runs beside training; ``beside`` are
    the bytes of another model that is not trained, such as a teacher; ``packed`` says that a CPU
    samples with a second copy of the weights, which is let go before training.
    """

    cache_tokens: int
    train_tokens: int
    reference: bool = False
    refreshed: bool = False
    critic: Literal["model", "head"] | None = None
    copies: int = 0
    beside: int = 0
    packed: bool = False

    def __or__(self, other: Workload) -> Workload:
        """What both fit in, one after the other."""
        return Workload(
            max(self.cache_tokens, other.cache_tokens),
            max(self.train_tokens, other.train_tokens),
            self.reference or other.reference,
            self.refreshed or other.refreshed,
            max(self.critic, other.critic, key=_CRITICS.index),
            max(self.copies, other.copies),
            max(self.beside, other.beside),
            self.packed or other.packed,
        )


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Numbers of parameters, and bytes. ``gathered`` is what a sharded model has whole at one time:
    its root, two blocks, and the gradients of the larger of both, which are summed in float32.
    """

    parameters: int
    trainable: int
    weights: int
    gradients: int
    optimizer: int
    reference: int
    critic: int
    copies: int
    beside: int
    packed: int
    cache: int
    activations: int
    gathered: int

    @property
    def total(self) -> int:
        """Bytes at the fullest moment. Engine and learner share weights; packed weights and cache
        take turns with activations, unless sampling runs beside training, and so do the gradients
        and activations of policy and critic.
        """
        own = self.weights + self.gradients + self.optimizer + self.reference + self.critic
        resident = own + self.beside
        if self.copies:
            return resident + self.copies + self.packed + self.cache + self.activations
        return resident + max(self.packed + self.cache, self.activations)

    def rows(self) -> list[tuple[str, str]]:
        """A table for people: what, and how much."""
        share = (
            ""
            if self.trainable == self.parameters
            else f", {_count(self.trainable)} of them trained"
        )
        return [
            ("parameters", f"{_count(self.parameters)}{share}"),
            ("weights", _size(self.weights)),
            ("gradients", _size(self.gradients)),
            ("AdamW", _size(self.optimizer)),
            *([("reference model", _size(self.reference))] if self.reference else []),
            *([("critic and its AdamW", _size(self.critic))] if self.critic else []),
            *([("weights that sample", _size(self.copies))] if self.copies else []),
            *([("a model beside it", _size(self.beside))] if self.beside else []),
            *([("weights packed in rollout", _size(self.packed))] if self.packed else []),
            ("keys and values in rollout", _size(self.cache)),
            ("activations in training", _size(self.activations)),
            ("in all, at most", _size(self.total)),
        ]


def estimate_memory(config: ModelConfig, workload: Workload, device: str = "cpu") -> MemoryEstimate:
    """Memory of a run of ``config`` on one device.

    Raises:
        UserError: as ``load_policy`` does for a model that is not there or settings that it
            refuses.
    """
    source = find_source(config.path)
    tokenizer = load_tokenizer(config, source) if source.fresh else None
    shape = model_shape(config, source, tokenizer)
    dtype = weight_dtype(config, source, device)
    model = shell(source, shape, dtype)
    if config.lora is not None:
        with torch.device("meta"):
            model = add_lora(model, config.lora)
    sizes = [(p.numel(), p.element_size(), p.requires_grad) for p in model.parameters()]
    trained = [(count, size) for count, size, trains in sizes if trains]
    weights = sum(count * size for count, size, _ in sizes)
    # With LoRA the reference is the policy without its adapter, or with a copy of an older one.
    adapter = sum(count * size for count, size in trained) if workload.refreshed else 0
    return MemoryEstimate(
        parameters=sum(count for count, _, _ in sizes),
        trainable=sum(count for count, _ in trained),
        weights=weights,
        gradients=sum(count * size for count, size in trained),
        optimizer=sum(count * _adamw(size) for count, size in trained),
        reference=0 if not workload.reference else weights if config.lora is None else adapter,
        critic=_critic(model, workload.critic),
        copies=workload.copies * sum(count * size for count, size in trained),
        beside=workload.beside,
        packed=weights if workload.packed and device == "cpu" else 0,
        cache=workload.cache_tokens * cache_bytes_per_token(shape, dtype),
        activations=_activations(
            shape, dtype, workload.train_tokens, config.gradient_checkpointing
        ),
        gathered=_gathered(model, dtype.itemsize),
    )


def _gathered(model: PreTrainedModel, size: int) -> int:
    """``size`` is the bytes of a weight as it is computed with."""
    blocks = [list(block.parameters()) for block in blocks_of(model)]
    inside = {id(p) for block in blocks for p in block}
    root = [p for p in model.parameters() if id(p) not in inside]
    largest = max(blocks, key=lambda block: sum(p.numel() for p in block), default=[])
    whole = sum(p.numel() for p in root) + 2 * sum(p.numel() for p in largest)
    trained = (sum(p.numel() for p in part if p.requires_grad) for part in (root, largest))
    return size * whole + (size + 4) * max(trained)


def _adamw(size: int) -> int:
    """Bytes of AdamW for a parameter of so many: two moments, and a float32 master if it is not."""
    return 8 if size >= 4 else 12


def _critic(model: PreTrainedModel, kind: str | None) -> int:
    """Weights and AdamW of a :class:`lydite.model.value.ValueModel`."""
    if kind is None:
        return 0
    own = [p for p in backbone(model).parameters() if p.requires_grad and kind == "model"]
    sizes = [(p.numel(), p.element_size()) for p in own]
    sizes.append((int(model.config.get_text_config().hidden_size), 4))
    return sum(count * (size + _adamw(size)) for count, size in sizes)


def cache_bytes_per_token(shape: PreTrainedConfig, dtype: torch.dtype) -> int:
    """Keys and values of one token in all layers: ``2 · L · H_kv · D`` numbers. 0 for a model
    without attention.
    """
    text = shape.get_text_config()
    heads = int(getattr(text, "num_attention_heads", None) or 0)
    if not heads:
        return 0
    kv_heads = int(getattr(text, "num_key_value_heads", None) or heads)
    width = int(getattr(text, "head_dim", None) or text.hidden_size // heads)
    return 2 * int(text.num_hidden_layers) * kv_heads * width * dtype.itemsize


def _activations(
    shape: PreTrainedConfig, dtype: torch.dtype, tokens: int, checkpointing: bool
) -> int:
    text = shape.get_text_config()
    layers, hidden = int(text.num_hidden_layers), int(text.hidden_size)
    per_unit = (
        CHECKPOINT_BYTES * layers + ACTIVATION_BYTES if checkpointing else ACTIVATION_BYTES * layers
    )
    head = HEAD_COPIES * 4 * min(CHUNK_ELEMENTS, tokens * int(text.vocab_size))
    return tokens * hidden * per_unit * dtype.itemsize // 2 + head


def _count(number: int) -> str:
    return _scaled(number, 1000, ("", "k", "M", "B"))


def _size(number: int) -> str:
    return _scaled(number, 1024, ("B", "KiB", "MiB", "GiB", "TiB"), " ")


def _scaled(number: int, base: int, units: Sequence[str], gap: str = "") -> str:
    value, unit = float(number), 0
    while value >= base and unit < len(units) - 1:
        value, unit = value / base, unit + 1
    return f"{value:.0f}{gap}{units[unit]}" if unit == 0 else f"{value:.3g}{gap}{units[unit]}"
