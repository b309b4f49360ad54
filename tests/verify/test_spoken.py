"""The parts of a completion, and its words."""

import pytest

from lydite.verify.spoken import part_of, tokens_of


@pytest.mark.parametrize(
    ("text", "whole", "thinking", "answer"),
    [
        ("<think>a</think> b", "<think>a</think> b", "a", " b"),
        ("a</think> b<|im_end|>", "a</think> b", "a", " b"),
        ("b", "b", "", "b"),
        ("<think>a", "<think>a", "a", ""),
        ("a</think>b<think>c", "a</think>b<think>c", "a b c", ""),
        ("<think>a</think>b</think>c", "<think>a</think>b</think>c", "a b", "c"),
        ("", "", "", ""),
    ],
)
def test_parts(text: str, whole: str, thinking: str, answer: str) -> None:
    assert part_of(text, "whole") == whole
    assert part_of(text, "thinking") == thinking
    assert part_of(text, "answer") == answer


def test_tokens() -> None:
    assert tokens_of("It's 3.5, 東京タ!") == ["It", "'", "s", "3", ".", "5", ",", *"東京タ", "!"]
    assert [len(token) for token in tokens_of("x" * 70)] == [30, 30, 10]
    assert tokens_of(" \n") == []
