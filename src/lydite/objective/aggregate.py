"""How token losses become one number, with denominators counted over the whole optimiser step.

A mean over a micro-batch, averaged over micro-batches or ranks, is another objective: it weighs a
token by who its neighbours happen to be. Here what divides a token's loss depends on its own
sequence and on :class:`Counts` only, so the losses of the micro-batches add up to the loss of the
step however it is cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

# Dr. GRPO's own completion limit in tokens, where nobody says what it is. The constant is a unit.
DEFAULT_LENGTH = 3000


@dataclass(frozen=True, slots=True)
class Counts:
    """What one optimiser step trains on, over all its micro-batches and ranks.

    ``tokens`` in the loss mask, ``sequences`` and ``prompts`` with at least one such token: what is
    masked or dropped counts nowhere.
    """

    tokens: int = 0
    sequences: int = 0
    prompts: int = 0

    @classmethod
    def of(cls, mask: Shaped[Tensor, "B T"], groups: Int[Tensor, " B"] | None = None) -> Counts:
        """Counts a loss mask. ``groups`` numbers each sequence's prompt; without it all differ."""
        live = mask.bool()
        rows = live.any(dim=1)
        sequences = int(rows.sum())
        prompts = sequences if groups is None else int(torch.unique(groups[rows]).numel())
        return cls(int(live.sum()), sequences, prompts)

    def __add__(self, other: Counts) -> Counts:
        """The counts of both; a prompt that lies in both counts twice, so keep groups whole."""
        return Counts(
            self.tokens + other.tokens,
            self.sequences + other.sequences,
            self.prompts + other.prompts,
        )


@dataclass(frozen=True, slots=True)
class Divided:
    """What a divisor may use. ``prompt_tokens`` ``[B]``: tokens in the mask of all sequences of the
    row's prompt, over the whole step; without them a prompt is one sequence.
    """

    mask: Tensor
    counts: Counts
    length: int | None = None
    prompt_tokens: Tensor | None = None


# Each result divides the token losses of a sequence: whole numbers, at least 1, one per sequence.


def token_mean(of: Divided) -> Int[Tensor, "B 1"]:
    """Every token weighs the same, ``1/Σ|o_i|``: DAPO, arXiv 2503.14476 equation 8."""
    return _lengths(of.mask) * 0 + max(of.counts.tokens, 1)


def sample_mean(of: Divided) -> Int[Tensor, "B 1"]:
    """Every sequence weighs the same, ``1/(B·|o_i|)``: GRPO, arXiv 2402.03300 equation 3."""
    return _lengths(of.mask).clamp(min=1) * max(of.counts.sequences, 1)


def fixed_length(of: Divided) -> Int[Tensor, "B 1"]:
    """Every token weighs the same in every step, ``1/(B·L)``: Dr. GRPO, arXiv 2503.20783 §3.2."""
    constant = DEFAULT_LENGTH if of.length is None else of.length
    return _lengths(of.mask) * 0 + max(of.counts.sequences, 1) * constant


def prompt_mean(of: Divided) -> Int[Tensor, "B 1"]:
    """Every prompt weighs the same, and every token within it: ScaleRL, arXiv 2510.13786.

    The mean over prompts of a prompt's token mean, ``1/(P·Σ_{i of the prompt} |o_i|)``.
    """
    lengths = _lengths(of.mask)
    tokens = lengths if of.prompt_tokens is None else of.prompt_tokens.reshape(-1, 1)
    return tokens.to(lengths).clamp(min=1) * max(of.counts.prompts, 1)


def _lengths(mask: Tensor) -> Tensor:
    return mask.sum(dim=1, keepdim=True)


@dataclass(frozen=True, slots=True)
class Aggregation:
    """``by_length``: it divides by a constant length, which a run's completion limit is."""

    divisor: Callable[[Divided], Tensor]
    by_length: bool = False


AGGREGATIONS: dict[str, Aggregation] = {
    "token_mean": Aggregation(token_mean),
    "sample_mean": Aggregation(sample_mean),
    "fixed_length": Aggregation(fixed_length, by_length=True),
    "prompt_mean": Aggregation(prompt_mean),
}
