"""Numbers are exact: what is equal is equal, and what differs in the last digit differs."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lydite.verify.notation import normalise
from lydite.verify.number import read_number, same_number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", Fraction(42)),
        ("-7", Fraction(-7)),
        ("−7", Fraction(-7)),
        ("+5", Fraction(5)),
        ("-(5)", Fraction(-5)),
        ("007", Fraction(7)),
        (".5", Fraction(1, 2)),
        ("7.", Fraction(7)),
        ("1,234,567.5", Fraction(2469135, 2)),
        (r"1{,}234", Fraction(1234)),
        (r"1\,234", Fraction(1234)),
        ("１２", Fraction(12)),
        ("6/8", Fraction(3, 4)),
        (r"\dfrac{-1}{2}", Fraction(-1, 2)),
        (r"\frac12", Fraction(1, 2)),
        ("3 3/4", Fraction(15, 4)),
        (r"5\frac{1}{2}", Fraction(11, 2)),
        ("3.2e5", Fraction(320000)),
        (r"6.02\times 10^{23}", Fraction(602 * 10**21)),
        ("1.5 * 10^-3", Fraction(3, 2000)),
        ("2^{10}", Fraction(1024)),
        (r"0.\overline{142857}", Fraction(1, 7)),
        (r"0.1\overline{6}", Fraction(1, 6)),
        (r"0.\dot{1}4285\dot{7}", Fraction(1, 7)),
        (r"\$1,200", Fraction(1200)),
        (r"5 \text{ million}", Fraction(5_000_000)),
    ],
)
def test_spellings(text: str, value: Fraction) -> None:
    number = read_number(normalise(text))
    assert number is not None
    assert number.value == value


@pytest.mark.parametrize(
    "text",
    [
        "--1",
        "- -1",
        "+-1",
        "-+1",
        "",
        "x",
        "1,2,3",
        "1,23",
        "1/0",
        "3 km",
        "1..2",
        "2^x",
        "9" * 1001,
    ],
)
def test_what_is_no_number(text: str) -> None:
    assert read_number(normalise(text)) is None


def _same(gold: str, answer: str) -> bool:
    numbers = read_number(normalise(gold)), read_number(normalise(answer))
    assert numbers[0] is not None and numbers[1] is not None
    return same_number(numbers[0], numbers[1])


def test_percent() -> None:
    assert _same(r"25\%", "0.25")
    assert _same(r"25\%", "25")
    assert _same("0.25", r"25\%")
    assert _same(r"12.5\%", r"12.5\%")
    assert not _same("3", "300")
    assert not _same("3", "0.03")
    assert not _same(r"25\%", r"0.25\%")
    assert not _same("0.25", r"0.25\%")
    assert not _same(r"0.5\%", "0.5")


def test_only_a_long_decimal_is_a_rounding() -> None:
    assert _same(r"\frac{1}{3}", "0.333333")
    assert not _same(r"\frac{1}{3}", "0.333334")
    assert not _same(r"\frac{1}{3}", "0.33")
    assert _same("3.3333333333", r"\frac{10}{3}")
    assert not _same("0.0000001", r"\frac{1}{20000000}")
    assert not _same("1.2e-7", "3.4e-7")
    assert not _same("2024", "2024.1")


@given(st.fractions(max_denominator=10**6), st.fractions(max_denominator=10**6))
def test_fractions_are_equal_only_to_themselves(a: Fraction, b: Fraction) -> None:
    spelled = f"\\frac{{{a.numerator}}}{{{a.denominator}}}"
    assert _same(spelled, f"{a.numerator}/{a.denominator}")
    assert _same(spelled, f"{b.numerator}/{b.denominator}") == (a == b)


@given(st.integers(-(10**12), 10**12))
def test_thousands_separators(value: int) -> None:
    assert _same(str(value), f"{value:,}")
    assert not _same(str(value), f"{value + 1:,}")
