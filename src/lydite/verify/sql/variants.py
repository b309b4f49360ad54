"""Databases that differ from the given one where the reference looks.

Each kind of variant asks one question: is a boundary where the reference has it, are duplicates
kept, NULLs minded, ties, rows without a partner, an empty table, another order, other keys, other
values. What the schema declares holds in all of them: keys, foreign keys, NOT NULL and CHECK.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from lydite.verify.sql.engine import Cell, Kind, Row, Schema, TableInfo
from lydite.verify.sql.facts import Facts, Place
from lydite.verify.sql.values import fresh, neighbours

Rows = dict[str, list[Row]]
CORE_ROWS = 24
"""Rows of a table that variants are made from; a larger table is sampled."""
MOST_ROWS = 60


@dataclass(frozen=True, slots=True)
class Variant:
    """A database by the question that it asks."""

    kind: str
    contents: Rows


@dataclass(slots=True)
class Material:
    """What variants are made from. ``core`` are rows of the given database; ``nullable`` and
    ``pool`` (boundary values) are by column; ``home`` gives a column's set of joined ones.
    """

    schema: Schema
    facts: Facts
    core: Rows
    nullable: set[Place]
    pool: dict[Place, list[Cell]]
    home: dict[Place, int]

    def table(self, name: str) -> TableInfo:
        """A table that is there."""
        found = self.schema.table(name)
        assert found is not None
        return found

    def held(self, place: Place) -> list[Cell]:
        """What a column of the given database holds, first come first."""
        return list(dict.fromkeys(row[place[1]] for row in self.core[place[0]]))

    def unique(self, place: Place) -> bool:
        """Whether a column alone is a key."""
        return (place[1],) in self.table(place[0]).keys

    def key_columns(self, name: str) -> list[int]:
        """Columns that make rows of a table distinct: one of each key, the likeliest counter."""
        chosen = []
        for key in self.table(name).keys:
            own = [i for i in key if (name, i) not in self._referring(name)]
            chosen.append((own or list(key))[-1])
        return list(dict.fromkeys(chosen))

    def _referring(self, name: str) -> set[Place]:
        return {(name, i) for key in self.table(name).foreign for i in key.columns}


def material(schema: Schema, facts: Facts, contents: Rows, nulls: str) -> Material:
    """Prepares what all variants of a problem share. ``nulls`` is the setting of that name."""
    core = {name: _sample(rows, facts, name) for name, rows in contents.items()}
    nullable = {
        (table.name, index)
        for table in schema.tables
        for index, column in enumerate(table.columns)
        if column.nullable
        and (
            nulls == "declared"
            or (table.name, index) in facts.null_tested
            or any(row[index] is None for row in contents[table.name])
        )
    }
    home = {place: number for number, group in enumerate(facts.joined) for place in sorted(group)}
    made = Material(schema, facts, core, nullable, {}, home)
    for place in sorted(set(facts.literals) | set(facts.patterns)):
        group = facts.joined[home[place]] if place in home else {place}
        kind = schema_kind(schema, place)
        values = neighbours(
            kind, facts.literals.get(place, ()), facts.patterns.get(place, ()), made.held(place)
        )
        for member in group:
            made.pool.setdefault(member, []).extend(values)
    return made


def schema_kind(schema: Schema, place: Place) -> Kind:
    """What a column holds."""
    table = schema.table(place[0])
    assert table is not None
    return table.columns[place[1]].kind


def _sample(rows: Sequence[Row], facts: Facts, name: str) -> list[Row]:
    """Rows to start from: those that hold a value the query names come first."""
    if len(rows) <= CORE_ROWS:
        return list(rows)
    named = [
        (index, set(map(str, values)))
        for (table, index), values in facts.literals.items()
        if table == name
    ]
    hits = [row for row in rows if any(str(row[i]) in values for i, values in named)]
    rest = random.Random(name).sample(range(len(rows)), CORE_ROWS)
    chosen = hits[: CORE_ROWS // 2] + [rows[i] for i in sorted(rest)]
    return list(dict.fromkeys(chosen))[:CORE_ROWS]


def variants(made: Material, rng: random.Random) -> Iterator[Variant]:
    """The structured variants, then random ones without end."""
    whole = made.core
    yield Variant("given", whole)
    yield Variant("row order", {name: rows[::-1] for name, rows in whole.items()})
    makers: list[tuple[str, Callable[[Material, random.Random], Iterator[Rows]]]] = [
        ("boundaries", _boundaries),
        ("other keys", _renumbered),
        ("ties", _ties),
        ("duplicates", _duplicated),
        ("NULLs", _nulled),
        ("no partner", _orphaned),
        ("other values", _renamed),
        ("swapped values", _swapped),
        ("an empty table", _emptied),
    ]
    for kind, make in makers:
        for contents in make(made, rng):
            yield Variant(kind, contents)
    while True:
        yield Variant("random rows", random_rows(made, rng))


def _map_column(
    made: Material, rows: Rows, place: Place, change: Callable[[int, Cell], Cell]
) -> Rows:
    name, index = place
    changed = [
        (*row[:index], change(number, row[index]), *row[index + 1 :])
        for number, row in enumerate(rows[name])
    ]
    return {**rows, name: changed}


def _filled(made: Material, rng: random.Random) -> Rows:
    """The given rows; random ones where a table that is read has none to start from."""
    if all(made.core[name] for name in made.facts.tables):
        return made.core
    made_up = random_rows(made, rng, least=4)
    return {name: rows or made_up[name] for name, rows in made.core.items()}


def _boundaries(made: Material, rng: random.Random) -> Iterator[Rows]:
    """Rows with every value beside a literal, all combinations of a few columns."""
    start = _filled(made, rng)
    rows = dict(start)
    for name in sorted(made.facts.tables):
        places = [
            p for p in sorted(made.pool) if p[0] == name and made.pool[p] and not made.unique(p)
        ]
        if not places or not start[name]:
            continue
        options = [[*made.pool[p][:9], *([None] if p in made.nullable else [])] for p in places]
        combos = list(product(*options)) if _size(options) <= 4000 else []
        if not combos or len(combos) > MOST_ROWS:
            picked = rng.sample(combos, MOST_ROWS) if combos else []
            straight = [
                tuple(options[j][i % len(options[j])] for j in range(len(places)))
                for i in range(max(map(len, options)))
            ]
            combos = [*straight, *picked][:MOST_ROWS]
        built = []
        for number, combo in enumerate(combos):
            row = list(start[name][number % len(start[name])])
            for place, value in zip(places, combo, strict=True):
                row[place[1]] = value
            built.append(tuple(row))
        rows[name] = [*start[name], *_distinct_keys(made, name, built)]
    if rows != start or start is not made.core:
        yield rows


def _size(options: Sequence[Sequence[Cell]]) -> int:
    size = 1
    for option in options:
        size *= len(option)
    return size


def _distinct_keys(made: Material, name: str, rows: Sequence[Row]) -> list[Row]:
    """The rows with new values in their keys, which the given rows do not hold."""
    changed = [list(row) for row in rows]
    for index in made.key_columns(name):
        kind = made.table(name).columns[index].kind
        held = made.held((name, index))
        for number, row in enumerate(changed):
            row[index] = fresh(kind, held, number)
    return [tuple(row) for row in changed]


def _renumbered(made: Material, rng: random.Random) -> Iterator[Rows]:
    """Keys get other values, the same wherever the key is referred to."""
    groups = [*made.facts.joined]
    alone = {
        (table.name, index)
        for table in made.schema.tables
        if table.name in made.facts.tables
        for index in made.key_columns(table.name)
    }
    groups += [{place} for place in sorted(alone) if place not in made.home]
    rows = made.core
    for group in groups:
        held = list(dict.fromkeys(v for p in sorted(group) for v in made.held(p) if v is not None))
        kind = schema_kind(made.schema, sorted(group)[0])
        order = list(range(len(held)))
        rng.shuffle(order)
        mapping = {
            value: fresh(kind, held, number) for value, number in zip(held, order, strict=True)
        }
        for place in sorted(group):
            rows = _map_column(made, rows, place, lambda _, v, m=mapping: m.get(v, v))  # type: ignore[misc]
    if rows != made.core:
        yield rows


def _ties(made: Material, rng: random.Random) -> Iterator[Rows]:
    """Columns that are sorted or grouped by hold few values, so that rows tie."""
    places = [p for p in sorted(made.facts.sorted_by) if not made.unique(p)]
    start = _filled(made, rng)
    for shift in (0, 1):
        rows = start
        for place in places:
            held = [v for v in made.held(place) if v is not None] or made.pool.get(place, [])
            few = sorted(held, key=lambda v: (str(type(v)), v))[-2:]
            if few:
                rows = _map_column(
                    made,
                    rows,
                    place,
                    lambda n, _, few=few, s=shift: few[(n // 2 + s) % len(few)],  # type: ignore[misc]
                )
        if rows != made.core:
            yield rows


def _duplicated(made: Material, rng: random.Random) -> Iterator[Rows]:
    """Every row again, with another key where there is one; every second row only, so that some
    count for more; then the whole again, each row of the copy related to rows of the copy.
    """
    start = _filled(made, rng)
    for every in (1, 2):
        rows = dict(start)
        for name in sorted(made.facts.tables):
            rows[name] = [*start[name], *_distinct_keys(made, name, start[name][::every])]
        yield rows
    for copy in _renumbered(made, rng):
        yield {name: [*made.core[name], *copy[name]] for name in made.core}


def _nulled(made: Material, rng: random.Random) -> Iterator[Rows]:
    """NULL in one column at a time, in every second row, then in all columns here and there."""
    start = _filled(made, rng)
    places = [p for p in sorted(made.facts.used) if p in made.nullable]
    everywhere = start
    for place in places:
        if len(places) <= 6:
            yield _map_column(made, start, place, lambda n, v: None if n % 2 else v)
        everywhere = _map_column(
            made, everywhere, place, lambda _, v: None if rng.random() < 0.4 else v
        )
    if places:
        yield everywhere


def _orphaned(made: Material, rng: random.Random) -> Iterator[Rows]:
    """Partners that are missing: every second row of a table gone, and keys that refer nowhere."""
    if not made.facts.joined:
        return
    start = _filled(made, rng)
    for name in sorted({place[0] for group in made.facts.joined for place in group}):
        if name in made.facts.tables and len(start[name]) > 1:
            yield {**start, name: start[name][::2]}
    rows = start
    for group in made.facts.joined:
        for place in sorted(group):
            if not made.unique(place):
                lost = fresh(schema_kind(made.schema, place), made.held(place), 3)
                rows = _map_column(made, rows, place, lambda n, v, o=lost: o if n % 3 == 0 else v)  # type: ignore[misc]
    yield rows


def _renamed(made: Material, rng: random.Random) -> Iterator[Rows]:
    """Columns that are neither keys nor joined hold other values of their kind."""
    rows = made.core
    for place in sorted(made.facts.used):
        if place in made.home or place in made.pool:
            continue
        kind, held = schema_kind(made.schema, place), made.held(place)
        rows = _map_column(
            made,
            rows,
            place,
            lambda n, v, k=kind, h=held: v if v is None else fresh(k, h, n),  # type: ignore[misc]
        )
    if rows != made.core:
        yield rows


def _swapped(made: Material, rng: random.Random) -> Iterator[Rows]:
    """The values of every column, moved to other rows."""
    for _ in range(2):
        rows = made.core
        for place in sorted(made.facts.used):
            values = [row[place[1]] for row in made.core[place[0]]]
            rng.shuffle(values)
            rows = _map_column(made, rows, place, lambda n, _, v=values: v[n])  # type: ignore[misc]
        yield rows


def _emptied(made: Material, rng: random.Random) -> Iterator[Rows]:
    names = sorted(made.facts.tables)
    for name in names[:4]:
        yield {**made.core, name: []}
    if len(names) > 1:
        yield {name: [] for name in made.core}


def random_rows(made: Material, rng: random.Random, least: int = 0) -> Rows:
    """A few rows a table, drawn from small sets of values, so that they meet, tie and repeat."""
    most = 9
    wanted = max((count for count in made.facts.counts if 0 < count <= 12), default=0)
    if wanted and rng.random() < 0.5:
        most = max(most, min(2 * wanted + 4, 24))
    sets = {place: _domain(made, place, rng) for place in _all_places(made)}
    for group in made.facts.joined:
        shared = list(dict.fromkeys(v for place in sorted(group) for v in sets[place][:6]))
        rng.shuffle(shared)
        for place in group:
            sets[place] = shared[: rng.randint(3, 8)] or shared
    rows: Rows = {}
    for table in _parents_first(made):
        count = rng.randint(least, most)
        rows[table.name] = [_random_row(made, table, sets, rows, rng) for _ in range(count)]
    return rows


def _all_places(made: Material) -> list[Place]:
    return [
        (table.name, index) for table in made.schema.tables for index in range(len(table.columns))
    ]


def _domain(made: Material, place: Place, rng: random.Random) -> list[Cell]:
    """A small set of values for a column of one database."""
    kind = schema_kind(made.schema, place)
    held = [value for value in made.held(place) if value is not None]
    if made.unique(place) and not made.pool.get(place):
        count = max(12, 26 if made.facts.counts else 12)
        return [fresh(kind, held, n) for n in range(count)]
    pool = made.pool.get(place, [])
    new = [fresh(kind, held, n) for n in range(2)]
    few = rng.sample(held, min(len(held), rng.randint(1, 3)))
    near = rng.sample(pool, min(len(pool), rng.randint(2, 8)))
    numbers: list[Cell] = [0, 1, 2] if kind == "int" and not held and not pool else []
    return list(dict.fromkeys([*near, *few, *rng.sample(new, 1), *numbers]))


def _random_row(
    made: Material,
    table: TableInfo,
    sets: dict[Place, list[Cell]],
    rows: Rows,
    rng: random.Random,
) -> Row:
    cells: list[Cell] = []
    for index in range(len(table.columns)):
        place = (table.name, index)
        if place in made.nullable and rng.random() < 0.12:
            cells.append(None)
        else:
            cells.append(rng.choice(sets[place]) if sets[place] else None)
    for key in table.foreign:
        parents = rows.get(key.parent) or []
        kept = [parent for name, parent in rows.items() if name.lower() == key.parent.lower()]
        parents = kept[0] if kept else parents
        if parents and not all(cells[i] is None for i in key.columns):
            parent = rng.choice(parents)
            for ours, theirs in zip(key.columns, key.parent_columns, strict=True):
                cells[ours] = parent[theirs]
        elif all((table.name, i) in made.nullable for i in key.columns):
            for ours in key.columns:
                cells[ours] = None
    return tuple(cells)


def _parents_first(made: Material) -> list[TableInfo]:
    left = list(made.schema.tables)
    placed: list[TableInfo] = []
    while left:
        names = {table.name.lower() for table in left}
        free = [
            table
            for table in left
            if all(
                key.parent.lower() not in names or key.parent.lower() == table.name.lower()
                for key in table.foreign
            )
        ] or left[:1]
        placed += free
        left = [table for table in left if table not in free]
    return placed
