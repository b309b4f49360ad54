"""The critic beside the policy: where it starts, what it learns, that cutting a step changes
nothing.
"""

import math

import pytest
import torch

from lydite.config import UserError, validate
from lydite.model.loading import LoraConfig
from lydite.model.reference import Reference
from lydite.objective.objective import Objective
from lydite.train.critic import Critic, CriticConfig, judged
from lydite.train.learner import Learner, UpdateConfig, teaching
from lydite.train.optimizer import OptimizerConfig
from lydite.train.rl_config import RLConfig
from lydite.types import TrainBatch, TrainGroup, TrainSequence

KINDS = ["model", "head"]
PPO = Objective.parse("ppo")


def batch(rewards=(1.0, 0.0, 0.0, 1.0, 0.0)):
    """Two prompts, five completions; their advantages are rewards yet."""
    generator = torch.Generator().manual_seed(1)
    told = iter(rewards)

    def ids(n):
        return torch.randint(5, 40, (n,), generator=generator).tolist()

    def sequence(n):
        mask = [1] * n if n < 3 else [1, 0] + [1] * (n - 2)
        return TrainSequence(ids(n), mask, [-2.0] * n, next(told))

    return TrainBatch(
        [
            TrainGroup(ids(6), [sequence(5), sequence(9), sequence(1)]),
            TrainGroup(ids(3), [sequence(7), sequence(2)]),
        ],
        0.8,
    )


def build(policy, kind="model", budget=10_000, update=None, reference=None, **settings):
    config = CriticConfig(kind=kind, **settings)
    optimizer = OptimizerConfig(lr=1e-3)
    critic = Critic(policy, config, optimizer, budget)
    update = UpdateConfig(tokens_per_micro_batch=budget, **(update or {}))
    return Learner(policy, optimizer, update, reference, critic)


def speak(critic):
    """A head that says something: at 0 every value is 0."""
    with torch.no_grad():
        noise = torch.Generator().manual_seed(3)
        weight = critic.model.head.weight
        weight.copy_(torch.randn(weight.shape, generator=noise) * 0.3)


def gradient(learner, data):
    critic = learner.critic
    critic.model.zero_grad()
    critic.accumulate(data, PPO)
    return torch.cat([p.grad.flatten() for p in critic.model.parameters() if p.grad is not None])


def assessed(learner, data=None):
    speak(learner.critic)
    found, _ = learner.judge(data or batch(), PPO)
    # As after an earlier minibatch, so that the clip has something to hold.
    moved = [
        TrainGroup(g.prompt_ids, [
            TrainSequence(s.token_ids, s.loss_mask, s.behaviour, s.advantage,
                          [v + 0.15 * (-1) ** i for i, v in enumerate(s.values)], s.returns)
            for s in g.sequences])
        for g in found.groups
    ]  # fmt: skip
    return TrainBatch(moved, found.temperature)


@pytest.mark.parametrize("kind", KINDS)
def test_the_critics_gradient_does_not_change_with_micro_batches_order_or_shared_prompts(
    tiny, kind
):
    policy = tiny(torch.float64)
    learner = build(policy, kind)
    data = assessed(learner)
    whole = gradient(learner, data)
    assert whole.norm() > 0
    for budget in (1, 12, 20):
        cut = build(policy, kind, budget)
        speak(cut.critic)
        assert (gradient(cut, data) - whole).norm() / whole.norm() < 1e-6
    turned = [TrainGroup(g.prompt_ids, g.sequences[::-1]) for g in data.groups[::-1]]
    assert (gradient(learner, TrainBatch(turned, 0.8)) - whole).norm() / whole.norm() < 1e-6
    policy.flat = False
    policy.model.set_attn_implementation("sdpa")
    plain = build(policy, kind)
    speak(plain.critic)
    assert (gradient(plain, data) - whole).norm() / whole.norm() < 1e-6


def test_a_masked_completion_was_never_there(tiny):
    learner = build(tiny(torch.float64))
    data = assessed(learner)
    first = data.groups[0]
    extra = TrainSequence([7] * 4, [0] * 4, [0.0] * 4, [1.0] * 4, [9.0] * 4, [5.0] * 4)
    there = TrainGroup(first.prompt_ids, [*first.sequences, extra])
    ours = gradient(learner, TrainBatch([there, *data.groups[1:]], 0.8))
    theirs = gradient(learner, data)
    assert (ours - theirs).norm() / theirs.norm() < 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_values_come_back_in_the_order_of_the_batch_and_see_no_later_token(tiny, kind):
    policy = tiny(torch.float64)
    learner = build(policy, kind)
    speak(learner.critic)
    whole = learner.critic.values(batch())
    assert [len(x) for x in whole] == [5, 9, 1, 7, 2]
    cut = build(policy, kind, 1)
    speak(cut.critic)
    for a, b in zip(cut.critic.values(batch()), whole, strict=True):
        torch.testing.assert_close(a, b)
    first = batch().groups[0]
    other = TrainSequence([*first.sequences[0].token_ids[:3], 8, 9], [1] * 5, [0.0] * 5, 0.0)
    changed = learner.critic.values(TrainBatch([TrainGroup(first.prompt_ids, [other])], 0.8))[0]
    # V_t is said before token t: a change at 3 is first seen at 4
    torch.testing.assert_close(changed[:4], whole[0][:4])
    assert (changed[4] - whole[0][4]).abs() > 1e-6


def test_a_new_critic_starts_from_the_policys_weights_and_expects_nothing(tiny):
    policy = tiny()
    learner = build(policy)
    data, measured = learner.judge(batch(), PPO)
    assert measured == {"value": 0.0, "explained_variance": 0.0}
    ours = dict(learner.critic.model.trunk.named_parameters())
    theirs = dict(policy.model.model.named_parameters())
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[n], theirs[n]) and ours[n] is not theirs[n] for n in ours)
    assert next(s.returns for g in data.groups for s in g.sequences) == [1, 0, 1, 1, 1]


def test_a_head_reads_the_policy_and_leaves_it_alone(tiny):
    policy = tiny()
    learner = build(policy, "head", update={"epochs": 3})
    assert [n for n, _ in learner.critic.model.named_parameters()] == ["head.weight"]
    data = assessed(learner)
    gradient(learner, data)
    assert all(p.grad is None for p in policy.model.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_a_critic_learns_what_completions_earn(tiny, kind):
    learner = build(tiny(), kind, optimizer=OptimizerConfig(lr=3e-3 if kind == "model" else 3e-2))
    first = None
    for step in range(40):
        data, measured = learner.judge(batch(), PPO)
        learner.critic.update(data, PPO, step, 40)
        first = first or measured
    assert first["explained_variance"] == 0.0
    assert measured["explained_variance"] > 0.5


def test_policy_and_critic_train_side_by_side(tiny):
    policy = tiny()
    learner = build(policy, update={"minibatches": 2, "epochs": 2}, budget=12)
    before = [p.clone() for p in policy.model.parameters()]
    trunk = [p.clone() for p in learner.critic.model.parameters()]
    for step in range(2):
        data, measured = learner.judge(batch(), PPO)
        means = learner.update(data, PPO, (step, 2))
    assert all(map(math.isfinite, [*means.values(), *measured.values()]))
    assert {"value_loss", "value_clip", "critic_grad_norm", "ratio", "lr"} <= means.keys()
    assert any((p != q).any() for p, q in zip(policy.model.parameters(), before, strict=True))
    moved = zip(learner.critic.model.parameters(), trunk, strict=True)
    assert all((p != q).any() for p, q in moved)


def test_the_policys_gradient_with_advantages_of_tokens_does_not_change_with_the_cut(tiny):
    policy = tiny(torch.float64)
    data = assessed(build(policy))

    def of_policy(budget):
        learner = build(policy, budget=budget)
        policy.model.zero_grad()
        olds = [x + 0.05 for x in learner.logprobs(data)]
        learner._accumulate(data, Objective.parse("ppo"), olds, None)
        return torch.cat([p.grad.flatten() for p in policy.model.parameters()])

    whole = of_policy(10_000)
    for budget in (1, 12):
        assert (of_policy(budget) - whole).norm() / whole.norm() < 1e-6


def test_while_the_critic_warms_up_the_policy_waits(tiny):
    policy = tiny()
    learner = build(policy, warmup=1)
    before = [p.clone() for p in policy.model.parameters()]
    data, _ = learner.judge(batch(), PPO)
    means = learner.update(data, PPO, (0, 2))
    assert "value_loss" in means and "grad_norm" not in means
    assert all(torch.equal(p, q) for p, q in zip(policy.model.parameters(), before, strict=True))
    assert "grad_norm" in learner.update(data, PPO, (1, 2))


def test_a_lora_critic_copies_adapters_only_and_the_reference_is_the_base(tiny):
    policy = tiny(lora=LoraConfig(rank=2))
    learner = build(policy, reference=Reference(policy))
    critic = learner.critic.model
    ours = {id(p) for p in critic.parameters() if not p.requires_grad}
    assert ours and ours <= {id(p) for p in policy.model.parameters()}
    trained = [n for n, p in critic.named_parameters() if p.requires_grad]
    assert "head.weight" in trained and all("lora" in n for n in trained if n != "head.weight")
    frozen = {n: p.clone() for n, p in policy.model.named_parameters() if not p.requires_grad}
    objective = Objective.parse("ppo+kl_in_reward")
    base = learner.reference_logprobs(batch())
    values = []
    for step in range(3):
        data, measured = learner.judge(batch(), objective)
        learner.update(data, objective, (step, 3))
        values.append(torch.cat(learner.critic.values(batch())))
    assert measured["kl_reference"] > 0
    assert not torch.equal(values[0], values[-1])
    assert all(torch.equal(p, frozen[n]) for n, p in policy.model.named_parameters() if n in frozen)
    again = learner.reference_logprobs(batch())
    assert all(torch.equal(a, b) for a, b in zip(base, again, strict=True))


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2, dropout=0.5)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_critic_goes_on_to_the_bit(tiny, kind, lora):
    def step(learner, number):
        torch.manual_seed(number)
        data, measured = learner.judge(batch(), PPO)
        return {**measured, **learner.update(data, PPO, (number, 3))}

    straight = build(tiny(lora=lora), kind)
    step(straight, 0)
    saved = {name: tensor.clone() for name, tensor in straight.state_tensors().items()}
    assert any(name.startswith("critic.exp_avg.") for name in saved)
    resumed = build(tiny(lora=lora), kind)
    resumed.load_state_tensors(saved)
    assert step(straight, 1) == step(resumed, 1)
    ours, theirs = straight.state_tensors(), resumed.state_tensors()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    assert any(not torch.equal(ours[n], t) for n, t in saved.items() if n.startswith("critic."))


def test_values_are_without_dropout(tiny):
    learner = build(tiny(lora=LoraConfig(rank=2, dropout=0.9)))
    speak(learner.critic)
    with torch.no_grad():
        for name, parameter in learner.critic.model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.3)
    first, second = (torch.cat(learner.critic.values(batch())) for _ in range(2))
    assert torch.equal(first, second)
    assert learner.critic.model.training and learner.policy.model.training


def test_a_completion_with_any_advantage_is_run():
    some = [TrainSequence([5, 6], [1, 1], [0.0] * 2, a) for a in ([0.0, 1.0], [0.0, 0.0], 0.0, 1.0)]
    (group,) = teaching(TrainBatch([TrainGroup([4], some)])).groups
    assert [len(s.token_ids) for s in group.sequences] == [2, 0, 0, 2]


def test_bfloat16_values_are_taken_in_float32(tiny):
    learner = build(tiny(torch.bfloat16))
    assert learner.critic.model.head.weight.dtype == torch.float32
    assert all(x.dtype == torch.float32 for x in learner.critic.values(batch()))
    data, _ = learner.judge(batch(), PPO)
    assert math.isfinite(learner.update(data, PPO, (0, 1))["value_loss"])


def test_judged_keeps_every_sequence_and_its_place():
    values = [torch.zeros(n, dtype=torch.float64) for n in (5, 9, 1, 7, 2)]
    plain = Objective.parse("ppo+no_std")
    data, measured = judged(batch(), plain, values)
    assert measured == {"value": 0.0, "explained_variance": pytest.approx(0.0, abs=1e-12)}
    for old, new in zip(batch().groups, data.groups, strict=True):
        assert old.prompt_ids == new.prompt_ids
        for a, b in zip(old.sequences, new.sequences, strict=True):
            assert (a.token_ids, a.loss_mask, a.behaviour) == (
                b.token_ids,
                b.loss_mask,
                b.behaviour,
            )
            assert b.advantage == [a.advantage * bit for bit in a.loss_mask] == b.returns
    # those that earned nothing teach the policy nothing, and are still the critic's
    kept = [len(s.token_ids) for g in teaching(data).groups for s in g.sequences]
    assert kept == [5, 0, 0, 7, 0]


def test_a_critic_learns_ten_times_as_fast_unless_told_otherwise():
    policy = OptimizerConfig(lr=2e-6, schedule="cosine", warmup_steps=5)
    beside = CriticConfig().optimizer_beside(policy)
    assert beside.lr == pytest.approx(2e-5)
    assert beside == policy.model_copy(update={"lr": beside.lr})
    own = OptimizerConfig(lr=1e-4)
    assert CriticConfig(optimizer=own).optimizer_beside(policy) is own


def test_settings_of_a_critic_that_is_not_there_are_refused_in_one_line():
    with pytest.raises(UserError, match=r"critic: objective grpo has no critic; leave it out"):
        validate(RLConfig, {"objective": "grpo", "critic": {"kind": "head"}})
    with pytest.raises(UserError, match=r"critic\.warmup"):
        validate(RLConfig, {"objective": "ppo", "critic": {"warmup": -1}})
    assert validate(RLConfig, {"objective": "ppo", "group_size": 1}).critic is None
