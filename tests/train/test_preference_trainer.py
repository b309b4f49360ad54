"""The preference trainer: counts over the whole step, one prompt for both answers, a reference that
stays, a resume to the bit.
"""

import math

import pytest
import torch
from torch.nn.functional import logsigmoid

from lydite.config import UserError, validate
from lydite.model.loading import LoraConfig
from lydite.model.scoring import score
from lydite.train.optimizer import OptimizerConfig
from lydite.train.preference import Pair, PreferenceConfig, PreferenceTrainer

PAIRS = [
    Pair([5, 6, 7], [8, 9, 10, 11], [12, 13]),
    Pair([12], [13, 14], [15, 16, 17, 18, 19, 20, 21]),
    Pair([19, 20], [21], [22]),
    Pair([22, 23, 24, 25], [30, 31, 32], [30, 31, 33]),
    Pair([5, 6, 7], [8, 9], [14, 15, 16]),
]
LOSSES = [
    {},
    {"label_smoothing": 0.1},
    {"loss": "ipo"},
    {"sft": 0.5},
    {"length_normalised": True},
    {"reference_free": True},
]


def trainer(policy, budget=10_000, pairs=PAIRS, **settings):
    values = {
        "steps": 4, "batch_size": len(pairs), "optimizer": OptimizerConfig(lr=1e-3), "beta": 0.5,
        **settings,
    }  # fmt: skip
    config = PreferenceConfig(**values, tokens_per_micro_batch=budget)
    return PreferenceTrainer(policy, config, pairs, seed=0)


def moved(policy):
    """The policy after it has left its reference, by the same small way every time."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter += 0.02 * noise.to(parameter.dtype)


def gradient(load, budget=10_000, pairs=PAIRS, flat=True, **settings):
    policy = load(torch.float64)
    if not flat:
        policy.flat = False
        policy.model.set_attn_implementation("sdpa")
    made = trainer(policy, budget, pairs, **settings)
    moved(policy)
    held = {}
    made.learner.optimizer.step = lambda lr: held.update(
        {n: p.grad.clone() for n, p in policy.model.named_parameters() if p.grad is not None}
    )
    metrics = made.step(0).metrics
    return torch.cat([g.flatten() for g in held.values()]), metrics


def apart(one, other):
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("settings", LOSSES)
def test_gradient_does_not_change_with_micro_batches(tiny, settings):
    whole, figures = gradient(tiny, **settings)
    assert whole.norm() > 0
    for budget in (1, 13, 25):
        cut, again = gradient(tiny, budget, **settings)
        assert apart(cut, whole) < 1e-6
        for name in set(figures) - {"tokens_per_second", "grad_norm", "update_ratio"}:
            assert again[name] == pytest.approx(figures[name], rel=1e-6), name


@pytest.mark.parametrize("settings", LOSSES)
def test_gradient_does_not_change_with_order(tiny, settings):
    whole, _ = gradient(tiny, **settings)
    assert apart(gradient(tiny, 13, PAIRS[::-1], **settings)[0], whole) < 1e-6


@pytest.mark.parametrize("settings", LOSSES)
def test_gradient_equals_the_way_without_shared_prompts(tiny, settings):
    shared, _ = gradient(tiny, **settings)
    assert apart(gradient(tiny, 13, flat=False, **settings)[0], shared) < 1e-6


def test_gradient_is_that_of_equation_7(tiny):
    """The plain way: every answer behind its own prompt, the mean over all pairs at once."""
    ours, figures = gradient(tiny)
    policy, reference = tiny(torch.float64), tiny(torch.float64)
    moved(policy)

    def ratio(pair, ids):
        before = score(reference, [pair.prompt_ids], [[ids]])[0].sum().detach()
        return score(policy, [pair.prompt_ids], [[ids]])[0].sum() - before

    gaps = [ratio(p, p.chosen_ids) - ratio(p, p.rejected_ids) for p in PAIRS]
    loss = -logsigmoid(0.5 * torch.stack(gaps)).mean()
    loss.backward()
    expected = [p.grad.flatten() for p in policy.model.parameters() if p.grad is not None]
    assert apart(ours, torch.cat(expected)) < 1e-6
    assert figures["loss"] == pytest.approx(loss.item(), rel=1e-6)
    assert figures["reward_margin"] == pytest.approx(sum(gaps).item() / 10, rel=1e-6)


def test_training_starts_at_the_reference_and_comes_to_prefer_the_better(tiny):
    made = trainer(tiny())
    first, *_, last = [made.step(step).metrics for step in range(40)]
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-4)
    assert first["reward_margin"] == pytest.approx(0, abs=1e-3)
    assert last["reward_accuracy"] == 1.0 and last["loss"] < 0.3
    assert last["reward_margin"] == pytest.approx(last["reward_chosen"] - last["reward_rejected"])


def test_the_likelihood_term_keeps_the_better_answer_likely(tiny):
    def end(**settings):
        made = trainer(tiny(), **settings)
        return [made.step(step).metrics["logprob_chosen"] for step in range(20)][-1]

    assert end(sft=1.0) > end()


def test_with_lora_the_reference_is_the_base_and_costs_no_copy(tiny):
    policy = tiny(lora=LoraConfig(rank=2))
    frozen = {n: p.clone() for n, p in policy.model.named_parameters() if not p.requires_grad}
    made = trainer(policy)
    before = made._references(PAIRS)
    margins = [made.step(step).metrics["reward_margin"] for step in range(3)]
    assert margins[-1] > margins[0]
    assert torch.equal(made._references(PAIRS), before)
    assert all(torch.equal(p, frozen[n]) for n, p in policy.model.named_parameters() if n in frozen)


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2, dropout=0.5)])
def test_a_resumed_run_is_the_one_that_was_not_stopped(tiny, lora):
    """Saved after two steps and loaded elsewhere, the next are the same to the bit: the reference
    is that of the start, dropout is drawn again.
    """
    straight = trainer(tiny(lora=lora), batch_size=2)
    for step in range(2):
        straight.step(step)
    saved = {name: tensor.clone() for name, tensor in straight.state_tensors().items()}
    rest = [straight.step(step).metrics["loss"] for step in (2, 3)]
    torch.manual_seed(1)
    resumed = trainer(tiny(lora=lora), batch_size=2)
    resumed.load(saved, straight.state())
    assert [resumed.step(step).metrics["loss"] for step in (2, 3)] == rest
    ours, theirs = straight.state_tensors(), resumed.state_tensors()
    assert any(not torch.equal(ours[name], saved[name]) for name in saved)
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_a_prompt_is_run_once_for_both_answers(tiny, monkeypatch):
    from lydite.train import preference as module

    seen = []
    real = module.score
    monkeypatch.setattr(
        module, "score", lambda p, prompts, c: seen.append((prompts, c)) or real(p, prompts, c)
    )
    trainer(tiny()).step(0)
    ((prompts, answers),) = seen
    assert len(prompts) == 5 and [len(both) for both in answers] == [2] * 5


def test_every_pair_is_seen_once_an_epoch(tiny):
    made = trainer(tiny(), batch_size=5)
    first, second = made.batch_at(0), made.batch_at(1)
    assert first != second
    for epoch in (first, second):
        assert sorted(p.tokens for p in epoch) == sorted(p.tokens for p in PAIRS)


def test_how_the_pairs_came_to_be_is_told_once(tiny):
    config = PreferenceConfig(steps=2, batch_size=2)
    made = PreferenceTrainer(tiny(), config, PAIRS, seed=0, notes=[("pairs", "five")])
    assert [list(made.step(step).warnings) for step in range(2)] == [[("pairs", "five")], []]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "give one of steps and epochs"),
        ({"steps": 1, "loss": "kto"}, "loss"),
        ({"steps": 1, "beta": 0}, "beta"),
        ({"steps": 1, "loss": "ipo", "label_smoothing": 0.1}, "label_smoothing: ipo has no"),
    ],
)
def test_settings_without_meaning_are_refused_in_one_line(values, said):
    with pytest.raises(UserError) as error:
        validate(PreferenceConfig, values)
    assert said in str(error.value) and "\n" not in str(error.value)
