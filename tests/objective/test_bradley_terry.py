"""The loss of a reward model, by hand."""

import math

import pytest
import torch

from lydite.objective.reward_model import bradley_terry, preferred


def test_by_hand():
    better, worse = torch.tensor([2.0, 0.0, -1.0]), torch.tensor([0.0, 1.0, -1.0])
    loss, metrics = bradley_terry(better, worse, pairs=3)
    # -log σ of differences 2, -1 and 0
    each = [math.log(1 + math.exp(-2)), math.log(1 + math.e), math.log(2)]
    assert loss.item() == pytest.approx(sum(each) / 3)
    means = metrics.means()
    assert means["loss"] == pytest.approx(sum(each) / 3)
    assert means["reward_margin"] == pytest.approx(1 / 3)
    assert means["reward_accuracy"] == pytest.approx((1 + 0 + 0.5) / 3)
    assert means["reward_better"] == pytest.approx(1 / 3) and means["reward_worse"] == 0.0


def test_centering_weighs_the_square_of_the_sum():
    better, worse = torch.tensor([2.0]), torch.tensor([1.0])
    plain, _ = bradley_terry(better, worse, 1)
    centered, _ = bradley_terry(better, worse, 1, centering=0.1)
    assert (centered - plain).item() == pytest.approx(0.1 * 9)


def test_parts_of_a_step_add_up_to_the_whole():
    drawn = torch.Generator().manual_seed(0)
    better = torch.randn(7, generator=drawn, dtype=torch.float64)
    worse = torch.randn(7, generator=drawn, dtype=torch.float64)
    whole, figures = bradley_terry(better, worse, 7, 0.05)
    parts = [bradley_terry(better[s], worse[s], 7, 0.05) for s in (slice(0, 2), slice(2, 7))]
    assert sum(loss for loss, _ in parts).item() == pytest.approx(whole.item())
    assert (parts[0][1] + parts[1][1]).means() == pytest.approx(figures.means())


def test_the_gradient_is_the_probability_of_being_wrong():
    better = torch.tensor([0.5], requires_grad=True)
    worse = torch.tensor([1.5], requires_grad=True)
    bradley_terry(better, worse, 1)[0].backward()
    wrong = 1 / (1 + math.exp(-1))  # σ(worse − better)
    assert better.grad.item() == pytest.approx(-wrong)
    assert worse.grad.item() == pytest.approx(wrong)


def test_a_far_difference_overflows_nothing():
    loss, _ = bradley_terry(torch.tensor([-1e4]), torch.tensor([1e4]), 1)
    assert loss.item() == pytest.approx(2e4)
    assert preferred(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0])).tolist() == [0.5, 0.0]
