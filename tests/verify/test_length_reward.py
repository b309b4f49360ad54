"""Length terms, by numbers worked out by hand."""

import json
from pathlib import Path

import pytest

from lydite.config import UserError, validate
from lydite.types import Problem
from lydite.verify import VerifierConfig, build
from lydite.verify.length import overlong_penalty, relative_terms, shortest_correct_terms
from lydite.verify.table import verify_file


def exact(name: str) -> Problem:
    return Problem(name, "q", (), "7")


def test_overlong() -> None:
    # L_max 20,480, L_cache 4,096: as in DAPO.
    lengths = [0, 16384, 17408, 20480, 20481, 10**6]
    found = [overlong_penalty(length, 20480, 4096) for length in lengths]
    assert found == [0.0, 0.0, -0.25, -1.0, -1.0, -1.0]
    verifier = build(
        VerifierConfig.model_validate(
            {"kind": "length", "limit": 10, "cache": 0.5, "unit": "words", "part": "answer"}
        )
    )
    texts = ["<think>" + "so " * 50 + "</think> " + "w " * count for count in (5, 7, 12)]
    verdicts = verifier.verify([exact("a")] * 3, texts)
    assert [v.reward for v in verdicts] == pytest.approx([0.0, -0.4, -1.0])


def test_relative() -> None:
    # 100..300: λ = 0.5, 0, −0.5; an incorrect one gets min(0, λ).
    assert relative_terms([100, 200, 300], [True, True, True]) == [0.5, 0.0, -0.5]
    assert relative_terms([100, 200, 300], [False, False, False]) == [0.0, 0.0, -0.5]
    assert relative_terms([100, 150, 300], [True, False, True]) == [0.5, 0.0, -0.5]
    assert relative_terms([9, 9], [True, False]) == [0.0, 0.0]


def test_shortest_correct() -> None:
    assert shortest_correct_terms([3, 5, 5, 1], [True, True, True, False]) == [1, 0, 0, 0]
    assert shortest_correct_terms([3, 3, 5], [True, True, True]) == [1, 1, 0]
    assert shortest_correct_terms([3, 5], [True, False]) == [0, 0]
    assert shortest_correct_terms([3, 3], [True, True]) == [0, 0]
    assert shortest_correct_terms([3, 5], [False, False]) == [0, 0]


def test_groups_are_the_problems_that_stand_together() -> None:
    config = {"rewards": ["exact", {"kind": "length", "rule": "relative", "weight": 0.5}]}
    verifier = build(VerifierConfig.model_validate(config))
    a, b = exact("a"), exact("b")
    texts = ["<answer>7</answer>", "<answer>7</answer>  x", "<answer>8</answer>xxxxxx", "7", "77"]
    verdicts = verifier.verify([a, a, a, b, b], texts)
    # Group a: 18, 21 and 24 characters; group b: 1 and 2.
    assert [v.parts["length"] for v in verdicts] == pytest.approx([0.5, 0.0, -0.5, 0.5, -0.5])
    assert [v.reward for v in verdicts] == pytest.approx([1.25, 1.0, -0.25, 1.25, -0.25])
    assert [v.outcome for v in verdicts] == ["correct", "correct", "wrong", "correct", "wrong"]
    alone = verifier.verify([a], texts[:1])[0]
    assert alone.parts["length"] == 0.0


def test_an_undecided_completion_is_compared_with_nothing() -> None:
    def score(completions: list[str]) -> list[float | None]:
        return [None if c == "undecidable" else 1.0 for c in completions]

    config = {
        "rewards": [
            {"kind": "function", "function": score, "isolation": "inline"},
            {"kind": "length", "rule": "relative"},
        ]
    }
    verifier = build(VerifierConfig.model_validate(config))
    verdicts = verifier.verify([exact("a")] * 3, ["aa", "undecidable", "aaaa"])
    assert [v.reward for v in verdicts] == [1.5, None, 0.5]
    assert verdicts[1].outcome == "ungradable"


@pytest.mark.parametrize(
    ("rewards", "said"),
    [
        (["length"], "rule overlong needs one"),
        ([{"kind": "length", "rule": "relative", "limit": 9}, "math"], "has none; leave it out"),
        (["format", {"kind": "length", "rule": "relative"}], "which completions are correct"),
        (
            [
                {
                    "kind": "gate",
                    "require": "format",
                    "then": [{"kind": "length", "rule": "relative"}],
                }
            ],
            "beside the other rewards",
        ),
    ],
)
def test_settings_that_cannot_work(rewards: list[object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        validate(VerifierConfig, {"rewards": rewards})


def test_a_file_keeps_the_lines_of_a_problem_together(tmp_path: Path) -> None:
    file, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows = [{"id": f"p{n // 9}", "gold": "7", "completion": " " * (n % 9) + "7"} for n in range(18)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {"rewards": ["exact", {"kind": "length", "rule": "relative"}]}
    verify_file(file, VerifierConfig.model_validate(config), out)
    found = [json.loads(line)["parts"]["length"] for line in out.read_text().splitlines()]
    assert found == pytest.approx([0.5 - n / 8 for n in range(9)] * 2)
