"""The final answer is read where it stands, and nowhere inside the thinking."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lydite.verify.answer import after_thinking, read_answer


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\boxed{3}. No: \boxed{7}", "7"),
        (r"\boxed{\frac{\sqrt{3}}{2}} is it", r"\frac{\sqrt{3}}{2}"),
        (r"a set {1,2 was tried; \boxed{4}", "4"),
        (r"\boxed 7", "7"),
        (r"\boxed{\fbox{7}}", "{7}"),
        (r"\boxed{3} or \boxed{7}", "3, 7"),
        (r"\boxed{5}, \boxed{5}", "5"),
        (r"use \boxed and then \boxed{12}", "12"),
        ("<answer>8</answer>", "8"),
        (r"<answer>1</answer> no <answer>x is \boxed{9}</answer>", "9"),
        (r"\boxed{3} <answer>7</answer>", "7"),
        ("The answer is 4.5. Done.", "4.5"),
        ("Answer: **12**", "12"),
        ("答案：12。", "12"),
        ("18 a day\n#### 18", "18"),
        ("The answer is 5 because 2+3=5", "5"),
        ("**Final Answer**\n\n42", "42"),
        ("The answer is\n\\[\n\\frac{1}{2}\n\\]", r"\frac{1}{2}"),
        ("First 3. In total she pays $12.50.", "$12.50"),
        ("work\n1728", "1728"),
    ],
)
def test_auto_reads_what_the_completion_settles_on(text: str, expected: str) -> None:
    assert read_answer(text).text == expected


def test_each_place_ignores_the_others() -> None:
    text = r"The answer is 1. \boxed{2} <answer>3</answer>"
    assert read_answer(text, "phrase").text == "1"
    assert read_answer(text, "boxed").text == "2"
    assert read_answer(text, "tag").text == "3"
    assert read_answer(r"\boxed{2}", "tag").text is None
    assert read_answer("so RESULT > 4 apples\nbye", "phrase", marker="result >").text == "4 apples"


@pytest.mark.parametrize(
    "text",
    [
        r"<think>\boxed{7}",
        r"<think>a</think><think>\boxed{7}",
        r"\boxed{}",
        r"\boxed{7",
        "",
        "<think>7</think>",
        "<answer> </answer>",
        "3 3 3 and 4 and a long line of words that says nothing at all about it in the end",
    ],
)
def test_no_answer_is_none_with_a_reason(text: str) -> None:
    answer = read_answer(text)
    assert answer.text is None
    assert answer.reason


def test_a_box_inside_the_thought_is_not_the_answer() -> None:
    assert read_answer(r"<think>\boxed{7}</think> \boxed{8}").text == "8"
    assert read_answer(r"\boxed{7} prefilled</think> \boxed{8}").text == "8"
    assert read_answer(r"<think>\boxed{7}</think> I do not know").text != "7"


def test_thinking_may_be_required() -> None:
    cut_short = r"so far \boxed{7}"
    assert read_answer(cut_short).text == "7"
    assert read_answer(cut_short, thinking="required").text is None
    assert read_answer("a</think> " + cut_short, thinking="required").text == "7"


def test_ending_tokens_are_no_part_of_the_answer() -> None:
    assert after_thinking("a</think>The answer is 5<|im_end|>\n").text == "The answer is 5"


def test_a_long_answer_is_refused() -> None:
    assert read_answer(r"\boxed{" + "1" * 1001 + "}").text is None
    assert read_answer(r"\boxed{" + "1" * 1001 + "}", max_chars=2000).text is not None


@pytest.mark.parametrize(
    "piece",
    [
        r"\boxed{",
        "{",
        "}",
        "<answer>",
        "<think>",
        "answer ",
        "Answer: ",
        " ",
        "1",
        "$",
        "\\",
        "</s>",
    ],
)
def test_reading_costs_no_more_than_the_length(piece: str) -> None:
    begun = time.perf_counter()
    read_answer(piece * (200_000 // len(piece)) + "x")
    assert time.perf_counter() - begun < 2.0


@given(st.text(alphabet="\\boxed{}<think>/answer 17.$", max_size=120))
def test_reading_never_fails(text: str) -> None:
    for place in ("auto", "boxed", "tag", "phrase"):
        answer = read_answer(text, place)
        assert (answer.text is None) == bool(answer.reason)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("not 42", "not 42"),
        ("There are at least 42 boxes.", "at least 42"),
        (r"\le 60 km/h", r"\le 60"),
        ("60 mph", "60 mph"),
        (r"5 \text{ km}", r"5 \text{ km}"),
        ("42 apples.", "42"),
        ("She has 42 apples left.", "42"),
        ("It weighs 5 kg.", "5"),
    ],
)
def test_a_closing_number_keeps_what_makes_it_another_answer(text: str, answer: str) -> None:
    """A denial or a bound in front, or the unit of a bare quantity."""
    assert read_answer(text).text == answer


@pytest.mark.parametrize(
    ("text", "number", "quantity"),
    [
        ("So it weighs 5 kg.", "5", "5 kg"),
        ("The distance is 60 km/h", "60", "60 km/h"),
        ("She has 7 apples.", "7", "7"),
        ("There are 7 of them.", "7", "7"),
    ],
)
def test_a_closing_number_keeps_its_unit_where_units_count(
    text: str, number: str, quantity: str
) -> None:
    assert read_answer(text).text == number
    assert read_answer(text, units=True).text == quantity
