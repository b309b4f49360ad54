# ruff: noqa: E501
# fmt: off
"""Spellings found by looking for what the graders' own tests leave out: by kind and reference, what
is the same and what is not.
"""

import pytest

from lydite.types import Outcome
from lydite.verify.answer import read_answer
from lydite.verify.math import grade, refuse_algebra

CASES = {
    "combinations": [
        (r"\binom{8}{3}", ["C_8^3", r"\binom83", r"\binom8{3}", r"{}_8C_3", "_8C_3", "^8C_3", r"{}^8C_3", "C^3_8", r"\mathrm{C}_8^3", "C(8,3)", r"\dbinom83", r"{8 \choose 3}", r"\frac{8!}{5!\,3!}", "56"], ["C_8^4", "C_9^3", "{}_8P_3", "A_8^3", "336"]),
        ("336", ["P(8,3)", "A_8^3", "_8P_3", r"{}_8P_3", r"\frac{8!}{5!}"], ["C_8^3", "P(8,2)"]),
        (r"\binom{n}{k}", ["C_n^k", "C(n,k)", r"{}_nC_k"], ["C_n^m", "C_n^n"]),
        (r"\binom62", [r"\frac{A_6^2}{2!}", "C_6^2"], ["C_6^3"]),
        ("56", [r"\binom83", r"\binom{8}3"], [r"\binom84", r"\binom38"]),
        ("C_1", ["C_1"], ["C_2", "C_1^2"]),
    ],
    "distances": [
        ("(-3,3)", ["|x|<3", r"\left|x\right| < 3", r"\{x : |x|<3\}", r"\lvert x \rvert<3"], [r"|x|\le3", "|x|>3", "|x|<2", "|x|<-3"]),
        ("(2,8)", ["|x-5|<3", r"\{t: 2<t<8\}"], ["|x+5|<3", "|x-3|<5", r"|x-5|\le 3"]),
        (r"(-\infty,-1]\cup[7,\infty)", [r"|x-3|\ge4", r"\mathbb{R}\setminus(-1,7)"], ["|x-3|>4", r"\mathbb{R}\setminus[-1,7]"]),
        (r"|x|\ge 2", [r"x\le-2\text{ or }x\ge2", r"(-\infty,-2]\cup[2,\infty)"], [r"|x|\le2", r"x\ge2"]),
        (r"|x|<\sqrt2", [r"(-\sqrt2,\sqrt2)", r"-\sqrt{2}<x<\sqrt{2}"], [r"[-\sqrt2,\sqrt2]"]),
    ],
    "parts left out": [
        (r"(-\infty,0)\cup(1,\infty)", [r"\mathbb{R}\setminus[0,1]", r"\mathbb{R}\backslash [0,1]", r"(-\infty,0)\bigcup(1,\infty)"], [r"\mathbb{R}\setminus(0,1)", r"\mathbb{R}\setminus\{0,1\}", r"\mathbb{R}\setminus[0,2]"]),
        (r"[2,5)\cup(5,\infty)", [r"x\ge2, x\ne5", r"[2,\infty)\setminus\{5\}", r"x\ge 2\text{ and }x\neq 5", r"\{x \mid x\ge2, x\neq5\}"], [r"x>2,x\ne5", r"[2,\infty)\setminus\{4\}", r"x\ge2\text{ or }x\ne5", r"x\ne5"]),
        (r"x\ne0", [r"x\in\mathbb{R}, x\ne0"], [r"x\in\mathbb{R}", r"x\in\mathbb{R}, x\ne1"]),
        (r"(0,\infty)", [r"\mathbb{R}^+", r"\mathbb{R}_{>0}"], [r"\mathbb{R}"]),
        (r"(-\infty,4]", ["(-oo, 4]", r"\text{Domain: }(-\infty,4]", r"\{t|t\le4\}", "{x|x≤4}"], ["(-oo,4)", r"\{t|t<4\}"]),
    ],
    "words": [
        (r"\emptyset", [r"\text{no solution}", r"\text{No real solutions}"], ["0", r"\text{one solution}"]),
        (r"\text{no solution}", [r"\emptyset", r"\text{There is no solution}", r"\text{No solution exists.}"], ["0", r"\mathbb{R}", r"\text{solution}"]),
        (r"\text{infinite}", [r"\infty", r"\text{infinitely many}", r"\text{Infinitely many solutions}"], [r"\text{finite}", r"-\infty", "0"]),
        (r"\infty", [r"\text{infinite}", "+oo"], [r"\text{negative infinity}", "-oo"]),
        (r"-\infty", [r"\text{negative infinity}", "-oo"], [r"\infty", r"\text{infinite}"]),
        (r"\text{does not exist}", ["DNE", r"\text{The limit does not exist}"], ["0", r"\text{exists}"]),
        ("-12", [r"\text{negative }12", "minus 12"], ["12"]),
        ("30", [r"\text{Answer: 30}", r"\text{x = 30}", r"\text{Total: }30", r"\text{Total} = 30"], [r"\text{x = 31}", r"\text{not }30", r"\text{at most }30"]),
    ],
    "choices": [
        ("C", ["c", r"\text{The answer is C}"], ["b", r"\text{The answer is D}"]),
        (r"\text{Option C}", ["C", "(C)"], ["B"]),
        ("A, C", [r"\text{A and C}", "AC"], [r"\text{A and B}", "A"]),
    ],
    "named values": [
        ("37", ["m+n=37", "a+b+c = 37", "x^2+y^2=37", "f(1)+f(2)=37", "m+n=1+36=37", "ab=37"], ["m+n=38", "x+x=37", "2x=37", "x^2=37", "m+n=37=38", "m+n=36+1"]),
        ("0", ["x=0"], ["x+y=0", "x^2+y^2=0", "a+b=c=0", "f(x)=0"]),
        ("x+y=37", ["y+x=37"], ["37", "m+n=37"]),
        (r"\frac38", [r"P(A)=\frac38", r"P(A\cap B) = 0.375"], [r"P(A)=\frac58"]),
        ("y=2x+1", ["f(x)=2x+1"], ["f(x)=2x-1", "g(t)=2x+1"]),
        ("(4,-7)", ["y=-7, x=4", "P(4,-7)", r"\begin{cases}x=4\\y=-7\end{cases}", r"\text{The point }(4,-7)"], ["y=4, x=-7", "P(-7,4)", r"\begin{cases}x=-7\\y=4\end{cases}"]),
        (r"\{1,3,5\}", ["x_1=1,x_2=3,x_3=5"], ["x_1=1,x_2=3,x_3=6"]),
        (r"(1,2),(3,4)", [r"(x,y)\in\{(1,2),(3,4)\}"], [r"(x,y)\in\{(2,1),(4,3)\}"]),
        (r"\{0,\pm1\}", ["-1,0,1", r"x=0,\pm1"], ["0,1", r"\pm1"]),
        (r"1\pm\sqrt3", [r"1\mp\sqrt3"], [r"1+\sqrt3"]),
    ],
    "matrices": [
        (r"\begin{pmatrix}2&4\\6&8\end{pmatrix}", [r"2\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\frac12\cdot\begin{bmatrix}4&8\\12&16\end{bmatrix}", r"\mathbf{M}=\begin{pmatrix}2&4\\6&8\end{pmatrix}"], [r"3\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"]),
        (r"\begin{pmatrix}\frac{\sqrt3}{2}\\x\end{pmatrix}", [r"\frac12\begin{pmatrix}\sqrt3\\2x\end{pmatrix}"], [r"\frac12\begin{pmatrix}\sqrt3\\x\end{pmatrix}"]),
    ],
    "money, units and digits": [
        ("32348", [r"\text{\$}32,348", r"32\text{,}348", r"\text{USD }32,348", r"\text{Rs. }32348"], [r"\text{\$}32,349"]),
        (r"\$18.90", [r"\$18.90 \text{ per person}", r"18{.}90"], [r"\$18.09 \text{ per person}"]),
        ("25", ["25（元）"], ["26（元）"]),
        (r"72.5^\circ", [r"72^\circ 30'", r"72.5\text{°}"], [r"72^\circ 50'", r"72^\circ"]),
        (r"\frac{\pi}{4}", [r"\frac{\pi}{4}\text{ rad}"], [r"\frac{\pi}{4}^\circ", r"\frac{\pi}{4}\text{ degrees}"]),
        ("1011_2", [r"1011 \text{ base }2", r"1011_{\text{base } 2}"], [r"1011 \text{ base }3", r"1011_{\text{base }3}"]),
        ("2A_{16}", ["2A", "2a"], ["2B", "A2"]),
        ("1,000", ["1000"], ["1, 0"]),
        ("2:5", [r"\frac25", "4:10"], [r"\frac52", "5:2"]),
        (r"\frac25", ["0.4"], ["2:5"]),
        ("x^2+C", ["x^2+c"], ["x^2+1", "x^2"]),
    ],
}
COMPLETIONS = [
    ("15", "The answer is 15, not 16.", True),
    ("16", "The answer is 15, not 16.", False),
    ("15", "The answer is $15$ dollars.", True),
    ("30", "The answer is $30$ dollars and $40$ cents.", False),
    ("7", "Our final answer is therefore 7.", True),
    (r"\frac{3}{5}", r"So the probability is $\frac{3}{5}$.", True),
    (r"\frac{1}{6}", r"Out of $36$ cases the probability is \(\frac{1}{6}\).", True),
    ("36", "答：一共需要36元。", True),
    ("36", "答：不是36元。", False),
    ("36", "答：需要36或37元。", False),
    ("B", "所以正确选项是B。", True),
    ("D", "因此选D。", True),
    ("C", "Hence, option (C)", True),
    ("C", "So it must be option (A) or option (C).", False),
    ("-5", "so it dropped, and x = –5.", True),
    ("8", "We read pages 3–8.", False),
]


@pytest.mark.parametrize("kind", CASES)
def test_the_same(kind: str) -> None:
    refused = [
        (gold, answer) for gold, same, _ in CASES[kind] for answer in same
        if grade(gold, answer, refuse_algebra).outcome is not Outcome.CORRECT
    ]
    assert refused == []


@pytest.mark.parametrize("kind", CASES)
def test_not_the_same(kind: str) -> None:
    paid = [
        (gold, answer) for gold, _, other in CASES[kind] for answer in other
        if grade(gold, answer, refuse_algebra).outcome is Outcome.CORRECT
    ]
    assert paid == []


@pytest.mark.parametrize(("gold", "completion", "right"), COMPLETIONS)
def test_completions(gold: str, completion: str, right: bool) -> None:
    answer = read_answer(completion).text
    correct = answer is not None and grade(gold, answer, refuse_algebra).outcome is Outcome.CORRECT
    assert correct is right
