"""A step on two gloo ranks is the step of one process: every preset, in float64."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import rank_worker
import torch
from rank_worker import UPDATES, gradient, judged, learner, policy, updated
from test_learner import SPECS, batch

from lydite.objective import Counts, Metrics, Objective
from lydite.train.batching import step_counts
from lydite.train.ranks import ALONE


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """What two processes found, started once."""
    place = tmp_path_factory.mktemp("ranks")
    out = place / "found.pt"
    paths = [str(Path(rank_worker.__file__).parent), *sys.path]
    command = [sys.executable, rank_worker.__file__]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(place / "store"), str(out)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=220)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0, 0], "\n".join(said)
    return torch.load(out)


@pytest.fixture(scope="module")
def alone():
    return policy()


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    ours, theirs = (
        torch.cat([gradients[name].flatten() for name in expected])
        for gradients in (found, expected)
    )
    assert theirs.norm() > 0
    assert (ours - theirs).norm() / theirs.norm() <= 1e-6


@pytest.mark.parametrize("spec", SPECS)
def test_the_gradient_of_a_step_is_the_same(two_ranks, alone, spec):
    assert_same(two_ranks["gradients"][spec], gradient(alone, spec, batch()))


@pytest.mark.parametrize("spec", ["grpo", "grpo+kl_cov"])
def test_a_rank_without_a_group_takes_part(two_ranks, alone, spec):
    assert_same(two_ranks["idle"][spec], gradient(alone, spec, batch()))


@pytest.mark.parametrize("spec", UPDATES)
def test_weights_and_metrics_after_several_steps_are_the_same(two_ranks, spec):
    weights, metrics = two_ranks["updates"][spec]
    expected, means = updated(spec, batch())
    for name, tensor in expected.items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-6, atol=1e-9)
    for found, mean in zip(metrics, means, strict=True):
        assert found == pytest.approx(mean, rel=1e-6, abs=1e-12)


def test_a_critic_judges_and_learns_over_all_ranks(two_ranks):
    advantages, figures, grad = two_ranks["judged"]
    expected, figures_alone, grad_alone = judged(batch())
    for ours, theirs in zip(advantages, expected, strict=True):
        for row, other in zip(ours, theirs, strict=True):
            assert row == pytest.approx(other, rel=1e-6, abs=1e-9)
    assert figures == pytest.approx(figures_alone, rel=1e-6)
    assert grad.norm() > 0
    torch.testing.assert_close(grad, grad_alone, rtol=1e-6, atol=1e-9)


def test_every_rank_ends_with_the_same_weights(two_ranks):
    assert two_ranks["weights agree"]


def test_ranks_with_fewer_groups_than_minibatches_take_every_step(two_ranks):
    # The first step has groups 0 and 1, the second group 2 alone, which has no signal.
    assert two_ranks["steps"]["grad_norm"] == 0.0


def test_a_mean_of_ranks_would_be_another_gradient(alone):
    """The defect that the ranks are there to avoid, made on purpose: these tests can see it."""
    whole = gradient(alone, "dapo", batch())
    whole = {name: value.clone() for name, value in whole.items()}
    parts = []
    for groups in rank_worker.SHARES["uneven"]:
        found = gradient(alone, "dapo", rank_worker.share(groups))
        parts.append({name: value.clone() for name, value in found.items()})
    mean = {name: (parts[0][name] + parts[1][name]) / 2 for name in whole}
    with pytest.raises(AssertionError):
        assert_same(mean, whole)


def test_counts_of_shares_add_up_and_one_process_hears_itself():
    shares = [rank_worker.share(groups) for groups in rank_worker.SHARES["uneven"]]
    assert sum(map(step_counts, shares), Counts()) == step_counts(batch())
    assert ALONE.gathered("word") == ["word"] and ALONE.index == 0
    metrics = learner(policy()).update(batch(), Objective.parse("grpo"), (0, 1))
    assert metrics["ratio"] == 1.0
    assert Metrics().cpu().means() == {}
