"""Sums, products and divisions where the reference is a plain number: a prompt repeated pays
nothing, a closed form does.
"""

import pytest

from lydite.types import Outcome, Problem
from lydite.verify.math import grade, refuse_algebra
from lydite.verify.settings import MathConfig, VerifierConfig
from lydite.verify.verifier import build


def _outcome(gold: str, answer: str, **how: object) -> Outcome:
    return grade(gold, answer, refuse_algebra, **how).outcome  # type: ignore[arg-type]


LEFT = {
    "42": [
        "17+25", r"6\times 7", r"6\cdot7", "6*7", "6(7)", "50-8", "(3+4)*6", "42/1+0", "42+0",
        r"42\cdot 1", "--(17+25)", "|17+25|", r"\frac{80+4}{2}", r"\frac{17+25}{1}", "(17+25)^1",
        r"\sqrt{42^2}+0", r"17+25\text{ apples}", "x=17+25", "17+25=40+2", r"84\div 2", "84 ÷ 2",
        "252/3/2", r"\frac{84/2}{1}", r"\sqrt{36}\cdot 7", "6 × 7", "2(20+1)", r"17+25 \approx 42",
    ],
    "0.75": ["1-0.25", r"3\cdot 0.25", r"1-\frac14"],
    "60": [r"5\cdot4\cdot3", "100-40"],
    "15/4": ["3.5+0.25", "4-1/4", r"3+\frac12+\frac14"],
    r"5\text{ km}": [r"2+3\text{ km}", r"(10-5)\text{ km}"],
    r"20\%": [r"(10+10)\%", r"\frac{1}{10}\cdot 2"],
    "(1,2)": ["(0+1,2)"],
    "x=42": ["x=17+25", "17+25"],
    "3.2e5": [r"2\times10^5+1.2\times10^5"],
}  # fmt: skip
CLOSED = {
    "42": ["17+25=42", "42=6\\cdot7", "x=17+25=42", "84/2", r"\frac{84}{2}", "--42", "|-42|",
        r"\sqrt{1764}", r"4.2\times10^1", r"4200\%"],
    "3": ["12/4", r"\sqrt{9}", r"\log_2 8", r"\frac{\log 8}{\log 2}", r"\binom{3}{2}"],
    "15/4": [r"3+\frac34", "3 + 3/4", r"3\frac34", "3 3/4", "30/8", "3.75"],
    "-15/4": [r"-3\frac34", r"-\left(3+\frac34\right)"],
    "3/8": [r"3\div 8", "6/16"],
    "1024": ["2^{10}", "4^5", r"(-2)^{10}"],
    "320000": [r"3.2\times10^5", r"(3.2)\cdot 10^{5}", r"\frac{16}{5}\times10^5"],
    "56": [r"\binom{8}{3}", r"\frac{8!}{3!\,5!}", r"\frac{8!}{3!5!}"],
    "720": ["6!"],
    "0.2": [r"20\%"],
}  # fmt: skip
# References that are formulas themselves.
OPEN = {
    "2^{2023}": [r"2\cdot2^{2022}", r"2^{2022}+2^{2022}"],
    "2^{10}": [r"2\cdot 2^9"],
    r"1-\frac1e": [r"\frac{e-1}{e}", r"-\frac1e+1"],
    r"6\pi": [r"2\cdot3\pi", r"4\pi+2\pi"],
    r"\binom{8}{3}": [r"\frac{8\cdot7\cdot6}{6}"],
    "x^2": [r"x\cdot x"],
}


@pytest.mark.parametrize("gold", LEFT)
def test_left_to_do(gold: str) -> None:
    paid = [a for a in LEFT[gold] if _outcome(gold, a) is Outcome.CORRECT]
    assert paid == []


@pytest.mark.parametrize("gold", [*CLOSED, *OPEN])
def test_closed(gold: str) -> None:
    answers = CLOSED.get(gold) or OPEN[gold]
    assert [a for a in answers if _outcome(gold, a) is not Outcome.CORRECT] == []


def test_the_reason_is_said() -> None:
    said = grade("42", "17+25", refuse_algebra)
    assert said.detail == "the answer is an unevaluated sum"
    assert grade("42", "17+26", refuse_algebra).outcome is Outcome.WRONG


def test_it_can_be_accepted() -> None:
    assert _outcome("42", "17+25", unevaluated=True) is Outcome.CORRECT
    assert _outcome("42", "17+26", unevaluated=True) is Outcome.WRONG
    assert _outcome("42", "17+25", kind="expression") is Outcome.CORRECT


@pytest.mark.parametrize(("setting", "reward"), [("refuse", 0.0), ("accept", 1.0)])
def test_the_setting(setting: str, reward: float) -> None:
    config = VerifierConfig(rewards=[MathConfig(unevaluated=setting)])  # type: ignore[arg-type]
    verifier = build(config)
    problem = Problem("1", "", (), "42")
    try:
        assert verifier.verify([problem], [r"\boxed{17+25}"])[0].reward == reward
    finally:
        verifier.close()
