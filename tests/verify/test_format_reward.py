"""Structure: one thought that is not empty, then an answer."""

import pytest

from lydite.verify.format import malformed


@pytest.mark.parametrize(
    ("text", "thinking", "answer"),
    [
        ("<think>hm</think> 7", "required", "any"),
        ("hm</think> 7", "required", "any"),
        ("\n<think>\nhm\n</think>\n\\boxed{7}", "required", "boxed"),
        ("<think>hm</think><answer>7</answer>", "required", "tag"),
        ("<think>hm</think>", "required", "none"),
        ("7", "optional", "any"),
        ("<think>hm</think> 7", "optional", "any"),
        ("7", "forbidden", "any"),
    ],
)
def test_well_formed(text: str, thinking: str, answer: str) -> None:
    assert malformed(text, thinking, answer) is None


@pytest.mark.parametrize(
    ("text", "thinking", "answer"),
    [
        ("7", "required", "any"),
        ("<think> \n</think> 7", "required", "any"),
        ("</think> 7", "required", "any"),
        ("<think>hm", "required", "any"),
        ("<think>hm</think>", "required", "any"),
        ("<think>a</think>b</think> 7", "required", "any"),
        ("<think><think>a</think> 7", "required", "any"),
        ("so <think>a</think> 7", "required", "any"),
        ("a</think> 7 <think>", "required", "any"),
        ("<think>\\boxed{7}</think> 7", "required", "boxed"),
        ("<think>a</think> \\boxed{}", "required", "boxed"),
        ("<think>a</think><answer>7</answer><answer>8</answer>", "required", "tag"),
        ("<think><answer>7</answer></think><answer>7</answer>", "required", "tag"),
        ("<think>a</think><answer> </answer>", "required", "tag"),
        ("<think>a", "optional", "any"),
        ("<think>a</think> 7", "forbidden", "any"),
        ("", "optional", "any"),
    ],
)
def test_malformed(text: str, thinking: str, answer: str) -> None:
    assert malformed(text, thinking, answer)
