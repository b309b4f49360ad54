"""The step's gradient does not change with how the step is cut, and updates do what the objective
says.
"""

import itertools
import math

import pytest
import torch

from lydite.model.loading import LoraConfig
from lydite.model.reference import Reference
from lydite.objective.objective import Objective
from lydite.objective.presets import PRESETS
from lydite.rollout.select import local_engine
from lydite.train.evaluate import Prompt, SamplingConfig
from lydite.train.learner import Learner, UpdateConfig, step_counts
from lydite.train.optimizer import OptimizerConfig
from lydite.train.rl import RLParts, RLTrainer
from lydite.train.rl_config import RLConfig
from lydite.train.sft import Example, SFTConfig, SFTTrainer
from lydite.types import (
    Message,
    Outcome,
    Problem,
    TrainBatch,
    TrainGroup,
    TrainSequence,
    Verdict,
)

SPECS = [
    *PRESETS,
    "grpo+kl",
    "grpo+token_mean+tis",
    "dapo+prompt_mean+entropy_bonus",
    "grpo+high_entropy_tokens",
    "grpo+kl_cov",
    "rloo+kl_in_reward",
    "grpo+mis+off_policy_mask+kl_unbiased",
    "gspo+tis+dual_clip+prompt_mean",
]


def batch(temperature=0.8):
    generator = torch.Generator().manual_seed(1)

    def ids(n):
        return torch.randint(5, 40, (n,), generator=generator).tolist()

    def sequence(n, advantage):
        mask = [1] * n if n < 3 else [1, 0] + [1] * (n - 2)
        return TrainSequence(
            ids(n), mask, (-torch.rand(n, generator=generator) - 2).tolist(), advantage
        )

    return TrainBatch(
        [
            TrainGroup(ids(6), [sequence(5, 1.2), sequence(9, -0.4), sequence(1, -0.8)]),
            TrainGroup(ids(3), [sequence(7, 0.9), sequence(2, -0.9)]),
            TrainGroup(ids(4), [sequence(4, 0.0), sequence(6, 0.0)]),
        ],
        temperature,
    )


def learner(policy, budget=10_000, **update):
    settings = UpdateConfig(tokens_per_micro_batch=budget, **update)
    return Learner(policy, OptimizerConfig(lr=1e-3), settings, Reference(policy))


def gradient(policy, spec, budget, data):
    trainer = learner(policy, budget)
    objective = Objective.parse(spec).with_limit(16)
    # An older policy than the present one, so that ratios are not all 1.
    olds = [x + 0.05 * torch.arange(len(x)) / 10 for x in trainer.logprobs(data)]
    references = [x - 0.03 for x in trainer.logprobs(data)] if objective.needs_reference else None
    policy.model.zero_grad()
    trainer._accumulate(data, objective, olds, references)
    return torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])


@pytest.mark.parametrize("spec", SPECS)
def test_gradient_does_not_change_with_micro_batches(tiny, spec):
    policy = tiny(torch.float64)
    whole = gradient(policy, spec, 10_000, batch())
    assert whole.norm() > 0
    for budget in (1, 12, 20):
        cut = gradient(policy, spec, budget, batch())
        assert (cut - whole).norm() / whole.norm() < 1e-6


@pytest.mark.parametrize("spec", SPECS)
def test_gradient_does_not_change_with_order(tiny, spec):
    policy = tiny(torch.float64)
    whole = gradient(policy, spec, 10_000, batch())
    groups = [
        TrainGroup(g.prompt_ids, list(reversed(g.sequences))) for g in reversed(batch().groups)
    ]
    turned = gradient(policy, spec, 10_000, TrainBatch(groups, 0.8))
    assert (turned - whole).norm() / whole.norm() < 1e-6


@pytest.mark.parametrize("spec", SPECS)
def test_gradient_equals_the_way_without_shared_prompts(tiny, spec):
    policy = tiny(torch.float64)
    shared = gradient(policy, spec, 10_000, batch())
    policy.flat = False
    policy.model.set_attn_implementation("sdpa")
    plain = gradient(policy, spec, 10_000, batch())
    assert (shared - plain).norm() / plain.norm() < 1e-6


@pytest.mark.parametrize("spec", SPECS)
def test_gradient_does_not_change_with_padding(tiny, spec):
    """Where prompts are not shared, rows are padded to the longest of their micro-batch."""
    policy = tiny(torch.float64)
    policy.flat = False
    policy.model.set_attn_implementation("sdpa")
    whole = gradient(policy, spec, 10_000, batch())
    alone = gradient(policy, spec, 1, batch())
    assert (alone - whole).norm() / whole.norm() < 1e-6


def test_logprobs_come_back_in_the_order_of_the_batch(tiny):
    policy = tiny(torch.float64)
    whole = learner(policy).logprobs(batch())
    sizes = [len(s.token_ids) for g in batch().groups for s in g.sequences]
    assert [len(x) for x in whole] == sizes
    for cut in (1, 15):
        for a, b in zip(learner(policy, cut).logprobs(batch()), whole, strict=True):
            torch.testing.assert_close(a, b)


def test_counts_are_of_the_whole_step():
    counts = step_counts(batch())
    masked = sum(sum(s.loss_mask) for g in batch().groups for s in g.sequences)
    assert (counts.tokens, counts.sequences, counts.prompts) == (masked, 7, 3)


def test_sequences_without_advantage_are_not_run_but_count(tiny, monkeypatch):
    from lydite.train import learner as module

    policy = tiny()
    seen = []
    real = module.score
    monkeypatch.setattr(
        module, "score", lambda p, prompts, c, t: seen.extend(prompts) or real(p, prompts, c, t)
    )
    trainer = learner(policy)
    trainer.update(batch(), Objective.parse("grpo"), (0, 1))
    assert len(seen) == 2
    seen.clear()
    trainer.update(batch(), Objective.parse("grpo+kl"), (0, 1))
    assert len(seen) == 6  # the reference is asked too


def test_sequences_without_advantage_count_in_the_mean(tiny, monkeypatch):
    from lydite.train import learner as module

    policy = tiny(torch.float64)
    skipped = gradient(policy, "grpo", 10_000, batch())
    monkeypatch.setattr(module, "teaching", lambda whole: whole)
    run = gradient(policy, "grpo", 10_000, batch())
    assert (skipped - run).norm() / run.norm() < 1e-6


def test_a_good_answer_becomes_likelier_and_a_bad_one_less(tiny):
    policy = tiny()
    data = batch()
    trainer = learner(policy)
    before = [float(x.sum()) for x in trainer.logprobs(data)]
    trainer.update(data, Objective.parse("grpo+token_mean"), (0, 10))
    after = [float(x.sum()) for x in trainer.logprobs(data)]
    moved = [
        b - a for a, b in itertools.starmap(lambda a, b: (a, b), zip(before, after, strict=True))
    ]
    assert moved[0] > 0 and moved[3] > 0
    assert moved[1] < 0


def test_on_policy_ratio_is_one_and_clipping_starts_with_the_second_step(tiny):
    policy = tiny()
    once = learner(policy).update(batch(), Objective.parse("grpo"), (0, 1))
    assert once["ratio"] == 1.0 and once["clip_high"] == 0.0
    policy = tiny()
    trainer = Learner(policy, OptimizerConfig(lr=0.05), UpdateConfig(epochs=3))
    several = trainer.update(batch(), Objective.parse("grpo"), (0, 1))
    assert several["ratio"] != 1.0
    assert several["clip_high"] + several["clip_low"] > 0


def test_minibatches_cover_every_group_once(tiny, monkeypatch):
    trainer = learner(tiny(), minibatches=2, epochs=2)
    seen = []
    real = trainer._accumulate
    monkeypatch.setattr(
        trainer, "_accumulate", lambda b, *rest: seen.append(len(b.groups)) or real(b, *rest)
    )
    trainer.update(batch(), Objective.parse("grpo"), (0, 1))
    assert seen == [2, 1, 2, 1]


def test_kl_to_the_starting_policy_is_zero_at_the_start_and_grows(tiny):
    policy = tiny()
    trainer = learner(policy)
    first = trainer.update(batch(), Objective.parse("grpo+kl"), (0, 2))
    second = trainer.update(batch(), Objective.parse("grpo+kl"), (1, 2))
    assert first["kl_reference"] == pytest.approx(0, abs=1e-6)
    assert second["kl_reference"] > 1e-6


def test_lora_trains_only_the_adapter_and_its_reference_is_the_base(tiny):
    policy = tiny(lora=LoraConfig(rank=2))
    frozen = {n: p.clone() for n, p in policy.model.named_parameters() if not p.requires_grad}
    trainer = learner(policy)
    base = trainer.reference_logprobs(batch())
    for step in range(2):
        trainer.update(batch(), Objective.parse("grpo+kl"), (step, 2))
    assert all(torch.equal(p, frozen[n]) for n, p in policy.model.named_parameters() if n in frozen)
    again = trainer.reference_logprobs(batch())
    assert all(torch.equal(a, b) for a, b in zip(base, again, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(base, trainer.logprobs(batch()), strict=True))


@pytest.mark.parametrize("spec", SPECS)
def test_every_objective_trains(tiny, spec):
    policy = tiny()
    trainer = learner(policy, budget=20, minibatches=2, epochs=2)
    objective = Objective.parse(spec).with_limit(16)
    before = [p.clone() for p in policy.model.parameters()]
    means = trainer.update(batch(), objective, (0, 1))
    assert all(map(math.isfinite, means.values()))
    assert any((p != q).any() for p, q in zip(policy.model.parameters(), before, strict=True))
    assert ("picked" in means) == objective.picks_tokens


@pytest.mark.parametrize("spec", SPECS)
def test_a_sequence_that_is_masked_was_never_there(tiny, spec):
    policy = tiny(torch.float64)
    groups = batch().groups
    first = groups[0]
    masked = TrainSequence(first.sequences[1].token_ids, [0] * 9, [0.0] * 9, -0.4)
    kept = TrainGroup(first.prompt_ids, [first.sequences[0], first.sequences[2]])
    there = TrainGroup(first.prompt_ids, [first.sequences[0], masked, first.sequences[2]])
    ours = gradient(policy, spec, 12, TrainBatch([there, *groups[1:]], 0.8))
    theirs = gradient(policy, spec, 12, TrainBatch([kept, *groups[1:]], 0.8))
    assert (ours - theirs).norm() / theirs.norm() < 1e-6


def test_one_prompts_mean_is_the_mean_of_its_tokens(tiny):
    policy = tiny(torch.float64)
    alone = TrainBatch(batch().groups[:1], 0.8)
    ours = gradient(policy, "grpo+prompt_mean", 1, alone)
    theirs = gradient(policy, "grpo+token_mean", 1, alone)
    assert (ours - theirs).norm() / theirs.norm() < 1e-9


def test_the_entropy_bonus_has_gradient_even_without_advantages(tiny):
    policy = tiny(torch.float64)
    idle = TrainBatch(batch().groups[2:], 0.8)
    assert gradient(policy, "grpo+entropy_bonus", 1, idle).norm() > 0
    with_bonus = learner(policy).update(idle, Objective.parse("grpo+entropy_bonus"), (0, 1))
    assert with_bonus["grad_norm"] > 0


@pytest.mark.parametrize("trains", ["sft", "rl"])
def test_a_resumed_run_draws_the_same_dropout(tiny, trains):
    """Saved after one step and loaded elsewhere, the second step is the same to the bit."""

    def fresh():
        policy = tiny(lora=LoraConfig(rank=2, dropout=0.5))
        examples = [Example([5, 6], [7, 8, 9], [1, 1, 1])] * 4
        if trains == "sft":
            return SFTTrainer(policy, SFTConfig(steps=2, batch_size=4), examples, seed=0)
        config = RLConfig(
            steps=2, prompts_per_step=2, group_size=4, sampling=SamplingConfig(max_tokens=4),
            update=UpdateConfig(minibatches=2, epochs=2),
        )  # fmt: skip
        parts = RLParts(
            local_engine(policy), Alternating(), Learner(policy, config.optimizer, config.update),
            config.build_objective(),
        )  # fmt: skip
        problems = [Problem(f"p{i}", "q", (Message("user", "q"),)) for i in range(4)]
        return RLTrainer(config, parts, [Prompt(p, (5, 6)) for p in problems], seed=0)

    straight = fresh()
    straight.step(0)
    saved = {name: tensor.clone() for name, tensor in straight.state_tensors().items()}
    state = straight.state()
    straight.step(1)
    torch.manual_seed(1)
    resumed = fresh()
    resumed.load(saved, state)
    before = torch.random.get_rng_state()
    resumed.step(1)
    assert torch.equal(before, torch.random.get_rng_state())
    ours, theirs = straight.state_tensors(), resumed.state_tensors()
    assert any(not torch.equal(ours[name], saved[name]) for name in saved)
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2)])
def test_a_reference_is_renewed_at_its_interval_and_by_a_resume_too(tiny, lora):
    """KL(π‖π_ref) is 0 in the step that begins with a new reference, and only there."""

    def fresh():
        policy = tiny(lora=lora)
        config = RLConfig(
            steps=6, prompts_per_step=2, group_size=4, sampling=SamplingConfig(max_tokens=4),
            objective={"patches": "kl+reference_refresh", "kl": {"coefficient": 0.1, "refresh": 2}},
            optimizer=OptimizerConfig(lr=0.01),
        )  # fmt: skip
        reference = Reference(policy)
        learner = Learner(policy, config.optimizer, config.update, reference)
        parts = RLParts(local_engine(policy), Alternating(), learner, config.build_objective())
        problems = [Problem(f"p{i}", "q", (Message("user", "q"),)) for i in range(4)]
        return RLTrainer(config, parts, [Prompt(p, (5, 6)) for p in problems], seed=0)

    def checkpoint(trainer):
        return {name: tensor.clone() for name, tensor in trainer.state_tensors().items()}

    straight = fresh()
    drifts, saved = [], []
    for step in range(6):
        saved.append((checkpoint(straight), straight.state()))
        drifts.append(straight.step(step).metrics["kl_reference"])
    assert [drift == 0 for drift in drifts] == [True, False] * 3
    held = [any(name.startswith("reference.") for name in tensors) for tensors, _ in saved]
    assert held == [False] * 3 + [True] * 3
    for start in (2, 3):
        resumed = fresh()
        resumed.load(*saved[start])
        again = [resumed.step(step).metrics["kl_reference"] for step in range(start, 6)]
        assert again == drifts[start:]
        ours, theirs = straight.state_tensors(), resumed.state_tensors()
        assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


class Alternating:
    """Wrong, right, wrong, right: every group teaches."""

    def verify(self, problems, texts):
        return [
            Verdict(Outcome.CORRECT if i % 2 else Outcome.WRONG, float(i % 2))
            for i in range(len(texts))
        ]

    def close(self):
        pass


def test_old_log_probabilities_are_without_dropout(tiny):
    """They are the policy's that sampled; the mode to train in comes back."""
    policy = tiny(lora=LoraConfig(rank=2, dropout=0.9))
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.3)
    first, second = (torch.cat(learner(policy).logprobs(batch())) for _ in range(2))
    assert torch.equal(first, second)
    assert policy.model.training
