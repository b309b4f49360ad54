"""SQLite, from Python's own library: an authorizer that lets nothing but reading through, a
progress handler for the deadline, and limits on the length of values.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from lydite.verify.sql.engine import (
    Cell,
    Column,
    Connection,
    Contents,
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

MAX_VALUE_BYTES = 2**20
HEAP_BYTES = 512 * 2**20
STEPS = 2000
"""Instructions of SQLite's machine between two looks at the clock."""

_READING = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)
_NEVER = frozenset(
    {
        "load_extension",
        "fts3_tokenizer",
        "readfile",
        "writefile",
        "edit",
        "random",
        "randomblob",
        "changes",
        "total_changes",
        "last_insert_rowid",
        "sqlite_offset",
        "sqlite_compileoption_get",
        "sqlite_compileoption_used",
    }
)
_PRIVATE = ("sqlite_", "pragma_", "dbstat")
_DATE = re.compile(r"DATE|TIME", re.IGNORECASE)


def _may_read(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    if action not in _READING:
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _NEVER:
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_READ and (first or "").lower().startswith(_PRIVATE):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def _may_make(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    """For the schema of a data set: everything but other files and code."""
    other_files = (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH)
    code = action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _NEVER
    if action == sqlite3.SQLITE_PRAGMA:
        harmless = (first or "").lower() in ("foreign_keys", "encoding", "user_version")
        return sqlite3.SQLITE_OK if harmless else sqlite3.SQLITE_IGNORE
    return sqlite3.SQLITE_DENY if action in other_files or code else sqlite3.SQLITE_OK


class SqliteConnection:
    """A database that can only be read from."""

    def __init__(self, raw: sqlite3.Connection) -> None:
        self._raw = raw
        raw.execute(f"pragma hard_heap_limit = {HEAP_BYTES}")
        raw.execute("pragma temp_store = memory")
        raw.execute("pragma query_only = on")
        for limit, value in (
            (sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES),
            (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
            (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 200),
            (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 200),
        ):
            raw.setlimit(limit, value)
        raw.set_authorizer(_may_read)

    def run(self, sql: str, limits: Limits) -> Result:
        """See :class:`~lydite.verify.sql.engine.Connection`."""
        self._raw.set_progress_handler(lambda: limits.passed(), STEPS)
        rows: list[Row] = []
        size = 0
        try:
            cursor = self._raw.execute(sql)
            if cursor.description is None:
                raise QueryFailed("it returns no rows")
            for row in cursor:
                size += size_of(row)
                if len(rows) >= limits.max_rows:
                    raise TooLarge(f"more than {limits.max_rows} rows")
                if size > limits.max_bytes:
                    raise TooLarge(f"more than {limits.max_bytes} bytes of rows")
                rows.append(row)
        except (sqlite3.Error, sqlite3.Warning, MemoryError, OverflowError) as error:
            if limits.passed():
                raise TooLong from None
            raise QueryFailed(_brief(error)) from None
        return Result(len(cursor.description), rows)

    def close(self) -> None:
        """Frees it."""
        self._raw.close()


def _brief(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _decoded(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _memory() -> sqlite3.Connection:
    raw = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    raw.text_factory = _decoded
    return raw


class Sqlite:
    """The engine; see :class:`~lydite.verify.sql.engine.Engine`."""

    dialect = "sqlite"
    suffixes: tuple[str, ...] = (".sqlite", ".sqlite3", ".db", ".db3")

    def build(
        self, script: Sequence[str], rows: Mapping[str, Sequence[object]], limits: Limits
    ) -> tuple[Schema, dict[str, list[Row]]]:
        """Runs a schema and adds rows."""
        raw = _memory()
        raw.set_authorizer(_may_make)
        raw.set_progress_handler(lambda: limits.passed(), STEPS)
        raw.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 16 * MAX_VALUE_BYTES)
        try:
            for statement in script:
                raw.executescript(statement)
            raw.set_authorizer(None)
            _insert(raw, rows, "insert")
            return _read_back(raw, None)
        except (sqlite3.Error, sqlite3.Warning, MemoryError, ValueError, OverflowError) as error:
            if limits.passed():
                raise TooLong from None
            raise QueryFailed(_brief(error)) from None
        finally:
            raw.close()

    def inspect(
        self, path: str, per_table: int, limits: Limits
    ) -> tuple[Schema, dict[str, list[Row]]]:
        """The schema of a file and the first rows of its tables."""
        raw = _file(path)
        raw.set_progress_handler(lambda: limits.passed(), STEPS)
        try:
            return _read_back(raw, per_table)
        except sqlite3.Error as error:
            raise QueryFailed(_brief(error)) from None
        finally:
            raw.close()

    def open(self, path: str) -> Connection:
        """A file, with ``mode=ro`` and ``immutable=1``."""
        return SqliteConnection(_file(path))

    def settle(self, schema: Schema, contents: Contents) -> dict[str, list[Row]]:
        """Rows that break a key or a check are left out, then those whose parents are missing."""
        raw = _made(schema)
        try:
            raw.execute("begin")
            _insert(raw, contents, "insert or ignore")
            _drop_orphans(raw, schema)
            return {table.name: _rows(raw, table, None) for table in schema.tables}
        finally:
            raw.close()

    def load(
        self, schema: Schema, contents: Sequence[Contents], turned: bool = False
    ) -> list[Connection]:
        """One database in memory each."""
        loaded: list[Connection] = []
        for rows in contents:
            raw = _made(_unclustered(schema) if turned else schema)
            raw.execute("begin")
            for name, given in rows.items():
                _insert(raw, {name: given[::-1] if turned else given}, "insert or ignore")
            raw.execute("commit")
            loaded.append(SqliteConnection(raw))
        return loaded

    def crowded(self) -> bool:
        """Never: each is a few kilobytes."""
        return False


def _file(path: str) -> sqlite3.Connection:
    try:
        raw = sqlite3.connect(
            f"{Path(path).resolve().as_uri()}?mode=ro&immutable=1",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
        )
        raw.text_factory = _decoded
        raw.execute("select count(*) from sqlite_master").fetchall()
    except sqlite3.Error as error:
        raise QueryFailed(f"{path}: {_brief(error)}") from None
    return raw


def _made(schema: Schema) -> sqlite3.Connection:
    raw = _memory()
    raw.set_authorizer(_may_make)
    for statement in schema.statements:
        with contextlib.suppress(sqlite3.Error):  # a view of a table that was left out
            raw.execute(statement)
    raw.set_authorizer(None)
    return raw


_CLUSTERED = re.compile(r"\binteger(\s+primary\s+key)(\s+autoincrement)?", re.IGNORECASE)


def _unclustered(schema: Schema) -> Schema:
    """The schema with tables that lie in the order of insertion: INTEGER PRIMARY KEY and WITHOUT
    ROWID keep rows sorted, so that a lost ORDER BY would not show.
    """
    statements = tuple(
        re.sub(r"\)\s*without\s+rowid\s*$", ")", _CLUSTERED.sub(r"int\1", sql), flags=re.IGNORECASE)
        for sql in schema.statements
    )
    return Schema(statements, schema.tables)


def _insert(raw: sqlite3.Connection, contents: Mapping[str, Sequence[object]], verb: str) -> None:
    for table, rows in contents.items():
        stored = [r for r in raw.execute(f"pragma table_xinfo({quoted(table)})") if r[6] == 0]
        if not stored:
            raise ValueError(f"rows for {table!r}, a table that the schema does not make")
        names = ", ".join(quoted(column[1]) for column in stored)
        places = ", ".join("?" * len(stored))
        ordered = [in_order(row, [column[1] for column in stored], table) for row in rows]
        raw.executemany(f"{verb} into {quoted(table)} ({names}) values ({places})", ordered)


def _drop_orphans(raw: sqlite3.Connection, schema: Schema) -> None:
    known = {table.name.lower(): table for table in schema.tables}
    for _ in range(6):
        broken = raw.execute("pragma foreign_key_check").fetchall()
        wrong = [
            (table, rowid)
            for table, rowid, parent, _number in broken
            if rowid is not None
            and table.lower() in known
            and any(key.parent.lower() == parent.lower() for key in known[table.lower()].foreign)
        ]
        if not wrong:
            return
        for table, rowid in wrong:
            raw.execute(f"delete from {quoted(table)} where rowid = ?", (rowid,))


def _read_back(
    raw: sqlite3.Connection, per_table: int | None
) -> tuple[Schema, dict[str, list[Row]]]:
    raw.set_authorizer(None)
    names = [
        name
        for (name, sql) in raw.execute(
            "select name, sql from sqlite_master where type = 'table' order by rowid"
        )
        if not name.lower().startswith("sqlite_") and sql and "virtual table" not in sql.lower()
    ]
    statements = [
        sql
        for (kind, sql) in raw.execute(
            "select type, sql from sqlite_master where sql is not null and type != 'trigger' "
            "and name not like 'sqlite~_%' escape '~' "
            "order by case type when 'table' then 0 when 'index' then 1 else 2 end, rowid"
        )
        if kind != "table" or "virtual table" not in sql.lower()
    ]
    tables = tuple(_describe(raw, name) for name in names)
    contents = {table.name: _rows(raw, table, per_table) for table in tables}
    sound = tuple(_without_broken_keys(raw, table) for table in tables)
    return Schema(tuple(statements), sound), contents


def _rows(raw: sqlite3.Connection, table: TableInfo, limit: int | None) -> list[Row]:
    names = ", ".join(quoted(column.name) for column in table.columns)
    cut = "" if limit is None else f" limit {limit}"
    return raw.execute(f"select {names} from {quoted(table.name)}{cut}").fetchall()


def _describe(raw: sqlite3.Connection, name: str) -> TableInfo:
    stored = [row for row in raw.execute(f"pragma table_xinfo({quoted(name)})") if row[6] == 0]
    primary = sorted((row[5], index) for index, row in enumerate(stored) if row[5])
    columns = tuple(
        Column(row[1], _kind(row[2], partial(_sample, raw, name, row[1])), not (row[3] or row[5]))
        for row in stored
    )
    places = {column.name.lower(): index for index, column in enumerate(columns)}
    keys = [tuple(index for _, index in primary)] if primary else []
    for _, index_name, unique, _origin, is_partial in raw.execute(
        f"pragma index_list({quoted(name)})"
    ).fetchall():
        parts = [row[2] for row in raw.execute(f"pragma index_info({quoted(index_name)})")]
        if unique and not is_partial and all(part and part.lower() in places for part in parts):
            keys.append(tuple(places[part.lower()] for part in parts))
    return TableInfo(name, columns, tuple(dict.fromkeys(keys)), _foreign(raw, name, places))


def _foreign(raw: sqlite3.Connection, name: str, places: dict[str, int]) -> tuple[ForeignKey, ...]:
    grouped: dict[int, list[tuple[str, str, str | None]]] = {}
    for number, _, parent, column, to, *_rest in raw.execute(
        f"pragma foreign_key_list({quoted(name)})"
    ):
        grouped.setdefault(number, []).append((parent, column, to))
    found = []
    for parts in grouped.values():
        parent = parts[0][0]
        stored = [
            row for row in raw.execute(f"pragma table_xinfo({quoted(parent)})") if row[6] == 0
        ]
        there = {row[1].lower(): index for index, row in enumerate(stored)}
        primary = [index for _, index in sorted((r[5], i) for i, r in enumerate(stored) if r[5])]
        targets = [
            there.get((to or "").lower(), primary[i] if to is None and i < len(primary) else None)
            for i, (_, _, to) in enumerate(parts)
        ]
        if stored and all(target is not None for target in targets):
            found.append(
                ForeignKey(
                    tuple(places[column.lower()] for _, column, _ in parts),
                    parent,
                    tuple(target for target in targets if target is not None),
                )
            )
    return tuple(found)


def _without_broken_keys(raw: sqlite3.Connection, table: TableInfo) -> TableInfo:
    """Foreign keys that the data itself breaks say nothing of what the data may hold."""
    try:
        broken = {
            row[2].lower() for row in raw.execute(f"pragma foreign_key_check({quoted(table.name)})")
        }
    except sqlite3.Error:
        broken = {key.parent.lower() for key in table.foreign}
    kept = tuple(key for key in table.foreign if key.parent.lower() not in broken)
    return TableInfo(table.name, table.columns, table.keys, kept)


def _sample(raw: sqlite3.Connection, table: str, column: str) -> list[Cell]:
    sql = (
        f"select {quoted(column)} from {quoted(table)} where {quoted(column)} is not null limit 20"
    )
    return [row[0] for row in raw.execute(sql)]


_ISO = re.compile(r"\d{4}-\d{2}-\d{2}(?:[ T]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?)?")


def _kind(declared: str, sample: Callable[[], list[Cell]]) -> Kind:
    """What a column holds: by its rows, which SQLite does not tie to the declared type, else by
    that type.
    """
    values = sample()
    if values:
        if "BOOL" in declared.upper() and all(value in (0, 1) for value in values):
            return "bool"
        if all(isinstance(value, int) for value in values):
            whole = re.search(r"REAL|FLOA|DOUBLE|NUMERIC|DECIMAL", declared, re.IGNORECASE) is None
            return "int" if whole else "real"
        if all(isinstance(value, int | float) for value in values):
            return "real"
        if all(isinstance(value, str) for value in values):
            return "date" if all(_ISO.fullmatch(value) for value in values) else "text"
        return "other"
    upper = declared.upper()
    if _DATE.search(upper):
        return "date"
    if "BOOL" in upper:
        return "bool"
    if "INT" in upper:
        return "int"
    if any(word in upper for word in ("CHAR", "CLOB", "TEXT", "STRING")):
        return "text"
    return "other" if "BLOB" in upper or not upper else "real"
