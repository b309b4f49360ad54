"""How far a step moves the weights, against the difference of the weights themselves."""

import math

import pytest
import torch
from torch import nn

from lydite.train.memory import memory_figures
from lydite.train.movement import update_ratio
from lydite.train.optimizer import Optimizer, OptimizerConfig


def model(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 2)).to(dtype)


def norm(tensors):
    return math.sqrt(sum(float(t.double().square().sum()) for t in tensors))


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_the_change_of_the_weights_over_their_size(dtype, decay):
    made = model(dtype)
    optimizer = Optimizer(made, OptimizerConfig(lr=1e-2, weight_decay=decay))
    for step in range(3):
        before = [m.detach().clone() for m in optimizer.masters]
        made(torch.full((2, 5), 1.0 + step, dtype=dtype)).float().square().sum().backward()
        optimizer.step(1e-2 * (step + 1))
        moved = norm([a.detach() - b for a, b in zip(optimizer.masters, before, strict=True)])
        expected = moved / norm([m.detach() for m in optimizer.masters])
        assert optimizer.update_ratio() == pytest.approx(expected, rel=1e-4)


def test_it_sees_steps_that_rounding_would_lose():
    """A difference of weights near 1 is a multiple of 6e-8 in float32."""
    weight = nn.Parameter(torch.ones(3))
    layer = nn.ParameterList([weight])
    optimizer = Optimizer(layer, OptimizerConfig(lr=1e-12))
    weight.sum().backward()
    optimizer.step(1e-12)
    assert torch.equal(weight, torch.ones(3))
    assert optimizer.update_ratio() == pytest.approx(1e-12, rel=1e-5)


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_weights_in_pieces_and_of_two_types_count_once_each(decay):
    """One weight takes two pieces and a bit; the others share the room of its step."""
    torch.manual_seed(1)
    sizes = [(2 * (1 << 18) + 900,), (1200,), (50, 20)]
    weights = [nn.Parameter(torch.randn(size)) for size in sizes]
    weights.append(nn.Parameter(torch.randn(30, 40, dtype=torch.float64)))
    with torch.no_grad():
        weights[0][-900:] *= 100  # What is left out shows.
        weights[1][:] *= 100
    optimizer = Optimizer(nn.ParameterList(weights), OptimizerConfig(lr=1e-2, weight_decay=decay))
    before = [weight.detach().double().clone() for weight in weights]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    optimizer.step(1e-2)
    after = [weight.detach().double() for weight in weights]
    moved = norm([a - b for a, b in zip(after, before, strict=True)])
    assert optimizer.update_ratio() == pytest.approx(moved / norm(after), rel=1e-4)


def test_before_the_first_step_there_is_none():
    optimizer = Optimizer(model(), OptimizerConfig())
    assert math.isnan(optimizer.update_ratio())
    assert math.isnan(update_ratio([], {}))


def test_what_is_not_updated_counts_in_neither():
    """A layer without gradient has no moments, and is not part of what is moved."""
    made = model()
    optimizer = Optimizer(made, OptimizerConfig(lr=1e-2))
    made[0](torch.ones(1, 5)).sum().backward()
    optimizer.step(1e-2)
    ratio = optimizer.update_ratio()
    with torch.no_grad():
        made[1].weight.mul_(1000)
    assert optimizer.update_ratio() == ratio


def test_memory_is_at_least_what_is_held():
    before = memory_figures()["memory"]
    held = torch.ones(64 << 20)
    after = memory_figures()["memory"]
    assert held.numel() * 4 / 2**30 == 0.25
    assert 0.01 < before <= after < 200
