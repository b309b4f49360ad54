"""The reward of a reward model: what it is shown, and what becomes of its numbers."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForSequenceClassification
from typer.testing import CliRunner

from lydite.cli.main import app
from lydite.config import UserError, validate
from lydite.model.tiny_tokenizer import build_tokenizer
from lydite.types import Message, Outcome, Problem
from lydite.verify import VerifierConfig, build
from lydite.verify.reward_model import RewardModelReward, label_of, reward_of
from lydite.verify.reward_model_config import RewardModelConfig

PROBLEM = Problem("p", "one", (Message("user", "one"),), "7")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rewards")
    torch.manual_seed(3)
    tokenizer = build_tokenizer(list("abcdefghijklmnopqrstuvwxyz0123456789\\{} "), 96)
    shape = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=96, num_labels=1,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    model = LlamaForSequenceClassification(shape)
    torch.nn.init.normal_(model.score.weight, std=1.0)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def made(folder: Path, **settings: Any) -> RewardModelReward:
    config = RewardModelConfig.model_validate({"model": str(folder), **settings})
    return RewardModelReward(config, "helpful")


def rewards(reward: RewardModelReward, *texts: str) -> list[float | None]:
    return [score.reward for score in reward.score([PROBLEM] * len(texts), list(texts))]


def test_the_answer_alone_is_shown_unless_told_otherwise(folder: Path) -> None:
    reward = made(folder)
    plain, thought, other = rewards(
        reward, "two", "<think>so</think>two", "<think>no no</think>two"
    )
    assert plain == thought == other
    whole = made(folder, sees="whole")
    assert len(set(rewards(whole, "two", "<think>so</think>two", "<think>no</think>two"))) == 3
    assert rewards(whole, "two") == [plain]
    assert rewards(made(folder, sees="thinking"), "<think>two</think>x") == [plain]


def test_thinking_left_open_pays_what_an_empty_answer_pays(folder: Path) -> None:
    scores = made(folder).score([PROBLEM] * 2, ["<think>a b c", ""])
    assert [score.outcome for score in scores] == [Outcome.UNPARSEABLE] * 2
    assert scores[0].reward == scores[1].reward and scores[0].reward is not None


def test_order_and_company_change_nothing(folder: Path) -> None:
    texts = ["a", "two three", "x y z", "a"]
    reward = made(folder)
    forth, back = rewards(reward, *texts), rewards(reward, *texts[::-1])
    assert forth == pytest.approx(back[::-1], abs=1e-6) and forth[0] == forth[3]
    assert rewards(reward, *texts) == forth


def test_numbers_are_normalised_then_transformed_then_clipped() -> None:
    def of(logits: list[float], label: int = 0, **settings: Any) -> float | None:
        config = RewardModelConfig.model_validate({"model": "m", **settings})
        return reward_of(logits, label, config)

    assert of([3.0]) == 3.0
    assert of([3.0], center=1.0, scale=4.0) == 0.5
    assert of([3.0], center=3.0, transform="sigmoid") == 0.5
    assert of([math.log(3)], transform="sigmoid") == pytest.approx(0.75)
    assert of([-1e4], transform="sigmoid") == 0.0 and of([1e4], transform="sigmoid") == 1.0
    logits = [math.log(2), 0.0, math.log(5)]
    assert of(logits, 2, transform="softmax") == pytest.approx(5 / 8)
    assert of([2 * each for each in logits], 0, scale=2.0, transform="softmax") == pytest.approx(
        2 / 8
    )
    assert of([1e4, 0.0], 1, transform="softmax") == 0.0
    assert [of([x], clip=[-1.0, 2.0]) for x in (-5.0, 0.5, 9.0)] == [-1.0, 0.5, 2.0]
    assert of([10.0], center=4.0, scale=2.0, clip=[0.0, 1.0]) == 1.0
    for bad in (math.nan, math.inf, -math.inf):
        assert of([bad], clip=[0.0, 1.0], transform="sigmoid") is None
    assert of([1.0, math.nan], transform="softmax") is None


def test_the_output_that_counts_is_named() -> None:
    assert label_of(None, ["LABEL_0"], "r") == 0
    assert label_of(1, ["bad", "good"], "r") == 1 and label_of("good", ["bad", "good"], "r") == 1
    with pytest.raises(UserError, match=r"^r\.label: it has several outputs; name one of 0 \(bad"):
        label_of(None, ["bad", "good"], "r")
    for wrong in (2, -1, "best"):
        with pytest.raises(UserError, match=f"no output {wrong!r}"):
            label_of(wrong, ["bad", "good"], "r")


def test_what_is_not_finite_is_ours_and_pays_nothing(folder: Path, tmp_path: Path) -> None:
    model = LlamaForSequenceClassification.from_pretrained(folder)
    torch.nn.init.constant_(model.score.weight, float("nan"))
    model.save_pretrained(tmp_path)
    reward = made(tmp_path, tokenizer=str(folder), clip=[0, 1])
    score = reward.score([PROBLEM], ["two"])[0]
    assert (score.outcome, score.reward) == (Outcome.CRASHED, None) and "nan" in score.detail
    assert reward.check_golds([PROBLEM]) == ["the reward model gives nan"]


def test_what_was_cut_is_said(folder: Path) -> None:
    reward = made(folder, max_tokens=10)
    problem = Problem("q", "", (Message("user", "hello"),))
    score = reward.score([problem], ["0123456789"])[0]
    assert score.detail == "5 characters of the prompt were cut; 4 characters of the completion " \
        "were cut"  # fmt: skip


def test_beside_math_it_does_not_say_what_is_correct(folder: Path) -> None:
    given = {"kind": "reward_model", "model": str(folder), "weight": 0.5}
    verifier = build(validate(VerifierConfig, {"rewards": [given, "math"]}), [PROBLEM])
    try:
        right, wrong = verifier.verify([PROBLEM] * 2, ["\\boxed{7}", "\\boxed{8}"])
        assert (right.outcome, wrong.outcome) == (Outcome.CORRECT, Outcome.WRONG)
        for verdict, math_part in ((right, 1.0), (wrong, 0.0)):
            part = verdict.parts["reward_model"]
            assert part is not None and verdict.reward == pytest.approx(0.5 * part + math_part)
    finally:
        verifier.close()


def test_a_model_that_is_not_there_is_found_before_a_run() -> None:
    config = validate(VerifierConfig, {"rewards": {"kind": "reward_model", "model": "./nowhere"}})
    with pytest.raises(UserError, match=r"^reward_model\.model: no folder \./nowhere$"):
        build(config, [PROBLEM])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "give one of model .* and from_stage"),
        ({"model": "m", "clip": [1, 0]}, r"clip: \[1\.0, 0\.0\] is empty"),
        ({"model": "m", "scale": 0}, "scale: "),
        ({"model": "m", "template": "{prompt}"}, r"template: no \{completion\}"),
    ],
)
def test_bad_settings_are_one_line(values: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        validate(VerifierConfig, {"rewards": {"kind": "reward_model", **values}})
    assert "\n" not in str(caught.value)


def test_torch_is_loaded_with_the_model_and_not_before() -> None:
    code = (
        "import sys; from lydite.verify import build, VerifierConfig; "
        "from lydite.config import validate; "
        "build(validate(VerifierConfig, {'rewards': {'kind': 'reward_model', 'model': 'm'}})); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_the_command_takes_a_reward_model(folder: Path, tmp_path: Path) -> None:
    rows = [{"question": "one", "completion": text} for text in ("two", "three", "three")]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "rm.yaml").write_text(json.dumps({"kind": "reward_model", "model": str(folder)}))
    arguments = ["verify", "--verifier", str(tmp_path / "rm.yaml")]
    arguments += ["--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out.jsonl")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    paid = [line["parts"]["reward_model"] for line in lines]
    assert paid[1] == paid[2] != paid[0]
