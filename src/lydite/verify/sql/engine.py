"""What an engine is to the rest: databases made from statements and rows, and one query at a time
run on them under limits.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Cell = Any
"""int, float, str, bytes, None; what an engine has beyond these is turned into text or a tuple."""
Row = tuple[Cell, ...]
Contents = Mapping[str, Sequence[Row]]
Kind = Literal["int", "bool", "real", "text", "date", "other"]
"""``bool`` is a column declared as one that holds 0 and 1 alone."""


class QueryFailed(Exception):
    """The engine refused the query, in one line."""


class EngineLost(Exception):
    """The engine itself failed and has to be started anew; no fault of the query's."""


class TooLong(Exception):
    """The query passed its deadline."""


class TooLarge(Exception):
    """The query gives more rows or bytes than are read."""


@dataclass(frozen=True, slots=True)
class Column:
    """One stored column. ``nullable`` by declaration: no NOT NULL, not of the primary key."""

    name: str
    kind: Kind
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """``columns`` (by position) refer to ``parent``'s columns of these positions."""

    columns: tuple[int, ...]
    parent: str
    parent_columns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table: its columns, which sets of them (by position) are unique, what it refers to."""

    name: str
    columns: tuple[Column, ...]
    keys: tuple[tuple[int, ...], ...] = ()
    foreign: tuple[ForeignKey, ...] = ()

    def position(self, name: str) -> int | None:
        """The place of a column, whatever its case."""
        for index, column in enumerate(self.columns):
            if column.name.lower() == name.lower():
                return index
        return None


@dataclass(frozen=True, slots=True)
class Schema:
    """Statements that make the empty tables and views, and what the tables are like."""

    statements: tuple[str, ...]
    tables: tuple[TableInfo, ...]

    def table(self, name: str) -> TableInfo | None:
        """A table by name, whatever its case."""
        return next((t for t in self.tables if t.name.lower() == name.lower()), None)


@dataclass(slots=True)
class Limits:
    """What a query may cost. ``deadline`` is on the monotonic clock, in seconds."""

    deadline: float
    max_rows: int = 10_000
    max_bytes: int = 16 * 2**20

    @classmethod
    def within(cls, seconds: float, max_rows: int = 10_000) -> Limits:
        """Limits that end ``seconds`` from now."""
        return cls(time.monotonic() + seconds, max_rows)

    def passed(self) -> bool:
        """Whether the deadline is over."""
        return time.monotonic() > self.deadline


@dataclass(frozen=True, slots=True)
class Result:
    """Rows in the order they came, and how many columns they have."""

    width: int
    rows: list[Row] = field(default_factory=list)


class Connection(Protocol):
    """One database, read-only."""

    def run(self, sql: str, limits: Limits) -> Result:
        """The result of one query.

        Raises:
            QueryFailed, TooLong, TooLarge: as they say.
        """
        ...

    def close(self) -> None:
        """Frees it."""
        ...


class Engine(Protocol):
    """SQLite or DuckDB. ``dialect`` is sqlglot's name for it."""

    dialect: str
    suffixes: tuple[str, ...]

    def build(
        self, script: Sequence[str], rows: Mapping[str, Sequence[object]], limits: Limits
    ) -> tuple[Schema, dict[str, list[Row]]]:
        """Runs the statements of a schema, adds rows, and reads both back.

        Raises:
            QueryFailed, TooLong: a statement or row is refused.
        """
        ...

    def inspect(
        self, path: str, per_table: int, limits: Limits
    ) -> tuple[Schema, dict[str, list[Row]]]:
        """The schema of a database file and the first rows of each of its tables."""
        ...

    def open(self, path: str) -> Connection:
        """A database file, read-only and taken as unchanging."""
        ...

    def settle(self, schema: Schema, contents: Contents) -> dict[str, list[Row]]:
        """The rows that the constraints of the schema let stand, in order."""
        ...

    def load(
        self, schema: Schema, contents: Sequence[Contents], turned: bool = False
    ) -> list[Connection]:
        """Databases in memory with settled contents. ``turned``: rows come in another order where
        a query asks for none.
        """
        ...

    def crowded(self) -> bool:
        """Whether the databases loaded take more memory than they should together."""
        ...


def size_of(row: Sequence[Cell]) -> int:
    """Bytes that a row's values take, about."""
    return sum(len(cell) if isinstance(cell, str | bytes) else 8 for cell in row)


def quoted(name: str) -> str:
    """A name as both engines take it."""
    return '"' + name.replace('"', '""') + '"'


def in_order(row: object, columns: Sequence[str], table: str) -> Row:
    """A row of a data set, a list or a record by column name, in the order of the columns.

    Raises:
        ValueError: it has another number of values, or a name that the table has not.
    """
    if isinstance(row, Mapping):
        given = {str(name).lower(): value for name, value in row.items()}
        unknown = sorted(set(given) - {name.lower() for name in columns})
        if unknown:
            raise ValueError(f"a row of {table!r} has a value for {unknown[0]!r}, no column of it")
        return tuple(_plain(given.get(name.lower())) for name in columns)
    if not isinstance(row, list | tuple):
        raise ValueError(f"a row of {table!r} is no list of values")
    if len(row) != len(columns):
        raise ValueError(f"a row of {table!r} has {len(row)} values for {len(columns)} columns")
    return tuple(_plain(cell) for cell in row)


def _plain(cell: object) -> Cell:
    if isinstance(cell, bool):
        return int(cell)
    if isinstance(cell, Mapping | list):
        raise ValueError("a value is a list or a record; write it as text")
    return cell
