"""Patterns, and what they may cost."""

import time

import pytest

from lydite.config import UserError, validate
from lydite.types import Problem
from lydite.verify import VerifierConfig, build

ANY = Problem("a", "q", ())


def rewards(settings: dict[str, object], texts: list[str]) -> list[tuple[str, float | None]]:
    verifier = build(VerifierConfig.model_validate({"kind": "regex", **settings}))
    verdicts = verifier.verify([ANY] * len(texts), texts)
    verifier.close()
    return [(v.outcome.value, v.reward) for v in verdicts]


def test_search_and_full_match_of_the_answer() -> None:
    right, wrong = ("correct", 1.0), ("wrong", 0.0)
    texts = ["<think>12</think> x", "<think>x</think> 12 ", "12 apples"]
    assert rewards({"pattern": r"\d+"}, texts) == [wrong, right, right]
    assert rewards({"pattern": r"\d+", "match": "full"}, texts) == [wrong, right, wrong]
    assert rewards({"pattern": r"^\d+$", "part": "thinking"}, texts) == [right, wrong, wrong]
    assert rewards({"pattern": "(?i)APPLES", "max_chars": 9}, ["12 apples", "120 apples"]) == [
        right,
        ("unparseable", 0.0),
    ]


def test_backtracking_without_end_costs_its_limit_and_none_of_its_neighbours() -> None:
    begun = time.monotonic()
    verifier = build(
        VerifierConfig.model_validate(
            {
                "rewards": {"kind": "regex", "pattern": r"(a+)+b"},
                "limits": {"seconds": 0.5, "workers": 1},
            }
        )
    )
    verdicts = verifier.verify([ANY] * 3, ["aab", "a" * 60, "aaab"])
    verifier.close()
    assert [(v.outcome, v.reward) for v in verdicts] == [
        ("correct", 1.0),
        ("timeout", 0.0),
        ("correct", 1.0),
    ]
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize("pattern", ["(", "[z-a]", "(?P<x>a)(?P<x>b)", "*", "a{99999999999999999}"])
def test_a_pattern_that_does_not_compile_is_one_line(pattern: str) -> None:
    with pytest.raises(UserError, match="pattern: no regular expression: ") as caught:
        validate(VerifierConfig, {"kind": "regex", "pattern": pattern})
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="pattern"):
        validate(VerifierConfig, {"rewards": "regex"})
