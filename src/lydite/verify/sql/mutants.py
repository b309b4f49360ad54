"""Queries next to the reference: each is it with one thing changed. Databases on which they give
the same rows as the reference say little about a query.

Some neighbours mean the same as the reference (``sal >= 1`` and ``sal > 0`` of whole numbers); no
database tells these apart, so not all of them have to go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from lydite.verify.sql.engine import Schema
from lydite.verify.sql.facts import places_of

MOST = 90


@dataclass(frozen=True, slots=True)
class Mutant:
    """A neighbour, and what was changed."""

    kind: str
    sql: str


def mutants(tree: Any, schema: Schema, dialect: str) -> list[Mutant]:
    """The neighbours of a query, no two alike, at most :data:`MOST`, every kind served in turn."""
    own = tree.sql(dialect=dialect)
    by_kind: dict[str, list[Mutant]] = {}
    seen = {own}
    for kind, changed in _changes(tree, schema):
        try:
            sql = changed.sql(dialect=dialect)
        except (ValueError, AttributeError, RecursionError):
            continue
        if sql not in seen:
            seen.add(sql)
            by_kind.setdefault(kind, []).append(Mutant(kind, sql))
    chosen: list[Mutant] = []
    turn = 0
    while len(chosen) < MOST and any(len(found) > turn for found in by_kind.values()):
        chosen += [found[turn] for found in by_kind.values() if len(found) > turn]
        turn += 1
    return chosen[:MOST]


def _changes(tree: Any, schema: Schema) -> Iterator[tuple[str, Any]]:
    for index, node in enumerate(tree.walk()):
        for kind, change in _changes_of(node, schema):
            copy = tree.copy()
            target = next(n for i, n in enumerate(copy.walk()) if i == index)
            changed = change(target)
            if changed is target:
                yield kind, copy
            elif changed is not None and target.parent is not None:
                target.replace(changed)
                yield kind, copy


Change = Callable[[Any], Any]
Named = tuple[str, Change]


def _changes_of(node: Any, schema: Schema) -> Iterator[Named]:
    """What can be changed at one node, by the first kind that it is of."""
    from sqlglot import exp

    makers: list[tuple[type | tuple[type, ...], Callable[[Any, Schema], Iterator[Named]]]] = [
        ((exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE), _comparison),
        (exp.Literal, _literal),
        ((exp.And, exp.Or), _connective),
        ((exp.In, exp.Like, exp.Exists, exp.Between, exp.Is, exp.Not), _negation),
        (exp.AggFunc, _aggregate),
        (exp.Join, _join),
        (exp.Column, _other_columns),
        ((exp.Add, exp.Sub, exp.Mul, exp.Div), _arithmetic),
        (exp.Query, _query),
        ((exp.Where, exp.Having, exp.Order, exp.Ordered, exp.Limit, exp.Offset), _clause),
        (exp.Group, _group),
    ]
    for kinds, maker in makers:
        if isinstance(node, kinds):
            yield from maker(node, schema)
            return


def _connective(node: Any, schema: Schema) -> Iterator[Named]:
    from sqlglot import exp

    other = exp.Or if isinstance(node, exp.And) else exp.And
    yield "AND, OR", lambda n: other(this=n.this, expression=n.expression)
    yield "lost condition", lambda n: n.this
    yield "lost condition", lambda n: n.expression


def _negation(node: Any, schema: Schema) -> Iterator[Named]:
    from sqlglot import exp

    if isinstance(node, exp.Not):
        yield "NOT", lambda n: n.this
        return
    if not isinstance(node.parent, exp.Not):
        yield "NOT", lambda n: exp.Not(this=exp.Paren(this=n.copy()))
    if isinstance(node, exp.Between):
        yield "comparison", lambda n: exp.GTE(this=n.this, expression=n.args["low"])
        yield "comparison", lambda n: exp.LTE(this=n.this, expression=n.args["high"])


def _clause(node: Any, schema: Schema) -> Iterator[Named]:
    from sqlglot import exp

    if isinstance(node, exp.Ordered):
        yield "ORDER BY", _turned
    elif isinstance(node, exp.Where | exp.Having):
        yield "lost condition", _dropped
    else:
        yield ("ORDER BY" if isinstance(node, exp.Order) else "LIMIT"), _dropped


def _query(node: Any, schema: Schema) -> Iterator[Named]:
    """DISTINCT added or lost where it can matter: not inside IN or EXISTS, not for one row."""
    from sqlglot import exp

    if isinstance(node, exp.SetOperation):
        yield "set operation", _all_or_distinct
        others = {exp.Union: exp.Intersect, exp.Intersect: exp.Except, exp.Except: exp.Intersect}
        other = others.get(type(node))
        if other is not None:
            yield "set operation", lambda n: other(**n.args)
    if not isinstance(node, exp.Select):
        return
    one_row = not node.args.get("group") and all(
        column.find(exp.AggFunc) and not column.find(exp.Window) for column in node.selects
    )
    outer = node.parent.parent if isinstance(node.parent, exp.Subquery) else node.parent
    in_set = isinstance(outer, exp.In | exp.Exists | exp.SetOperation)
    if node.args.get("distinct") or not (one_row or in_set):
        yield "DISTINCT", _distinct


def _group(node: Any, schema: Schema) -> Iterator[Named]:
    for index in range(len(node.expressions) if len(node.expressions) > 1 else 0):
        yield "GROUP BY", lambda n, i=index: _without(n, i)  # type: ignore[misc]


def _arithmetic(node: Any, schema: Schema) -> Iterator[Named]:
    from sqlglot import exp

    others = {exp.Add: exp.Sub, exp.Sub: exp.Add, exp.Mul: exp.Add, exp.Div: exp.Mul}
    other = others.get(type(node), exp.Add)
    yield "arithmetic", lambda n: other(this=n.this, expression=n.expression)


def _comparison(node: Any, schema: Schema) -> Iterator[Named]:
    from sqlglot import exp

    others: dict[type, tuple[type, ...]] = {
        exp.EQ: (exp.NEQ, exp.GTE, exp.LTE),
        exp.NEQ: (exp.EQ, exp.GT),
        exp.GT: (exp.GTE, exp.LT, exp.NEQ),
        exp.GTE: (exp.GT, exp.LTE, exp.EQ),
        exp.LT: (exp.LTE, exp.GT, exp.NEQ),
        exp.LTE: (exp.LT, exp.GTE, exp.EQ),
    }
    for other in others.get(type(node), ()):
        yield "comparison", lambda n, o=other: o(this=n.this, expression=n.expression)  # type: ignore[misc]


def _literal(node: Any, schema: Schema) -> Iterator[Named]:
    from sqlglot import exp

    text = str(node.this)
    if node.is_string:
        yield "literal", lambda n: exp.Literal.string(text + "x")
        return
    limit = isinstance(node.parent, exp.Limit | exp.Offset)
    kind = "LIMIT" if limit else "literal"
    for step in (-1, 1):
        if node.is_int and int(text) + step >= 0:
            yield kind, lambda n, s=step: exp.Literal.number(int(text) + s)  # type: ignore[misc]
        elif not node.is_int:
            try:
                value = float(text)
            except ValueError:
                return
            yield kind, lambda n, s=step, v=value: exp.Literal.number(v + s)  # type: ignore[misc]


def _dropped(node: Any) -> Any:
    parent = node.parent
    if parent is None:
        return None
    node.pop()
    return node


def _turned(node: Any) -> Any:
    node.set("desc", not node.args.get("desc"))
    node.set("nulls_first", None)
    return node


def _distinct(node: Any) -> Any:
    from sqlglot import exp

    node.set("distinct", None if node.args.get("distinct") else exp.Distinct())
    return node


def _all_or_distinct(node: Any) -> Any:
    node.set("distinct", not node.args.get("distinct"))
    return node


def _without(node: Any, index: int) -> Any:
    node.set("expressions", [e for i, e in enumerate(node.expressions) if i != index])
    return node


def _aggregate(node: Any, schema: Schema) -> Iterator[Named]:
    from sqlglot import exp

    if isinstance(node, exp.Count):
        inner = node.this
        if isinstance(inner, exp.Distinct):
            yield "DISTINCT", lambda n: exp.Count(this=n.this.expressions[0])
        elif isinstance(inner, exp.Star):
            for table, column in _some_columns(node, schema):
                yield "COUNT", lambda n, t=table, c=column: exp.Count(this=exp.column(c, table=t))  # type: ignore[misc]
        else:
            yield "COUNT", lambda n: exp.Count(this=exp.Star())
            yield "DISTINCT", lambda n: exp.Count(this=exp.Distinct(expressions=[n.this]))
        return
    swaps: dict[type, tuple[type, ...]] = {
        exp.Sum: (exp.Avg, exp.Max),
        exp.Avg: (exp.Sum, exp.Max),
        exp.Max: (exp.Min, exp.Sum),
        exp.Min: (exp.Max,),
    }
    for other in swaps.get(type(node), ()):
        yield "aggregate", lambda n, o=other: o(this=n.this)  # type: ignore[misc]
    if isinstance(node, exp.Sum | exp.Avg):
        yield "DISTINCT", _distinct_argument


def _distinct_argument(node: Any) -> Any:
    from sqlglot import exp

    inner = node.this
    if isinstance(inner, exp.Distinct):
        return type(node)(this=inner.expressions[0])
    return type(node)(this=exp.Distinct(expressions=[inner.copy()]))


def _some_columns(node: Any, schema: Schema) -> Iterator[tuple[str, str]]:
    """The first columns that may be NULL of the tables around an aggregate."""
    from sqlglot import exp

    select = node.find_ancestor(exp.Select)
    if select is None:
        return
    for table in select.find_all(exp.Table):
        known = schema.table(table.name)
        names = [c.name for c in known.columns if c.nullable][:2] if known is not None else []
        for name in names:
            yield table.alias_or_name, name


def _join(node: Any, schema: Schema) -> Iterator[Named]:
    outer = bool(node.args.get("side"))

    def turn(join: Any) -> Any:
        join.set("side", None if outer else "LEFT")
        join.set("kind", None)
        return join

    def across(join: Any) -> Any:
        join.set("on", None)
        join.set("using", None)
        join.set("side", None)
        join.set("kind", "CROSS")
        return join

    if node.args.get("on") is not None or node.args.get("using"):
        yield "JOIN", turn
        yield "lost condition", across


def _other_columns(node: Any, schema: Schema) -> Iterator[Named]:
    """Another column of the same table and kind."""
    from sqlglot import exp

    tables = {t.name for t in schema.tables}
    places = places_of(node, schema, tables)
    if len(places) != 1:
        return
    table = schema.table(places[0][0])
    assert table is not None
    kinds = {"int": "number", "real": "number"}
    own = table.columns[places[0][1]]
    grouping = isinstance(node.parent, exp.Group)
    same = [
        column.name
        for column in table.columns
        if column.name != own.name
        and (grouping or kinds.get(column.kind, column.kind) == kinds.get(own.kind, own.kind))
    ]
    kind = "GROUP BY" if grouping else "column"
    for name in same[:3]:
        yield kind, lambda n, c=name: exp.column(c, table=n.table or None)  # type: ignore[misc]


def constant(rows: list[tuple[Any, ...]], dialect: str) -> Mutant | None:
    """The answer itself as a query of constants: what memorising one database comes to."""
    from sqlglot import exp

    if not rows or len(rows) > 20 or any(isinstance(c, bytes | tuple) for r in rows for c in r):
        return None
    selects = [
        "select " + ", ".join(exp.convert(cell).sql(dialect=dialect) for cell in row)
        for row in rows
    ]
    return Mutant("constant", " union all ".join(selects))
