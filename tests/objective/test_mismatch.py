"""The sampler's mismatch: hand-computed, and the same however the step is cut."""

import math

import pytest
import torch

from lydite.objective.metrics import Metrics
from lydite.objective.mismatch import derived, moments

LN2 = math.log(2)


def means(trainer: torch.Tensor, sampler: torch.Tensor, mask: torch.Tensor) -> dict[str, float]:
    return derived(Metrics.over(mask, moments(trainer, sampler)).means())


def test_equal_probabilities_have_no_mismatch() -> None:
    logprobs = torch.log(torch.tensor([[0.1, 0.5, 0.9]]))
    found = means(logprobs, logprobs, torch.ones(1, 3, dtype=torch.bool))
    assert found["mismatch_ess"] == pytest.approx(1.0)
    assert found["mismatch_correlation"] == pytest.approx(1.0)
    assert found["mismatch_outside"] == 0


def test_by_hand() -> None:
    # Weights 1, 4, 1/4, 1: E[w] = 25/16, E[w²] = (1 + 16 + 1/16 + 1)/4.
    sampler = torch.log(torch.tensor([[0.5, 0.2, 0.8, 0.4]], dtype=torch.float64))
    trainer = sampler + torch.tensor([[0.0, 2 * LN2, -2 * LN2, 0.0]], dtype=torch.float64)
    found = means(trainer, sampler, torch.ones(1, 4, dtype=torch.bool))
    assert found["mismatch_ess"] == pytest.approx((25 / 16) ** 2 / ((18 + 1 / 16) / 4))
    assert found["mismatch_outside"] == 0.5
    p, q = trainer.exp()[0], sampler.exp()[0]
    expected = torch.corrcoef(torch.stack([p, q]))[0, 1]
    assert found["mismatch_correlation"] == pytest.approx(float(expected))


def test_what_is_outside_the_mask_does_not_count() -> None:
    sampler = torch.log(torch.tensor([[0.5, 0.3, 0.9]], dtype=torch.float64))
    trainer = torch.log(torch.tensor([[0.4, 0.35, 1e-9]], dtype=torch.float64))
    mask = torch.tensor([[True, True, False]])
    cut = means(trainer[:, :2], sampler[:, :2], mask[:, :2])
    assert means(trainer, sampler, mask) == pytest.approx(cut)


def test_micro_batches_change_nothing() -> None:
    noise = torch.Generator().manual_seed(1)
    sampler = -torch.rand(6, 5, generator=noise, dtype=torch.float64)
    trainer = sampler - 0.3 * torch.rand(6, 5, generator=noise, dtype=torch.float64)
    mask = torch.rand(6, 5, generator=noise) < 0.7
    whole = means(trainer, sampler, mask)
    records = [
        Metrics.over(mask[i], moments(trainer[i], sampler[i])) for i in ([0], [1, 2, 3, 4, 5])
    ]
    assert derived(sum(records, Metrics()).means()) == pytest.approx(whole)


def test_no_variance_has_no_correlation() -> None:
    logprobs = torch.full((2, 3), -0.7)
    found = means(logprobs, logprobs, torch.ones(2, 3, dtype=torch.bool))
    assert "mismatch_correlation" not in found


def test_the_deviation_of_the_ratio() -> None:
    found = derived({"ratio": 1.0, "ratio_squared": 1.25, "kl_old": 0.1})
    assert found == {"ratio": 1.0, "ratio_std": 0.5, "kl_old": 0.1}
