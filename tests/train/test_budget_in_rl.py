"""Thinking budgets in training: what is injected is in no gradient, no denominator, no length."""

from dataclasses import replace

import pytest
import torch

from lydite.config import UserError, validate
from lydite.model.policy import Policy
from lydite.model.reference import Reference
from lydite.model.scoring import score
from lydite.objective.objective import Objective
from lydite.objective.presets import PRESETS
from lydite.rollout.select import local_engine
from lydite.train.evaluate import Prompt, SamplingConfig
from lydite.train.filters import filter_samples
from lydite.train.learner import Learner, UpdateConfig
from lydite.train.optimizer import OptimizerConfig
from lydite.train.rejection import RejectionConfig, RejectionSampler
from lydite.train.rl import RLParts, RLTrainer
from lydite.train.rl_config import RLConfig
from lydite.types import (
    Completion,
    Message,
    Outcome,
    Problem,
    ThinkingBudget,
    Thought,
    TrainBatch,
    TrainGroup,
    TrainSequence,
    Verdict,
)

SPECS = [
    *PRESETS, "grpo+kl", "dapo+prompt_mean+entropy_bonus", "grpo+high_entropy_tokens", "gspo+tis",
    "grpo+mis+off_policy_mask", "rloo+kl_in_reward", "grpo+kl_cov",
]  # fmt: skip


def batch(injected: float) -> TrainBatch:
    """Two groups; two tokens amid each longer completion were injected, and whatever is said of
    them is ``injected``.
    """
    generator = torch.Generator().manual_seed(1)

    def ids(n):
        return torch.randint(5, 40, (n,), generator=generator).tolist()

    def sequence(n, advantage):
        mask = [1] * n if n < 5 else [1, 1, 0, 0] + [1] * (n - 4)
        behaviour = (-torch.rand(n, generator=generator) - 2).tolist()
        rows = [
            [value if bit else injected for value, bit in zip(values, mask, strict=True)]
            for values in (behaviour, [advantage] * n)
        ]
        return TrainSequence(ids(n), mask, *rows)

    groups = [
        TrainGroup(ids(6), [sequence(7, 1.2), sequence(9, -0.4), sequence(1, -0.8)]),
        TrainGroup(ids(3), [sequence(8, 0.9), sequence(3, -0.9)]),
    ]
    return TrainBatch(groups, 0.8)


def gradient(policy, spec, injected):
    learner = Learner(policy, OptimizerConfig(lr=1e-3), UpdateConfig(), Reference(policy))
    objective = Objective.parse(spec).with_limit(16)
    data = batch(injected)
    sequences = [s for g in data.groups for s in g.sequences]

    def beside(shift):
        return [
            torch.where(torch.tensor(s.loss_mask).bool(), row + shift * (i + 1), injected)
            for i, (row, s) in enumerate(zip(learner.logprobs(data), sequences, strict=True))
        ]

    references = beside(-0.03) if objective.needs_reference else None
    learner._accumulate(data, objective, beside(0.02), references)
    return torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])


@pytest.mark.parametrize("spec", SPECS)
def test_the_gradient_is_the_same_whatever_is_said_of_injected_tokens(tiny, spec):
    plain = gradient(tiny(torch.float64), spec, 0.0)
    assert plain.norm() > 0
    for injected in (50.0, -7.0):
        found = gradient(tiny(torch.float64), spec, injected)
        torch.testing.assert_close(found, plain, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("spec", "divisors"),
    [
        ("grpo", [5 * 5, 5 * 7, 5, 5 * 6, 5 * 3]),
        ("grpo+token_mean", [22] * 5),
        ("dr_grpo", [5 * 16] * 5),
    ],
)
def test_denominators_count_what_was_sampled(tiny, spec, divisors):
    """By hand: the gradient of Σ A·log π over sampled tokens, each over its divisor."""
    policy, data = tiny(torch.float64), batch(0.0)
    rows = [row for group in data.groups for row in group.sequences]
    logprobs = [
        score(policy, [g.prompt_ids], [[s.token_ids]], 0.8)[0][0]
        for g in data.groups
        for s in g.sequences
    ]
    terms = [
        (lp * lp.new_tensor(s.advantage) * lp.new_tensor(s.loss_mask)).sum() / divisor
        for lp, s, divisor in zip(logprobs, rows, divisors, strict=True)
    ]
    (-torch.stack(terms).sum()).backward()
    want = [p.grad.clone() for p in policy.model.parameters() if p.grad is not None]
    policy.model.zero_grad()
    learner = Learner(policy, OptimizerConfig(), UpdateConfig())
    learner._accumulate(data, Objective.parse(spec).with_limit(16), None, None)
    found = [p.grad for p in policy.model.parameters() if p.grad is not None]
    for ours, by_hand in zip(found, want, strict=True):  # the head's logits are float32
        assert (ours - by_hand).norm() < 1e-6 * by_hand.norm()


def test_a_critic_steps_over_what_was_injected():
    """Values, rewards and the mask by hand; λ = 1: the return less the value, from the last token
    on.
    """
    objective = Objective.parse({"preset": "ppo", "scale": "none", "gae.lam": 1.0})
    mask = torch.tensor([[1, 0, 0, 1]])
    for junk in (0.0, 99.0):
        advantages, returns = objective.token_advantages(
            rewards=torch.tensor([1.0]),
            values=torch.tensor([[0.25, junk, -junk, 0.5]]),
            mask=mask,
        )
        assert advantages.tolist() == [[0.75, 0, 0, 0.5]]
        assert (returns * mask).tolist() == [[1.0, 0, 0, 1.0]]


class Injecting:
    """Completion ``i`` has ``i + 1`` sampled tokens; two more are injected after the first of every
    other one.
    """

    version = 0

    def __init__(self):
        self.params = []

    def generate(self, requests):
        self.params += [r.params for r in requests]
        return [[self._one(r, i) for i in range(r.samples)] for r in requests]

    def _one(self, request, i):
        mask = (1, 0, 0) + (1,) * i if i % 2 else (1,) * (i + 1)
        return Completion(
            request.problem_id, i, request.prompt_ids, (7,) * len(mask),
            tuple(-0.5 if bit else 0.0 for bit in mask), mask, "stop", f"{i}",
            thought=Thought(4, i, cut=bool(i % 2)),
        )  # fmt: skip


class Table:
    def verify(self, problems, texts):
        return [
            Verdict(Outcome.CORRECT if int(t) > 1 else Outcome.WRONG, float(int(t) > 1))
            for t in texts
        ]

    def close(self):
        pass


class Seen:
    def __init__(self):
        self.batches = []

    def update(self, batch, objective, progress):
        self.batches.append(batch)
        return {}


PROBLEM = Problem("p", "p", (Message("user", "p"),), reference="1")


def rl(objective, engine=None, prompt=(1, 2), **sampling):
    given = {"max_tokens": 8, "thinking_budget": 4, "budget_phrase": "", **sampling}
    config = validate(
        RLConfig,
        {"steps": 4, "prompts_per_step": 1, "group_size": 4, "objective": objective,
         "sampling": given},
    )  # fmt: skip
    parts = RLParts(engine or Injecting(), Table(), Seen(), config.build_objective())
    return RLTrainer(config, parts, [Prompt(PROBLEM, prompt)], seed=0), parts


def test_metrics_count_budgets_and_lengths_what_was_sampled():
    trainer, parts = rl("grpo")
    result = trainer.step(0)
    assert parts.engine.params[0].thinking == ThinkingBudget((4,), phrase="")
    metrics = result.metrics
    assert metrics["budget_hits"] == 0.5
    assert metrics["injected"] == 1.0  # (0 + 2 + 0 + 2) / 4
    assert metrics["thinking_length"] == 1.5 and metrics["thinking_budget"] == 4
    assert metrics["length"] == 2.5 and metrics["tokens"] == 10
    assert metrics["entropy_sampled"] == pytest.approx(0.5)
    assert [(s.tokens, s.budget, s.thought, s.cut) for s in result.samples] == [
        (1, 4, 0, False), (2, 4, 1, True), (3, 4, 2, False), (4, 4, 3, True),
    ]  # fmt: skip
    masks = [s.loss_mask for s in parts.learner.batches[0].groups[0].sequences]
    assert masks == [(1,), (1, 0, 0, 1), (1, 1, 1), (1, 0, 0, 1, 1, 1)]


def test_lengths_are_punished_and_weighed_as_sampled():
    """Of 8 tokens the last 8·0.75 = 6 are a slope: length n costs (n − 2)/6 above 2."""
    objective = {"preset": "grpo", "overlong_cache": 0.75, "scale": "none", "baseline": "none"}
    trainer, parts = rl(objective)
    trainer.step(0)
    advantages = [s.advantage for s in parts.learner.batches[0].groups[0].sequences]
    assert advantages == pytest.approx([0, 0, 1 - 1 / 6, 1 - 2 / 6])
    objective = {"preset": "grpo", "baseline": "length_weighted", "scale": "none"}
    trainer, parts = rl(objective)
    trainer.step(0)
    advantages = [s.advantage for s in parts.learner.batches[0].groups[0].sequences]
    assert advantages == pytest.approx([-0.7, -0.7, 0.3, 0.3])  # (3 + 4) / (1 + 2 + 3 + 4)


def test_without_a_budget_no_metric_speaks_of_one(tiny):
    policy = tiny()
    trainer, parts = rl("grpo", local_engine(policy), thinking_budget=None, budget_phrase=None)
    parts = replace(parts, verifier=Length())
    result = RLTrainer(trainer.config, parts, [Prompt(PROBLEM, (1, 2))], seed=0).step(0)
    assert not {"budget_hits", "injected", "thinking_length"} & set(result.metrics)
    assert {(s.budget, s.thought, s.cut) for s in result.samples} == {(None, None, False)}


class Length(Table):
    """Longer is righter, so that groups differ."""

    def verify(self, problems, texts):
        return [Verdict(Outcome.CORRECT, float(len(text))) for text in texts]


def opened(policy: Policy) -> tuple[int, ...]:
    return tuple(policy.tokenizer("<user>a<assistant><think>", add_special_tokens=False).input_ids)


@pytest.mark.parametrize("per", ["prompt", "sample"])
def test_drawn_budgets_train_and_a_resumed_trainer_draws_them_again(tiny, per):
    budget = {"choices": [0, 2, 5], "per": per}

    def build():
        policy = tiny()
        trainer, parts = rl(
            "grpo", local_engine(policy, seed=3), opened(policy), thinking_budget=budget
        )
        learner = Learner(policy, OptimizerConfig(lr=1e-2), UpdateConfig())
        parts = replace(parts, learner=learner, verifier=Length())
        return RLTrainer(trainer.config, parts, [Prompt(PROBLEM, opened(policy))], seed=3)

    def told(result):
        return [(s.completion, s.budget, s.thought, s.cut, s.advantage) for s in result.samples]

    whole = build()
    first = [whole.step(step) for step in range(2)]
    tensors = {name: t.clone() for name, t in whole.state_tensors().items()}
    state = whole.state()
    rest = [told(whole.step(step)) for step in (2, 3)]
    resumed = build()
    resumed.load(tensors, state)
    assert [told(resumed.step(step)) for step in (2, 3)] == rest
    groups = [{budget for _, budget, *_ in told(r)} for r in first] + [
        {budget for _, budget, *_ in rows} for rows in rest
    ]
    assert len(set().union(*groups)) > 1
    assert all(len(group) == 1 for group in groups) == (per == "prompt")
    assert sum(r.metrics["grad_norm"] * r.metrics["budget_hits"] for r in first) > 0


def test_rejection_sampling_keeps_to_a_budget_and_drops_what_it_cut(tiny):
    policy = tiny()
    config = validate(
        RejectionConfig,
        {"samples": 6, "sampling": {"max_tokens": 20, "thinking_budget": 2},
         "filters": {"correct": False, "repetition": None}},
    )  # fmt: skip
    prompts = [Prompt(PROBLEM, opened(policy))]
    sampler = RejectionSampler(config, local_engine(policy), Length(), prompts)
    result = sampler.step(0)
    assert all(s.budget == 2 for s in result.samples)
    assert result.metrics["budget_hits"] == sum(s.cut for s in result.samples) / 6 > 0
    kept = filter_samples(result.samples, config.filters).kept
    assert not any(s.cut or s.finish == "length" for s in kept)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"thinking_budget": 7}, "thinking_budget: 7 leaves no room for an answer in max_tokens 8"),
        ({"thinking_budget": {"low": 2, "high": 7}}, "thinking_budget: 7 leaves no room"),
        ({"thinking_budget": -1}, "a budget is 0 tokens or more"),
        ({"thinking_budget": {"low": 4, "high": 2}}, "the lower one first"),
        ({"thinking_budget": {"low": 4}}, "the lower one first"),
        ({"thinking_budget": {"low": 4, "choices": [3]}}, "give choices, or low and high"),
        ({"thinking_budget": []}, "give choices, or low and high"),
        ({"thinking_budget": "many"}, "give a number of tokens, a list of them, or null"),
        ({"thinking_budget": True}, "give a number of tokens, a list of them, or null"),
        ({"budget_phrase": "so"}, "there is no thinking_budget"),
        ({"thinking_budget": 2, "budget_phrase": "so</think>"}, "leave tags out"),
    ],
)
def test_a_budget_that_cannot_be_is_refused_in_one_line(given, line):
    with pytest.raises(UserError, match=line) as caught:
        validate(RLConfig, {"sampling": {"max_tokens": 8, **given}}, "recipe.yaml")
    assert "\n" not in str(caught.value) and "sampling" in str(caught.value)


@pytest.mark.parametrize(
    ("given", "tokens", "per_sample"),
    [
        (16, (16,), False),
        ([4, 8], (4, 8), False),
        ({"low": 3, "high": 6}, range(3, 7), False),
        ({"choices": [4, 8], "per": "sample"}, (4, 8), True),
    ],
)
def test_how_budgets_are_written(given, tokens, per_sample):
    config = validate(SamplingConfig, {"thinking_budget": given, "budget_phrase": "so"})
    assert config.params().thinking == ThinkingBudget(tokens, per_sample, "so")
    assert SamplingConfig().params().thinking is None
