"""A query against a prepared problem: read, run on every database, compared."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lydite.types import Outcome
from lydite.verify.sql.compare import Expected, column_orders, same_rows, total
from lydite.verify.sql.engine import (
    Connection,
    Engine,
    Limits,
    QueryFailed,
    Row,
    TooLarge,
    TooLong,
)
from lydite.verify.sql.gold import expected_rows
from lydite.verify.sql.prepare import (
    BadProblem,
    Options,
    Prepared,
    gold_rows,
    more_variants,
    stable,
)
from lydite.verify.sql.statement import NotAQuery, check_size, looks_like_query, read_select


@dataclass(frozen=True, slots=True)
class Decision:
    """What a query came to, with one sentence for a person."""

    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True, slots=True)
class _Loaded:
    kind: str
    connection: Connection
    width: int
    expected: Expected


class Session:
    """A problem's databases, loaded, with what the reference gives on each.

    Raises:
        BadProblem: a database file is no longer what it was.
    """

    def __init__(self, prepared: Prepared, engine: Engine, options: Options) -> None:
        self._prepared = prepared
        self._engine = engine
        self._options = options
        self._loaded: list[_Loaded] = []
        limits = Limits.within(60.0, options.max_rows)
        for number, path in enumerate(prepared.files):
            try:
                connection = engine.open(path)
            except QueryFailed as error:
                raise BadProblem(f"database: {error}") from None
            kind = "the database" if len(prepared.files) == 1 else f"database {number + 1}"
            self._add(kind, connection, limits)
        for turned in (False, True):
            chosen = [v for v in prepared.variants if (v.kind == "row order") == turned]
            contents = [v.contents for v in chosen]
            connections = engine.load(prepared.schema, contents, turned) if chosen else []
            for variant, connection in zip(chosen, connections, strict=True):
                self._add(_told(variant.kind), connection, limits)

    def _add(self, kind: str, connection: Connection, limits: Limits) -> None:
        width, expected = gold_rows(self._prepared.gold, connection, limits)
        self._loaded.append(_Loaded(kind, connection, width, expected))

    def close(self) -> None:
        """Frees the databases."""
        for loaded in self._loaded:
            loaded.connection.close()

    def check(self, text: str, seconds: float) -> Decision:
        """The decision on a query, in ``seconds`` at most where the engine can be interrupted."""
        limits = Limits.within(seconds, self._options.max_rows)
        try:
            tree = self._read(text)
        except NotAQuery as error:
            outcome = Outcome.UNPARSEABLE if error.unreadable else Outcome.WRONG
            return Decision(outcome, str(error))
        try:
            found = self._compare(text, limits)
            if found is None and tree is not None and self._options.variants:
                found = self._look_closer(text, tree, limits)
        except TooLong:
            return Decision(Outcome.TIMEOUT, f"the query runs longer than {seconds:g} s")
        if found is not None:
            return Decision(Outcome.WRONG, found)
        return Decision(Outcome.CORRECT, self._agreement())

    def _read(self, text: str) -> Any:
        """The tree; ``None`` for a query that the engine may know and the parser does not."""
        try:
            return read_select(text, self._engine.dialect, self._options.max_chars)
        except NotAQuery as error:
            check_size(text, self._options.max_chars)
            if not error.unreadable or not looks_like_query(text):
                raise
            try:
                self._loaded[0].connection.run(text, Limits.within(1.0, self._options.max_rows))
            except QueryFailed:
                raise error from None
            except (TooLong, TooLarge):
                pass
            return None

    def _compare(self, text: str, limits: Limits) -> str | None:
        """Where the query differs from the reference, or ``None``."""
        pairs: list[tuple[Expected, Sequence[Row]]] = []
        for loaded in self._loaded:
            expected = loaded.expected
            if self._prepared.gold.volatile:
                _, expected = expected_rows(self._prepared.gold, loaded.connection, limits)
            said, rows = self._run(text, loaded.connection, loaded.width, expected, limits)
            if said is not None:
                return f"on {loaded.kind}: {said}"
            pairs.append((expected, rows))
        width = self._loaded[0].width
        free = self._options.free_columns
        if free and next(column_orders(pairs, width, self._options.tolerance), None) is None:
            return "no order of its columns gives the rows of the reference on every database"
        return None

    def _run(
        self, text: str, connection: Connection, width: int, expected: Expected, limits: Limits
    ) -> tuple[str | None, Sequence[Row]]:
        """What is wrong on one database, and the rows."""
        try:
            result = connection.run(text, limits)
        except QueryFailed as error:
            return f"the query does not run: {error}", []
        except TooLarge as error:
            return f"the query gives {error}", []
        if result.width != width:
            return f"the query gives {result.width} columns, the reference {width}", []
        count = total(expected)
        if len(result.rows) != count:
            return f"the query gives {len(result.rows)} rows, the reference {count}", []
        if self._options.free_columns and width > 1:
            return None, result.rows
        if same_rows(expected, result.rows, self._options.tolerance):
            return None, result.rows
        whole = [row for segment in expected for row in segment.rows]
        bag = len(whole) == count and same_rows(
            [type(expected[0])(count, whole)], result.rows, self._options.tolerance
        )
        return ("the rows come in another order" if bag else "the rows are others"), []

    def _look_closer(self, text: str, tree: Any, limits: Limits) -> str | None:
        """Tries what the query looks at and the reference does not, in half of the time left."""
        gold, schema = self._prepared.gold, self._prepared.schema
        now = time.monotonic()
        enough = Limits(now + (limits.deadline - now) / 2)
        for variant in more_variants(self._prepared, tree, self._options, text):
            if enough.passed():
                break
            contents = self._engine.settle(schema, variant.contents)
            connection = self._engine.load(schema, [contents])[0]
            try:
                width, expected = expected_rows(gold, connection, limits)
                said, rows = self._run(text, connection, width, expected, limits)
                if said is None and self._options.free_columns:
                    fits = column_orders([(expected, rows)], width, self._options.tolerance)
                    said = None if next(fits, None) else "the rows are others"
            except (QueryFailed, TooLarge):
                continue
            finally:
                connection.close()
            if said and stable(gold, self._engine, schema, contents, expected):
                return f"on {_told(variant.kind)}: {said}"
        return None

    def _agreement(self) -> str:
        whole = sum(count for count, _ in self._prepared.tally.values())
        told = sum(count for _, count in self._prepared.tally.values())
        return (
            f"agrees with the reference on {len(self._loaded)} databases, which tell {told} of "
            f"{whole} neighbours of the reference apart"
        )


_TOLD = {
    "given": "the database",
    "row order": "the database with its rows in another order",
    "boundaries": "a variant with values beside the literals",
    "other keys": "a variant with other keys",
    "ties": "a variant with ties",
    "duplicates": "a variant with every row twice",
    "NULLs": "a variant with NULLs",
    "no partner": "a variant with rows that have no partner",
    "other values": "a variant with other values",
    "swapped values": "a variant with values moved between rows",
    "an empty table": "a variant with an empty table",
    "random rows": "a variant of random rows",
}


def _told(kind: str) -> str:
    return _TOLD.get(kind, kind)
