"""The reference query, taken apart so that ties and cuts can be told from order.

The query is run without its top-level LIMIT and with its sort keys as further columns; from these
come the segments of :mod:`lydite.verify.sql.compare`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any

from lydite.verify.sql.compare import Expected, Segment
from lydite.verify.sql.engine import Cell, Connection, Limits, Row
from lydite.verify.sql.statement import NotAQuery, read_select

VOLATILE = ("current_date", "current_time", "current_timestamp", "now")


@dataclass(frozen=True, slots=True)
class Gold:
    """``plain`` is the query as it is; ``full`` has ``keys`` sort keys appended or, at
    ``positions``, among its columns, and no LIMIT. ``limit`` is ``None`` without one. Where the
    keys cannot be had (``exact_order``) the order of ``plain`` is taken as it is.
    """

    plain: str
    full: str
    ordered: bool
    keys: int = 0
    positions: tuple[int, ...] = ()
    limit: int | None = None
    offset: int = 0
    exact_order: bool = False
    volatile: bool = False


def read_gold(text: str, dialect: str, max_chars: int) -> tuple[Gold, Any]:
    """The reference and its syntax tree.

    Raises:
        NotAQuery: it is not one SELECT.
    """
    from sqlglot import exp

    tree = read_select(text, dialect, max_chars)
    while isinstance(tree, exp.Subquery | exp.Paren) and not tree.args.get("limit"):
        tree = tree.this
    return _taken_apart(tree, text.strip().rstrip(";"), dialect), tree


def _taken_apart(tree: Any, text: str, dialect: str) -> Gold:
    order, limit, offset = (tree.args.get(part) for part in ("order", "limit", "offset"))
    volatile = any(word in text.lower() for word in VOLATILE)
    whole_limit, whole_offset = _whole(limit), _whole(offset)
    if (limit is not None and whole_limit is None) or (offset is not None and whole_offset is None):
        return Gold(text, text, order is not None, exact_order=order is not None, volatile=volatile)
    full = tree.copy()
    full.set("limit", None)
    full.set("offset", None)
    cut = whole_limit, whole_offset or 0
    if order is None:
        sql = text if limit is None and offset is None else full.sql(dialect=dialect)
        return Gold(text, sql, False, 0, (), *cut, volatile=volatile)
    keys = _sort_keys(full, dialect)
    if keys is None:
        return Gold(text, text, True, exact_order=True, volatile=volatile)
    appended, positions = keys
    for index, key in enumerate(appended):
        full.select(_aliased(key, f"lydite_key_{index}"), copy=False)
    return Gold(
        text, full.sql(dialect=dialect), True, len(appended), positions, *cut, volatile=volatile
    )


def _whole(part: Any) -> int | None:
    value = None if part is None else part.args.get("expression")
    return int(value.this) if value is not None and value.is_int else None


def _aliased(key: Any, name: str) -> Any:
    from sqlglot import exp

    return exp.alias_(key, name)


def _sort_keys(tree: Any, dialect: str) -> tuple[list[Any], tuple[int, ...]] | None:
    """What to append to the columns to have the sort keys, and which columns are keys already.
    ``None`` where they cannot be had without changing what the query means.
    """
    from sqlglot import exp

    plain = isinstance(tree, exp.Select) and not tree.args.get("distinct")
    columns = tree.selects
    starred = any(column.is_star for column in columns)
    named = {column.alias_or_name.lower(): column for column in columns if not column.is_star}
    written = [_bare(column).sql(dialect=dialect).lower() for column in columns]
    appended: list[Any] = []
    positions: list[int] = []
    for term in tree.args["order"].expressions:
        key = term.this if isinstance(term, exp.Ordered) else term
        if isinstance(key, exp.Literal) and key.is_int:
            positions.append(int(key.this) - 1)
        elif plain and _plain_aggregate(tree, key):
            appended.append(_spelled(key, named))
        else:
            name = key.name.lower() if isinstance(key, exp.Column) else ""
            same = [i for i, c in enumerate(columns) if name and c.alias_or_name.lower() == name]
            same += [i for i, sql in enumerate(written) if sql == key.sql(dialect=dialect).lower()]
            if not same or starred:
                return None
            positions.append(same[0])
    return appended, tuple(positions)


def _plain_aggregate(tree: Any, key: Any) -> bool:
    """Whether a key can stand among the columns: a SELECT of one row without GROUP BY would
    become another by an aggregate that was only sorted by.
    """
    from sqlglot import exp

    return (
        bool(tree.args.get("group"))
        or key.find(exp.AggFunc) is None
        or any(column.find(exp.AggFunc) for column in tree.selects)
    )


def _bare(column: Any) -> Any:
    from sqlglot import exp

    return column.this if isinstance(column, exp.Alias) else column


def _spelled(key: Any, named: dict[str, Any]) -> Any:
    """A sort key with the names of columns replaced by what they stand for."""
    from sqlglot import exp

    def spell(node: Any) -> Any:
        if isinstance(node, exp.Column) and not node.table and node.name.lower() in named:
            column = named[node.name.lower()]
            if isinstance(column, exp.Alias):
                inner = column.this.copy()
                return inner if isinstance(inner, exp.Column) else exp.Paren(this=inner)
        return node

    spelled = key.copy().transform(spell)
    collation = spelled.find(exp.Collate)
    if collation is not None and "nocase" in collation.sql().lower():
        return exp.Lower(this=spelled)
    return spelled


def expected_rows(gold: Gold, connection: Connection, limits: Limits) -> tuple[int, Expected]:
    """The number of columns and the rows that the reference asks for on a database.

    Raises:
        QueryFailed, TooLong, TooLarge: the reference does not run.
    """
    result = connection.run(gold.full, limits)
    width = result.width - gold.keys
    if gold.exact_order:
        return width, [Segment(1, [row]) for row in result.rows]
    rows = [row[:width] for row in result.rows]
    groups: list[list[Row]] = [rows] if rows else []
    if gold.ordered:
        keyed = [(_sort_key(gold, row, width), row[:width]) for row in result.rows]
        groups = [[row for _, row in tied] for _, tied in groupby(keyed, key=lambda pair: pair[0])]
    first = gold.offset
    last = len(rows) if gold.limit is None or gold.limit < 0 else first + gold.limit
    segments, start = [], 0
    for group in groups:
        count = min(start + len(group), last) - max(start, first)
        if count > 0:
            segments.append(Segment(count, group))
        start += len(group)
    return width, segments


def _sort_key(gold: Gold, row: Row, width: int) -> tuple[Cell, ...]:
    return (*(row[i] for i in gold.positions), *row[width:])


__all__ = ["Gold", "NotAQuery", "expected_rows", "read_gold"]
