"""A step's gradient does not depend on how it is cut, ordered or padded; dropped is never there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from lydite.objective import PRESETS, Counts, Metrics, Objective

SPECS: list[Any] = [
    *PRESETS,
    "grpo+kl+tis+dual_clip",
    "gspo+token_mean+kl",
    "dr_grpo+clip_higher+tis",
    "grpo+mis+prompt_mean",
    "grpo+icepop+off_policy_mask",
    "dapo+kl_unbiased+entropy_bonus",
    "rloo+kl_in_reward",
    "grpo+high_entropy_tokens",
    "dapo+kl_cov",
    {"correction": "tis_sequence"},
    {"patches": ["clip_cov"], "token_filter.share": 0.2},
    # wider than published, so that some sequences are left
    {"patches": ["geometric_mask"], "correction.low": 0.8, "correction.high": 1.2},
]


@dataclass(frozen=True)
class Step:
    """Twelve completions of four prompts, as parallel tensors."""

    base: Tensor
    old: Tensor
    behaviour: Tensor
    reference: Tensor
    advantages: Tensor
    mask: Tensor
    groups: Tensor

    def take(self, rows: Sequence[int]) -> Step:
        return Step(*(getattr(self, name)[list(rows)] for name in self.__dataclass_fields__))


def make_step(seed: int = 0) -> Step:
    noise = torch.Generator().manual_seed(seed)
    width, rows = 7, 12
    draws = torch.randn(4, rows, width, generator=noise, dtype=torch.float64) * 0.3
    lengths = torch.tensor([7, 1, 3, 2, 7, 5, 4, 0, 6, 1, 1, 2])
    mask = torch.arange(width)[None] < lengths[:, None]
    mask[4, 2:4] = False  # tokens that a tool wrote
    rewards = torch.randn(4, 3, generator=noise, dtype=torch.float64)
    advantages = Objective.parse("grpo").advantages(rewards).reshape(-1)
    return Step(
        draws[0] - 2, draws[1] - 2, draws[2] - 2, draws[3] - 2, advantages, mask, groups=_groups()
    )


def _groups() -> Tensor:
    return torch.arange(4).repeat_interleave(3)


def pad(step: Step, extra: int) -> Step:
    def wider(values: Tensor, fill: float) -> Tensor:
        return torch.cat([values, values.new_full((len(values), extra), fill)], dim=1)

    return Step(
        base=wider(step.base, 50.0),
        old=wider(step.old, math.nan),
        behaviour=wider(step.behaviour, -math.inf),
        reference=wider(step.reference, math.inf),
        advantages=step.advantages,
        mask=wider(step.mask, 0),
        groups=step.groups,
    )


def model(step: Step, theta: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies ``[B, T]`` of three parameters."""
    position = torch.arange(step.base.shape[1], dtype=torch.float64)
    policy = step.base * theta[0] + theta[1] * position + theta[2] * step.base.square()
    return policy, 2 + (step.base * theta[2] + theta[1] * position).sin()


def gradient(
    spec: Any, step: Step, cut: Sequence[Sequence[int]]
) -> tuple[Tensor, dict[str, float]]:
    """d loss / d θ for log-probs ``base·θ_0 + θ_1·t + θ_2·base²``, and the metrics."""
    objective = Objective.parse(spec).with_limit(7)
    counts = Counts.of(step.mask, step.groups)
    theta = torch.tensor([1.0, 0.05, 0.01], dtype=torch.float64, requires_grad=True)
    measured = []
    policy, entropy = model(step, theta.detach())
    picked = objective.pick(
        policy=policy, entropy=entropy, advantages=step.advantages, mask=step.mask
    )
    in_prompt = torch.tensor([int(step.mask[step.groups == g].sum()) for g in step.groups])
    for rows in cut:
        part = step.take(rows)
        policy, entropy = model(part, theta)
        loss, metrics = objective.loss(
            policy=policy,
            old=part.old,
            behaviour=part.behaviour,
            reference=part.reference,
            advantages=part.advantages,
            mask=part.mask,
            counts=counts,
            entropy=entropy,
            prompt_tokens=in_prompt[list(rows)],
            picked=picked[list(rows)],
        )
        loss.backward()
        measured.append(metrics)
    assert theta.grad is not None
    return theta.grad, sum(measured, Metrics()).means()


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    assert ((ours - theirs).norm() / theirs.norm()).item() <= 1e-12


ALL = list(range(12))
CUTS = {
    "one each": [[i] for i in ALL],
    "uneven": [ALL[:1], ALL[1:4], ALL[4:11], ALL[11:]],
    "reversed": [ALL[::-1]],
    "shuffled": [[5, 0, 9], [1, 11, 7, 2], [3, 10], [4, 8, 6]],
}


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("cut", CUTS)
def test_any_cut_into_micro_batches(spec: Any, cut: str) -> None:
    step = make_step()
    whole, metrics = gradient(spec, step, [ALL])
    assert whole.abs().min() > 0
    ours, added = gradient(spec, step, CUTS[cut])
    assert_same(ours, whole)
    assert added == pytest.approx(metrics, rel=1e-12)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_padding(spec: Any) -> None:
    step = make_step()
    assert_same(gradient(spec, pad(step, 9), [ALL])[0], gradient(spec, step, [ALL])[0])


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_dropped_sequence_was_never_there(spec: Any) -> None:
    step = make_step(1)
    kept = [i for i in ALL if i not in (2, 4, 6)]
    step.mask[[2, 4, 6]] = False
    step.advantages[4] = math.nan
    assert_same(gradient(spec, step, [ALL])[0], gradient(spec, step.take(kept), [range(9)])[0])


def test_a_mean_per_micro_batch_is_another_gradient() -> None:
    """The defect that this file guards against, made on purpose: these tests can see it."""
    step = make_step()
    whole, _ = gradient("dapo", step, [ALL])
    halves = [gradient("dapo", step.take(rows), [range(6)])[0] for rows in (ALL[:6], ALL[6:])]
    mean_of_means = (halves[0] + halves[1]) / 2
    assert ((mean_of_means - whole).norm() / whole.norm()).item() > 1e-2


def test_counts() -> None:
    step = make_step()
    # sequence 7 is empty; lengths 7 1 3 2 5(7−2) 5 4 0 6 1 1 2
    assert Counts.of(step.mask, step.groups) == Counts(tokens=37, sequences=11, prompts=4)
    assert Counts.of(step.mask) == Counts(tokens=37, sequences=11, prompts=11)
    parts = [Counts.of(step.mask[i : i + 3], step.groups[i : i + 3]) for i in range(0, 12, 3)]
    assert sum(parts, Counts()) == Counts(tokens=37, sequences=11, prompts=4)


def test_advantages_per_token_equal_one_per_sequence() -> None:
    step = make_step()
    spread = Step(
        **{**step.__dict__, "advantages": step.advantages[:, None].expand(12, 7).contiguous()}
    )
    for spec in ("grpo", "gspo", "dapo"):
        assert_same(gradient(spec, spread, [ALL])[0], gradient(spec, step, [ALL])[0])


def test_dapo_against_a_loop_written_from_the_paper() -> None:
    """arXiv 2503.14476, equations 8 and 9, one number at a time."""
    noise = torch.Generator().manual_seed(3)
    rewards = torch.tensor([[1.0, -1, -1, 1], [1, -1, 1, 1]], dtype=torch.float64)
    lengths = [3, 5, 1, 4, 2, 5, 5, 1]
    policy = torch.randn(8, 5, generator=noise, dtype=torch.float64) * 0.4
    old = torch.randn(8, 5, generator=noise, dtype=torch.float64) * 0.4
    total = 0.0
    for i in range(8):
        group = rewards[i // 4].tolist()
        mean = sum(group) / 4
        std = math.sqrt(sum((r - mean) ** 2 for r in group) / 4)
        advantage = (group[i % 4] - mean) / std
        for t in range(lengths[i]):
            ratio = math.exp(policy[i, t].item() - old[i, t].item())
            held = min(max(ratio, 1 - 0.2), 1 + 0.28)
            total += min(ratio * advantage, held * advantage)
    mask = torch.arange(5)[None] < torch.tensor(lengths)[:, None]
    objective = Objective.parse("dapo")
    loss, _ = objective.loss(
        policy=policy,
        old=old,
        advantages=objective.advantages(rewards).reshape(-1),
        mask=mask,
        counts=Counts.of(mask),
    )
    assert loss.item() == pytest.approx(-total / sum(lengths), rel=1e-12)
