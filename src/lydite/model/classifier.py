"""A sequence classifier of Transformers as a function from prompts and completions to numbers: a
reward model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from lydite.config import UserError
from lydite.model.classifier_input import ClassifierSpec, Encoded, Encoder, Key
from lydite.model.source import one_line, reading
from lydite.types import Message

__all__ = ["Classifier", "ClassifierSpec", "Rated"]


@dataclass(frozen=True, slots=True)
class Rated:
    """What the model says of one completion: a number for each label, and how many characters of
    prompt and completion it did not see.
    """

    logits: tuple[float, ...]
    cut_prompt: int = 0
    cut_completion: int = 0


class Classifier:
    """A loaded reward model. Not thread-safe. Deterministic: equal inputs of a call get one number,
    and dropout is off.
    """

    def __init__(self, spec: ClassifierSpec) -> None:
        """
        Raises:
            UserError: the model or its tokenizer cannot be loaded, it has no trained head, or the
                layout or the length does not fit it.
        """
        self._spec = spec
        field = spec.field
        if spec.path.startswith((".", "/", "~")) and not Path(spec.path).expanduser().is_dir():
            raise UserError(f"{field}.model: no folder {spec.path}")
        path = str(Path(spec.path).expanduser()) if spec.path.startswith("~") else spec.path
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self._device = device if spec.device == "auto" else spec.device
        self._tokenizer: Any = reading(
            spec.tokenizer or path,
            lambda: AutoTokenizer.from_pretrained(spec.tokenizer or path),
            f"{field}.tokenizer" if spec.tokenizer else f"{field}.model",
        )
        self._model = _load(path, self._dtype(), field).eval()
        try:
            self._model.to(self._device)
        except (RuntimeError, AssertionError) as error:
            raise UserError(f"{field}.device: {self._device}: {one_line(error)}") from error
        self._input = Encoder(spec, self._tokenizer, self._model.config.get_text_config())
        self.labels = tuple(
            str(self._model.config.id2label.get(n, n)) for n in range(self._model.config.num_labels)
        )

    @property
    def max_tokens(self) -> int:
        """Tokens of the longest input."""
        return self._input.max_tokens

    def rate(self, pairs: Sequence[tuple[Sequence[Message], str]]) -> list[Rated]:
        """The model's numbers for each prompt and completion, in order.

        Raises:
            UserError: the chat template refuses the messages.
        """
        encoded = [self._input.encode(messages, completion) for messages, completion in pairs]
        distinct = {each.key: each for each in encoded}
        ordered = [distinct[key] for key in sorted(distinct, key=lambda key: (-len(key[0]), key))]
        found: dict[Key, tuple[float, ...]] = {}
        for batch in _batches(ordered, self._spec.batch_tokens):
            keys = [each.key for each in batch]
            found.update(zip(keys, self._logits(batch), strict=True))
        return [Rated(found[e.key], e.cut_prompt, e.cut_completion) for e in encoded]

    def _dtype(self) -> torch.dtype:
        if self._spec.dtype == "auto":
            return torch.bfloat16 if self._device.startswith("cuda") else torch.float32
        return torch.bfloat16 if self._spec.dtype == "bfloat16" else torch.float32

    @torch.inference_mode()
    def _logits(self, batch: Sequence[Encoded]) -> list[tuple[float, ...]]:
        """``[B, labels]``."""
        tensors = {k: v.to(self._device) for k, v in self._input.tensors(batch).items()}
        logits: torch.Tensor = self._model(**tensors).logits
        return [tuple(row) for row in logits.float().cpu().tolist()]


def _load(path: str, dtype: torch.dtype, field: str) -> Any:
    """The model with its head; new weights are no reward model."""
    reading(path, lambda: AutoConfig.from_pretrained(path), f"{field}.model")
    model, report = reading(
        path,
        lambda: AutoModelForSequenceClassification.from_pretrained(
            path, dtype=dtype, output_loading_info=True
        ),
        f"{field}.model",
    )
    missing = sorted(report["missing_keys"])
    if missing:
        raise UserError(
            f"{field}.model: {path} is no trained sequence classifier: it lacks {missing[0]}; give "
            "a reward model"
        )
    return model


def _batches(rows: Sequence[Encoded], tokens: int) -> Iterator[Sequence[Encoded]]:
    """The rows, longest first, cut so that a batch padded to its longest has at most ``tokens``."""
    start = 0
    while start < len(rows):
        size = max(1, tokens // max(1, len(rows[start].ids)))
        yield rows[start : start + size]
        start += size
