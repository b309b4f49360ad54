"""The one-file example runs, and its parts compute what it says they do."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

FILE = Path(__file__).parents[2] / "examples" / "grpo_from_scratch.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("grpo_from_scratch", FILE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def problems(example: ModuleType, count: int) -> list:  # type: ignore[type-arg]
    return example.generate(list(example.KINDS), count, 0, "train", example.COLD_START)


def test_it_is_short() -> None:
    assert len(FILE.read_text().splitlines()) < 300


def test_the_smoke_run_finishes(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = example.main(["--smoke", "--seed", "5"])
    assert 0 <= before <= 1 and 0 <= after <= 1
    said = capsys.readouterr().out
    assert "6 held-out prompts, all distinct" in said
    rewards = [float(line.split()[3]) for line in said.splitlines() if "reward" in line]
    assert len(rewards) == 2 and all(math.isfinite(r) for r in rewards)


def test_three_right_of_eight(example: ModuleType) -> None:
    rewards = torch.tensor([[1.0, 1, 1, 0, 0, 0, 0, 0], [1.0] * 8, [0.0] * 8])
    advantages = example.group_advantages(rewards)
    assert advantages[0].tolist() == pytest.approx([1.291] * 3 + [-0.7746] * 5, abs=1e-3)
    assert not advantages[1:].any()


def test_the_clip_stops_the_gradient_where_the_policy_has_moved_far(example: ModuleType) -> None:
    advantage = torch.tensor([[1.0, 1.0, -1.0, -1.0]])
    policy = torch.tensor([[0.3, 0.1, -0.3, 0.3]], requires_grad=True)
    loss = example.surrogate(policy, torch.zeros(1, 4), advantage, torch.ones(1, 4))
    loss.backward()
    # Ratios 1.350, 1.105, 0.741, 1.350: the first is above 1.28, the third below 0.8.
    assert policy.grad is not None
    assert policy.grad[0].tolist() == pytest.approx([0, -1.1052 / 4, 0, 1.3499 / 4], abs=1e-4)
    assert loss.item() == pytest.approx(-(1.28 + 1.1052 - 0.8 - 1.3499) / 4, abs=1e-4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>7+5=12;4+8+1=13</think><answer>132</answer><eos>", 1),
        ("<think>guess</think><answer>132</answer><eos>", 1),
        ("<think>guess</think><answer>131</answer><eos>", 0),
        ("guess so 132<eos>", 0),
        ("<think>guess</think><answer>132</answer>", 0),
        ("<answer>132</answer><think>guess</think><eos>", 0),
        ("<think>guess</think><answer>132</answer><answer>132</answer><eos>", 0),
    ],
)
def test_the_reward_wants_the_answer_in_its_form(
    example: ModuleType, text: str, expected: float
) -> None:
    problem = example.Problem("p", "add 47+85", (), "132", "add")
    answer = example.Answer([], example.TOKENIZER.encode(text).ids)
    assert example.reward(problem, answer) == expected


def test_sampling_reports_the_log_probabilities_that_learning_computes(
    example: ModuleType,
) -> None:
    """Left padding, the cache and the dropping of finished rows must not change a number."""
    torch.manual_seed(0)
    settings = example.SMOKE
    model = example.build_model(settings)
    prompts = [example.ask(p) for p in problems(example, 6)]
    assert len({len(prompt) for prompt in prompts}) > 1
    answers = example.sample(model, settings, prompts, 16)
    assert [a.prompt for a in answers] == [p for p in prompts for _ in range(16)]
    lengths = {len(a.tokens) for a in answers}
    assert min(lengths) < max(lengths) == settings.max_new
    ids, mask, old, _ = example.collate(answers)
    learned = example.token_logprobs(model, ids)
    assert ((learned - old) * mask).abs().max().item() < 1e-4


def test_imitation_learns_what_it_is_shown(example: ModuleType) -> None:
    torch.manual_seed(0)
    model = example.build_model(example.SMOKE)
    shown = problems(example, 32)
    answers = [
        example.Answer(example.ask(p), example.TOKENIZER.encode(f"{p.worked}<eos>").ids)
        for p in shown
    ]

    def loss() -> float:
        ids, mask, _, _ = example.collate(answers)
        with torch.no_grad():
            return float(-(example.token_logprobs(model, ids) * mask).sum() / mask.sum())

    at_first = loss()
    example.imitate(model, example.SMOKE, shown * 60, 3e-3)
    assert loss() < at_first / 2
