import pytest
import torch
from torch import nn

from lydite.config import UserError
from lydite.train.optimizer import Optimizer, OptimizerConfig, lr_at


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [1, 1, 1, 1, 1, 1]),
        ({"warmup_steps": 2}, [0.5, 1, 1, 1, 1, 1]),
        ({"schedule": "linear"}, [1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]),
        ({"schedule": "linear", "decay_from": 0.5}, [1, 1, 1, 1, 2 / 3, 1 / 3]),
        ({"schedule": "linear", "final_lr": 0.4}, [1, 0.9, 0.8, 0.7, 0.6, 0.5]),
        ({"schedule": "cosine"}, [1, 0.9330127, 0.75, 0.5, 0.25, 0.0669873]),
        ({"schedule": "linear", "warmup_steps": 3}, [1 / 3, 2 / 3, 1, 1, 2 / 3, 1 / 3]),
    ],
)
def test_schedules_by_hand(settings, expected):
    config = OptimizerConfig(lr=1.0, **settings)
    assert [lr_at(config, step, 6) for step in range(6)] == pytest.approx(expected)


def layer(dtype):
    torch.manual_seed(0)
    return nn.Linear(4, 3).to(dtype)


def steps(model, optimizer, count):
    for _ in range(count):
        model(torch.ones(1, 4, dtype=next(model.parameters()).dtype)).float().sum().backward()
        optimizer.step(1e-4)


def test_bfloat16_weights_collect_updates_too_small_for_them():
    """Near 1, bfloat16 steps by 0.0078; a hundred updates of 1e-4 come to 0.01."""
    model = layer(torch.bfloat16)
    with torch.no_grad():
        model.weight.fill_(1.0)
    steps(model, Optimizer(model, OptimizerConfig(lr=1e-4)), 100)
    assert model.weight.float().mean().item() == pytest.approx(0.99, abs=0.004)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_micro_batches_are_summed_in_float32(dtype):
    """A sum in bfloat16 stays at 1: a 512th is below its spacing there."""
    model = nn.Linear(1, 1, bias=False).to(dtype)
    optimizer = Optimizer(model, OptimizerConfig(max_grad_norm=100.0))
    for part in [1.0] + [1 / 512] * 256:
        optimizer.backward(model(torch.full((1, 1), part, dtype=dtype)).sum())
    assert optimizer.step(0.0) == pytest.approx(1.5)
    assert optimizer.step(0.0) == 0.0, "the next step starts from nothing"


def test_bfloat16_gradients_go_to_the_masters_one_after_another():
    """While the first layer's is made, the last one's is there no more; and nothing stays on the
    parameters for another optimiser to find."""
    model = nn.Sequential(layer(torch.bfloat16), nn.Linear(3, 2).to(torch.bfloat16))
    optimizer, seen = Optimizer(model, OptimizerConfig()), []
    model[0].weight.register_hook(lambda grad: seen.append(model[1].weight.grad))
    optimizer.backward(model(torch.ones(1, 4, dtype=torch.bfloat16)).sum())
    assert seen == [None] and all(master.grad is not None for master in optimizer.masters)
    model(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_restored_optimizer_goes_on_to_the_bit(dtype):
    straight, cut = layer(dtype), layer(dtype)
    steps(straight, Optimizer(straight, OptimizerConfig()), 7)
    first = Optimizer(cut, OptimizerConfig())
    steps(cut, first, 3)
    saved = {name: tensor.clone() for name, tensor in first.state_tensors().items()}
    resumed = layer(dtype)
    second = Optimizer(resumed, OptimizerConfig())
    second.load_state_tensors(saved)
    steps(resumed, second, 4)
    assert torch.equal(straight.weight, resumed.weight) and torch.equal(straight.bias, resumed.bias)


def test_norm_is_of_the_gradient_before_clipping():
    model = layer(torch.float32)
    optimizer = Optimizer(model, OptimizerConfig(max_grad_norm=0.5))
    model(torch.ones(1, 4)).sum().backward()
    assert optimizer.step(0.0) == pytest.approx((12 + 3) ** 0.5)


def test_nothing_to_train_is_said():
    model = layer(torch.float32).requires_grad_(False)
    with pytest.raises(UserError, match="no parameter is trainable"):
        Optimizer(model, OptimizerConfig())


def test_the_rate_is_the_one_given_for_the_step():
    """AdamW's first update of a weight is its rate, whatever the gradient."""
    model = layer(torch.float32)
    before = model.weight.detach().clone()
    optimizer = Optimizer(model, OptimizerConfig(lr=1.0))
    steps(model, optimizer, 1)
    assert (before - model.weight).abs().max().item() == pytest.approx(1e-4, rel=1e-3)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_no_number_changes_nothing(bad):
    model = layer(torch.float32)
    before = model.weight.detach().clone()
    optimizer = Optimizer(model, OptimizerConfig())
    (model(torch.ones(1, 4)) * bad).sum().backward()
    with pytest.raises(UserError, match="not a finite number"):
        optimizer.step(1.0)
    assert torch.equal(model.weight, before)
