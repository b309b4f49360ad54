"""Loads a policy: weights from the hub, a folder, a GGUF file or nothing; tokenizer; LoRA."""

from __future__ import annotations

import warnings
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig, PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from lydite.config import Config, UserError
from lydite.model.adapters import merge, with_adapter
from lydite.model.attention import NAME
from lydite.model.policy import Policy
from lydite.model.probe import attention_window, why_not_flat
from lydite.model.reference import has_adapter
from lydite.model.shards import Shards
from lydite.model.source import Source, architecture, find_source, one_line, quiet, reading
from lydite.model.thinking import add_switch
from lydite.model.tiny_tokenizer import SWITCH_TOKENS, build_tokenizer

# Used when neither architecture nor tokenizer says how far positions go (ALiBi, recurrence).
UNBOUNDED_CONTEXT = 4096

_ADAPTER_ALONE = (
    "adapters go on a model that is on disk, and this one is new; use save: merged, or train and "
    "save it first"
)


class LoraConfig(Config):
    """Low-rank adapters (2106.09685) on frozen weights. Needs the extra `peft`."""

    rank: int = Field(16, ge=1, description="Rank of the adapters.")
    alpha: float | None = Field(
        None, gt=0, description="Scale: updates are times alpha/rank. 2·rank if null."
    )
    dropout: float = Field(
        0.0, ge=0, lt=1, description="Dropout on the adapters' input while training."
    )
    targets: str | list[str] = Field(
        "all-linear",
        description="Module names to adapt, or `all-linear`: every linear layer but the head.",
    )
    save: Literal["merged", "adapter"] = Field(
        "merged",
        description="What a stage leaves: a plain model with the adapters merged into its weights, "
        "or the adapters alone in PEFT's format, which go on the model that the stage started "
        "from.",
    )


class ModelConfig(Config):
    """Which model, and how it is loaded."""

    path: str = Field(
        description="Hub id, local folder, `.gguf` file, `package:NAME/FILE.gguf` for one that a "
        "Python package carries, or `init:ARCHITECTURE` (`init:llama`, `init:qwen3`, …) for a new "
        "one.",
    )
    init: dict[str, Any] = Field(
        {},
        description="Settings of a new model (`init:`), as its Transformers configuration names "
        "them; small when not given.",
    )
    tokenizer: str | None = Field(
        None, description="Folder or hub id of the tokenizer; the model's if null."
    )
    vocabulary: list[str] | None = Field(
        None,
        description="Tokens of a small tokenizer that is built for a new model. Control tokens are "
        "added.",
    )
    dtype: Literal["float32", "bfloat16", "auto"] = Field(
        "auto",
        description="Type of the weights. `auto`: bfloat16 on a GPU; float32 on a CPU and for a "
        "new model.",
    )
    lora: LoraConfig | None = Field(
        None, description="Train low-rank adapters instead of all weights."
    )
    gradient_checkpointing: bool = Field(
        False,
        description="Recompute activations in the backward pass: less memory, about a third more "
        "work.",
    )
    chat: bool | Literal["auto"] = Field(
        "auto",
        description="Prompts through the chat template, or as plain text; `auto`: if there is a "
        "template.",
    )
    chat_template: str | None = Field(
        None, description="Jinja chat template, or a file with one, to use instead."
    )
    thinking: bool | None = Field(
        None, description="Passed to the chat template as `enable_thinking`; not passed if null."
    )
    thinking_switch: Literal["strip", "keep"] | None = Field(
        None,
        description="Give the chat template the switch `enable_thinking`, saved with the model, if "
        "it has none: false puts an empty <think></think> behind the prompt. The thinking of "
        "earlier turns is left out of the prompt (`strip`, as Qwen3 does) or stays (`keep`). A "
        "`vocabulary` gets tokens for ` /think`, ` /no_think` and line breaks.",
    )
    context: int | None = Field(
        None,
        ge=2,
        description="Most tokens of a prompt and its completion together; the model's own if null.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> ModelConfig:
        fresh = self.path.startswith("init:")
        if fresh and self.lora is not None and self.lora.save == "adapter":
            raise ValueError(f"lora.save: {_ADAPTER_ALONE}")
        if self.vocabulary is not None and self.tokenizer is not None:
            raise ValueError("tokenizer and vocabulary are both given; keep one")
        if self.vocabulary is not None and not fresh:
            raise ValueError(
                "vocabulary is for a new model (path: init:…); this one has its own tokenizer"
            )
        return self


def load_policy(config: ModelConfig, device: str = "cpu", seed: int = 0) -> Policy:
    """The policy, in training mode with dropout off, on ``device``.

    ``seed`` makes new weights and new adapters. A model that cannot run on flat tokens is loaded
    all the same; ``Policy.not_flat`` says why it cannot.

    Raises:
        UserError: whatever is wrong with the path, the settings or the files, in one line.
    """
    source = find_source(config.path)
    if config.lora is not None and config.lora.save == "adapter" and source.fresh:
        raise UserError(f"model.lora.save: {_ADAPTER_ALONE}")
    tokenizer = load_tokenizer(config, source)
    shape = model_shape(config, source, tokenizer)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _load_weights(source, shape, weight_dtype(config, source, device))
        check_vocabulary(model, tokenizer)
        model.to(device)  # type: ignore[arg-type]
        reason = why_not_flat(model) or past_window(config, shape)
        if not reason:
            model.set_attn_implementation(NAME)
        model.train()
        if config.gradient_checkpointing:
            recompute_activations(model)
        if config.lora is not None:
            model = add_lora(model, config.lora)
    return policy_of(config, model, tokenizer, reason)


def load_frozen(config: ModelConfig, device: str = "cpu", seed: int = 0) -> Policy:
    """A policy that is not to be trained: without adapters and without gradient.

    Raises:
        UserError: as :func:`load_policy`.
    """
    plain = config.model_copy(update={"lora": None, "gradient_checkpointing": False})
    policy = load_policy(plain, device, seed)
    policy.model.requires_grad_(False)
    policy.model.eval()
    return policy


def load_prompting(config: ModelConfig) -> Policy:
    """A policy without weights, on the ``meta`` device: enough to render prompts and examples.

    Raises:
        UserError: as :func:`load_policy`, but for what only the weights could show.
    """
    source = find_source(config.path)
    tokenizer = load_tokenizer(config, source)
    shape = model_shape(config, source, tokenizer)
    model = shell(source, shape, weight_dtype(config, source, "cpu"))
    check_vocabulary(model, tokenizer)
    return policy_of(config, model, tokenizer, not_flat="its weights are not loaded")


def shell(source: Source, shape: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """The model with every parameter on the ``meta`` device: shapes, and no memory."""
    with torch.device("meta"):
        model: PreTrainedModel = reading(
            source.location, lambda: AutoModelForCausalLM.from_config(shape, dtype=dtype)
        )
    model.tie_weights()
    return model


def policy_of(
    config: ModelConfig,
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    not_flat: str,
    shards: Shards | None = None,
) -> Policy:
    """A loaded model as a policy; ``not_flat`` says why it does not run on flat tokens.

    Raises:
        UserError: prompts are to go through a chat template, and there is none.
    """
    end, stops = _endings(model, tokenizer)
    chat = tokenizer.chat_template is not None if config.chat == "auto" else config.chat
    if chat and tokenizer.chat_template is None:
        raise UserError(
            "model.chat: the tokenizer has no chat template; give model.chat_template or set chat: "
            "false"
        )
    alone = config.lora is not None and config.lora.save == "adapter"
    return Policy(
        model,
        tokenizer,
        stops,
        _context(config, model.config, tokenizer),
        end_id=end if chat else tokenizer.eos_token_id,
        chat=chat,
        thinking=config.thinking,
        flat=not not_flat,
        not_flat=not_flat,
        adapter_on=config.path if alone and has_adapter(model) else "",
        shards=shards,
    )


def load_tokenizer(config: ModelConfig, source: Source) -> Tokenizer:
    """The tokenizer with its chat template replaced if asked, and padding by the end token when it
    has no own.
    """
    tokenizer: Tokenizer
    if config.vocabulary is not None:
        more = SWITCH_TOKENS if config.thinking_switch else ()
        words = [*config.vocabulary, *(t for t in more if t not in config.vocabulary)]
        tokenizer = build_tokenizer(words, config.context)
    elif config.tokenizer is not None:
        tokenizer = reading(
            config.tokenizer,
            lambda: AutoTokenizer.from_pretrained(config.tokenizer),
            "model.tokenizer",
        )
    elif source.fresh:
        raise UserError(
            "model: a new model needs a tokenizer; give model.vocabulary or model.tokenizer"
        )
    else:
        tokenizer = reading(
            source.tokenizer,
            lambda: AutoTokenizer.from_pretrained(
                source.tokenizer, **({} if source.adapters else source.arguments)
            ),
        )
    if tokenizer.eos_token_id is None:
        raise UserError(
            "model.tokenizer: it has no end-of-text token, so a completion could never end"
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if config.chat_template is not None:
        tokenizer.chat_template = _template_text(config.chat_template)
    if config.thinking_switch is not None:
        add_switch(tokenizer, strip_history=config.thinking_switch == "strip")
    return tokenizer


def _template_text(given: str) -> str:
    if "{" in given:
        return given
    try:
        return Path(given).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"model.chat_template: cannot read {given}: {one_line(error)}") from error


def model_shape(
    config: ModelConfig, source: Source, tokenizer: Tokenizer | None
) -> PreTrainedConfig:
    """The architecture's configuration; a new model takes its vocabulary, special tokens and length
    from ours.

    Raises:
        UserError: it cannot be read, or is that of a classifier, whose head writes no text.
    """
    defaults: dict[str, int | None] = {}
    if tokenizer is not None:
        defaults = {
            "vocab_size": len(tokenizer),
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        }
    if config.context is not None:
        defaults["max_position_embeddings"] = config.context
    shape = architecture(source, config.init, defaults)
    # Transformers would load it all the same, with a language model's head that nothing trained.
    named: list[str] = shape.architectures or []
    if any(name.endswith("ForSequenceClassification") for name in named):
        raise UserError(
            f"model.path: {config.path} is a reward model or classifier ({named[0]}), which writes "
            "no text; name a language model, and this one in a verifier of kind reward_model"
        )
    return shape


def weight_dtype(config: ModelConfig, source: Source, device: str) -> torch.dtype:
    """The type that the weights are loaded in; see ``ModelConfig.dtype``."""
    if config.dtype == "auto":
        half = device.startswith("cuda") and not source.fresh
        return torch.bfloat16 if half else torch.float32
    return torch.bfloat16 if config.dtype == "bfloat16" else torch.float32


def _load_weights(source: Source, shape: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """The plain model, with what adapters of its own it has merged into its weights."""
    model = _load_plain(source, shape, dtype)
    for folder in source.adapters:
        # What a new model is filled with must not move the noise that new adapters begin with.
        with quiet(), torch.random.fork_rng(devices=[]):
            model = merge(with_adapter(model, folder))
    return model


def _load_plain(source: Source, shape: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    if source.fresh:
        fresh: PreTrainedModel = reading(
            source.location, lambda: AutoModelForCausalLM.from_config(shape, dtype=dtype)
        )
        return fresh
    if source.gguf is None:
        return reading(
            source.location,
            lambda: AutoModelForCausalLM.from_pretrained(
                source.location, config=shape, dtype=dtype
            ),
        )
    # Its bar for these files is tqdm's own, which no setting of Transformers turns off.
    with redirect_stderr(StringIO()):
        read = reading(
            source.location,
            lambda: AutoModelForCausalLM.from_pretrained(
                source.location, config=shape, dtype=dtype, **source.arguments
            ),
        )
    # What Transformers builds from GGUF counts as quantised and refuses to be saved: same weights,
    # plain model.
    if hasattr(shape, "quantization_config"):
        del shape.quantization_config
    with quiet():
        plain: PreTrainedModel = AutoModelForCausalLM.from_config(shape, dtype=dtype)
        plain.load_state_dict(read.state_dict(), assign=True)
        plain.tie_weights()
    return plain


def check_vocabulary(model: PreTrainedModel, tokenizer: Tokenizer) -> None:
    """Raises ``UserError`` where the tokenizer has more tokens than the model."""
    rows = int(model.config.get_text_config().vocab_size)
    if len(tokenizer) > rows:
        raise UserError(
            f"model.tokenizer: it has {len(tokenizer)} tokens and the model {rows}; they do not "
            "belong together"
        )


def past_window(config: ModelConfig, shape: PreTrainedConfig) -> str:
    """Why a context that the user asked for is too long to run flat, or ``""``."""
    window = attention_window(shape.get_text_config())
    if window is None or config.context is None or config.context <= window:
        return ""
    return f"context {config.context} is past its attention window of {window} tokens"


def _context(config: ModelConfig, shape: PreTrainedConfig, tokenizer: Tokenizer) -> int:
    """What the user asks for; else how far positions go, and no farther than the attention window,
    within which the model can run flat.
    """
    text = shape.get_text_config()
    own = getattr(text, "max_position_embeddings", None)
    limit = (
        own
        if isinstance(own, int) and own > 0
        else min(tokenizer.model_max_length, UNBOUNDED_CONTEXT)
    )
    if config.context is not None:
        if config.context > limit:
            raise UserError(
                f"model.context: {config.context} is past the model's longest, {limit} tokens"
            )
        return config.context
    window = attention_window(text)
    return limit if window is None else min(limit, window)


def recompute_activations(model: PreTrainedModel) -> None:
    """Has each block's activations made again in the backward pass.

    Raises:
        UserError: this architecture cannot.
    """
    # Transformers 5.24 renamed it; the old name goes away in version 6.
    name = "activation_checkpointing_enable"
    enable = getattr(model, name, None) or model.gradient_checkpointing_enable
    try:
        enable({"use_reentrant": False})
    except ValueError as error:
        raise UserError(f"model.gradient_checkpointing: {one_line(error)}") from error


def add_lora(model: PreTrainedModel, config: LoraConfig) -> PreTrainedModel:
    """The model with adapters, its own weights frozen.

    Raises:
        UserError: ``peft`` is not installed, or no module fits the targets.
    """
    try:
        import peft
    except ImportError as error:
        raise UserError("model.lora: needs the package peft; pip install 'lydite[peft]'") from error
    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=2 * config.rank if config.alpha is None else config.alpha,  # type: ignore[arg-type]
        lora_dropout=config.dropout,
        target_modules=config.targets,
        task_type="CAUSAL_LM",
    )
    try:
        with warnings.catch_warnings():
            # peft calls Transformers by names that Transformers has since renamed.
            warnings.simplefilter("ignore", FutureWarning)
            wrapped = peft.get_peft_model(model, settings)
    except ValueError as error:
        raise UserError(
            f"model.lora.targets: {config.targets!r} fits no module: {one_line(error)}"
        ) from error
    _check_head(wrapped)
    return wrapped  # type: ignore[return-value]


def _check_head(wrapped: Any) -> None:
    """Raises ``UserError`` for an adapter on the head, or on the embedding that is the head too:
    log-probabilities are taken from the head's own weights.
    """
    head, embedding = wrapped.get_output_embeddings(), wrapped.get_input_embeddings()
    adapted = [layer for layer in (head, embedding) if hasattr(layer, "base_layer")]
    tied = bool(adapted) and getattr(head, "weight", None) is getattr(embedding, "weight", None)
    if hasattr(head, "base_layer") or tied:
        raise UserError(
            "model.lora.targets: the language-model head, or an embedding tied to it, cannot have "
            "an adapter; leave it out (`all-linear` does)"
        )


def _endings(model: PreTrainedModel, tokenizer: Tokenizer) -> tuple[int, frozenset[int]]:
    """The token that ends a turn in the chat template (else the end-of-text token), and all that
    end a completion.
    """
    eos = tokenizer.eos_token_id
    assert isinstance(eos, int)
    end = _turn_end(tokenizer)
    generation = getattr(model, "generation_config", None)
    declared = getattr(generation, "eos_token_id", None)
    more = declared if isinstance(declared, list) else [] if declared is None else [declared]
    end = eos if end is None else end
    return end, frozenset({eos, end, *more})


def _turn_end(tokenizer: Tokenizer) -> int | None:
    """The special token that the chat template writes after what the assistant said."""
    if tokenizer.chat_template is None:
        return None
    said = "0"  # A character that every tokenizer and template leaves as it is.
    turns = [{"role": "user", "content": "1"}, {"role": "assistant", "content": said}]
    try:
        text = tokenizer.apply_chat_template(turns, tokenize=False)
    except Exception:  # A template may raise anything; then the end-of-text token has to do.
        return None
    assert isinstance(text, str)
    ids = tokenizer(text.rpartition(said)[2], add_special_tokens=False)["input_ids"]
    special = {*tokenizer.all_special_ids, *getattr(tokenizer, "added_tokens_decoder", {})}
    return next((int(i) for i in ids[:1] if i in special), None)
