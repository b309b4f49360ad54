# ruff: noqa: E501
# fmt: off
"""Numbers, units, places and wordings; see math_pairs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction

from math_pairs import Pair, grouped, kind, right, wrong


@kind
def integers(r: random.Random) -> Iterator[Pair]:
    for _ in range(12):
        n = r.randint(2, 9999)
        yield from right(str(n), [f"{n}.0", f"+{n}", f"{n}.", f"x = {n}", f"\\text{{{n}}}",
            f"\\mathbf{{{n}}}", f"\\fbox{{{n}}}", f"{{{n}}}", f"n={n}", f"\\large {n}", f"0{n}",
            f"\\textbf{{{n}}}", f"{n - 1}+1={n}", f"\\color{{red}}{{{n}}}", f"({n})"])
        yield from wrong(str(n), [str(n + 1), str(-n), f"{10 * n}", f"{n}.1", f"−{n}", f"- {n}",
            f"-({n})", f"{n}x", f"x={n + 1}", f"{n + 1}={n}", f"x={n}={n + 2}",
            f'{n}!' if n > 2 else '9', f"\\pm {n}", f"{n}, {n + 1}",
            f"{n} \\text{{ or }} {n + 1}", f"{n + 1} or {n}",
            f"\\text{{either }} {n} \\text{{ or }} {n + 1}",
            f"\\text{{approximately }} {n} \\text{{ to }} {n + 1}", f"\\text{{not }} {n}",
            f"{n}?", f"\\text{{between }} {n - 1} \\text{{ and }} {n + 1}", f"> {n}", f"\\ge {n}",
            f"x > {n}", f"\\neq {n}", f"x \\ne {n}", f"\\text{{at least }} {n}",
            f"{n} \\text{{ or more}}", f"{n} \\text{{ is wrong}}", f"\\text{{less than }} {n}",
            f"x^2-{n}x=0", f"[{n},{n + 1}]", f"\\{{{n},{n + 2}\\}}", f"{n}_8", f"{n}-{n + 1}",
            f"{n}/{n + 1}", f"{n},{n}.5", "x", f"{n}+", f"{n}e1"])


@kind
def negatives(r: random.Random) -> Iterator[Pair]:
    for _ in range(8):
        n = r.randint(2, 500)
        yield from right(f"-{n}", [f"−{n}", f"–{n}", f"-({n})", f"- {n}", f"－{n}", f"‑{n}",
            f"-{n}.0", f"x=-{n}", f"({-n})", f"§The answer is −{n}.", f"§The answer is - {n}.",
            f"§Thus the answer is -{n}"])
        yield from wrong(f"-{n}", [str(n), f"+{n}", f"-{n + 1}", f"--{n}", f"|-{n}|", f"-(-{n})",
            f"§The answer is {n}."])
        yield from wrong(str(n), [f"§The answer is - {n}.", f"§The answer is −{n}.",
            f"§The answer is –{n}"])


@kind
def fractions(r: random.Random) -> Iterator[Pair]:
    for _ in range(12):
        f = Fraction(r.randint(1, 60), r.choice([2, 4, 5, 8, 20, 25]))
        if f.denominator == 1:
            continue
        p, q, k = (f.numerator, f.denominator, r.randint(2, 7))
        gold = f'\\frac{{{p}}}{{{q}}}'
        decimal = str(float(f))
        yield from right(gold, [decimal, f"{p}/{q}", f"{k * p}/{k * q}", f"\\dfrac{{{p}}}{{{q}}}",
            f"\\tfrac{{{p}}}{{{q}}}", f"{p} / {q}", f"\\frac {{{p}}} {{{q}}}", f"{p} \\div {q}",
            f"{p}⁄{q}", f"\\frac{{-{p}}}{{-{q}}}", f"({p})/({q})", f"{decimal}0",
            f"x=\\frac{{{p}}}{{{q}}}", f"\\displaystyle\\frac{{{p}}}{{{q}}}"])
        yield from wrong(gold, [f"{p}\\cdot\\frac{{1}}{{{q}}}", f"\\frac{{{q}}}{{{p}}}", f"\\frac{{{p + 1}}}{{{q}}}",
            f"\\frac{{{p}}}{{{q + 1}}}", f"-\\frac{{{p}}}{{{q}}}", f"{p}", f"{q}", f"{p},{q}",
            f"({p},{q})", f"\\frac{{{10 * p}}}{{{q}}}", f"{float(f) / 100:.6f}",
            f"{float(f) * 100:.4f}", f'{p}:{q}' if p > 1 else '0'])
        if p > q:
            w, rest = divmod(p, q)
            yield from right(gold, [f"{w} {rest}/{q}", f"{w}\\frac{{{rest}}}{{{q}}}",
                f"{w} \\frac{{{rest}}}{{{q}}}", f"{w}\\tfrac{{{rest}}}{{{q}}}",
                f"{w}\\,\\frac{{{rest}}}{{{q}}}"])
            yield from right(f"{w}\\frac{{{rest}}}{{{q}}}", [decimal, f"\\frac{{{p}}}{{{q}}}",
                f"{w} {rest}/{q}"])
            yield from wrong(gold, [f"{w + 1} {rest}/{q}",
                f'{w}\\frac{{{rest + 1}}}{{{q}}}' if rest + 1 < q else '0',
                f'{w}\\cdot\\frac{{{rest}}}{{{q}}}' if w * rest != p else '0'])
    for (glyph, text) in (('½', '\\frac12'), ('2¾', '\\frac{11}{4}'), ('3⅓', '\\frac{10}{3}'), ('⅝', '0.625'), ('-1½', '-1.5')):
        yield from right(text, [glyph])
    yield from wrong(r"\frac{5}{2}", [r"5\frac{1}{2}", "5 1/2", "2,5 or 3"])
    yield from wrong(r"\frac{1}{2004!}", [r"\frac{1}{2006!}", r"\frac{1}{2005!}", "0"])
    yield from wrong(r"\frac{1}{2^{120}}", [r"\frac{1}{2^{119}}", "2^{-121}", "0"])
    yield from right(r"\frac{1}{2^{120}}", ["2^{-120}", r"\frac{1}{4^{60}}", "(1/2)^{120}",
        "0.5^{120}"])
    yield from wrong(r"\frac{2^{205}+1}{3\cdot 2^{206}}", [r"\frac{1}{3\cdot2^{206}}", r"\frac16",
        r"\frac{2^{205}}{3\cdot 2^{206}}"])
    yield from wrong("1.2e-7", ["3.4e-7", "1.2e-8", "0", "1.3e-7", r"\frac{1}{8000000}"])
    yield from right("1.2e-7", [r"1.2\times10^{-7}", "0.00000012", r"12 \times 10^{-8}",
        r"\frac{12}{10^8}"])
    yield from wrong(r"\frac{\pi}{2004!}", [r"\frac{\pi}{2006!}", "0"])


@kind
def thousands(r: random.Random) -> Iterator[Pair]:
    for _ in range(10):
        n = r.randint(1000000, 99999999)
        spelled = [grouped(n, s) for s in (',', '{,}', '\\,', '\\ ', ' ', '_', '{\\,}', "'", '’', '.', ',\\!', '\u202f', '\u2009', '，')]
        yield from right(str(n), [*spelled, f"{grouped(n, ',')}.00",
            f"\\text{{{grouped(n, ',')}}}", f"{grouped(n, ',')}.0"])
        for gold in spelled[:4]:
            yield from right(gold, [str(n), grouped(n, ',')])
        yield from wrong(str(n), [grouped(n + 1, ','), grouped(n, ', ')[:-1],
            grouped(n // 10, ','), grouped(n, ',') + ',000', grouped(n + 1000, '\\,'),
            grouped(n, ';')])
        m = r.randint(1000, 9999)
        yield from right(str(m), [grouped(m, s) for s in (',', '{,}', '\\,', ',\\!', ' ')] + [f"\\${grouped(m, ',')}"])
    yield from wrong("123", ["1,2,3", "1, 23", "12,3", "1 2 3"])
    yield from wrong("1,2,3", ["123", "1,2", "1,2,3,4", "1,2,4"])
    yield from right("1234567.89", ["1.234.567,89", "1 234 567,89", "1,234,567.89"])
    yield from right(r"1,\!000", ["1000", "1,000"])


@kind
def decimals(r: random.Random) -> Iterator[Pair]:
    for _ in range(10):
        a = Fraction(r.randint(101, 9999), 100)
        if a.denominator in (1, 2):
            continue
        gold = f'{float(a):g}'
        yield from right(gold, [f"{gold}0", f"\\frac{{{a.numerator}}}{{{a.denominator}}}",
            gold.replace('.', ','), f"x={gold}", f"\\text{{{gold}}}", gold.replace('.', '{,}')])
        yield from wrong(gold, [f"{float(a) + 0.01:g}", f"{float(a) * 10:g}",
            gold.replace('.', ''), f"-{gold}", f"{gold}1", gold.split('.')[0],
            gold.replace('.', ', '), gold.replace('.', ';')])
    yield from wrong(r"\sqrt{2}", ["1.41", "1.4", "1.5", "1.414215", "1.4143"])
    yield from right(r"\sqrt{2}", ["1.414214", "1.41421356"])
    yield from wrong(r"\pi", ["3.14", "22/7", "3.1416", "3.141593654"])
    yield from right("0.5", [".5", "0,5", "1/2", r"50\%"])


@kind
def percents(r: random.Random) -> Iterator[Pair]:
    for _ in range(10):
        p = r.choice([r.randint(2, 99), r.randint(11, 999) / 10])
        gold = f'{p:g}\\%'
        yield from right(gold, [f"{p:g}%", f"{p:g}\\%", f"{p:g} \\%", f"{p:g} percent",
            f"{p:g}\\text{{ percent}}", f"{p:g} per cent", str(Fraction(str(p)) / 100),
            f"{float(Fraction(str(p)) / 100):g}", f"{p:g}％", f"x={p:g}\\%"])
        yield from right(f"{p:g}", [f"{p:g}\\%", f"{p:g}%"])
        yield from wrong(gold, [f"{p + 1:g}\\%", f"{p * 100:g}\\%", f"{p / 100:g}\\%",
            f"-{p:g}\\%", f"{p * 10:g}", f'{100 - p:g}\\%' if p != 50 else '1'])
        yield from wrong(f"{p:g}", [f"{p * 100:g}", f"{p / 100:g}", f"{p / 100:g}\\%"])


@kind
def repeating(r: random.Random) -> Iterator[Pair]:
    for _ in range(10):
        fixed, period = (r.choice(['', str(r.randint(0, 99))]), str(r.randint(1, 8)) if r.random() < 0.4 else str(r.choice([12, 27, 45, 142857, 18, 36, 571428])))
        value = (Fraction(int(fixed or 0)) + Fraction(int(period), 10 ** len(period) - 1)) / 10 ** len(fixed)
        gold = f'\\frac{{{value.numerator}}}{{{value.denominator}}}'
        bar = f'0.{fixed}\\overline{{{period}}}'
        dots = f'\\dot{{{period}}}' if len(period) == 1 else f'\\dot{{{period[0]}}}{period[1:-1]}\\dot{{{period[-1]}}}'
        spelled = [bar, f"0.{fixed}\\bar{{{period}}}", f"0.{fixed}{dots}", f"0.{fixed}({period})",
            f"0.{fixed}{period * 3}...", f"0.{fixed}{period * 3}\\ldots",
            f"0.{fixed}\\overline{{{period}{period}}}", f"0.{fixed}{period * 3}…",
            f'0.{fixed}' + ''.join(d + '̅' for d in period)]
        yield from right(gold, spelled)
        yield from right(bar, [gold, spelled[2], spelled[3]])
        yield from wrong(gold, [f'0.{fixed}{period[:2]}'[:5],
            f"0.{fixed}\\overline{{{int(period) + 1}}}", f"0.{fixed}0\\overline{{{period}}}",
            f"1.{fixed}\\overline{{{period}}}", f"-{bar}"])
    yield from right(r"\frac13", [r"0.\overline3", r"0.\dot3", r"0.\bar 3", "0.3333333333"])
    yield from wrong(r"\frac13", ["0.33", "0.333", "0.3", r"0.\overline{03}", "0.333334"])


@kind
def scientific(r: random.Random) -> Iterator[Pair]:
    for _ in range(10):
        m, e = (r.randint(11, 99), r.choice([r.randint(2, 20), -r.randint(2, 12)]))
        mantissa = f'{m / 10:g}'
        value = Fraction(m, 10) * Fraction(10) ** e
        plain = str(value.numerator) if value.denominator == 1 else f'\\frac{{{value.numerator}}}{{{value.denominator}}}'
        spelled = [f"{mantissa}e{e}", f"{mantissa}E{e:+d}", f"{mantissa}\\times10^{{{e}}}",
            f"{mantissa} × 10^{{{e}}}", f"{mantissa}\\cdot 10^{{{e}}}", f"{mantissa}*10^{e}",
            f"{mantissa} \\times 10^{{{e}}}", f"{m}\\times 10^{{{e - 1}}}",
            f"{mantissa} \\times {{10}}^{{{e}}}", f"{mantissa}x10^{e}",
            f"{mantissa}·10{str(e).translate(str.maketrans('0123456789-', '⁰¹²³⁴⁵⁶⁷⁸⁹⁻'))}",
            f"{mantissa} * 10**{e}"]
        yield from right(plain, spelled)
        yield from right(spelled[2], [plain, spelled[0], spelled[4]])
        yield from wrong(plain, [f"{mantissa}e{e + 1}", f"{mantissa}\\times10^{{{-e}}}",
            f"{m + 1}\\times 10^{{{e - 1}}}", f"-{mantissa}e{e}", f"{mantissa}", f"10^{{{e}}}",
            f"{mantissa}e"])


@kind
def units(r: random.Random) -> Iterator[Pair]:
    rates = [('km/h', ['\\text{ km/h}', ' km per hour', '\\text{ kilometers per hour}', ' \\frac{\\text{km}}{\\text{h}}', '\\text{ kph}'], ['\\text{ m/s}', ' mph', '\\text{ km}']),
        ('m/s^2', [' m/s^2', '\\text{ m/s}^2', ' \\mathrm{m/s^2}', ' m/s²', '\\text{ meters per second squared}'], ['\\text{ m/s}', '\\text{ m}']),
        ('cm', [' cm', '\\text{ cm}', '\\,\\mathrm{cm}', ' centimeters', '\\text{ centimetres}', 'cm', '厘米'], ['\\text{ m}', ' km', ' mm', '\\text{ cm}^2']),
        ('cm^2', [' cm^2', '\\text{ cm}^2', ' \\text{cm}^{2}', '\\text{ square centimeters}', ' sq cm', '\\text{ cm}²', '平方厘米'], ['\\text{ cm}', '\\text{ cm}^3', '\\text{ m}^2']),
        ('kg', [' kg', '\\text{ kilograms}', '千克', ' \\mathrm{kg}'], ['\\text{ g}', '\\text{ lbs}', ' mg']),
        ('hours', [' hours', '\\text{ hrs}', ' h', '小时', '\\text{ hour}'], ['\\text{ minutes}', ' days', '\\text{ s}']),
        ('m^3', ['\\text{ m}^3', ' cubic meters', '立方米'], ['\\text{ m}^2', '\\text{ cm}^3']),
        ('apples', [' apples', '\\text{ apples}'], [' oranges', '\\text{ boxes}'])]
    for (name, same, other) in rates:
        for _ in range(2):
            n = r.randint(2, 400)
            golds = [f'{n}\\text{{ {name}}}' if '^' not in name else f'{n}{same[0]}']
            for gold in golds:
                yield from right(gold, [f'{n}{s}' for s in same] + [str(n)])
                yield from wrong(gold, [f'{n}{s}' for s in other] + [f'{n + 1}{same[0]}', f'{n + 1}', f'-{n}{same[1]}'])
            yield from right(str(n), [f'{n}{s}' for s in same] + [f'{n}\\text{{ units}}', f'{n} people', f'{n}个'])
            yield from wrong(str(n), [f'{n + 1}{s}' for s in same[:3]] + [f'{n} \\text{{ dozen}}', f'{n} hundred', f'{n}万', f'{n} thousand'])
    for _ in range(6):
        n = r.randint(2, 90)
        yield from right(f"{n}\\text{{ km}}", [f"{1000 * n}\\text{{ m}}", f"{n}000 meters"])
        yield from right(f"{n}\\text{{ hours}}", [f"{60 * n}\\text{{ minutes}}"])
        yield from wrong(f"{n}\\text{{ km}}", [f"{100 * n}\\text{{ m}}", f"{1000 * n}"])
        yield from right(f"{n}\\pi", [f"{n}\\pi \\text{{ cm}}", f"{n}\\pi\\text{{ square units}}",
            f"{n}π cm²", f"{n}\\pi \\, \\text{{cm}}^2"])
        yield from right(f"{n}\\sqrt{{3}}", [f"{n}\\sqrt{{3}}\\text{{ cm}}", f"{n}√3 cm"])
        yield from wrong(f"{n}\\pi\\text{{ cm}}", [f"{n}\\pi\\text{{ m}}", f"{n}\\text{{ cm}}"])
    yield from right("5 million", ["5000000", "5,000,000", r"5\times 10^6"])


@kind
def degrees(r: random.Random) -> Iterator[Pair]:
    for _ in range(8):
        n = r.randint(1, 359)
        spelled = [f"{n}°", f"{n}^\\circ", f"{n}^{{\\circ}}", f"{n} degrees",
            f"{n}\\text{{ degrees}}", f"{n}\\degree", f"{n}度", f"{n}º", f"x={n}^\\circ"]
        yield from right(str(n), spelled)
        yield from right(f"{n}^\\circ", [str(n), *spelled])
        yield from wrong(f"{n}^\\circ", [f"{n + 1}^\\circ",
            f'{360 - n}^\\circ' if n != 180 else '1', f"-{n}°", f"{n}\\text{{ radians}}",
            f'{n}\\%' if n != 100 else '2'])
    yield from wrong(r"30^\circ\text{C}", [r"30^\circ\text{F}", "31°C"])
    yield from right(r"30^\circ\text{C}", ["30°C", "30℃", "30"])


@kind
def money(r: random.Random) -> Iterator[Pair]:
    for _ in range(8):
        c = r.randint(101, 99999)
        if c % 100 == 0:
            c += 5
        amount = f'{c / 100:.2f}'
        spelled = [f"\\${amount}", f"{amount}", f"{amount} dollars", f"\\text{{\\${amount}}}",
            f"{amount}\\$", f"USD {amount}", f"{amount} USD", f"{c / 100:,.2f}",
            f"\\${c / 100:,.2f}", f"{amount}\\text{{ dollars}}", f"US\\${amount}"]
        yield from right(f'\\${amount}', spelled)
        yield from right(amount, spelled)
        yield from right(f"\\${amount}", [f"§In total she pays ${amount}.", f"{c} cents",
            f"§The answer is ${amount}."])
        yield from wrong(f"\\${amount}", [f"€{amount}", f"£{amount}", f"\\${(c + 1) / 100:.2f}",
            f"\\${c}", f"-\\${amount}", f"{amount} cents", f"{amount} euros",
            f"\\${amount} or \\${(c + 100) / 100:.2f}"])
    yield from right("€5", ["5€", "5 euros", "5", "€5.00"])


@kind
def bases(r: random.Random) -> Iterator[Pair]:
    for _ in range(8):
        base = r.choice([2, 3, 5, 8, 16])
        digits = ''.join(str(r.randint(0, min(base, 10) - 1)) for _ in range(4)).lstrip('0') or '1'
        digits = '1' + digits
        yield from right(f"{digits}_{base}", [f"{digits}_{{{base}}}",
            f'{digits}_{base}' if base < 10 else f'{digits}_{{{base}}}', f"({digits})_{{{base}}}",
            f"{digits}_{{\\text{{{base}}}}}", f"{digits}",
            f"{digits}{str(base).translate(str.maketrans('0123456789', '₀₁₂₃₄₅₆₇₈₉'))}",
            f"\\text{{{digits}}}_{{{base}}}"])
        yield from wrong(f'{digits}_{base}' if base < 10 else f'{digits}_{{{base}}}', [f"{digits}_{{10}}",
            f"{digits}_{{{base + 1}}}", f"{digits}0_{base}", f"{int(digits) + 1}_{{{base}}}",
            f"{int(digits, base)}", f"{digits}^{{{base}}}", f"-{digits}_{{{base}}}"])


@kind
def chinese(r: random.Random) -> Iterator[Pair]:
    full = str.maketrans('0123456789.-', '０１２３４５６７８９．－')
    for _ in range(10):
        n = r.randint(2, 99)
        yield from right(str(n), [f"§答案：{n}。", f"§所以答案是{n}。", f"§最终答案是 {n}", f"§因此，答案为 ${n}$。",
            f"{n}米", f"{n}个", f"{n}元", f"{n}平方厘米", str(n).translate(full), f"§答：{n}米。", f"{n}人",
            f"§故答案为：{n}．", f"§最终答案：{n}", f"{n}天", f"§答案是：\\boxed{{{n}}}。", f"§答案：**{n}**"])
        yield from wrong(str(n), [f"§答案：{n + 1}。", f"§答案是{n}或{n + 1}。", f"{n + 1}米", f"{n}万",
            f'-{n}'.translate(full), f"§最终答案是 {n + 1}", f"{n}或{n + 1}"])
        yield from right(f"{n}米", [f"{n}\\text{{ m}}", f"{n}", f"{n} 米", f"{n}\\text{{米}}"])
        yield from wrong(f"{n}米", [f"{n}千米", f"{n}厘米", f"{n + 1}米", f"{n}元"])
    for (a, b) in (('甲', '乙'), ('星期三', '星期五'), ('是', '否'), ('红色', '蓝色')):
        yield from right(f"\\text{{{a}}}", [a, f"\\text{{{a}}}", f"\\textbf{{{a}}}", f"{a}。",
            f"§答案：{a}。"])
        yield from right(a, [f"\\text{{{a}}}", f"\\mathrm{{{a}}}"])
        yield from wrong(f"\\text{{{a}}}", [b, f"{a}或{b}", f"不{a}", f"{a}、{b}", "1"])
    yield from right("12", ["十二", r"\text{十二}"])
    yield from right(r"\frac13", ["三分之一"])
    yield from right(r"25\%", ["百分之二十五"])
    yield from right("30000", ["3万"])


@kind
def places(r: random.Random) -> Iterator[Pair]:
    for _ in range(12):
        n = r.randint(10, 900)
        m = n + r.randint(1, 9)
        yield from right(str(n), [f"§<think>\\boxed{{{m}}}</think>\\boxed{{{n}}}",
            f"§Step one gives \\boxed{{{m}}}. Correcting, the result is \\boxed{{{n}}}.",
            f"§I must write \\boxed and then: \\boxed{{{n}}}", f"§Thus we get \\boxed {n}",
            f"§\\boxed{{{n}}} is it.\n\n**Final Answer**\n\\boxed{{{n}}}", f"§**Answer:** {n}.",
            f"§So there are **{n}**.\n\n---\n\nFinal Answer: **{n}**",
            f"§The final answer is ${n}$. I hope it is correct.", f"§work\n#### {n}",
            f"§I tried {m} first but it fails; the answer is {n}.", f"§<answer>{n}</answer>",
            f"§<answer>\\boxed{{{n}}}</answer>", f"§Therefore, the answer is {n}.",
            f"§Hence the answer is\n\\[ {n} \\]",
            f"§reasoning {m}</think>\n\\boxed{{{n}}}<|im_end|>", f"§The answer is: {n}",
            f"§The answer is $\\boxed{{{n}}}$", f"§\\[\\boxed{{{n}}}\\]",
            f"§\\boxed{{\\boxed{{{n}}}}}", f"§Final answer: $\\fbox{{{n}}}$", f"§\\fbox{{{n}}}",
            f"§ANSWER: {n}", f"§The answer is **{n}**.", f"§The final answer is:\n\n$${n}$$",
            f"§In conclusion, she has {n} apples.", f"§\\boxed{{{n}}}.\n", f"§\\boxed{{ {n} }}",
            f"§\\boxed{{\n{n}\n}}", f"§Answer: \\({n}\\)", f"§The answer should be {n}.",
            f"§So the correct answer is {n}.", f"§Thus, our final answer is {n}."])
        yield from wrong(str(n), [f"§<think>\\boxed{{{n}}}</think>\\boxed{{{m}}}",
            f"§<think>\\boxed{{{n}}}</think> I cannot tell.", f"§<think>\\boxed{{{n}}}",
            f"§Step one gives \\boxed{{{n}}}. Correcting, the result is \\boxed{{{m}}}.",
            f"§It is \\boxed{{{n}}} or \\boxed{{{m}}}.",
            f"§I tried {n} first but it fails; the answer is {m}.", f"§The answer is {n} or {m}.",
            f"§The answer is either {n} or {m}.", "§\\boxed{}", f"§The answer is not {n}.",
            f"§<answer>{m}</answer>", f"§<answer>{n}</answer> no: <answer>{m}</answer>",
            f"§\\boxed{{{n}}}, \\boxed{{{m}}}", f"§The answer is between {n - 1} and {n + 1}.",
            f"§The answer is approximately {n} to {m}.", f"§\\boxed{{{n}",
            f"§The answer is at least {n}.", f"§{n} {m} {n + 20} {m + 30}",
            f"§The answer could be {n}, maybe {m}.", f"§Answer: {m}\n",
            f"§The answer is {m}, not {n}."])
