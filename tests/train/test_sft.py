"""Imitation: what is learned, how it is averaged, and in what order it is seen."""

import pytest
import torch

from lydite.model.scoring import score
from lydite.train.optimizer import OptimizerConfig
from lydite.train.sft import Example, SFTConfig, SFTTrainer

EXAMPLES = [
    Example([5, 6, 7], [8, 9, 10, 11], [1, 1, 1, 1]),
    Example([12], [13, 14, 15, 16, 17, 18], [0, 0, 1, 1, 0, 1]),
    Example([19, 20], [21], [1]),
    Example([22, 23], [24, 25], [1, 0]),
]


def trainer(policy, budget=10_000, **settings):
    config = SFTConfig(
        **{"steps": 4, "batch_size": 4, "optimizer": OptimizerConfig(lr=1e-3), **settings},
        tokens_per_micro_batch=budget,
    )
    return SFTTrainer(policy, config, EXAMPLES, seed=0)


def gradient(policy, budget):
    made = trainer(policy, budget)
    held = {}
    made.optimizer.step = lambda lr: held.update(
        {n: p.grad.clone() for n, p in policy.model.named_parameters() if p.grad is not None}
    )
    policy.model.zero_grad()
    made.step(0)
    return torch.cat([g.flatten() for g in held.values()])


def test_loss_is_the_mean_over_learned_tokens_only(tiny):
    policy = tiny(torch.float64)
    expected = []
    for example in EXAMPLES:
        logprobs, _ = score(policy, [example.prompt_ids], [[example.token_ids]])
        expected += [
            -float(lp)
            for lp, bit in zip(logprobs[0].detach(), example.loss_mask, strict=True)
            if bit
        ]
    assert len(expected) == 9
    assert trainer(policy).step(0).metrics["loss"] == pytest.approx(sum(expected) / 9)


@pytest.mark.parametrize("budget", [1, 8, 13])
def test_gradient_does_not_change_with_micro_batches(tiny, budget):
    policy = tiny(torch.float64)
    whole, cut = gradient(policy, 10_000), gradient(policy, budget)
    assert whole.norm() > 0
    assert (cut - whole).norm() / whole.norm() < 1e-6


def test_what_follows_one_example_does_not_reach_another(tiny):
    policy = tiny(torch.float64)
    alone, _ = score(policy, [EXAMPLES[0].prompt_ids], [[EXAMPLES[0].token_ids]])
    packed, _ = score(policy, [e.prompt_ids for e in EXAMPLES], [[e.token_ids] for e in EXAMPLES])
    torch.testing.assert_close(packed[0, :4], alone[0], rtol=0, atol=1e-6)


def test_every_epoch_sees_every_example_once_in_another_order(tiny):
    made = trainer(tiny(), batch_size=2, steps=8)
    epochs = [[*made.batch_at(2 * e), *made.batch_at(2 * e + 1)] for e in range(4)]
    for epoch in epochs:
        assert sorted(map(id, epoch)) == sorted(map(id, EXAMPLES))
    assert len({tuple(map(id, epoch)) for epoch in epochs}) > 1
    assert made.batch_at(5) == trainer(tiny(), batch_size=2, steps=8).batch_at(5)


def test_epochs_become_steps(tiny):
    assert trainer(tiny(), steps=None, epochs=2.5, batch_size=2).total == 5
