"""Bags, ties, cuts, numbers and columns."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lydite.verify.sql.compare import Segment, column_orders, same_rows

Rows = list[tuple[object, ...]]


def bag(*rows: tuple[object, ...]) -> list[Segment]:
    return [Segment(len(rows), list(rows))]


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        ([(1,), (2,)], [(2,), (1,)], True),
        ([(1,), (1,)], [(1,)], False),
        ([(1,), (1,), (2,)], [(1,), (2,), (2,)], False),
        ([(None,)], [(0,)], False),
        ([(None,)], [("",)], False),
        ([(None,)], [(None,)], True),
        ([(0,)], [("",)], False),
        ([(1,)], [(1.0,)], True),
        ([(1,)], [(True,)], True),
        ([(1,)], [("1",)], False),
        ([("a",)], [("A",)], False),
        ([("a",)], [(b"a",)], False),
        ([(0.1 + 0.2,)], [(0.3,)], True),
        ([(100.0,)], [(100.1,)], False),
        ([(10**15,)], [(10**15 + 1,)], False),
        ([(10**15,)], [(float(10**15),)], True),
        ([(math.nan,)], [(math.nan,)], True),
        ([(math.nan,)], [(0.0,)], False),
        ([(0.0,)], [(-0.0,)], True),
        ([(1e-7,)], [(2e-7,)], False),
        ([(0.1 + 0.2, "a"), (0.3, "b")], [(0.3, "a"), (0.1 + 0.2, "b")], True),
        ([(0.1 + 0.2, "a"), (0.3, "a")], [(0.3, "a"), (0.3, "b")], False),
        ([], [], True),
        ([], [(1,)], False),
    ],
)
def test_bags(ours: Rows, theirs: Rows, same: bool) -> None:
    assert same_rows(bag(*ours), theirs, 1e-9) is same
    assert same_rows(bag(*theirs), ours, 1e-9) is same


def test_ties_are_free_and_order_is_not() -> None:
    expected = [Segment(1, [("a",)]), Segment(2, [("b",), ("c",)]), Segment(1, [("d",)])]
    assert same_rows(expected, [("a",), ("c",), ("b",), ("d",)], 0)
    assert not same_rows(expected, [("b",), ("a",), ("c",), ("d",)], 0)


def test_a_cut_tie_takes_any_of_its_rows() -> None:
    expected = [Segment(1, [("a",)]), Segment(1, [("b",), ("c",)])]
    assert same_rows(expected, [("a",), ("b",)], 0) and same_rows(expected, [("a",), ("c",)], 0)
    assert not same_rows(expected, [("a",), ("a",)], 0)
    assert not same_rows(expected, [("a",), ("b",), ("c",)], 0)


def test_one_order_of_columns_holds_everywhere() -> None:
    first = (bag((1, 1, "x")), [("x", 1, 1)])
    assert next(column_orders([first], 3, 0), None) is not None
    second = (bag((1, 2, "y")), [("y", 2, 1)])
    assert list(column_orders([first, second], 3, 0)) == [(2, 1, 0)]
    clash = (bag((1, 2, "z")), [("z", 1, 2)])
    assert next(column_orders([second, clash], 3, 0), None) is None


def test_columns_are_matched_by_rows_not_one_by_one() -> None:
    expected = bag((1, 2), (2, 1), (3, 3))
    assert next(column_orders([(expected, [(1, 1), (2, 2), (3, 3)])], 2, 0), None) is None


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([None, 0, "", 1.5])), max_size=6))
def test_a_bag_is_its_own_in_any_order(rows: Rows) -> None:
    assert same_rows(bag(*rows), rows[::-1], 1e-9)
    assert not same_rows(bag(*rows), [*rows, (7, 7)], 1e-9)
    if rows:
        assert not same_rows(bag(*rows), [*rows[1:], (9, "other")], 1e-9)
