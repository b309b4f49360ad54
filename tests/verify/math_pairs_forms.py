# ruff: noqa: E501
# fmt: off
"""Formulas, equations, sets, intervals, matrices and texts; see math_pairs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import factorial

from math_pairs import Pair, kind, right, wrong


@kind
def surds(r: random.Random) -> Iterator[Pair]:
    for _ in range(12):
        a, b, c = (r.randint(2, 12), r.choice([2, 3, 5, 6, 7, 10, 11]), r.randint(1, 9))
        gold = f'{a}\\sqrt{{{b}}}'
        yield from right(gold, [f"\\sqrt{{{a * a * b}}}", f"{a}√{b}",
            f'{a}\\sqrt{b}' if b < 10 else gold, f"{a}\\cdot\\sqrt{{{b}}}",
            f"\\sqrt{{{b}}}\\cdot {a}", f"{a} \\sqrt {{{b}}}", f"{a}*sqrt({b})",
            f"\\frac{{{a * b}}}{{\\sqrt{{{b}}}}}", f"{a}\\cdot {b}^{{1/2}}",
            f"{a}\\sqrt{{{b}}}\\text{{ cm}}", f"{a}√({b})", f"x={a}\\sqrt{{{b}}}",
            f"{a}\\times\\sqrt{{{b}}}"])
        yield from wrong(gold, [str(a), f"\\sqrt{{{b}}}", f"{a}\\sqrt{{{b + 1}}}",
            f"{a + 1}\\sqrt{{{b}}}", f"-{gold}", f'\\sqrt{{{a * b}}}' if a > 1 else '0',
            f"\\pm {gold}", f"{a * b ** 0.5:.2f}", f"{a}", f"{a}\\sqrt[3]{{{b}}}", f"{a}{b}"])
        gold = f'{c}+{a}\\sqrt{{{b}}}'
        yield from right(gold, [f"{a}\\sqrt{{{b}}}+{c}", f"{c} + {a}√{b}",
            f"\\frac{{{2 * c}+{2 * a}\\sqrt{{{b}}}}}{{2}}", f"{c}-(-{a})\\sqrt{{{b}}}"])
        yield from wrong(gold, [f"{c}-{a}\\sqrt{{{b}}}",
            f'{a}+{c}\\sqrt{{{b}}}' if a != c else '0', f"{c}\\pm{a}\\sqrt{{{b}}}",
            f"({c}+{a})\\sqrt{{{b}}}"])
        gold = f'\\frac{{\\sqrt{{{b}}}}}{{{a}}}'
        yield from right(gold, [f"\\frac{{1}}{{{a}}}\\sqrt{{{b}}}",
            f"\\frac{{{b}}}{{{a}\\sqrt{{{b}}}}}", f"\\sqrt{{{b}}}/{a}",
            f"\\frac {{\\sqrt {{{b}}}}} {{{a}}}", f"\\sqrt{{\\frac{{{b}}}{{{a * a}}}}}"])
        yield from wrong(gold, [f'\\frac{{{a}}}{{\\sqrt{{{b}}}}}' if a * a != b else '0',
            f"\\sqrt{{\\frac{{{b}}}{{{a}}}}}"])
        yield from right(f"\\sqrt[3]{{{a ** 3 * b}}}", [f"{a}\\sqrt[3]{{{b}}}",
            f"({a ** 3 * b})^{{1/3}}", f"{a}\\cdot {b}^{{1/3}}"])
    yield from right(r"\sqrt{2}+\sqrt{3}", [r"\sqrt{5+2\sqrt{6}}", r"\frac{1}{\sqrt3-\sqrt2}"])
    yield from right(r"\frac{1+\sqrt5}{2}", [r"\frac{2}{\sqrt5-1}", r"\frac12+\frac{\sqrt{5}}{2}"])


@kind
def constants(r: random.Random) -> Iterator[Pair]:
    for _ in range(10):
        a, b = (r.randint(2, 30), r.randint(2, 13))
        yield from right(f"{a}\\pi", [f"{a}π", f"\\pi\\cdot{a}", f"{a} \\pi", f"{a}*pi",
            f"\\frac{{{2 * a}\\pi}}{{2}}", f"{a}\\cdot\\pi"])
        yield from wrong(f"{a}\\pi", [f"{a + 1}\\pi", str(a), f"\\frac{{\\pi}}{{{a}}}",
            f"{a}\\pi^2", f"{a * 3.14159:.2f}", f"{a}e", f"-{a}\\pi", f"{a}+\\pi"])
        yield from right(f"\\frac{{{a}\\pi}}{{{b}}}", [f"\\frac{{{a}}}{{{b}}}\\pi",
            f"{a}\\pi/{b}", f"{a}π/{b}", f"\\frac{{\\pi}}{{{b}}}\\cdot {a}"])
        yield from right(f"e^{{{a}}}", [f"\\exp({a})", f"(e^{{{a}/2}})^2",
            f'e^{a}' if a < 10 else f'e^{{{a}}}'])
        yield from right(f"\\ln {a}", [f"\\ln({a})", f"\\ln{{{a}}}", f"\\frac12\\ln {a * a}",
            f"-\\ln\\frac{{1}}{{{a}}}", f"\\log {a}", f"ln({a})", f"\\operatorname{{ln}} {a}",
            f"\\mathrm{{ln}}({a})"])
        yield from wrong(f"\\ln {a}", [f"\\ln {a + 1}", str(a), f"-\\ln {a}", f"\\log_2 {a}",
            f"\\ln^2 {a}", f"e^{{{a}}}"])
        yield from right(f"\\log_{{{b}}} {a}", [f"\\frac{{\\ln {a}}}{{\\ln {b}}}",
            f"\\log_{{{b}}}({a})", f"\\frac{{\\log {a}}}{{\\log {b}}}"])
        yield from wrong(f"\\log_{{{b}}} {a}", [f'\\log_{{{a}}} {b}' if a != b else '0',
            f"\\log_{{{b + 1}}} {a}", f"\\ln {a}"])
        yield from right(r"1-\frac1e", [r"\frac{e-1}{e}", "1-e^{-1}", r"1-\frac{1}{\mathrm{e}}"])
        yield from right(f"{2 ** b}", [f"2^{{{b}}}", f"2^{b}"])
        yield from right(f'{a}!' if a < 8 else '6!', [str(factorial(a if a < 8 else 6))])
    yield from right("2^{2024}", [r"2\cdot 2^{2023}", "4^{1012}", "(2^{1012})^2",
        r"2^{2000}\cdot 2^{24}"])
    yield from wrong("2^{2024}", ["2^{2023}", "2^{2025}", "2^{2024}+1", "2^{2024}-1", "4^{2024}"])
    yield from wrong("10^{100}+1", ["10^{100}", "10^{100}-1", "10^{100}+2", "10^{101}+1"])
    yield from right(r"\binom{12}{5}", ["792", r"\frac{12!}{5!7!}", r"\binom{12}{7}",
        r"\dbinom{12}{5}"])
    yield from wrong(r"\binom{12}{5}", ["791", r"\binom{12}{6}", "12/5", r"\binom{5}{12}"])
    yield from right(r"\frac{\sqrt2}{2}", [r"\frac{1}{\sqrt{2}}", "2^{-1/2}", r"\sqrt{\frac12}"])


@kind
def complexes(r: random.Random) -> Iterator[Pair]:
    for _ in range(10):
        a, b = (r.randint(1, 20), r.randint(2, 20))
        yield from right(f"{a}+{b}i", [f"{b}i+{a}", f"{a} + {b} i", f"{a}+{b}\\cdot i",
            f"{a}+i\\cdot{b}", f"z={a}+{b}i", f"{a}+{b}\\mathrm{{i}}"])
        yield from wrong(f"{a}+{b}i", [f"{a}-{b}i", f'{b}+{a}i' if a != b else '0', str(a),
            f"{a}+{b}", f"-{a}+{b}i", f"{a},{b}", f"{a}+{b + 1}i", f"({a},{b})", f"{a}\\pm{b}i"])
        yield from right(f"\\frac{{{a}+{b}i}}{{2}}", [f"\\frac{{{a}}}{{2}}+\\frac{{{b}}}{{2}}i",
            f"({a}+{b}i)/2", f"{a / 2:g}+{b / 2:g}i"])
    yield from right("-i", [r"\frac1i", "i^3", r"e^{-i\pi/2}"])


@kind
def polynomials(r: random.Random) -> Iterator[Pair]:
    for _ in range(10):
        a, b, c = (r.randint(1, 9), r.randint(1, 9), r.choice('xnt'))
        gold = f'({c}+{a})({c}-{b})'
        expanded = f'{c}^2+{a - b}{c}-{a * b}'.replace('+-', '-').replace(f'+0{c}', '').replace(f'+1{c}', f'+{c}').replace(f'-1{c}', f'-{c}')
        yield from right(gold, [expanded, expanded.replace('^2', '^{2}'), f"({c}-{b})({c}+{a})",
            f"{c}({c}+{a})-{b}({c}+{a})", expanded.replace(f'{c}^2', f'{c}\\cdot {c}'),
            expanded.replace('+', ' \\,+\\, ')])
        yield from right(expanded, [gold, gold.replace(')(', ')\\cdot('),
            gold.replace(')(', ') \\times (')])
        yield from wrong(gold, [f"({c}+{a + 1})({c}-{b})",
            f'({c}-{a})({c}+{b})' if a != b else '0', f'{c}^2-{a * b}' if a != b else '0',
            f"{expanded}+1", expanded.replace(c, 'w'), f"{gold}=0", f"-{gold}", f"{c}={b}"])
        yield from right(f"\\frac{{{c}+{a}}}{{{c}-{b}}}", [f"({c}+{a})/({c}-{b})",
            f"\\frac{{-{c}-{a}}}{{{b}-{c}}}", f"1+\\frac{{{a + b}}}{{{c}-{b}}}"])
        yield from right(f"{a}{c}^{{{b}}}", [f"{a}\\cdot {c}^{b}", f"{c}^{b}\\cdot{a}",
            f"{a}*{c}^{b}", f"{a}{c}**{b}"])
        yield from right(f"\\frac{{n(n+{a})}}{{2}}", [f"\\frac{{n^2+{a}n}}{{2}}", f"n(n+{a})/2",
            f"\\frac12 n^2+\\frac{{{a}}}{{2}}n", f"\\frac{{n}}{{2}}(n+{a})"])
        yield from wrong(f"\\frac{{n(n+{a})}}{{2}}", [f"\\frac{{n(n-{a})}}{{2}}", f"n(n+{a})",
            f"\\frac{{n+{a}}}{{2}}", f"\\frac{{m(m+{a})}}{{2}}"])
        yield from right(f"e^{{{a + 1}x}}", [f"(e^x)^{{{a + 1}}}", f"\\exp({a + 1}x)",
            f"e^{{x}}\\cdot e^{{{a}x}}"])
        yield from right(f"\\sin({a + 1}x)", [f"\\sin {a + 1}x", f"\\sin\\left({a + 1}x\\right)",
            f"\\sin {{{a + 1}x}}"])
        yield from right(f"x^2+{a}+C", [f"C+x^2+{a}", f"{a}+x^2+C"])
    yield from right(r"\sin 2x", [r"2\sin x\cos x", r"2 \cos x \sin x"])
    yield from right(r"\cos^2 x", [r"1-\sin^2 x", r"\frac{1+\cos 2x}{2}", r"(\cos x)^2"])
    yield from right("2^{n+1}-2", ["2(2^n-1)", r"2\cdot2^n-2"])
    yield from wrong("2^{n+1}-2", ["2^{n}-2", "2^{n+1}", "2^{n+1}-1", "2^{n-1}-2"])
    yield from right("(-1)^{n+1}", ["-(-1)^n", "(-1)^{n-1}"])
    yield from wrong("x", ["|x|", r"\sqrt{x^2}", "y", "-x", "x^2", "X"])
    yield from wrong("ab", ["a+b", "a^b", "a/b", "ac"])
    yield from right("ab", ["ba", r"a\cdot b", "a*b", r"a \times b"])
    yield from right("a^2b", ["ba^2", r"b\cdot a\cdot a"])
    yield from right("x_1+x_2", ["x_2+x_1", "x_{2}+x_{1}"])
    yield from wrong("x_1+x_2", ["x_1-x_2", "x_1+x_3", "2x"])
    yield from right(r"\frac{a}{b}", ["a/b", "ab^{-1}", r"\frac{2a}{2b}"])
    yield from wrong(r"\frac{a}{b}", [r"\text{see above}", "b/a", "ab", "a-b"])


@kind
def equations(r: random.Random) -> Iterator[Pair]:
    for _ in range(10):
        a, b = (r.randint(2, 9), r.randint(1, 9))
        gold = f'y={a}x+{b}'
        yield from right(gold, [f"y = {a}x + {b}", f"y={b}+{a}x", f"{a}x-y+{b}=0", f"y-{a}x={b}",
            f"y-{a}x-{b}=0", f"{2 * a}x-2y+{2 * b}=0", f"{a}x+{b}=y", f"y={a}\\cdot x+{b}",
            f"{a}x+{b}"])
        yield from wrong(gold, [f"y={a}x-{b}", f"y={a + 1}x+{b}", f"x={a}y+{b}", f"y=-{a}x+{b}",
            f"{a}x+y+{b}=0", f"z={a}x+{b}", f"y>{a}x+{b}", f"{a}x-y+{b + 1}=0", f"y={a}", f"{a}",
            f"y\\ne {a}x+{b}"])
        yield from right(f"x={a}", [f"{a}", f"x = {a}.0", f"{a}=x"])
        yield from wrong(f"x={a}", [f"y={a}", f"x={a + 1}", f"x\\ne {a}", f"x>{a}",
            f"{2 * a}x={2 * a * a + 1}", f"x^2={a * a}", f"x=\\pm {a}"])
        yield from right(f"f(x)={a}x^2", [f"{a}x^2", f"f(x)={a}\\cdot x^2"])
        yield from wrong(f"f(x)={a}x^2", [f"f(x)={a}x^3", f"{a}x", f"f(x)=-{a}x^2"])
        yield from right(f"x^2+y^2={a * a}", [f"y^2+x^2={a * a}", f"x^2+y^2-{a * a}=0",
            f"{a * a}=x^2+y^2", f"x^2+y^2={a}^2"])
        yield from wrong(f"x^2+y^2={a * a}", [f"x^2+y^2={a}", f"x^2-y^2={a * a}",
            f"x^2+y^2<{a * a}", f"{a * a}", f"(x-1)^2+y^2={a * a}"])
        yield from right(f"(x-{a})^2+(y+{b})^2=9", [f"(y+{b})^2+(x-{a})^2=9",
            f"x^2-{2 * a}x+{a * a}+y^2+{2 * b}y+{b * b}=9", f"(x-{a})^2+(y+{b})^2=3^2"])
        yield from right(f"\\frac{{x^2}}{{{a * a}}}+\\frac{{y^2}}{{{b * b}}}=1", [f"\\frac{{y^2}}{{{b * b}}}+\\frac{{x^2}}{{{a * a}}}=1",
            f"{b * b}x^2+{a * a}y^2={a * a * b * b}"])
        yield from wrong(str(a), [f"x^2-{a}x=0", f"{a + 1}={a}", f"x={a}={a + 2}"])
        yield from wrong("0", [f"x^2-{a + b}x+{a * b}=0", f"(x-{a})(x-{b})=0", f"x-{a}=0",
            "f(x)=x"])


@kind
def tuples(r: random.Random) -> Iterator[Pair]:
    for _ in range(10):
        a, b, c = r.sample(range(-20, 20), 3)
        gold = f'({a},{b})'
        yield from right(gold, [f"({a}, {b})", f"\\left({a},{b}\\right)", f"({a}.0,{b})",
            f"x={a}, y={b}", f"({a};{b})", f"(x,y)=({a},{b})", f"\\left( {a}, {b} \\right)",
            f"{a},{b}", f"（{a}，{b}）", f"\\langle {a},{b}\\rangle", f"x={a} \\text{{ and }} y={b}"])
        yield from wrong(gold, [f"({b},{a})", f"({a},{b + 1})", f"({a},{b},{c})",
            f"({(-a if a else 99)},{b})", f"[{a},{b}]", f"x={b}, y={a}", f"({a})", f"({a},{b}],",
            f"({a},{b}),({b},{a})"])
        yield from right(f"({a},{b},{c})", [f"({a}, {b}, {c})", f"x={a}, y={b}, z={c}",
            f"x={a},\\ y={b},\\ z={c}"])
        yield from wrong(f"({a},{b},{c})", [f"({c},{b},{a})", f"({b},{a},{c})", f"({a},{b})"])
        yield from right(f"({a},{b}),({b},{c})", [f"({b},{c}),({a},{b})",
            f"({a}, {b}) \\text{{ and }} ({b}, {c})"])
        yield from wrong(f"({a},{b}),({b},{c})", [f"({a},{b})", f"({b},{a}),({c},{b})",
            f"({a},{b}),({c},{b})"])
    yield from right(r"\left(3, \frac{\pi}{2}\right)", [r"(3,\pi/2)",
        r"\left( 3, \dfrac{\pi}{2} \right)", r"(3, 0.5\pi)"])
    yield from wrong(r"\left(3, \frac{\pi}{2}\right)", [r"(\pi/2,3)", r"(3,\pi)", "(3,90)", "3"])


@kind
def sets(r: random.Random) -> Iterator[Pair]:
    for _ in range(10):
        a, b, c = r.sample(range(2, 60), 3)
        gold = f'{a},{b},{c}'
        yield from right(gold, [f"{c}, {a}, {b}", f"\\{{{b},{a},{c}\\}}",
            f"{a}, {b} \\text{{ and }} {c}", f"{a}, {b}, and {c}", f"x={a},{b},{c}",
            f"x={a}, x={b}, x={c}", f"{a};{b};{c}", f"{a}、{b}、{c}",
            f"x={a} \\text{{ or }} x={b} \\text{{ or }} x={c}", f"{a}.0, {b}, {c}",
            f"x \\in \\{{{a},{b},{c}\\}}", f"\\left\\{{{a}, {b}, {c}\\right\\}}",
            f"{a},{b}\\text{{, and }}{c}"])
        yield from wrong(gold, [f"{a},{b}", f"{a},{b},{c},{c + 1}", f"{a},{b},{c + 1}", f"{a}",
            f"{a}{b}{c}", f"({b},{a},{c})", f"{a}-{b}-{c}", f"{a + b + c}", f"{-a},{b},{c}",
            f"x={a},y={b},z={c + 1}"])
        gold = f'\\{{{a},{b}\\}}'
        yield from right(gold, [f"\\{{{b},{a}\\}}", f"{b}, {a}", f"\\{{{a}, {b}, {a}\\}}",
            f"{a} \\text{{ and }} {b}", f"{{{a},{b}}}"])
        yield from wrong(gold, [f"\\{{{a}\\}}", f"\\{{{a},{b},{c}\\}}", f"\\{{{a},{c}\\}}",
            f"[{a},{b}]", f"{a}"])
        yield from right(f"x={a}, x=-{b}", [f"-{b}, {a}", f"{a}, -{b}", f"x=-{b}, x={a}",
            f"x={a}\\text{{ or }}-{b}"])
        yield from wrong(f"x={a}, x=-{b}", [f"{a}", f"{a}, {b}", f"x={a}", f"-{a}, {b}"])
        yield from right(f"\\pm {a}", [f"{a}, -{a}", f"±{a}", f"-{a},{a}", f"x=\\pm {a}",
            f"x={a} \\text{{ or }} x=-{a}", f"+{a}, -{a}"])
        yield from wrong(f"\\pm {a}", [f"{a}", f"-{a}", f"{a},{a}", f"\\pm {b}"])
        yield from right(f"{a}\\pm\\sqrt{{{b}}}", [f"{a}+\\sqrt{{{b}}}, {a}-\\sqrt{{{b}}}",
            f"{a} ± √{b}", f"x={a}\\pm\\sqrt{{{b}}}"])
        yield from wrong(f"{a}\\pm\\sqrt{{{b}}}", [f"{a}+\\sqrt{{{b}}}",
            f"{a}\\pm\\sqrt{{{b + 1}}}", f"-{a}\\pm\\sqrt{{{b}}}", f"{a}-\\sqrt{{{b}}}"])
        yield from right(f"a={a} \\text{{ or }} a=-{b}", [f"-{b}, {a}", f"a=-{b}, {a}"])
    yield from right(r"\emptyset", [r"\varnothing", "∅", r"\{\}", r"\text{empty set}", "Ø"])
    yield from wrong(r"\emptyset", ["0", r"\{0\}", r"\{\emptyset\}", "x"])
    yield from wrong(r"1, 2, \ldots, n", [r"1, 3, 5, \ldots, 2n-1", "1, 2, 3", r"0, 1, \ldots, n",
        "n"])
    yield from right(r"1, 2, \ldots, n", [r"1,2,\dots,n", "1, 2, ..., n", "1,2,…,n"])


@kind
def intervals(r: random.Random) -> Iterator[Pair]:
    for _ in range(10):
        a = r.randint(-20, 20)
        b = a + r.randint(1, 20)
        yield from right(f"({a},{b})", [f"]{a},{b}[", f"{a}<x<{b}", f"{b}>x>{a}",
            f"x\\in({a},{b})", f"\\left({a}, {b}\\right)", f"({a};{b})",
            f"\\{{x \\mid {a}<x<{b}\\}}", f"{a} < t < {b}"])
        yield from wrong(f"({a},{b})", [f"[{a},{b}]", f"({a},{b}]", f"[{a},{b})",
            f"{a}\\le x<{b}", f"({a},{b + 1})", f"({b},{a})", f"{a}<x", f"x<{b}",
            f"\\{{{a},{b}\\}}", f"{b}<x<{a}"])
        yield from right(f"({a},{b}]", [f"{a}<x\\le {b}", f"{b}\\ge x>{a}", f"]{a},{b}]",
            f"x \\in ({a}, {b}]", f"{a} < x ≤ {b}", f"{a}<x\\leqslant {b}", f"{a}<x<={b}"])
        yield from wrong(f"({a},{b}]", [f"[{a},{b})", f"({a},{b})", f"{a}\\le x\\le {b}",
            f'({-b},{-a}]' if a != -b else '0'])
        yield from right(f"[{a},{b}]", [f"{a}\\le x\\le {b}", f"{b} ≥ x ≥ {a}",
            f"x \\in [{a},{b}]", f"\\left[{a}, {b}\\right]"])
        yield from right(f"{a}\\le x<{b}", [f"[{a},{b})", f"{b}>x\\ge {a}", f"x\\in[{a},{b})",
            f"x\\ge {a} \\text{{ and }} x<{b}", f"[{a},{b}["])
        yield from wrong(f"{a}\\le x<{b}", [f"{a}<x<{b}", f"({a},{b})", f"{a}\\le y<{b}",
            f"{a}\\le x\\le {b}", f"{a}"])
        yield from right(f"x>{a}", [f"({a},\\infty)", f"{a}<x", f"x \\in ({a}, +\\infty)",
            f"({a}, ∞)", f"({a},+\\infty)", f"x \\gt {a}"])
        yield from wrong(f"x>{a}", [f"x<{a}", f"x\\ge {a}", f"[{a},\\infty)", f"{a}",
            f"(-\\infty,{a})", f"y>{a}", f"x>{a + 1}", f"x={a}"])
        yield from right(f"x\\ge {a}", [f"[{a},\\infty)", f"x ≥ {a}", f"{a} \\leq x",
            f"x\\geqslant {a}", f"x>={a}"])
        yield from right(f"(-\\infty,{a})\\cup({b},\\infty)", [f"({b},\\infty)\\cup(-\\infty,{a})",
            f"x<{a} \\text{{ or }} x>{b}", f"x > {b} or x < {a}", f"(-∞,{a})∪({b},∞)",
            f"x\\in(-\\infty,{a})\\cup({b},+\\infty)"])
        yield from wrong(f"(-\\infty,{a})\\cup({b},\\infty)", [f"(-\\infty,{a}]\\cup({b},\\infty)",
            f"({a},{b})", f"(-\\infty,{a})", f"x\\le {a} \\text{{ or }} x>{b}",
            f"(-\\infty,{b})\\cup({a},\\infty)", f"{a}<x<{b}"])
        yield from right(f"x\\ne {a}", [f"x \\neq {a}", f"x≠{a}",
            f"(-\\infty,{a})\\cup({a},\\infty)", f"\\mathbb{{R}}\\setminus\\{{{a}\\}}",
            f"x\\not= {a}"])
        yield from wrong(f"x\\ne {a}", [f"x={a}", f"{a}", f"x\\ne {a + 1}", f"x>{a}",
            "\\mathbb{R}"])
        yield from right(f"D=({a},{b})", [f"({a},{b})", f"D = ({a}, {b})"])
        yield from wrong(f"D=({a},{b})", [f"D=({a},{b}.5)", f"D=[{a},{b}]"])
    yield from right(r"\mathbb{R}", [r"(-\infty,\infty)", "ℝ", r"x\in\mathbb{R}",
        r"\text{all real numbers}", r"(-\infty, +\infty)"])
    yield from wrong(r"\mathbb{R}", [r"\mathbb{Z}", r"(0,\infty)", "R^2", r"\emptyset"])
    yield from right(r"\infty", ["∞", r"+\infty", r"\text{infinity}", "infinity"])
    yield from wrong(r"\infty", [r"-\infty", "0", "1000000", "-∞"])
    yield from right(r"-\infty", ["-∞", "−∞", r"- \infty"])
    yield from right(r"(-\sqrt{2},\sqrt{2})", [r"-\sqrt2<x<\sqrt2", r"\sqrt{2}>x>-\sqrt{2}"])


@kind
def matrices(r: random.Random) -> Iterator[Pair]:
    for _ in range(10):
        a, b, c, d = r.sample(range(-9, 10), 4)
        gold = f'\\begin{{pmatrix}}{a}&{b}\\\\{c}&{d}\\end{{pmatrix}}'
        body = f'{a} & {b} \\\\ {c} & {d}'
        yield from right(gold, [f"\\begin{{bmatrix}} {body} \\end{{bmatrix}}",
            f"\\begin{{pmatrix}} {body} \\end{{pmatrix}}",
            f"\\left(\\begin{{array}}{{cc}} {body} \\end{{array}}\\right)",
            f"\\left[\\begin{{array}}{{cc}}{body}\\end{{array}}\\right]",
            f"[[{a},{b}],[{c},{d}]]", f"A=\\begin{{pmatrix}}{body}\\end{{pmatrix}}",
            f"\\begin{{pmatrix}} {a}.0 & {b} \\\\ {c} & {d} \\\\ \\end{{pmatrix}}"])
        yield from wrong(gold, [f"\\begin{{pmatrix}}{a}&{c}\\\\{b}&{d}\\end{{pmatrix}}",
            f"\\begin{{pmatrix}}{a}&{b}\\\\{c}&{d + 1}\\end{{pmatrix}}",
            f"\\begin{{pmatrix}}{a}&{b}\\end{{pmatrix}}", f"{a},{b},{c},{d}",
            f"\\begin{{vmatrix}}{body}\\end{{vmatrix}}", str(a * d - b * c),
            f"\\begin{{pmatrix}}{a}\\\\{b}\\\\{c}\\\\{d}\\end{{pmatrix}}", f"-{gold}"])
        yield from right(f"\\begin{{pmatrix}}{a}\\\\{b}\\end{{pmatrix}}", [f"\\begin{{bmatrix}}{a}\\\\{b}\\end{{bmatrix}}",
            f"\\begin{{pmatrix}} {a} \\\\[4pt] {b} \\end{{pmatrix}}"])
        yield from wrong(f"\\begin{{pmatrix}}{a}\\\\{b}\\end{{pmatrix}}", [f"\\begin{{pmatrix}}{b}\\\\{a}\\end{{pmatrix}}",
            f"\\begin{{pmatrix}}{a}&{b}\\end{{pmatrix}}", str(a)])
    yield from right(r"\begin{pmatrix}\frac12\\3\end{pmatrix}", [r"\begin{pmatrix}0.5\\3\end{pmatrix}",
        r"\begin{bmatrix}1/2\\3\end{bmatrix}"])


@kind
def choices(r: random.Random) -> Iterator[Pair]:
    for letter in 'ABCDE':
        n = r.randint(2, 99)
        other = 'ABCDE'[('ABCDE'.index(letter) + 1) % 5]
        for gold in (letter, f'\\text{{({letter})}}', f'({letter})'):
            yield from right(gold, [letter, f"({letter})", f"\\text{{{letter}}}",
                f"\\textbf{{({letter})}}", f"\\textbf{{({letter})}}\\ {n}",
                f"\\text{{({letter})}} {n}", f"{letter}.", f"{letter}. {n}", f"{letter}) {n}",
                f"\\mathrm{{{letter}}}", f"**{letter}**", f"§The answer is ({letter}).",
                f"§The answer is {letter}.", f"§The correct answer is **{letter}**.",
                f"§故选：{letter}。", f"§答案：{letter}", f"\\mathbf{{({letter})}}", f"{letter}: {n}",
                f"\\textbf{{{letter}}}", f"option {letter}", f"§Answer: {letter}",
                f"§The correct option is ({letter})."])
            yield from wrong(gold, [other, f"({other})", f"{letter}, {other}",
                f"{letter} or {other}", "A, B, C, D", f"({letter}) or ({other})", f"{other}. {n}",
                f"\\text{{{other}}}", f"\\text{{not }} {letter}", f"\\textbf{{({other})}}\\ {n}",
                f"({letter})({other})", str(n), f"{letter}{other}",
                f"§The answer is {other}, not {letter}.", f"{letter}/{other}"])


@kind
def words(r: random.Random) -> Iterator[Pair]:
    for (name, other) in (('Evelyn', 'Evan'), ('Friday', 'Monday'), ('even', 'odd'), ('Yes', 'No'), ('True', 'False'), ('no solution', 'one solution'), ('parallelogram', 'square'), ('March 5', 'March 6'), ('isosceles triangle', 'triangle'), ('blue', 'red'), ('Team A', 'Team B')):
        for gold in (f'\\text{{{name}}}', name):
            yield from right(gold, [name, name.lower(), f"\\text{{{name}}}",
                f"\\textbf{{{name}}}", f'\\mathrm{{{name}}}' if ' ' not in name else name,
                f"{name}.", name.upper(), f"\\textit{{{name}}}", f"§The answer is {name}.",
                f"§Answer: **{name}**"])
            yield from wrong(gold, [other, f"\\text{{{other}}}", f"{name} or {other}",
                f"\\text{{not {name}}}", f"{name}, {other}", "7", f"\\text{{{name} {other}}}",
                f"§The answer is {other}."])
    yield from right("March 5", ["March 5th", "march 5"])
    yield from right(r"\text{3:30 pm}", ["3:30 PM", "3:30 p.m.", r"3:30\text{ pm}", "3:30pm",
        "3:30 pm"])
    yield from wrong(r"\text{3:30 pm}", ["3:30 am", "3:31 pm", "4:30 pm", "3:30 am or pm", "15"])
    yield from right("10:30", ["10:30", r"\text{10:30}"])
    yield from wrong("10:30", ["10:31", "11:30", "1:3", "10.30", "30:10"])
    for (word, n) in (('seven', 7), ('twelve', 12), ('forty-two', 42), ('one hundred', 100), ('zero', 0)):
        yield from right(str(n), [word, f"\\text{{{word}}}", word.capitalize()])
        yield from wrong(str(n + 1), [word, f"\\text{{{word}}}"])


@kind
def ratios(r: random.Random) -> Iterator[Pair]:
    for _ in range(10):
        a, b = r.choice([(2, 3), (3, 5), (1, 4), (7, 2), (5, 8), (9, 4)])
        k = r.randint(2, 5)
        yield from right(f"{a}:{b}", [f"{a} : {b}", f"{k * a}:{k * b}", f"{a}：{b}",
            f"\\text{{{a}:{b}}}", f"{a}\\colon {b}", f"{a}.0:{b}", f"{a}∶{b}"])
        yield from wrong(f"{a}:{b}", [f"{b}:{a}", f"{a}:{b + 1}", f"{a + 1}:{b}", str(a),
            f"{a},{b}", f"({a},{b})", f"-{a}:{b}", f"{a}:{b}:1"])
    yield from right("1:2:3", ["2:4:6", "1 : 2 : 3"])
    yield from wrong("1:2:3", ["1:2", "3:2:1", "1:2:4"])


@kind
def restatements(r: random.Random) -> Iterator[Pair]:
    for _ in range(8):
        n = r.randint(4, 120)
        total = n * (n + 1) // 2
        yield from wrong(str(total), [f"\\sum_{{k=1}}^{{{n}}} k", f"\\sum_{{k=1}}^{{{n}}}{{k}}",
            f"\\lim_{{x\\to {total}}} x", f"\\int_0^{{{total}}} 1 \\, dx",
            f"\\gcd({total},{2 * total})", f"\\text{{lcm}}({total},1)",
            f"\\operatorname{{lcm}}(1,{total})", f"\\max(0,{total})",
            f"\\min\\{{{total},{total + 1}\\}}", f"\\prod_{{k={total}}}^{{{total}}} k",
            f"x-{total}=0", f"\\det\\begin{{pmatrix}}{total}&0\\\\0&1\\end{{pmatrix}}",
            f"gcd({total}, {2 * total})", f"\\sum_{{i={total}}}^{{{total}}}i",
            f"{total}\\bmod {total + 1}", f"\\frac{{d}}{{dx}}({total}x)",
            f"\\begin{{vmatrix}}{total}&0\\\\0&1\\end{{vmatrix}}"])
        yield from wrong(f"\\frac{{1}}{{{n}}}", [f"\\int_0^1 x^{{{n - 1}}}dx",
            f"\\lim_{{x\\to\\infty}}\\frac{{x}}{{{n}x+1}}",
            f"\\sum_{{k=1}}^\\infty \\frac{{1}}{{{n + 1}^k}}"])
    yield from right(r"\sum_{k=1}^{n}k^2", [r"\sum_{k=1}^n k^2", r"\sum_{k=1}^{n} k^{2}"])
    yield from wrong(r"\sum_{k=1}^{n}k^2", [r"\sum_{k=1}^n k^3", r"\sum_{k=1}^{n-1}k^2", "n"])
