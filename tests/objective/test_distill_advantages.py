"""The sampled reverse KL: hand-computed advantages, and its expected gradient."""

import math

import pytest
import torch

from lydite.objective.aggregate import Counts
from lydite.objective.distill import token_advantages
from lydite.objective.objective import Objective

LN = math.log


def row(*values):
    return torch.tensor([values], dtype=torch.float64)


# π gives the three tokens 1/2, 1/4, 1/2; the teacher 1/4, 1/2, 1/8.
STUDENT = row(LN(1 / 2), LN(1 / 4), LN(1 / 2))
TEACHER = row(LN(1 / 4), LN(1 / 2), LN(1 / 8))
TWO = 0.693147180559945


@pytest.mark.parametrize(
    ("settings", "mask", "wanted"),
    [
        ({}, (1, 1, 1), (-TWO, TWO, -2 * TWO)),
        ({"clip": 1.0}, (1, 1, 1), (-TWO, TWO, -1.0)),
        ({"discount": 1.0}, (1, 1, 1), (-2 * TWO, -TWO, -2 * TWO)),
        # −1 + ½·(1 + ½·(−2)) = −1, 1 + ½·(−2) = 0, in units of ln 2.
        ({"discount": 0.5}, (1, 1, 1), (-TWO, 0.0, -2 * TWO)),
        ({}, (1, 0, 1), (-TWO, 0.0, -2 * TWO)),
        ({"discount": 1.0}, (1, 0, 1), (-3 * TWO, 0.0, -2 * TWO)),
    ],
)
def test_by_hand(settings, mask, wanted):
    found = token_advantages(STUDENT, TEACHER, torch.tensor([mask]), **settings)
    torch.testing.assert_close(found, row(*wanted), atol=1e-12, rtol=0)


def test_what_lies_outside_the_mask_does_not_matter():
    teacher = row(LN(1 / 4), math.nan, math.inf)
    found = token_advantages(STUDENT, teacher, torch.tensor([[1, 0, 0]]), discount=1.0)
    torch.testing.assert_close(found, row(-TWO, 0.0, 0.0), atol=1e-12, rtol=0)


def test_what_a_teacher_holds_impossible_does_not_drown_the_rest():
    """vLLM gives −9999 for a probability of 0."""
    found = token_advantages(STUDENT, row(LN(1 / 4), -9999.0, LN(1 / 8)), torch.ones(1, 3))
    torch.testing.assert_close(found, row(-TWO, -20.0, -2 * TWO), atol=1e-12, rtol=0)


@pytest.mark.parametrize("spec", ["grpo+token_mean", "dapo", "cispo", "dr_grpo"])
def test_the_expected_gradient_is_that_of_the_exact_kl(spec):
    """Over a vocabulary of five, every token weighed by how often the student draws it."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(5, generator=generator, dtype=torch.float64, requires_grad=True)
    log_q = torch.randn(5, generator=generator, dtype=torch.float64).log_softmax(0)
    log_p = logits.log_softmax(0)
    objective = Objective.parse(spec).with_limit(1)
    expected = torch.zeros(())
    for token in range(5):
        sampled = log_p[token].reshape(1, 1)
        mask = torch.ones(1, 1)
        advantage = token_advantages(sampled.detach(), log_q[token].reshape(1, 1), mask)
        loss, _ = objective.loss(
            policy=sampled, old=sampled.detach(), behaviour=sampled.detach(),
            advantages=advantage, mask=mask, counts=Counts(1, 1, 1),
        )  # fmt: skip
        expected = expected + log_p[token].detach().exp() * loss
    (found,) = torch.autograd.grad(expected, logits, retain_graph=True)
    kl = (log_p.exp() * (log_p - log_q)).sum()
    (wanted,) = torch.autograd.grad(kl, logits)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=1e-10)


def test_a_mean_is_divided_as_the_loss_is():
    values, mask = torch.tensor([[1.0, 2.0], [4.0, math.nan]]), torch.tensor([[1, 1], [1, 0]])
    counts = Counts(tokens=6, sequences=4, prompts=2)
    by_token = Objective.parse("grpo+token_mean").mean(values, mask, counts)
    assert by_token.item() == pytest.approx(7 / 6)
    assert Objective.parse("grpo").mean(values, mask, counts).item() == pytest.approx(
        (1.5 + 4.0) / 4
    )
