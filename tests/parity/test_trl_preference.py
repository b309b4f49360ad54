"""TRL's DPO losses and ours on the same log-probabilities, equal to 1e-6.

TRL's trainer is not re-typed: its `_compute_loss` runs on an instance made without a model, whose
two models are replaced by log-probabilities. TRL's `ipo` is per token; its `sft` is a mean over the
tokens of a batch where ours is a mean over pairs, so it is compared on answers of one length.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

trl = pytest.importorskip("trl", reason="TRL is not installed: pip install 'lydite[parity]'")
if not trl.__version__.startswith("1.16."):
    pytest.skip(f"made for TRL 1.16, found {trl.__version__}", allow_module_level=True)

from trl.trainer.dpo_trainer import DPOTrainer  # noqa: E402

from lydite.objective.preference import PreferenceObjective  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

PROMPT, MOST = 3, 7
UNEVEN = [[5, 2], [7, 7], [1, 4], [3, 6]]
EVEN = [[5, 2], [5, 7], [5, 4], [5, 6]]


def logprobs(seed: int) -> Tensor:
    """``[2N, T]``, the better answers first, as TRL stacks them."""
    generator = torch.Generator().manual_seed(seed)
    return -torch.rand(8, MOST, generator=generator, dtype=torch.float64) * 2


def alone(value: Any) -> Any:
    """What one process gathers from all."""
    return value


def theirs(lengths: list[list[int]], **settings: Any) -> tuple[float, Tensor]:
    sizes = torch.tensor(lengths).T.reshape(-1)
    present = torch.arange(MOST)[None] < sizes[:, None]
    completion = torch.cat([torch.zeros(8, PROMPT), present], dim=1).long()
    policy, reference = logprobs(1).requires_grad_(), logprobs(2)

    made = object.__new__(DPOTrainer)
    values = {
        "accelerator": SimpleNamespace(device="cpu", gather=alone, gather_for_metrics=alone),
        "aux_loss_enabled": False, "ld_alpha": None, "precompute_ref_logps": False,
        "f_divergence_type": "reverse_kl", "loss_types": ["sigmoid"], "loss_weights": [1.0],
        "beta": 0.1, "label_smoothing": 0.0, "use_weighting": False, "_total_train_tokens": 0,
        "_tp_size": 1, "_metrics": defaultdict(lambda: defaultdict(list)),
        "args": SimpleNamespace(gradient_checkpointing_kwargs=None),
        "model": Says(policy * present), "ref_model": Says(reference * present), **settings,
    }  # fmt: skip
    made.__dict__.update(values)
    ids = torch.zeros(8, PROMPT + MOST, dtype=torch.long)
    inputs = {"input_ids": ids, "attention_mask": ids + 1, "completion_mask": completion}
    loss = made._compute_loss(made.model, inputs, False)
    loss.backward()
    assert policy.grad is not None
    return loss.item(), policy.grad


class Says(torch.nn.Module):
    """A model that says given log-probabilities ``[B, T]`` of the completions' tokens."""

    is_gradient_checkpointing = False

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.values = values

    def forward(self, **_: Any) -> Any:
        before = self.values.new_zeros(len(self.values), PROMPT - 1)
        nothing = self.values.new_zeros(len(self.values), PROMPT + MOST - 1)
        return SimpleNamespace(
            log_probs=torch.cat([before, self.values], dim=1),
            entropy=nothing,
            mean_logits=nothing,
            is_top1=nothing.bool(),
        )


def ours(lengths: list[list[int]], **settings: Any) -> tuple[float, Tensor]:
    sizes = torch.tensor(lengths)
    present = torch.arange(MOST)[None] < sizes.T.reshape(-1)[:, None]
    policy, reference = logprobs(1).requires_grad_(), logprobs(2)

    def summed(values: Tensor) -> Tensor:
        return (values * present).sum(1).reshape(2, -1).T

    loss, _ = PreferenceObjective(**settings).loss(
        summed(policy), summed(reference), sizes.double(), len(lengths)
    )
    loss.backward()
    assert policy.grad is not None
    return loss.item(), policy.grad


@pytest.mark.parametrize(
    ("mine", "trls", "lengths"),
    [
        ({"beta": 0.3}, {"beta": 0.3}, UNEVEN),
        (
            {"kind": "ipo", "beta": 0.3, "per_token": True},
            {"beta": 0.3, "loss_types": ["ipo"]},
            UNEVEN,
        ),
        ({"beta": 0.3, "per_token": True}, {"beta": 0.3, "loss_types": ["sigmoid_norm"]}, UNEVEN),
        (
            {"beta": 0.3, "sft": 0.5},
            {"beta": 0.3, "loss_types": ["sigmoid", "sft"], "loss_weights": [1.0, 0.5]},
            EVEN,
        ),
    ],
)
def test_losses_and_gradients_are_the_same(
    mine: dict[str, Any], trls: dict[str, Any], lengths: list[list[int]]
) -> None:
    loss, gradient = ours(lengths, **mine)
    expected, slope = theirs(lengths, **trls)
    assert slope.abs().max() > 1e-3
    assert loss == pytest.approx(expected, rel=1e-6)
    torch.testing.assert_close(gradient, slope, rtol=1e-6, atol=1e-9)


def test_smoothing_is_cdpo_where_theirs_is_robust_dpo() -> None:
    """TRL's `robust` (2403.00409) is ((1-ε)·l - ε·l') / (1-2ε), with l' the loss of the swapped
    pair; ours is (1-ε)·l + ε·l'.
    """
    share = 0.1
    smoothed, _ = ours(UNEVEN, beta=0.3, label_smoothing=share)
    plain, _ = theirs(UNEVEN, beta=0.3)
    robust, _ = theirs(UNEVEN, beta=0.3, loss_types=["robust"], label_smoothing=share)
    swapped = ((1 - share) * plain - (1 - 2 * share) * robust) / share
    assert smoothed == pytest.approx((1 - share) * plain + share * swapped, rel=1e-6)
