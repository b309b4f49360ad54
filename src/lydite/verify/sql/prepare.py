"""From a reference and its database to the databases that a query has to agree on.

Variants are made until the neighbours of the reference (:mod:`lydite.verify.sql.mutants`) are told
apart from it, or nothing new tells any. Deterministic: the problem is the seed. A variant on which
the reference itself depends on the order in which rows lie (a LIMIT in a subquery that cuts a tie)
is left out, since it would refuse right queries.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from lydite.verify.sql.compare import Expected, same_rows, total
from lydite.verify.sql.engine import (
    Connection,
    Engine,
    Limits,
    QueryFailed,
    Result,
    Row,
    Schema,
    TooLarge,
    TooLong,
)
from lydite.verify.sql.facts import Facts, read_facts
from lydite.verify.sql.gold import Gold, expected_rows, read_gold
from lydite.verify.sql.mutants import Mutant, constant, mutants
from lydite.verify.sql.statement import NotAQuery
from lydite.verify.sql.variants import Material, Rows, Variant, material, variants

RANDOM_TRIED = 40
RANDOM_KEPT = 10
ROWS_READ = 400
"""Rows a table of a database file that variants are made from."""


class BadProblem(Exception):
    """The reference or its database cannot be used, in one line."""


@dataclass(frozen=True, slots=True)
class Options:
    """The settings that databases and comparison depend on; see ``SqlConfig``."""

    engine: str
    free_columns: bool
    tolerance: float
    nulls: str
    variants: int
    max_rows: int
    max_chars: int


@dataclass(frozen=True, slots=True)
class Source:
    """A problem's reference and database: statements with rows, or files."""

    gold: str
    schema: tuple[str, ...] = ()
    rows: Mapping[str, Sequence[object]] = field(default_factory=dict)
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Prepared:
    """All that checking a query needs. ``tally`` counts neighbours by kind: all, told apart."""

    gold: Gold
    schema: Schema
    facts: Facts
    core: Rows
    variants: tuple[Variant, ...]
    files: tuple[str, ...]
    tally: Mapping[str, tuple[int, int]]
    empty: bool = False


def read_source(
    source: Source, engine: Engine, options: Options, limits: Limits
) -> tuple[Gold, Any, Schema, Rows]:
    """The reference, its tree, the schema and the rows, all found to work.

    Raises:
        BadProblem: one of them does not.
    """
    try:
        gold, tree = read_gold(source.gold, engine.dialect, 10 * options.max_chars)
    except NotAQuery as error:
        raise BadProblem(f"gold: {error}") from None
    try:
        if source.files:
            schema, contents = engine.inspect(source.files[0], ROWS_READ, limits)
        else:
            schema, contents = engine.build(source.schema, source.rows, limits)
    except QueryFailed as error:
        raise BadProblem(f"{'database' if source.files else 'schema'}: {error}") from None
    except TooLong:
        raise BadProblem("schema: it takes too long to build") from None
    return gold, tree, schema, contents


def gold_rows(gold: Gold, connection: Connection, limits: Limits) -> tuple[int, Expected]:
    """What the reference asks for on a database of the problem's own.

    Raises:
        BadProblem: it does not run there.
    """
    try:
        return expected_rows(gold, connection, limits)
    except QueryFailed as error:
        raise BadProblem(f"gold: it does not run: {error}") from None
    except TooLong:
        raise BadProblem("gold: it takes too long; raise verifier.limits.seconds") from None
    except TooLarge as error:
        raise BadProblem(f"gold: it gives {error}; raise `max_rows`") from None


def prepare(source: Source, engine: Engine, options: Options, seconds: float) -> Prepared:
    """Makes the databases of a problem, in about ``seconds`` at most.

    Raises:
        BadProblem: the reference or its database cannot be used, or the reference gives no rows on
        any database that was tried.
    """
    limits = Limits.within(seconds, options.max_rows)
    gold, tree, schema, contents = read_source(source, engine, options, limits)
    filled = check_files(gold, source.files, engine, limits)
    facts = read_facts(tree, schema)
    made = material(schema, facts, contents, options.nulls)
    rng = random.Random(hashlib.blake2b(repr(source).encode(), digest_size=8).digest())
    search = _Search(engine, gold, made, limits)
    if not source.files:
        search.start(contents)
    search.neighbours(tree)
    if options.variants:
        search.run(variants(made, rng), options.variants)
    if not (filled or search.filled):
        raise BadProblem(
            "gold: it gives no rows, here or on any variant of the database, so any query that "
            "finds nothing would be right"
        )
    return Prepared(
        gold, schema, facts, made.core, tuple(search.kept), source.files, search.tally()
    )


def check_files(gold: Gold, files: Sequence[str], engine: Engine, limits: Limits) -> bool:
    """Runs the reference on each file; whether it gives rows on any.

    Raises:
        BadProblem: it does not run on one.
    """
    filled = False
    for path in files:
        try:
            connection = engine.open(path)
        except QueryFailed as error:
            raise BadProblem(f"database: {error}") from None
        try:
            filled |= total(gold_rows(gold, connection, limits)[1]) > 0
        finally:
            connection.close()
    return filled


def stable(gold: Gold, engine: Engine, schema: Schema, contents: Rows, expected: Expected) -> bool:
    """Whether the reference asks for the same when rows lie in another order."""
    connection = engine.load(schema, [contents], turned=True)[0]
    try:
        _, other = expected_rows(gold, connection, Limits.within(2.0))
    except (QueryFailed, TooLong, TooLarge):
        return False
    finally:
        connection.close()
    return len(other) == len(expected) and all(
        ours.count == theirs.count
        and len(ours.rows) == len(theirs.rows)
        and same_rows([replace(ours, count=len(ours.rows))], theirs.rows, 1e-9)
        for ours, theirs in zip(expected, other, strict=True)
    )


class _Search:
    """Variants kept so far, and the neighbours that none of them tells apart yet."""

    def __init__(self, engine: Engine, gold: Gold, made: Material, limits: Limits) -> None:
        self.kept: list[Variant] = []
        self.filled = False
        self._engine = engine
        self._gold = gold
        self._made = made
        self._limits = limits
        self._all: list[Mutant] = []
        self._alive: list[Mutant] = []
        self._given: list[Row] = []

    def start(self, contents: Rows) -> None:
        """Takes the given database, in full, and in another order."""
        connection = self._engine.load(self._made.schema, [contents])[0]
        try:
            _, expected = gold_rows(self._gold, connection, self._limits)
        finally:
            connection.close()
        self.filled = total(expected) > 0
        self._given = [row for segment in expected for row in segment.rows[: segment.count]]
        self.kept = [Variant("given", contents), Variant("row order", contents)]

    def neighbours(self, tree: Any) -> None:
        """Makes the neighbours; those that do not run are none."""
        dialect = self._engine.dialect
        memorised = constant(self._given, dialect)
        found = mutants(tree, self._made.schema, dialect)
        contents = self._made.core
        connection = self._engine.load(self._made.schema, [contents])[0]
        try:
            for mutant in [*found, *([memorised] if memorised else [])]:
                if self._limits.passed():
                    break
                try:
                    self._read(connection, mutant)
                except QueryFailed:
                    continue
                except (TooLong, TooLarge):
                    pass
                self._all.append(mutant)
        finally:
            connection.close()
        self._alive = list(self._all)
        for variant in list(self.kept):
            self._try(variant.contents, variant.kind == "row order")

    def run(self, stream: Any, most: int) -> None:
        """Tries variants in turn: all of the structured ones, then random ones while they help."""
        structured: list[Variant] = []
        tried = kept = 0
        for variant in stream:
            is_random = variant.kind == "random rows"
            if is_random:
                tried += 1
                if tried > RANDOM_TRIED or (not self._alive and kept >= RANDOM_KEPT):
                    break
            if self._limits.passed() or len(self.kept) >= most:
                break
            contents = self._engine.settle(self._made.schema, variant.contents)
            if any(contents == other.contents for other in self.kept if other.kind != "row order"):
                continue
            told = self._try(contents, False)
            if told is None or (is_random and not told and kept >= RANDOM_KEPT):
                continue
            kept += is_random
            structured.append(replace(variant, contents=contents))
            self.kept.append(structured[-1])

    def _read(self, connection: Connection, mutant: Mutant) -> Result:
        brief = Limits(min(self._limits.deadline, time.monotonic() + 0.5), self._limits.max_rows)
        return connection.run(mutant.sql, brief)

    def _try(self, contents: Rows, turned: bool) -> int | None:
        """How many more neighbours a database tells apart; ``None`` if the reference is not sure
        of its own rows there.
        """
        connection = self._engine.load(self._made.schema, [contents], turned)[0]
        try:
            width, expected = expected_rows(
                self._gold, connection, Limits.within(2.0, self._limits.max_rows)
            )
            if not stable(self._gold, self._engine, self._made.schema, contents, expected):
                return None
            self.filled |= total(expected) > 0
            left = [m for m in self._alive if self._agrees(connection, m, width, expected)]
        except (QueryFailed, TooLong, TooLarge):
            return None
        finally:
            connection.close()
        told = len(self._alive) - len(left)
        self._alive = left
        return told

    def _agrees(
        self, connection: Connection, mutant: Mutant, width: int, expected: Expected
    ) -> bool:
        try:
            result = self._read(connection, mutant)
        except (QueryFailed, TooLong, TooLarge):
            return False
        return result.width == width and same_rows(expected, result.rows, 1e-9)

    def tally(self) -> dict[str, tuple[int, int]]:
        """Neighbours by kind: all, told apart."""
        counts: dict[str, tuple[int, int]] = {}
        alive = {mutant.sql for mutant in self._alive}
        for mutant in self._all:
            whole, told = counts.get(mutant.kind, (0, 0))
            counts[mutant.kind] = (whole + 1, told + (mutant.sql not in alive))
        return counts


def more_variants(prepared: Prepared, tree: Any, options: Options, seed: str) -> list[Variant]:
    """Databases that also vary what a query looks at and the reference does not; none when there
    is no such thing.
    """
    own = read_facts(tree, prepared.schema)
    facts = prepared.facts
    known = (
        own.tables <= facts.tables
        and own.used <= facts.used
        and all(values <= facts.literals.get(p, set()) for p, values in own.literals.items())
        and all(values <= facts.patterns.get(p, set()) for p, values in own.patterns.items())
        and own.counts <= facts.counts
    )
    if known:
        return []
    merged = Facts(
        own.tables | facts.tables,
        own.used | facts.used,
        _merged(own.literals, facts.literals),
        _merged(own.patterns, facts.patterns),
        list(facts.joined),
        own.sorted_by | facts.sorted_by,
        own.counts | facts.counts,
        facts.null_tested,
    )
    for group in own.joined:
        first, *others = sorted(group)
        for other in others:
            merged.join(first, other)
    made = material(prepared.schema, merged, prepared.core, options.nulls)
    found: list[Variant] = []
    random_ones = 0
    for variant in islice(variants(made, random.Random(seed)), 60):
        random_ones += variant.kind == "random rows"
        if random_ones > 2 * RANDOM_KEPT:
            break
        found.append(variant)
    return found


def _merged(ours: Mapping[Any, set[Any]], theirs: Mapping[Any, set[Any]]) -> dict[Any, set[Any]]:
    return {
        place: set(ours.get(place, ())) | set(theirs.get(place, ()))
        for place in sorted({*ours, *theirs})
    }
