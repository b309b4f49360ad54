"""The exact divergence of two heads: values by hand, gradients against autograd."""

import math

import pytest
import torch
from torch.nn.functional import linear

from lydite.ops import head
from lydite.ops.divergence import Rows, divergence, divergence_of
from lydite.ops.head import HeadScale

SCALES = [HeadScale(), HeadScale(0.7, scale=0.25), HeadScale(0.9, 1.0, softcap=3.0)]


def rows(seed, n=7, width=5, vocabulary=11, bias=True, scaling=SCALES[0], grad=False):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(
            *shape, generator=generator, dtype=torch.float64
        ).requires_grad_(grad)  # fmt: skip

    return Rows(
        draw(n, width), draw(vocabulary, width), draw(vocabulary) if bias else None, scaling
    )


def log_probs(side, shared):
    logits = linear(side.hidden, side.weight, side.bias) * side.scaling.scale
    if side.scaling.softcap:
        logits = side.scaling.softcap * torch.tanh(logits / side.scaling.softcap)
    return (logits / side.scaling.temperature)[:, :shared].log_softmax(1)


def plain(log_p, log_q, beta):
    """Written out with probabilities."""
    p, q = log_p.exp(), log_q.exp()
    if beta in (0, 1):
        a, b = (p, q) if beta == 1 else (q, p)
        return (a * (a / b).log()).sum(1)
    m = beta * q + (1 - beta) * p
    return beta * (q * (q / m).log()).sum(1) + (1 - beta) * (p * (p / m).log()).sum(1)


@pytest.mark.parametrize(
    ("beta", "wanted"),
    [
        # p = (3/4, 1/4), q = (1/2, 1/2), m of β = ½ is (5/8, 3/8).
        (1.0, 0.75 * math.log(1.5) + 0.25 * math.log(0.5)),
        (0.0, 0.5 * math.log(2 / 3) + 0.5 * math.log(2)),
        (0.5, 0.25 * (math.log(0.8) + math.log(4 / 3))
              + 0.375 * math.log(1.2) + 0.125 * math.log(2 / 3)),
    ],
)  # fmt: skip
def test_by_hand(beta, wanted):
    log_p, log_q = torch.tensor([[0.75, 0.25]]).log(), torch.tensor([[0.5, 0.5]]).log()
    assert divergence_of(log_p, log_q, beta).item() == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("scaling", SCALES, ids=str)
@pytest.mark.parametrize("chunk", [1, 22, 1 << 20])
def test_values_and_gradients_equal_the_plain_way(beta, scaling, chunk, monkeypatch):
    monkeypatch.setattr(head, "CHUNK_ELEMENTS", chunk)
    student, teacher = rows(1, scaling=scaling, grad=True), rows(2, width=3, bias=False)
    pull = torch.linspace(-1, 2, 7, dtype=torch.float64)
    found, wanted = (
        divergence(student, teacher, beta),
        plain(log_probs(student, 11), log_probs(teacher, 11), beta),
    )
    torch.testing.assert_close(found, wanted)
    leaves = [student.hidden, student.weight, student.bias]
    for a, b in zip(
        torch.autograd.grad((found * pull).sum(), leaves),
        torch.autograd.grad((wanted * pull).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("sizes", [(11, 9), (9, 11)])
def test_rows_of_padding_are_left_out(sizes):
    student, teacher = rows(1, vocabulary=sizes[0], grad=True), rows(2, vocabulary=sizes[1])
    found = divergence(student, teacher)
    torch.testing.assert_close(found, plain(log_probs(student, 9), log_probs(teacher, 9), 1.0))
    (of_weight,) = torch.autograd.grad(found.sum(), [student.weight])
    assert of_weight[9:].abs().sum() == 0


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_equal_sides_are_nowhere_apart_and_nothing_moves(beta):
    student = rows(1, grad=True)
    teacher = Rows(student.hidden.detach(), student.weight.detach(), student.bias.detach(),
                   student.scaling)  # fmt: skip
    found = divergence(student, teacher, beta)
    assert found.abs().max() < 1e-12
    for grad in torch.autograd.grad(found.sum(), [student.hidden, student.weight]):
        assert grad.abs().max() < 1e-12
