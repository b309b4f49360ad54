"""Repeated n-grams, by numbers worked out by hand."""

import pytest

from lydite.types import Problem
from lydite.verify import VerifierConfig, build
from lydite.verify.repetition import repeated_share

ANY = Problem("a", "q", ())


@pytest.mark.parametrize(
    ("text", "n", "share"),
    [
        ("a b c a b c", 2, 2 / 5),  # ab bc ca ab bc: 3 of 5 differ
        ("a b c d", 2, 0.0),
        ("A a A a", 1, 3 / 4),  # case is not a difference
        ("a b", 3, 0.0),  # no 3-gram
        ("", 1, 0.0),
        ("!!!!!", 1, 4 / 5),
        ("計算計算", 1, 2 / 4),  # characters, where there are no spaces
        ("so, so, so", 2, 2 / 4),  # "so ," ", so" "so ," ", so"
    ],
)
def test_share(text: str, n: int, share: float) -> None:
    assert repeated_share(text, n) == pytest.approx(share)


@pytest.mark.parametrize("text", ["the " * 500, "ha" * 5000, "哈" * 500, "?" * 500, "🙂" * 500])
def test_one_token_again_and_again(text: str) -> None:
    assert repeated_share(text, 4) > 0.95


def test_reward_falls_from_what_is_allowed() -> None:
    settings = {"kind": "repetition", "n": 2, "allowed": 0.2}
    verifier = build(VerifierConfig.model_validate(settings))
    verdicts = verifier.verify([ANY] * 3, ["a b c a b c", "a b c d a b", "a a a a a a"])
    # 2/5 repeated: (0.4 − 0.2)/0.8; 1/5 is allowed; 4/5: 0.6/0.8.
    assert [v.reward for v in verdicts] == pytest.approx([-0.25, 0.0, -0.75])
    assert [v.outcome for v in verdicts] == ["wrong", "correct", "wrong"]


def test_only_the_part_that_is_asked_for() -> None:
    verifier = build(VerifierConfig.model_validate({"kind": "repetition", "part": "answer"}))
    looped = "<think>" + "again and again " * 50 + "</think> Seven."
    assert verifier.verify([ANY], [looped])[0].reward == 0.0
