"""A language model's weights under a new head of one number: a reward model to be trained."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from lydite.config import UserError
from lydite.model.classifier_input import ClassifierSpec, Encoded, Encoder
from lydite.model.policy import Policy
from lydite.model.reference import has_adapter
from lydite.model.source import one_line, quiet


@dataclass(frozen=True, slots=True)
class Scorer:
    """The model, and how text becomes its input: as :class:`lydite.model.classifier.Classifier`
    reads both from a folder later.
    """

    model: PreTrainedModel
    tokenizer: Any
    encoder: Encoder

    def scores(self, batch: Sequence[Encoded]) -> Tensor:
        """``[N]``, with gradient where that is on."""
        device = next(self.model.parameters()).device
        tensors = {key: value.to(device) for key, value in self.encoder.tensors(batch).items()}
        logits = self.model(**tensors).logits
        assert isinstance(logits, Tensor)
        return logits[:, 0]


def new_scorer(policy: Policy, seed: int, spec: ClassifierSpec) -> Scorer:
    """Takes the policy's trunk, which is the scorer's from here on, and sets a head on it whose
    weights follow from the seed. Of ``spec`` the layout and the lengths count, not the path.

    Raises:
        UserError: the architecture has no classifier, or layout and length do not fit it.
    """
    plain: Any = policy.model
    if has_adapter(plain):
        plain = plain.merge_and_unload()
    config = copy.deepcopy(plain.config)
    config.num_labels = 1
    pad = policy.tokenizer.pad_token_id
    for part in (config, config.get_text_config()):
        part.pad_token_id = policy.tokenizer.eos_token_id if pad is None else pad
    try:
        with torch.device("meta"), quiet():
            model = AutoModelForSequenceClassification.from_config(config)
    except (ValueError, KeyError, NotImplementedError) as error:
        raise UserError(
            f"{spec.field}: {config.model_type} has no sequence classifier in Transformers: "
            f"{one_line(error)}"
        ) from error
    trunk = plain.base_model
    trunk.set_attn_implementation("sdpa")
    setattr(model, model.base_model_prefix, trunk)
    _fresh_head(model, next(trunk.parameters()), seed)
    model.requires_grad_(True)
    model.train()
    if spec.max_tokens is not None:
        # Saved with it, so that it is shown later what it was shown in training.
        policy.tokenizer.model_max_length = spec.max_tokens
    encoder = Encoder(spec, policy.tokenizer, config.get_text_config())
    return Scorer(model, policy.tokenizer, encoder)


def _fresh_head(model: nn.Module, like: Tensor, seed: int) -> None:
    """Small normal weights where the model has none yet; biases are 0."""
    drawn = torch.Generator().manual_seed(seed)
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if not parameter.is_meta:
                continue
            value = torch.zeros(parameter.shape)
            if value.ndim >= 2:
                value.normal_(std=value.shape[-1] ** -0.5, generator=drawn)
            setattr(module, name, nn.Parameter(value.to(like)))
