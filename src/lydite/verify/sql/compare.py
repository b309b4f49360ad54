"""Whether the rows of a query are those that the reference asks for.

What is asked for is a list of segments: so many rows out of a bag. Without a top-level ORDER BY it
is one segment; with one, rows that tie are a segment, in any order among themselves; a LIMIT cuts
a segment, and any of the rows it could have kept will do.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from lydite.verify.sql.engine import Cell, Row

MAX_ORDERS = 2000
"""Assignments of columns that are tried where their order is free."""


@dataclass(frozen=True, slots=True)
class Segment:
    """``count`` rows, any of ``rows``."""

    count: int
    rows: Sequence[Row]


Expected = Sequence[Segment]


def total(expected: Expected) -> int:
    """How many rows are asked for."""
    return sum(segment.count for segment in expected)


def same_rows(expected: Expected, rows: Sequence[Row], tolerance: float) -> bool:
    """Whether the rows, cut into the segments, come from their bags. Columns are in order."""
    if total(expected) != len(rows):
        return False
    start = 0
    for segment in expected:
        if not _within(segment.rows, rows[start : start + segment.count], tolerance):
            return False
        start += segment.count
    return True


def column_orders(
    pairs: Sequence[tuple[Expected, Sequence[Row]]], width: int, tolerance: float
) -> Iterator[tuple[int, ...]]:
    """The orders of the query's columns under which all pairs agree; the first is enough.

    One order must hold on every database: columns that merely happen to hold equal values on one
    are told apart on another.
    """
    fits: list[list[int]] = []
    for wanted in range(width):
        fits.append(
            [
                given
                for given in range(width)
                if all(
                    same_rows(
                        [Segment(s.count, [(r[wanted],) for r in s.rows]) for s in expected],
                        [(row[given],) for row in rows],
                        tolerance,
                    )
                    for expected, rows in pairs
                )
            ]
        )
    for order in islice(_assignments(fits), MAX_ORDERS):
        if all(
            same_rows(expected, [tuple(row[i] for i in order) for row in rows], tolerance)
            for expected, rows in pairs
        ):
            yield order


def _assignments(
    fits: Sequence[Sequence[int]], taken: tuple[int, ...] = ()
) -> Iterator[tuple[int, ...]]:
    if len(taken) == len(fits):
        yield taken
        return
    for given in fits[len(taken)]:
        if given not in taken:
            yield from _assignments(fits, (*taken, given))


def _within(bag: Sequence[Row], rows: Sequence[Row], tolerance: float) -> bool:
    """Whether the rows are a part of the bag, duplicates counted."""
    ours, theirs = Counter(map(_key, bag)), Counter(map(_key, rows))
    if theirs <= ours:
        return True
    # What is left differs at least in the last digits of a number.
    spare: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    left = ours - theirs
    for row in bag:
        key = _key(row)
        if left[key] > 0:
            left[key] -= 1
            spare[_shape(row)].append(row)
    over = theirs - ours
    for row in rows:
        key = _key(row)
        if over[key] > 0:
            over[key] -= 1
            near = spare[_shape(row)]
            found = next((i for i, s in enumerate(near) if _close(s, row, tolerance)), None)
            if found is None:
                return False
            del near[found]
    return True


def _key(row: Row) -> tuple[object, ...]:
    return tuple(_canonical(cell) for cell in row)


def _canonical(cell: Cell) -> object:
    """Equal for what is equal without tolerance: 1, 1.0 and True; NULL is none of them, and text
    is not the number it spells.
    """
    if isinstance(cell, bool):
        return ("number", int(cell))
    if isinstance(cell, float):
        return ("nan",) if math.isnan(cell) else ("number", cell)
    if isinstance(cell, int):
        return ("number", cell)
    if isinstance(cell, list | tuple):
        return ("list", tuple(_canonical(part) for part in cell))
    return (type(cell).__name__, cell)


def _shape(row: Row) -> tuple[object, ...]:
    """What two rows must share to be equal within a tolerance of their fractions."""
    return tuple("number" if _is_number(cell) else _canonical(cell) for cell in row)


def _is_number(cell: Cell) -> bool:
    return isinstance(cell, int | float) and not (isinstance(cell, float) and math.isnan(cell))


def _close(ours: Row, theirs: Row, tolerance: float) -> bool:
    return all(_near(a, b, tolerance) for a, b in zip(ours, theirs, strict=True) if _is_number(a))


def _near(ours: Cell, theirs: Cell, tolerance: float) -> bool:
    """Whole numbers are exact; the tolerance is for what was divided or added up in floats."""
    if isinstance(ours, int) and isinstance(theirs, int):
        return ours == theirs
    return math.isclose(ours, theirs, rel_tol=tolerance, abs_tol=tolerance * 1e-3)
