"""Answers within every size limit whose parts together would take long: refused, not computed."""

import pytest

from lydite.types import Outcome
from lydite.verify.answer import read_answer
from lydite.verify.arithmetic import MAX_WORK, allow_work, evaluate
from lydite.verify.grammar import parse
from lydite.verify.math import check_reference, grade, refuse_algebra
from lydite.verify.tokens import TooLarge

HEAVY = {
    "factorials in a set": r"\{" + ", ".join(f"{n}!" for n in range(2900, 2960)) + r"\}",
    "their roots": r"\{" + ", ".join(rf"\sqrt{{{n}!}}" for n in range(2900, 2930)) + r"\}",
    "roots of powers": "+".join(rf"(7^{{{10000 + n}}})^{{1/63}}" for n in range(33, 63)),
}


@pytest.mark.parametrize("name", HEAVY)
def test_it_is_too_large(name: str) -> None:
    decision = grade(r"\{1,2\}" if "set" in name else r"\pi", HEAVY[name], refuse_algebra)
    assert decision.outcome in (Outcome.UNPARSEABLE, Outcome.WRONG)
    spent = grade(r"\{1,2\}", r"\{1,2\}", refuse_algebra)
    assert spent.outcome is Outcome.CORRECT


def test_the_work_is_counted_over_a_comparison() -> None:
    gold, answer = r"\{1,2,3\}", HEAVY["factorials in a set"]
    said = grade(gold, answer, refuse_algebra).detail
    assert said == "the answer is too large to check: too many operations on large numbers"


def test_a_long_reference_is_read() -> None:
    gold = ", ".join(rf"\sqrt{{{n}}}" for n in range(2, 40))
    assert check_reference(gold, refuse_algebra).outcome is Outcome.CORRECT
    backwards = ", ".join(rf"\sqrt{{{n}}}" for n in range(39, 1, -1))
    assert grade(gold, backwards, refuse_algebra).outcome is Outcome.CORRECT


def test_what_may_be_spent_is_set() -> None:
    allow_work(3)
    with pytest.raises(TooLarge, match="too many operations"):
        evaluate(parse("1+2+3+4+5"), {})
    allow_work(MAX_WORK)
    assert evaluate(parse("1+2+3+4+5"), {}) == 15


@pytest.mark.parametrize(
    "unit",
    [
        r" \text{m}",
        "1ab",
        r"\text{a} /",
        "a_a",
        "a ",
        "a^2+",
        "f(1)",
        "C_8^3",
        "x_1 + ",
        r"\pm1,",
        "|x|<",
    ],
)
@pytest.mark.parametrize("tail", ["", "!=1", "=1"])
def test_repetition_does_not_make_reading_long(unit: str, tail: str) -> None:
    """A pattern that backtracks would never come to an end here."""
    for gold in ("1", r"\{1,2\}", "(1,2)"):
        answer = (unit * 300)[:570] + tail
        assert grade(gold, answer, refuse_algebra).outcome is not Outcome.UNGRADABLE


def test_a_sentence_of_spaces_is_read_in_linear_time() -> None:
    assert read_answer("The answer is $1$" + " " * 200_000 + "(because).").text == "$1$"
