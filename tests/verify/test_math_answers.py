"""Right answers in other spellings are right; near misses, hedges and restatements are wrong.

Here computer algebra runs in this process, on cases that are known to be quick.
"""

import json
from pathlib import Path

import pytest

from lydite.types import Outcome
from lydite.verify.algebra import equal
from lydite.verify.answer import read_answer
from lydite.verify.math import NeedsAlgebra, check_reference, grade, refuse_algebra

RIGHT = [
    ("9", "x=8+1=9"),
    ("8", "4+4=8"),
    (r"\sum_{k=1}^{n}k^2", r"\sum_{k=1}^{n}k^2"),
    ("35_8", "35_{8}"),
    ("35_8", "35"),
    (r"\frac{2}{11}", r"0.\overline{18}"),
    (r"\frac{5}{6}", r"0.8\overline{3}"),
    (r"\frac{5}{6}", r"0.8\dot{3}"),
    ("60", r"60^\circ"),
    ("60", "60°"),
    ("1234567", r"1\,234\,567"),
    ("12345", "12,345"),
    ("12,345", "12345"),
    (r"\frac{11}{4}", "2 3/4"),
    (r"\frac{11}{4}", r"2\frac{3}{4}"),
    (r"3\sqrt{5}", "3√5"),
    (r"3\sqrt{5}", r"\sqrt{45}"),
    (r"\emptyset", r"\varnothing"),
    ("(0,1)", "]0,1["),
    ("-1<x<2", "2>x>-1"),
    ("-1<x<2", "(-1,2)"),
    ("(-1,2)", "-1<x<2"),
    ("5", "5米"),
    ("23", "２３"),
    (r"\text{乙}", "乙"),
    ("C", r"\textbf{(C)}\ 42"),
    ("7", r"\mathbf{7}"),
    ("1,2,3", "1, 2, 3"),
    ("{1,2,3}", r"\{3,2,1\}"),
    (r"\{1,2\}", "1,2"),
    ("(1,2)", "(1.0,2)"),
    (r"(-\infty,-1)\cup(3,\infty)", r"(3,\infty)\cup(-\infty,-1)"),
    ("x=1,y=2", "(1,2)"),
    ("x=1,y=2", "y=2,x=1"),
    ("4", "n=4"),
    ("3:5", "6:10"),
    (r"12\%", r"12\%"),
    (r"12\%", "0.12"),
    ("0.12", r"12\%"),
    (r"3.5\text{ kg}", r"3.5 \text{ kilograms}"),
    (r"3.5\text{ kg}", "3.5"),
    ("72", r"72 \text{ cm}^2"),
    ("72", "72 square feet"),
    ("720", "6!"),
    ("x^2+2x+1", "(x+1)^2"),
    ("y=3x-1", "3x-y-1=0"),
    ("y=3x-1", "3x-1"),
    ("2e^{3x}", "2(e^{x})^3"),
    ("ab", "ba"),
    (r"\ln 2", r"\ln(2)"),
    (r"\ln 2", "0.693147"),
    (r"\pi", "3.14159265"),
    (r"\sqrt{3}", "1.7320508"),
    (r"2\pi", "2π"),
    (r"1-\frac{1}{e}", r"\frac{e-1}{e}"),
    ("3+4i", "4i + 3"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
    (r"\pm 2", "2,-2"),
    (r"\pm\sqrt{2}", r"-\sqrt{2},\sqrt{2}"),
    (r"1\pm\sqrt{2}", r"1+\sqrt{2}, 1-\sqrt{2}"),
    (r"\text{Friday}", "friday"),
    ("No", r"\text{no}"),
    ("2^{10}", "1024"),
    (r"6 + 2\sqrt{3}", r"2\sqrt{3}+6"),
    (r"\frac{1}{x}", "x^{-1}"),
    (r"x \geq 5", r"[5,\infty)"),
    ("100", "10^2"),
    ("0.5", r"\frac{1}{2}"),
    ("0.5", ".5"),
    ("-0.5", r"-\frac12"),
    (r"-\frac{1}{2}", r"\frac{-1}{2}"),
    (r"-\frac{1}{2}", r"\frac{1}{-2}"),
    (r"\$12.50", "12.50"),
    ("12.5", r"\$12.50"),
    ("(x-1)(x+2)", "x^2+x-2"),
    ("x = 2", "2"),
    (r"8\pi", r"8\pi\text{ cm}"),
    ("2", "2.0"),
    ("2", "2."),
    ("3", "|-3|"),
    ("2", r"\sqrt{4}"),
    ("2", r"\log_2 4"),
    (r"\frac{a+b}{2}", r"\frac{b+a}{2}"),
    (r"\frac{a+b}{2}", "(a+b)/2"),
    ("n(n+1)/2", r"\frac{n^2+n}{2}"),
    ("n!", "n!"),
    ("10:30", "10:30"),
    ("1:2:3", "2:4:6"),
    ("x^2 + y^2 = 4", "y^2+x^2=4"),
    ("-1, 2", "x=-1,2"),
    ("(1,2),(3,4)", "(3,4),(1,2)"),
    ("5000000", r"5\text{ million}"),
    ("5000000", "5 million"),
    ("0.142857", r"\frac17"),
    ("7", r"\boxed{7}"),
    ("12", r"12 \text{ (approx)}"),
    ("1,000", "1000"),
    ("0", "0"),
    ("0", "-0"),
    ("0", "x=0"),
    ("1", r"\frac{x}{x}"),
]

WRONG = [
    ("1.2e-7", "3.4e-7"),
    ("0", "x^2-5x+6=0"),
    ("9", "x=8=9"),
    ("8", "4+5=8"),
    ("5050", r"\lim_{n\to 5050} n"),
    ("6", r"\gcd(12,18)"),
    ("1", r"\int_0^1 2x dx"),
    ("55", r"\sum_{k=1}^{10}k"),
    ("35_8", "35_{10}"),
    (r"\frac{5}{6}", "0.83"),
    (r"3\sqrt{5}", "3"),
    ("(-1,2]", "-1<x<2"),
    ("C", "B, C"),
    ("5", "5 or 6"),
    ("(1,2)", "(2,1)"),
    (r"(-\infty,-1)\cup(3,\infty)", r"(-\infty,-1]\cup(3,\infty)"),
    ("x=1,y=2", "x=2,y=1"),
    ("n=4", "m=4"),
    (r"\frac{3}{5}", "3:5"),
    ("3:5", "5:3"),
    ("4", "400"),
    ("4", "0.04"),
    (r"3.5\text{ kg}", r"3.5 \text{ g}"),
    ("72", "72x"),
    ("720", "1000000000!"),
    (r"\frac{1}{100!}", r"\frac{1}{101!}"),
    (r"\frac{1}{3^{80}}", r"\frac{1}{3^{81}}"),
    ("10^{50}+1", "10^{50}"),
    ("x^2+2x+1", "(x-1)^2"),
    ("y=3x-1", "y=3x+1"),
    ("a+b", "ab"),
    (r"\ln 2", "0.69"),
    (r"\pi", "3.14"),
    (r"\frac{\pi}{10^9}", r"\frac{\pi}{10^8}"),
    ("3+4i", "3-4i"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix} 2 \\ 1 \end{pmatrix}"),
    ("2", r"\pm 2"),
    (r"\text{Yes}", "No"),
    (r"\text{even}", "odd"),
    ("3", ""),
    ("3", "1,2,3"),
    ("3", "x"),
    ("x", "3"),
    ("x>5", r"[5,\infty)"),
    ("5", r"5\text{ or }5"),
    ("7", r"7\text{ is wrong}"),
    ("7", r"\text{not }7"),
    ("11", "1011_2"),
    ("60", r"\mathrm{lcm}(12,15)"),
    ("60", r"\text{lcm}(12,15)"),
    ("1", r"\max(1,0)"),
    ("k+1", "k + 2"),
    ("10:30", "11:30"),
    ("x^2 + y^2 = 4", "x^2+y^2=5"),
    ("(1,2),(3,4)", "(1,3),(2,4)"),
    ("5", r"5\text{ million}"),
    ("3", "3 hundred"),
    ("2", "2 dozen"),
    ("0", "1"),
    ("0", "a-b"),
]


@pytest.mark.parametrize(("gold", "answer"), RIGHT)
def test_right(gold: str, answer: str) -> None:
    assert grade(gold, answer, equal).outcome is Outcome.CORRECT


@pytest.mark.parametrize(("gold", "answer"), WRONG)
def test_wrong(gold: str, answer: str) -> None:
    assert grade(gold, answer, equal).outcome is not Outcome.CORRECT


@pytest.mark.parametrize("gold", sorted({gold for gold, _ in RIGHT}))
def test_every_reference_equals_itself(gold: str) -> None:
    assert grade(gold, gold, equal).outcome is Outcome.CORRECT
    assert check_reference(gold, equal).outcome is Outcome.CORRECT


@pytest.mark.parametrize(
    "gold", [r"2\sqrt{3}", r"\frac{a}{b}", "42", r"\text{Yes}", "(1,2]", "x>3", "B"]
)
def test_usable_references(gold: str) -> None:
    assert check_reference(gold, equal).outcome is Outcome.CORRECT


@pytest.mark.parametrize("gold", ["", r"\frac{1}{", "9^{9^{9^{9}}}"])
def test_unusable_references(gold: str) -> None:
    decision = check_reference(gold, equal)
    assert decision.outcome is Outcome.UNGRADABLE
    assert decision.detail


HOSTILE = [
    "9^{9^{9^{9}}}",
    "10^{10^{10}}",
    "3^{10000000}",
    "100000000!",
    "(5!)!!",
    "(9999!)^{9999}",
    "((2^{9999})^{3})^{5}",
    "e^{e^{e^{e^{9}}}}",
    r"\tan(10^{9999})",
    r"\frac{\pi}{3000!}+1",
    "1+" * 400 + "1",
    "-" * 500 + "1",
    "(" * 100 + "1" + ")" * 100,
    "1" * 1001,
    r"\binom{100000000}{5000000}",
    r"\binom{20000}{10000}",
]
COSTLY = [
    "(x+y+z+w)^{400}",
    r"\sqrt[63]{3^{19999}}",
    r"(1+\pi)^{9999}",
    r"\sin " * 90 + "1",
    "10^{-2400}" + "+x!" * 120,
    "10^{-2400}" + r"+\ln(x+y!)" * 45,
    "+".join([r"\binom{5000}{2500}"] * 28),
    r"\{" + ",".join(rf"\sqrt{{{k}}}" for k in range(2, 50)) + r"\}",
    r"\sqrt" * 90 + "2",
    "x^{400}" * 60,
    "(a+b+c)!" * 60,
    r"\sqrt{2}^{\sqrt{2}^{\sqrt{2}^{\sqrt{2}}}}",
    "2^{" * 20 + "1" + "}" * 20,
    "|" * 500,
    "{" * 500,
    "\u202e7\u0338" * 50,
]


@pytest.mark.parametrize("answer", HOSTILE)
def test_what_costs_too_much_is_refused(answer: str) -> None:
    for gold in (r"\frac{1}{2}", r"\sqrt{2}", "x+1", "y=x", "(0,1)"):
        decision = grade(gold, answer, refuse_algebra)
        assert decision.outcome in (Outcome.UNPARSEABLE, Outcome.WRONG)
    assert grade(r"\sqrt{2}", answer, refuse_algebra).outcome is Outcome.UNPARSEABLE


@pytest.mark.parametrize("answer", COSTLY)
def test_what_looks_costly_is_decided_here(answer: str) -> None:
    for gold in (r"\sqrt{2}", "x+1", "y=x"):
        assert grade(gold, answer, refuse_algebra).outcome is not Outcome.CORRECT


@pytest.mark.parametrize("gold", [r"\int_0^1 f(x) dx", r"\lim_{n\to 0} a_n"])
def test_only_what_the_grammar_does_not_know_needs_algebra(gold: str) -> None:
    assert grade(r"\sqrt{12}", r"2\sqrt{3}", refuse_algebra).outcome is Outcome.CORRECT
    with pytest.raises(NeedsAlgebra):
        check_reference(gold, refuse_algebra)


def test_outcomes_say_whose_fault_it_is() -> None:
    assert grade("", "1", equal).outcome is Outcome.UNGRADABLE
    assert grade("1", " ", equal).outcome is Outcome.UNPARSEABLE
    assert grade("1", r"\frac{1}{", equal).outcome is Outcome.UNPARSEABLE
    restated = grade("55", r"\sum_{k=1}^{10} k", equal)
    assert restated.outcome is Outcome.WRONG
    assert "sum" in restated.detail


@pytest.mark.parametrize(
    "hedge",
    [
        "{}, 17",
        r"{} \text{{ or }} 17",
        "17 or {}",
        r"\text{{not }} {}",
        r"{} \text{{ dozen}}",
        "{} ?",
    ],
)
def test_a_hedged_right_answer_is_wrong(hedge: str) -> None:
    """Zero dozen is zero, and a choice may be followed by what it says."""
    accepted = [
        (gold, answer)
        for gold, answer in RIGHT
        if gold not in ("0", "C")
        and grade(gold, hedge.format(answer), equal).outcome is Outcome.CORRECT
    ]
    assert not accepted


CASES = Path(__file__).parents[2].parent / "shared" / "cases" / "math.jsonl"


@pytest.mark.skipif(not CASES.is_file(), reason="the case collection is not here")
def test_case_collection() -> None:
    wrong = []
    for line in CASES.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        answer = read_answer(case["completion"]).text
        accepted = (
            answer is not None and grade(case["gold"], answer, equal).outcome is Outcome.CORRECT
        )
        if not case["contested"] and accepted != case["expected"]:
            wrong.append((case["gold"], case["completion"][:80], accepted))
    assert not wrong


GSM8K = CASES.parents[1] / "data" / "gsm8k_test.jsonl"


@pytest.mark.skipif(not GSM8K.is_file(), reason="the GSM8K problems are not here")
def test_gsm8k_references_verify_against_their_own_solutions() -> None:
    wrong = []
    for line in GSM8K.read_text(encoding="utf-8").splitlines()[::4]:
        solution = json.loads(line)["answer"]
        gold = solution.rpartition("####")[2].strip()
        answer = read_answer(solution).text or ""
        decisions = (
            check_reference(gold, refuse_algebra),
            grade(gold, gold, refuse_algebra),
            grade(gold, answer, refuse_algebra),
        )
        if any(decision.outcome is not Outcome.CORRECT for decision in decisions):
            wrong.append((gold, answer))
    assert not wrong
