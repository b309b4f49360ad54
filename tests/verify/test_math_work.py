"""Answers within every size limit whose parts together would take long: refused, not computed."""

import pytest

from lydite.types import Outcome
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
