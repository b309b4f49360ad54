"""Losses of pairs against numbers worked out by hand."""

import math

import pytest
import torch

from lydite.config import UserError
from lydite.objective.preference import PreferenceObjective

# Log-ratios: 1 and -2 for the first pair, -1 and 1 for the second.
POLICY = [[-9.0, -12.0], [-5.0, -3.0]]
REFERENCE = [[-10.0, -10.0], [-4.0, -4.0]]
LENGTHS = [[2.0, 4.0], [5.0, 1.0]]


def tensor(rows):
    return torch.tensor(rows, dtype=torch.float64)


def found(rows=slice(None), pairs=2, reference=REFERENCE, **settings):
    reference = None if reference is None else tensor(reference)[rows]
    policy, lengths = tensor(POLICY)[rows], tensor(LENGTHS)[rows]
    return PreferenceObjective(**settings).loss(policy, reference, lengths, pairs)


def nll(x):
    """-log σ(x)"""
    return math.log1p(math.exp(-x))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # Gaps of the log-ratios: 3 and -2.
        ({"beta": 0.5}, (nll(1.5) + nll(-1.0)) / 2),
        (
            {"beta": 0.5, "label_smoothing": 0.1},
            (0.9 * nll(1.5) + 0.1 * nll(-1.5) + 0.9 * nll(-1.0) + 0.1 * nll(1.0)) / 2,
        ),
        # Per token: 1/2 - (-2/4) = 1 and -1/5 - 1/1 = -1.2.
        ({"beta": 0.5, "per_token": True}, (nll(0.5) + nll(-0.6)) / 2),
        ({"kind": "ipo", "beta": 0.25}, ((3 - 2) ** 2 + (-2 - 2) ** 2) / 2),
        (
            {"kind": "ipo", "beta": 0.25, "per_token": True},
            ((1 - 2) ** 2 + (-1.2 - 2) ** 2) / 2,
        ),
        # The better answers' nats per token: 9/2 and 5/5.
        ({"beta": 0.5, "sft": 0.3}, (nll(1.5) + nll(-1.0) + 0.3 * (4.5 + 1.0)) / 2),
    ],
)
def test_the_loss_is_what_one_works_out_by_hand(settings, expected):
    loss, metrics = found(**settings)
    assert float(loss) == pytest.approx(expected, rel=1e-12)
    assert metrics.means()["loss"] == pytest.approx(expected, rel=1e-12)


def test_without_a_reference_the_policy_is_compared_with_itself():
    loss, _ = found(reference=None, beta=0.5)
    assert float(loss) == pytest.approx((nll(1.5) + nll(-1.0)) / 2)  # gaps 3 and -2 here too
    loss, _ = found(reference=[[-10.0, -14.0], [-4.0, -4.0]], beta=0.5)
    assert float(loss) == pytest.approx((nll(-0.5) + nll(-1.0)) / 2)


def test_metrics_are_means_over_pairs():
    means = found(beta=0.5)[1].means()
    assert means["reward_chosen"] == pytest.approx(0.0)
    assert means["reward_rejected"] == pytest.approx(-0.25)
    assert means["reward_margin"] == pytest.approx(0.25)
    assert means["reward_accuracy"] == 0.5
    assert (means["logprob_chosen"], means["logprob_rejected"]) == (-7.0, -7.5)


@pytest.mark.parametrize("settings", [{}, {"kind": "ipo"}, {"sft": 1.0, "label_smoothing": 0.2}])
def test_parts_of_a_step_add_up_to_the_whole(settings):
    whole, metrics = found(**settings)
    one, some = found(rows=[1], **settings)
    other, rest = found(rows=[0], **settings)
    assert float(one + other) == pytest.approx(float(whole), rel=1e-12)
    assert (some + rest).means() == pytest.approx(metrics.means(), rel=1e-12)


def test_the_gradient_of_dpo_weighs_a_pair_by_how_wrong_it_is():
    """2305.18290, under eq. 7: -β σ(-β·gap) on the better answer, and its opposite."""
    policy = tensor(POLICY).requires_grad_()
    objective = PreferenceObjective(beta=0.5)
    loss, _ = objective.loss(policy, tensor(REFERENCE), tensor(LENGTHS), 2)
    loss.backward()
    for row, gap in enumerate((3.0, -2.0)):
        weight = 0.5 / (1 + math.exp(0.5 * gap)) / 2
        assert policy.grad[row].tolist() == pytest.approx([-weight, weight], rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gap", [-1e6, -1e3, 0.0, 1e3, 1e6])
@pytest.mark.parametrize("settings", [{}, {"label_smoothing": 0.1}, {"kind": "ipo"}, {"sft": 1.0}])
def test_extremes_give_finite_numbers(dtype, gap, settings):
    policy = torch.tensor([[gap, 0.0]], dtype=dtype, requires_grad=True)
    loss, metrics = PreferenceObjective(**settings).loss(
        policy, torch.zeros_like(policy), torch.ones_like(policy), 1
    )
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(policy.grad).all()
    assert all(map(math.isfinite, metrics.means().values()))


def test_ipo_stops_at_its_margin_and_dpo_goes_on():
    policy = torch.tensor([[5.0, 0.0]], requires_grad=True)
    zeros, ones = torch.zeros(1, 2), torch.ones(1, 2)
    for kind, still in (("ipo", True), ("dpo", False)):
        policy.grad = None
        loss = PreferenceObjective(kind=kind, beta=0.1).loss(policy, zeros, ones, 1)[0]
        loss.backward()
        assert (policy.grad.abs().max() < 1e-6) == still


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"beta": 0.0}, "beta"),
        ({"beta": math.nan}, "beta"),
        ({"label_smoothing": 0.5}, "label_smoothing"),
        ({"label_smoothing": 0.1, "kind": "ipo"}, "label_smoothing"),
        ({"sft": -1.0}, "sft"),
    ],
)
def test_what_has_no_meaning_is_refused(settings, word):
    with pytest.raises(UserError, match=f"^{word}: "):
        PreferenceObjective(**settings)
