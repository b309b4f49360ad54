"""What a query compares, joins and sorts by: where a database has to be varied to tell it from its
neighbours. Only a guide: a column that cannot be traced to its table is tried with all that have
its name.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from lydite.verify.sql.engine import Schema

Place = tuple[str, int]
"""A table's name and a column's position in it."""


@dataclass(slots=True)
class Facts:
    """``literals`` by column: what it is compared with, as written (int, float or str).

    ``patterns`` are those of LIKE. ``joined`` are sets of columns that share their values.
    ``sorted_by`` are columns that order, group or are aggregated. ``counts`` are whole numbers that
    no column is compared with: a LIMIT, a HAVING on a count. ``tables`` are those that are read,
    ``null_tested`` columns that IS NULL, COALESCE and their like are asked about.
    """

    tables: set[str] = field(default_factory=set)
    used: set[Place] = field(default_factory=set)
    literals: dict[Place, set[Any]] = field(default_factory=lambda: defaultdict(set))
    patterns: dict[Place, set[str]] = field(default_factory=lambda: defaultdict(set))
    joined: list[set[Place]] = field(default_factory=list)
    sorted_by: set[Place] = field(default_factory=set)
    counts: set[int] = field(default_factory=set)
    null_tested: set[Place] = field(default_factory=set)

    def join(self, left: Place, right: Place) -> None:
        """Notes that two columns share their values, merging what they are joined with."""
        if left == right:
            return
        merged = {left, right}
        apart = []
        for group in self.joined:
            if group & merged:
                merged |= group
            else:
                apart.append(group)
        self.joined = [*apart, merged]


def read_facts(tree: Any, schema: Schema) -> Facts:
    """The facts of a query's syntax tree; foreign keys of the schema count as joins."""
    from sqlglot import exp

    facts = Facts()
    for table in tree.find_all(exp.Table):
        known = schema.table(table.name)
        if known is not None:
            facts.tables.add(known.name)
    for column in tree.find_all(exp.Column):
        facts.used.update(places_of(column, schema, facts.tables))
    _note_comparisons(tree, schema, facts)
    _note_order(tree, schema, facts)
    _note_nulls(tree, schema, facts)
    for known in schema.tables:
        for key in known.foreign:
            parent = schema.table(key.parent)
            for column, target in zip(key.columns, key.parent_columns, strict=True):
                if parent is not None and {known.name, parent.name} & facts.tables:
                    facts.join((known.name, column), (parent.name, target))
    return facts


def _note_comparisons(tree: Any, schema: Schema, facts: Facts) -> None:
    from sqlglot import exp

    compared: set[int] = set()
    comparisons = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Is, exp.In, exp.Between)
    patterned = (exp.Like, exp.ILike, exp.Glob)
    for node in tree.find_all(*comparisons, *patterned):
        columns = [
            place
            for column in _own(node, exp.Column)
            for place in places_of(column, schema, facts.tables)
        ]
        for literal in _own(node, exp.Literal):
            compared.add(id(literal))
            value = literal_value(literal)
            pattern = isinstance(node, patterned) and isinstance(value, str)
            for place in columns:
                if pattern:
                    facts.patterns[place].add(str(value))
                else:
                    facts.literals[place].add(value)
            if isinstance(value, int) and (not columns or node.find(exp.AggFunc)):
                facts.counts.add(value)
        _note_join(node, schema, facts)
    for literal in tree.find_all(exp.Literal):
        if id(literal) in compared:
            continue
        value = literal_value(literal)
        if isinstance(value, int):
            facts.counts.add(value)
        elif isinstance(value, str):
            parent = literal.find_ancestor(exp.Case, exp.Func)
            for column in parent.find_all(exp.Column) if parent is not None else ():
                for place in places_of(column, schema, facts.tables):
                    facts.literals[place].add(value)


def _note_join(node: Any, schema: Schema, facts: Facts) -> None:
    from sqlglot import exp

    left, right = node.this, node.args.get("expression")
    if isinstance(node, exp.In):
        inner = node.args.get("query")
        inner = inner.this if isinstance(inner, exp.Subquery) else inner
        right = inner.selects[0] if isinstance(inner, exp.Select) and inner.selects else None
        right = right.this if isinstance(right, exp.Alias) else right
    elif not isinstance(node, exp.EQ):
        return
    if isinstance(left, exp.Column) and isinstance(right, exp.Column):
        for ours in places_of(left, schema, facts.tables):
            for theirs in places_of(right, schema, facts.tables):
                facts.join(ours, theirs)


def _note_order(tree: Any, schema: Schema, facts: Facts) -> None:
    from sqlglot import exp

    for node in tree.find_all(exp.Order, exp.Group, exp.AggFunc, exp.Window, exp.Distinct):
        for column in node.find_all(exp.Column):
            facts.sorted_by.update(places_of(column, schema, facts.tables))
    for select in tree.find_all(exp.Select):
        if select.args.get("distinct"):
            for column in select.selects:
                for inner in column.find_all(exp.Column):
                    facts.sorted_by.update(places_of(inner, schema, facts.tables))
        for term in select.args["order"].expressions if select.args.get("order") else ():
            if isinstance(term.this, exp.Column) and not term.this.table:
                for column in select.selects:
                    if column.alias_or_name.lower() == term.this.name.lower():
                        for inner in column.find_all(exp.Column):
                            facts.sorted_by.update(places_of(inner, schema, facts.tables))


def _note_nulls(tree: Any, schema: Schema, facts: Facts) -> None:
    from sqlglot import exp

    for node in tree.find_all(exp.Is, exp.Coalesce, exp.NullSafeEQ, exp.NullSafeNEQ):
        if not isinstance(node, exp.Is) or isinstance(node.expression, exp.Null):
            for column in _own(node, exp.Column):
                facts.null_tested.update(places_of(column, schema, facts.tables))


def _own(node: Any, kind: type) -> Iterator[Any]:
    """Nodes below that are not inside a query of their own."""
    from sqlglot import exp

    for part in node.iter_expressions():
        if isinstance(part, kind):
            yield part
        if not isinstance(part, exp.Query):
            yield from _own(part, kind)


def literal_value(literal: Any) -> int | float | str:
    """A literal as Python has it; a minus sign in front counts."""
    from sqlglot import exp

    text = str(literal.this)
    if literal.is_string:
        return text
    negative = isinstance(literal.parent, exp.Neg)
    try:
        value: int | float = int(text)
    except ValueError:
        try:
            value = float(text)
        except ValueError:
            return text
    return -value if negative else value


def places_of(column: Any, schema: Schema, tables: set[str]) -> list[Place]:
    """The stored columns that a column of the query may stand for."""
    from sqlglot import exp

    name, prefix = column.name, column.table
    scope = column.find_ancestor(exp.Select)
    while scope is not None:
        for table in _sources(scope):
            if prefix and table.alias_or_name.lower() != prefix.lower():
                continue
            known = schema.table(table.name)
            position = None if known is None else known.position(name)
            if known is not None and position is not None:
                return [(known.name, position)]
        scope = scope.find_ancestor(exp.Select)
    found = []
    for known in schema.tables:
        position = known.position(name)
        if known.name in tables and position is not None:
            found.append((known.name, position))
    return found


def _sources(select: Any) -> Iterator[Any]:
    from sqlglot import exp

    parts = [select.args.get("from_") or select.args.get("from"), *(select.args.get("joins") or [])]
    for part in parts:
        if part is not None and isinstance(part.this, exp.Table):
            yield part.this


_DIGITS = re.compile(r"-?\d+(?:\.\d+)?")


def spelled_number(text: str) -> bool:
    """Whether text is a number in writing."""
    return _DIGITS.fullmatch(text) is not None
