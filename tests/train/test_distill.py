"""On-policy distillation through the learner and the RL loop, against plain autograd."""

import math
from dataclasses import replace

import pytest
import torch
from tiny_policy import tiny_model

from lydite.config import UserError, validate
from lydite.model.compute import flops_per_token
from lydite.model.loading import load_policy
from lydite.model.scoring import pad_whole, score
from lydite.objective.objective import Objective
from lydite.rollout.select import local_engine
from lydite.rollout.teacher import LocalTeacher, check_same_tokens
from lydite.train.distill import DistillConfig, Tutor, Unverified
from lydite.train.evaluate import Prompt
from lydite.train.imitation import Imitation
from lydite.train.learner import Learner, UpdateConfig
from lydite.train.optimizer import OptimizerConfig
from lydite.train.rl import RLParts, RLTrainer
from lydite.types import Message, Outcome, Problem, TrainBatch, TrainGroup, TrainSequence, Verdict

TOKEN_MEAN = Objective.parse("grpo+token_mean")


def config(**values):
    return validate(DistillConfig, {"sampling": {"max_tokens": 6}, **values})


@pytest.fixture
def small_teacher():
    """Of another shape than the student, with the same tokens."""
    shape = {
        "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
        "num_attention_heads": 2, "initializer_range": 0.3,
    }  # fmt: skip

    def load(dtype=torch.float32):
        policy = load_policy(tiny_model().model_copy(update={"init": shape}), seed=5)
        policy.model.to(dtype)
        return policy

    return load


def batch(advantage=0.0, temperature=0.8):
    generator = torch.Generator().manual_seed(1)

    def ids(n):
        return torch.randint(5, 40, (n,), generator=generator).tolist()

    def sequence(n):
        mask = [1] * n if n < 3 else [1, 0] + [1] * (n - 2)
        return TrainSequence(ids(n), mask, [-2.0] * n, advantage)

    groups = [(6, (5, 9, 1)), (3, (7, 2)), (4, (4, 6))]
    return TrainBatch(
        [TrainGroup(ids(prompt), [sequence(n) for n in sizes]) for prompt, sizes in groups],
        temperature,
    )


def learner(policy, budget=10_000, imitation=None):
    settings = UpdateConfig(tokens_per_micro_batch=budget)
    return Learner(policy, OptimizerConfig(lr=1e-2), settings, imitation=imitation)


def gradient(policy, data, budget=10_000, imitation=None, objective=TOKEN_MEAN):
    trainer = learner(policy, budget, imitation)
    policy.model.zero_grad()
    trainer._accumulate(data, objective, None, None)
    return flat_gradient(policy)


def flat_gradient(policy):
    """Zero where nothing was worth a pass."""
    grads = [p.grad.flatten() for p in policy.model.parameters() if p.grad is not None]
    return torch.cat(grads) if grads else torch.zeros(1)


def log_probs(policy, data):
    """``[B, T, V]`` by the model's own forward pass, and which of them are real and learned."""
    padded = pad_whole(
        [g.prompt_ids for g in data.groups],
        [[s.token_ids for s in g.sequences] for g in data.groups],
        "cpu",
    )
    policy.model.set_attn_implementation("sdpa")
    logits = policy.model(
        input_ids=padded.input_ids, attention_mask=padded.attention_mask
    ).logits  # fmt: skip
    policy.model.set_attn_implementation("lydite")
    log_p = (padded.before_each(logits) / data.temperature).log_softmax(-1)
    mask = torch.zeros(padded.real.shape)
    for row, s in enumerate(s for g in data.groups for s in g.sequences):
        mask[row, : len(s.loss_mask)] = torch.tensor(s.loss_mask, dtype=mask.dtype)
    return log_p, mask


def plain_gradient(policy, teacher, data):
    """Of the exact reverse KL, mean over learned tokens."""
    log_p, mask = log_probs(policy, data)
    with torch.no_grad():
        log_q, _ = log_probs(teacher, data)
    kl = (log_p.exp() * (log_p - log_q)).sum(-1)
    policy.model.zero_grad()
    (kl * mask).sum().div(mask.sum()).backward()
    return flat_gradient(policy)


def test_the_exact_gradient_is_that_of_plain_autograd(tiny, small_teacher):
    policy, teacher = tiny(torch.float64), small_teacher(torch.float64)
    wanted = plain_gradient(policy, teacher, batch())
    found = gradient(policy, batch(), imitation=Imitation(teacher, coefficient=1.0))
    assert wanted.norm() > 1e-3
    assert (found - wanted).norm() / wanted.norm() < 1e-6
    half = gradient(policy, batch(), imitation=Imitation(teacher, coefficient=0.5))
    assert (half - wanted / 2).norm() / wanted.norm() < 1e-6


def every_token(policy):
    """One-token completions of one prompt, one for each token of the vocabulary."""
    prompt = [7, 8, 9]
    ids = range(len(policy.tokenizer))
    return TrainBatch([TrainGroup(prompt, [TrainSequence([i], [1], [0.0], 0.0) for i in ids])], 1.0)


def test_the_sampled_gradient_is_the_exact_one_in_expectation(tiny, small_teacher):
    """Every token once, weighed by how likely the student draws it."""
    policy, teacher = tiny(torch.float64), small_teacher(torch.float64)
    data = every_token(policy)
    own = [float(x) for x in learner(policy).logprobs(data)]
    assert sum(map(math.exp, own)) == pytest.approx(1)
    seen = [replace(s, behaviour=[lp]) for s, lp in zip(data.groups[0].sequences, own, strict=True)]
    tutor = Tutor(config(), LocalTeacher(teacher))
    told, figures = tutor.advise(TrainBatch([TrainGroup(data.groups[0].prompt_ids, seen)], 1.0))
    weighed = [
        replace(s, advantage=len(own) * math.exp(lp) * s.advantage[0])
        for s, lp in zip(told.groups[0].sequences, own, strict=True)
    ]
    found = gradient(policy, TrainBatch([TrainGroup(told.groups[0].prompt_ids, weighed)], 1.0))
    one = TrainBatch([TrainGroup(data.groups[0].prompt_ids, seen[:1])], 1.0)
    wanted = plain_gradient(policy, teacher, one)
    assert (found - wanted).norm() / wanted.norm() < 1e-6
    assert "flops" not in figures


@pytest.mark.parametrize("advantage", [0.0, 0.7], ids=["teacher alone", "with rewards"])
@pytest.mark.parametrize("beta", [1.0, 0.4])
def test_how_a_step_is_cut_does_not_change_the_exact_gradient(tiny, small_teacher, advantage, beta):
    policy, teacher = tiny(torch.float64), small_teacher(torch.float64)
    imitation, data = Imitation(teacher, 0.7, beta), batch(advantage)
    whole = gradient(policy, data, 10_000, imitation)
    assert whole.norm() > 1e-3
    for budget in (1, 12, 20):
        cut = gradient(policy, data, budget, imitation)
        assert (cut - whole).norm() / whole.norm() < 1e-6


def test_how_a_step_is_cut_does_not_change_the_sampled_gradient(tiny, small_teacher):
    policy, teacher = tiny(torch.float64), small_teacher(torch.float64)
    found = []
    for budget in (10_000, 1, 12, 20):
        tutor = Tutor(config(reward_weight=0.5), LocalTeacher(teacher, 0.8, budget))
        data, _ = tutor.advise(batch(0.7))
        found.append(gradient(policy, data, budget))
    assert found[0].norm() > 1e-3
    for cut in found[1:]:
        assert (cut - found[0]).norm() / found[0].norm() < 1e-6


@pytest.mark.parametrize("kl", ["sampled", "exact"])
def test_a_teacher_like_the_student_moves_nothing(tiny, kl):
    policy, teacher = tiny(), tiny()
    if kl == "exact":
        found = gradient(policy, batch(), imitation=Imitation(teacher))
    else:
        scores = iter(x.tolist() for x in learner(policy).logprobs(batch()))
        groups = [
            TrainGroup(g.prompt_ids, [replace(s, behaviour=next(scores)) for s in g.sequences])
            for g in batch().groups
        ]
        tutor = Tutor(config(), LocalTeacher(teacher, 0.8))
        data, figures = tutor.advise(TrainBatch(groups, 0.8))
        assert abs(figures["kl_teacher"]) < 1e-6
        found = gradient(policy, data)
    assert found.abs().max() < 1e-6


def test_a_local_teacher_scores_as_the_learner_does_however_it_is_cut(tiny):
    policy = tiny()
    data = batch(temperature=0.8)
    wanted = [row.tolist() for row in learner(policy).logprobs(data)]
    prompts = [g.prompt_ids for g in data.groups]
    completions = [[s.token_ids for s in g.sequences] + [[]] for g in data.groups]
    for budget in (1, 12, 10_000):
        told = LocalTeacher(policy, 0.8, budget).logprobs(prompts, completions)
        assert [group[-1] for group in told] == [[], [], []]
        rows = [row for group in told for row in group[:-1]]
        for row, other in zip(rows, wanted, strict=True):
            assert row == pytest.approx(other, abs=1e-5)
    assert policy.model.training


def test_a_local_teacher_runs_no_more_at_once_than_it_may(tiny, monkeypatch):
    seen = []

    def counted(policy, prompts, completions, temperature):
        seen.append(sum(map(len, prompts)) + sum(len(c) for group in completions for c in group))
        return score(policy, prompts, completions, temperature)

    monkeypatch.setattr("lydite.rollout.teacher.score", counted)
    policy, data = tiny(), batch()
    prompts = [g.prompt_ids for g in data.groups]
    completions = [[s.token_ids for s in g.sequences] for g in data.groups]
    LocalTeacher(policy, budget=16).logprobs(prompts, completions)
    # Prompts of 6, 3 and 4 tokens with completions of 5, 9, 1; 7, 2; 4, 6.
    assert seen == [11, 16, 12, 14]
    seen.clear()
    LocalTeacher(policy).logprobs(prompts, completions)
    assert seen == [47]


def test_more_than_the_teachers_context_is_one_line(tiny):
    with pytest.raises(UserError, match="129 tokens, and the teacher's context is 128"):
        LocalTeacher(tiny()).logprobs([[5] * 100], [[[6] * 29]])


def test_other_tokens_are_one_line(tiny):
    other = load_policy(tiny_model().model_copy(update={"vocabulary": [*"0123456789+= "]}))
    with pytest.raises(UserError, match=r"teacher: its tokens are not the student's \('a' is"):
        check_same_tokens(tiny().tokenizer, other.tokenizer, "stages.d.teacher")
    check_same_tokens(tiny().tokenizer, tiny().tokenizer, "stages.d.teacher")


class Table:
    """A teacher whose log-probability of token ``i`` is ``−i``."""

    def logprobs(self, prompts, completions):
        return [[[-float(i) for i in ids] for ids in group] for group in completions]


def test_advantages_by_hand():
    """log π is −2 for every token; the second of three is not the student's own."""
    sequence = TrainSequence([1, 9, 5], [1, 0, 1], [-2.0, -2.0, -2.0], 0.5)
    data = TrainBatch([TrainGroup([4, 4], [sequence])])
    settings = config(coefficient=2.0, clip=2.5, reward_weight=0.1)
    told, figures = Tutor(settings, Table(), flops=10.0).advise(data)
    # −1 − (−2) = 1 and −5 − (−2) = −3, held at −2.5; twice that, and 0.1 · 0.5 for each.
    assert told.groups[0].sequences[0].advantage == pytest.approx([2.05, 0.05, -4.95])
    assert figures == {
        "kl_teacher": pytest.approx((-1 + 3) / 2), "kl_clipped": 0.5, "flops": 50.0,
    }  # fmt: skip


class Right:
    def verify(self, problems, texts):
        return [Verdict(Outcome.CORRECT, 1.0) for _ in texts]

    def close(self):
        pass


def trainer(policy, teacher, verifier, **values):
    settings = config(steps=30, prompts_per_step=4, group_size=4, optimizer={"lr": 1e-2}, **values)
    exact = settings.kl == "exact"
    imitation = Imitation(teacher, settings.coefficient, settings.beta) if exact else None
    made = Learner(policy, settings.optimizer, settings.update, imitation=imitation)
    tutor = Tutor(
        settings, None if exact else LocalTeacher(teacher), flops_per_token(teacher.model)
    )
    parts = RLParts(
        local_engine(policy), verifier, made, settings.build_objective(), 1.0, guide=tutor,
        flops=flops_per_token(policy.model),
    )  # fmt: skip
    prompts = [
        Prompt(Problem(name, name, (Message("user", name),)), (7 + i, 8, 9))
        for i, name in enumerate("abcd")
    ]
    return RLTrainer(settings, parts, prompts, seed=0)


@pytest.mark.parametrize("kl", ["sampled", "exact"])
def test_the_student_comes_closer(tiny, small_teacher, kl):
    rl = trainer(tiny(), small_teacher(), Unverified(), kl=kl)
    results = [rl.step(step) for step in range(30)]
    apart = [result.metrics["kl_teacher"] for result in results]
    assert sum(apart[-5:]) < 0.6 * sum(apart[:5])
    assert results[0].metrics["groups"] == 4  # nothing is left out for want of a verdict
    assert not [code for result in results for code, _ in result.warnings]
    assert math.isnan(results[0].metrics["reward"])


def test_several_updates_on_a_rollout_have_a_ratio(tiny, small_teacher):
    rl = trainer(
        tiny(), small_teacher(), Unverified(), update={"minibatches": 2, "epochs": 2}
    )  # fmt: skip
    metrics = rl.step(0).metrics
    assert metrics["kl_old"] > 0 and metrics["ratio"] != 1


def test_flops_are_of_student_and_teacher(tiny, small_teacher):
    """By hand: sampling and one update of the student, one pass of the teacher."""
    policy, teacher = tiny(), small_teacher()
    # Tied: embedding and head once. Two layers of 32: q and o 32², k and v 16·32, MLP 3·32·64,
    # two norms; one norm at the end.
    student = 2 * (len(policy.tokenizer) * 32 + 2 * (2 * 32**2 + 2 * 16 * 32 + 6144 + 64) + 32)
    assert flops_per_token(policy.model) == student
    for kl in ("sampled", "exact"):
        metrics = trainer(tiny(), teacher, Right(), kl=kl).step(0).metrics
        prompts, drawn = 4 * 3, metrics["tokens"]
        own = student * (prompts + drawn) * (1 + 3)
        theirs = flops_per_token(teacher.model) * (prompts + drawn)
        assert metrics["flops"] == pytest.approx(own + theirs)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"kl": "exact", "clip": 1.0}, "clip and discount are of the sampled KL"),
        ({"kl": "exact", "discount": 0.5}, "clip and discount are of the sampled KL"),
        ({"beta": 0.5}, "set kl: exact"),
        ({"objective": "ppo"}, "has a critic, and a teacher takes its place"),
        ({"objective": "dapo"}, "leaves out groups by their rewards"),
        ({"reward_weight": 1.0, "verify": False}, "set reward_weight: 0"),
        ({"reward_weight": 1.0, "group_size": 1}, "sample at least 2 completions per prompt"),
        ({"sampling": {"temperature": 0}}, "draws the same completion"),
    ],
)
def test_what_has_no_meaning_is_one_line(values, said):
    with pytest.raises(UserError, match=said):
        config(**values)


def test_a_group_of_one_will_do_where_rewards_do_not_count():
    assert config(group_size=1).build_objective().name == "grpo+token_mean"


def test_exact_needs_flat_models(tiny):
    policy, other = tiny(), tiny()
    other.flat, other.not_flat = False, "its attention is its own"
    with pytest.raises(UserError, match=r"needs a teacher that runs on flat.*use kl: sampled"):
        learner(policy, imitation=Imitation(other))
