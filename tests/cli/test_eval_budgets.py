"""``lydite eval --budgets`` on a small model that has just been trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lydite.watch.samples import read_samples


def test_a_recipe_is_measured_at_each_budget(cli: Any, finished: Path, tmp_path: Path) -> None:
    result = cli(
        "eval", finished / "model", "--recipe", finished.parent / "recipe.yaml",
        "--budgets", "none,2,0", "--png", "b.png", "-o", "answers.parquet",
    )  # fmt: skip
    assert result.exit_code == 0, (result.stderr, result.exception)
    rows = [line.split() for line in result.stdout.splitlines()]
    assert [row[1] for row in rows if row[:1] == ["heldout"]] == ["0", "2", "none"]
    assert "heldout: accuracy on 4 problems by thinking budget" in result.stdout
    assert (tmp_path / "b.png").read_bytes()[:4] == b"\x89PNG"
    answers = read_samples(tmp_path / "answers.parquet")
    assert [a.budget for a in answers] == [0] * 4 + [2] * 4 + [None] * 4
    free = read_samples(finished / "samples/rl-heldout/step-000004.parquet")
    assert [a.completion for a in answers[8:]] == [a.completion for a in free]


def test_a_file_is_measured_at_each_budget(cli: Any, finished: Path, tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text(json.dumps({"question": "add 1+2", "answer": "3"}))
    result = cli(
        "eval", finished / "model", "-t", "test.jsonl", "--budgets", "0,1", "--max-tokens", "9",
        "--budget-phrase", " so ", "-o", "a.parquet",
    )  # fmt: skip
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert [a.budget for a in read_samples(tmp_path / "a.parquet")] == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--budgets", "4,x"], "--budgets: 'x' is no number of tokens"),
        (["--budgets", "60"], "thinking_budget: 60 tokens of thought"),
        (["--png", "b.png"], "--budgets: --png and --budget-phrase go with it"),
        (["--budget-phrase", "so"], "--budgets: --png and --budget-phrase go with it"),
        (["--budgets", "2", "--png", "b.jpg"], "--png: b.jpg: give a .png file"),
        (["--budgets", "2", "--budget-phrase", "<think>"], "--budget-phrase: </think> follows"),
        (
            ["--budgets", "2", "--budget-phrase", "Zeit"],
            "budget_phrase: the tokenizer has no token",
        ),
    ],
)
def test_mistakes(arguments: list[str], says: str, cli: Any, finished: Path) -> None:
    recipe = finished.parent / "recipe.yaml"
    result = cli("eval", finished / "model", "--recipe", recipe, *arguments)
    assert result.exit_code == 2, (result.output, result.exception)
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1 and says in result.stderr


def test_without_a_task_or_a_recipe_it_says_what_to_give(cli: Any, finished: Path) -> None:
    result = cli("eval", finished / "model")
    assert result.exit_code == 2 and "--tasks: name a file of problems" in result.stderr
