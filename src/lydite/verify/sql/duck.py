"""DuckDB: databases are schemas of one instance in memory, shut off from files and the network,
its settings locked before anything runs.
"""

from __future__ import annotations

import contextlib
import datetime
import decimal
import re
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import duckdb

from lydite.verify.sql.engine import (
    Cell,
    Column,
    Connection,
    Contents,
    EngineLost,
    ForeignKey,
    Kind,
    Limits,
    QueryFailed,
    Result,
    Row,
    Schema,
    TableInfo,
    TooLarge,
    TooLong,
    in_order,
    quoted,
    size_of,
)

MEMORY = "512MB"
CROWDED = 192 * 2**20
"""Bytes of loaded databases past which the oldest should go: queries need the rest."""
FETCH = 500
_NEVER = re.compile(
    r"\b(?:random|setseed|uuid|gen_random_uuid|uuidv4|uuidv7|nextval|currval|pragma_\w+|duckdb_\w+|"
    r"sniff_csv|glob|query|query_table|getenv|which_secret|write_log|checkpoint|force_checkpoint)"
    r"\s*\(",
    re.IGNORECASE,
)


class DuckConnection:
    """A file, or one schema of an instance in memory, by a cursor of its own."""

    def __init__(self, cursor: Any, schema: str | None = None) -> None:
        self._cursor = cursor
        self._schema = schema

    def run(self, sql: str, limits: Limits) -> Result:
        """See :class:`~lydite.verify.sql.engine.Connection`."""
        if match := _NEVER.search(sql):
            raise QueryFailed(f"not authorized to use function: {match[0].rstrip('( ')}")
        rows: list[Row] = []
        size = 0
        try:
            with _deadline(self._cursor, limits):
                statements = duckdb.extract_statements(sql)
                if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                    raise QueryFailed("it is not one SELECT")
                self._cursor.execute(statements[0])
                width = len(self._cursor.description or ())
                while part := self._cursor.fetchmany(FETCH):
                    rows += [tuple(_plain(cell) for cell in row) for row in part]
                    size += sum(map(size_of, rows[-len(part) :]))
                    if len(rows) > limits.max_rows:
                        raise TooLarge(f"more than {limits.max_rows} rows")
                    if size > limits.max_bytes:
                        raise TooLarge(f"more than {limits.max_bytes} bytes of rows")
        except (duckdb.FatalException, duckdb.InternalException) as error:
            raise EngineLost(_brief(error)) from None
        except (duckdb.Error, MemoryError, RuntimeError, ValueError, OverflowError) as error:
            if limits.passed():
                raise TooLong from None
            raise QueryFailed(_brief(error)) from None
        return Result(width, rows)

    def close(self) -> None:
        """Frees it."""
        if self._schema is not None:
            with contextlib.suppress(duckdb.Error):
                self._cursor.execute("use main")
                self._cursor.execute(f"drop schema {self._schema} cascade")
        self._cursor.close()


@contextlib.contextmanager
def _deadline(cursor: Any, limits: Limits) -> Iterator[None]:
    """Interrupts what still runs at the deadline, as often as it takes."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(max(0.01, limits.deadline - time.monotonic())):
            cursor.interrupt()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _plain(cell: Any) -> Cell:
    """What DuckDB has beyond Python's own values, as text or tuples."""
    if isinstance(cell, decimal.Decimal):
        return int(cell) if cell == cell.to_integral_value() else float(cell)
    if isinstance(cell, datetime.datetime):
        midnight = cell.time() == datetime.time()
        return cell.date().isoformat() if midnight else cell.isoformat(sep=" ")
    if isinstance(cell, datetime.date | datetime.time | datetime.timedelta | uuid.UUID):
        return str(cell)
    if isinstance(cell, Mapping):
        return tuple((str(key), _plain(value)) for key, value in cell.items())
    if isinstance(cell, list | tuple):
        return tuple(_plain(part) for part in cell)
    return cell


def _brief(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _instance(path: str = ":memory:", read_only: bool = False) -> Any:
    return duckdb.connect(
        path,
        read_only=read_only,
        config={
            "threads": 1,
            "memory_limit": MEMORY,
            "enable_external_access": "false",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "allow_community_extensions": "false",
            "temp_directory": "",
        },
    )


def _lock(instance: Any) -> None:
    instance.execute("set lock_configuration = true")


class Duck:
    """The engine; see :class:`~lydite.verify.sql.engine.Engine`."""

    dialect = "duckdb"
    suffixes: tuple[str, ...] = (".duckdb", ".ddb", ".db")

    def __init__(self) -> None:
        self._instance: Any = None
        self._count = 0

    def build(
        self, script: Sequence[str], rows: Mapping[str, Sequence[object]], limits: Limits
    ) -> tuple[Schema, dict[str, list[Row]]]:
        """Runs a schema and adds rows."""
        instance = _instance()
        _lock(instance)
        try:
            with _deadline(instance, limits):
                for statement in script:
                    instance.execute(statement)
                for table, given in rows.items():
                    names = [
                        row[0] for row in instance.execute(f"describe {quoted(table)}").fetchall()
                    ]
                    ordered = [in_order(row, names, table) for row in given]
                    _insert(instance, quoted(table), ordered, "insert")
                return _read_back(instance, None)
        except (duckdb.Error, ValueError, MemoryError, RuntimeError) as error:
            if limits.passed():
                raise TooLong from None
            raise QueryFailed(_brief(error)) from None
        finally:
            instance.close()

    def inspect(
        self, path: str, per_table: int, limits: Limits
    ) -> tuple[Schema, dict[str, list[Row]]]:
        """The schema of a file and the first rows of its tables."""
        try:
            instance = _instance(path, read_only=True)
        except (duckdb.Error, OSError) as error:
            raise QueryFailed(f"{path}: {_brief(error)}") from None
        try:
            return _read_back(instance, per_table)
        except duckdb.Error as error:
            raise QueryFailed(_brief(error)) from None
        finally:
            instance.close()

    def open(self, path: str) -> Connection:
        """A file, read-only."""
        try:
            instance = _instance(path, read_only=True)
            _lock(instance)
        except (duckdb.Error, OSError) as error:
            raise QueryFailed(f"{path}: {_brief(error)}") from None
        return DuckConnection(instance)

    def settle(self, schema: Schema, contents: Contents) -> dict[str, list[Row]]:
        """Rows that break a key, or lack a parent, are left out; with a CHECK in the schema each
        row is tried.
        """
        sound = _keyed(schema, contents)
        if not any(re.search(r"\bcheck\b", sql, re.IGNORECASE) for sql in schema.statements):
            return sound
        cursor, name = self._made(schema)
        for table in schema.tables:
            for row in sound[table.name]:
                with _refusals():
                    _insert(cursor, quoted(table.name), [row], "insert")
        kept = {table.name: _rows(cursor, table, None) for table in schema.tables}
        DuckConnection(cursor, name).close()
        return kept

    def load(
        self, schema: Schema, contents: Sequence[Contents], turned: bool = False
    ) -> list[Connection]:
        """One schema of the instance each."""
        loaded: list[Connection] = []
        for rows in contents:
            cursor, name = self._made(schema)
            for table in schema.tables:
                given = list(rows.get(table.name, ()))
                own = any(k.parent.lower() == table.name.lower() for k in table.foreign)
                ordered = given[::-1] if turned and not own else given
                with _refusals() as refused:
                    _insert(cursor, quoted(table.name), ordered, "insert")
                for row in ordered if refused else ():
                    with _refusals():
                        _insert(cursor, quoted(table.name), [row], "insert")
            loaded.append(DuckConnection(cursor, name))
        return loaded

    def crowded(self) -> bool:
        """Whether the loaded databases take more memory than they should."""
        if self._instance is None:
            return False
        size = "select sum(memory_usage_bytes) from duckdb_memory()"
        return int(self._instance.execute(size).fetchone()[0] or 0) > CROWDED

    def _made(self, schema: Schema) -> tuple[Any, str]:
        """A new schema with its empty tables, as a cursor sees it, and its name."""
        if self._instance is None:
            self._instance = _instance()
            _lock(self._instance)
        self._count += 1
        name = f"variant_{self._count}"
        cursor = self._instance.cursor()
        for statement in (f"create schema {name}", f"use {name}", *schema.statements):
            with _refusals():
                cursor.execute(statement)
        return cursor, name


@contextlib.contextmanager
def _refusals() -> Iterator[list[str]]:
    """What a database refuses is noted and left out; an engine that can do no more is lost."""
    refused: list[str] = []
    try:
        yield refused
    except (duckdb.OutOfMemoryException, duckdb.FatalException, duckdb.InternalException) as error:
        raise EngineLost(_brief(error)) from None
    except duckdb.Error as error:
        refused.append(_brief(error))


def _keyed(schema: Schema, contents: Contents) -> dict[str, list[Row]]:
    """The rows that keys, NOT NULL and foreign keys let stand, parents first."""
    kept: dict[str, list[Row]] = {}
    for table in schema.tables:
        seen: list[set[Row]] = [set() for _ in table.keys]
        fixed = [i for i, column in enumerate(table.columns) if not column.nullable]
        sound = kept.setdefault(table.name, [])
        for row in contents.get(table.name, ()):
            keys = [tuple(row[i] for i in key) for key in table.keys]
            taken = any(
                key in before and None not in key for key, before in zip(keys, seen, strict=True)
            )
            if taken or any(row[i] is None for i in fixed) or not _has_parents(table, row, kept):
                continue
            for key, before in zip(keys, seen, strict=True):
                before.add(key)
            sound.append(row)
    return kept


def _has_parents(table: TableInfo, row: Row, kept: Mapping[str, Sequence[Row]]) -> bool:
    for key in table.foreign:
        ours = tuple(row[i] for i in key.columns)
        parents = next((kept[n] for n in kept if n.lower() == key.parent.lower()), ())
        if None not in ours and all(
            tuple(parent[i] for i in key.parent_columns) != ours for parent in parents
        ):
            return False
    return True


def _insert(cursor: Any, table: str, rows: Sequence[Row], verb: str) -> None:
    """Rows in one statement each hundred: DuckDB is slow at single ones."""
    for start in range(0, len(rows), 100):
        part = rows[start : start + 100]
        places = ", ".join("(" + ", ".join("?" * len(row)) + ")" for row in part)
        cursor.execute(
            f"{verb} into {table} values {places}", [cell for row in part for cell in row]
        )


def _rows(cursor: Any, table: TableInfo, limit: int | None) -> list[Row]:
    """Values that Python has none of its own for come as text, which goes in again as it came."""
    names = ", ".join(
        quoted(c.name)
        if c.kind in ("int", "bool", "text")
        else f"{quoted(c.name)}::varchar"
        if c.kind in ("date", "other")
        else f"{quoted(c.name)}::double"
        for c in table.columns
    )
    cut = "" if limit is None else f" limit {limit}"
    found = cursor.execute(f"select {names} from {quoted(table.name)}{cut}").fetchall()
    return [tuple(row) for row in found]


_PLAIN_TYPES: tuple[tuple[str, Kind], ...] = (
    (
        r"(?:TINY|SMALL|BIG|HUGE|U\w*)?INT(?:EGER)?\b.*|U(?:TINY|SMALL|BIG|HUGE)?INT\w*",
        "int",
    ),
    (r"BOOLEAN", "bool"),
    (r"DOUBLE|FLOAT|REAL|DECIMAL.*", "real"),
    (r"VARCHAR|TEXT|ENUM.*", "text"),
    (r"DATE|TIMESTAMP.*", "date"),
)


def _kind(declared: str, sample: Sequence[Cell]) -> Kind:
    kind: Kind = next(
        (kind for pattern, kind in _PLAIN_TYPES if re.fullmatch(pattern, declared)), "other"
    )
    iso = [isinstance(v, str) and re.fullmatch(r"\d{4}-\d{2}-\d{2}.*", v) for v in sample]
    return "date" if kind == "text" and iso and all(iso) else kind


def _read_back(instance: Any, per_table: int | None) -> tuple[Schema, dict[str, list[Row]]]:
    own = "schema_name = current_schema() and database_name = current_database() and not internal"
    made = instance.execute(
        f"select table_name, sql, table_oid from duckdb_tables() where {own} order by table_oid"
    ).fetchall()
    tables = [_describe(instance, name) for name, _, _ in made]
    placed = _parents_first(tables)
    sql_of = {name: _unqualified(sql) for name, sql, _ in made}
    types = [
        f"create type {quoted(name)} as enum ({', '.join(_text(label) for label in labels)})"
        for name, labels in instance.execute(
            f"select type_name, labels from duckdb_types() where {own} and logical_type = 'ENUM' "
            "and labels is not null"
        ).fetchall()
    ]
    rest = [
        _unqualified(sql)
        for source in ("duckdb_indexes", "duckdb_views")
        for (sql,) in instance.execute(
            f"select sql from {source}() where {_of(source, own)}"
        ).fetchall()
        if sql
    ]
    keyed = [sql_of[table.name] for table in placed]
    plain = [_unkeyed(sql) for sql in keyed]
    statements = [*types, *(plain if _they_run([*types, *plain, *rest]) else keyed), *rest]
    contents = {table.name: _rows(instance, table, per_table) for table in placed}
    return Schema(tuple(statements), tuple(placed)), contents


def _of(source: str, own: str) -> str:
    return own if source == "duckdb_views" else own.replace(" and not internal", "")


def _they_run(statements: Sequence[str]) -> bool:
    with contextlib.closing(_instance()) as trial:
        try:
            for statement in statements:
                trial.execute(statement)
        except duckdb.Error:
            return False
    return True


def _unkeyed(sql: str) -> str:
    """A table's statement without its keys: rows are checked for those before they go in, and
    DuckDB keeps a quarter of a mebibyte for every node size of each key's index.
    """
    import sqlglot
    from sqlglot import exp

    keys: tuple[type[Any], ...] = (
        exp.PrimaryKey,
        exp.ForeignKey,
        exp.PrimaryKeyColumnConstraint,
        exp.UniqueColumnConstraint,
        exp.Reference,
    )
    try:
        tree = sqlglot.parse_one(sql, read="duckdb")
        found: list[Any] = [node for node in tree.walk() if isinstance(node, keys)]
        for node in found:
            while isinstance(node.parent, exp.Constraint | exp.ColumnConstraint):
                node = node.parent
            node.pop()
        return tree.sql(dialect="duckdb")
    except (sqlglot.errors.SqlglotError, RecursionError, ValueError):
        return sql


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _unqualified(sql: str) -> str:
    return re.sub(r"\bmain\.", "", sql)


def _describe(instance: Any, name: str) -> TableInfo:
    described = instance.execute(
        "select column_name, data_type, is_nullable from duckdb_columns() where table_name = ? "
        "and schema_name = current_schema() and database_name = current_database() "
        "order by column_index",
        [name],
    ).fetchall()
    places = {row[0].lower(): index for index, row in enumerate(described)}
    keys: list[tuple[int, ...]] = []
    foreign: list[ForeignKey] = []
    fixed: set[int] = set()
    for kind, columns, parent, targets in instance.execute(
        "select constraint_type, constraint_column_names, referenced_table, "
        "referenced_column_names from duckdb_constraints() where table_name = ? "
        "and schema_name = current_schema() and database_name = current_database()",
        [name],
    ).fetchall():
        own = tuple(places[column.lower()] for column in columns if column.lower() in places)
        if kind in ("PRIMARY KEY", "UNIQUE"):
            keys.append(own)
        if kind in ("PRIMARY KEY", "NOT NULL"):
            fixed.update(own)
        if kind == "FOREIGN KEY" and parent:
            there = _positions(instance, parent, targets)
            foreign.append(ForeignKey(own, parent, there))
    columns_found = tuple(
        Column(row[0], _kind(row[1], _sample(instance, name, row[0])), row[2] and i not in fixed)
        for i, row in enumerate(described)
    )
    return TableInfo(name, columns_found, tuple(dict.fromkeys(keys)), tuple(foreign))


def _positions(instance: Any, table: str, names: Sequence[str]) -> tuple[int, ...]:
    there = [row[0].lower() for row in instance.execute(f"describe {quoted(table)}").fetchall()]
    return tuple(there.index(name.lower()) for name in names)


def _sample(instance: Any, table: str, column: str) -> list[Cell]:
    sql = (
        f"select {quoted(column)} from {quoted(table)} where {quoted(column)} is not null limit 20"
    )
    return [row[0] for row in instance.execute(sql).fetchall()]


def _parents_first(tables: Sequence[TableInfo]) -> list[TableInfo]:
    left, placed = list(tables), []
    while left:
        names = {table.name.lower() for table in left}
        free = [
            table
            for table in left
            if not {k.parent.lower() for k in table.foreign} & (names - {table.name.lower()})
        ] or left[:1]
        placed += free
        left = [table for table in left if table not in free]
    return placed
