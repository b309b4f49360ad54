"""Structure: one thought that is not empty, then an answer."""

from dataclasses import replace

import pytest

from lydite.types import Message, Problem
from lydite.verify.format import FormatReward, malformed
from lydite.verify.text_config import FormatConfig


@pytest.mark.parametrize(
    ("text", "thinking", "answer"),
    [
        ("<think>hm</think> 7", "required", "any"),
        ("hm</think> 7", "required", "any"),
        ("\n<think>\nhm\n</think>\n\\boxed{7}", "required", "boxed"),
        ("<think>hm</think><answer>7</answer>", "required", "tag"),
        ("<think>hm</think>", "required", "none"),
        ("7", "optional", "any"),
        ("<think>思う</think> ∅", "required", "any"),
        ("<think>hm</think> 7", "required", "none"),
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
        ("<think>...</think> 7", "required", "any"),
        ("<think>\u200b \u2060</think> 7", "required", "any"),
        ("<think>hm</think> \u200b", "required", "any"),
        ("<think>hm</think> \\boxed{\u200b}", "required", "boxed"),
        ("<think>hm</think> <|im_end|>", "required", "any"),
    ],
)
def test_malformed(text: str, thinking: str, answer: str) -> None:
    assert malformed(text, thinking, answer)


@pytest.mark.parametrize(
    ("text", "opening", "well"),
    [
        ("<think>hm</think> 7", "auto", True),
        ("hm</think> 7", "auto", True),
        ("<think>hm</think> 7", "written", True),
        ("hm</think> 7", "written", False),
        ("hm</think> 7", "prefilled", True),
        ("<think>hm</think> 7", "prefilled", False),
    ],
)
def test_who_opens_the_thought(text: str, opening: str, well: bool) -> None:
    assert (malformed(text, "required", "any", opening) is None) is well


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize(
    ("text", "thinking", "fast"),
    [
        ("<think>hm</think><answer>7</answer>", 1.0, 0.0),
        ("hm</think><answer>7</answer>", 1.0, 0.0),
        ("<think>\n\n</think>\n\n<answer>7</answer>", 0.0, 1.0),
        ("\n</think>\n\n<answer>7</answer>", 0.0, 1.0),
        ("<answer>7</answer>", 0.0, 1.0),
        ("<think></think><think>hm</think><answer>7</answer>", 0.0, 0.0),
        ("<think>\n\n</think>\n\n7", 0.0, 0.0),
        ("<think>\n\n<answer>7</answer>", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_thinking_as_the_prompt_asks(text: str, thinking: float, fast: float, hard: bool) -> None:
    reward = FormatReward(FormatConfig(thinking="asked", answer="tag"), "format")
    problem = Problem("p", "q", (Message("user", "q"),))
    asked = problem if hard else replace(problem, messages=(Message("user", "q /think"),))
    if hard:
        unasked = replace(problem, thinking=False)
    else:
        unasked = replace(problem, messages=(Message("user", "q /think /no_think"),))
    scores = reward.score([asked, unasked], [text, text])
    assert [score.reward for score in scores] == [thinking, fast]
