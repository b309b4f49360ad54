"""What an engine lets a query do, tried without the parser in front of it."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlglot")
pytest.importorskip("duckdb")

from lydite.verify.sql import worker
from lydite.verify.sql.duck import CROWDED, Duck
from lydite.verify.sql.engine import Engine, EngineLost, Limits, QueryFailed, TooLarge, TooLong
from lydite.verify.sql.prepare import Options, Source
from lydite.verify.sql.worker import Check, Look, Prepare, engine_of, handler

SCHEMA = ["create table t(id integer primary key, name text, n int)"]
ROWS = {"t": [[1, "a", 5], [2, "b", None], [3, "c", 7]]}


@pytest.fixture(params=["sqlite", "duckdb"])
def engine(request: Any) -> Engine:
    return engine_of(request.param)


def limits(seconds: float = 30.0) -> Limits:
    return Limits.within(seconds, 1000)


def connect(engine: Engine) -> Any:
    schema, contents = engine.build(SCHEMA, ROWS, limits())
    return engine.load(schema, [contents])[0]


ANYWHERE = [
    "drop table t",
    "delete from t",
    "insert into t values (9, 'x', 1)",
    "update t set n = 0",
    "create table u(a int)",
    "create temp table u(a int)",
    "alter table t add column b int",
    "begin",
    "attach 'lydite.db' as other",
    "select 1; drop table t",
    "",
]
SQLITE = [
    "vacuum",
    "vacuum into 'lydite.db'",
    "pragma journal_mode = delete",
    "pragma table_info(t)",
    "select * from pragma_database_list",
    "select sql from sqlite_master",
    "select load_extension('x')",
    "select fts3_tokenizer('simple')",
    "select readfile('/etc/passwd')",
    "select writefile('lydite.db', 'x')",
    "select randomblob(2000000000)",
    "select zeroblob(2000000000)",
    "select replace(hex(zeroblob(500000)), '0', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa')",
    "select random()",
    "with recursive r(s) as (select 'aaaaaaaa' union all select s || s from r) select s from r",
    "reindex",
    "analyze",
    "savepoint a",
    "detach main",
]
DUCKDB = [
    "copy t to 'lydite.csv'",
    "select * from read_csv('/etc/passwd')",
    "select * from read_text('/etc/passwd')",
    "select * from '/etc/passwd'",
    "select * from glob('/etc/*')",
    "install httpfs",
    "load httpfs",
    "set enable_external_access = true",
    "select random()",
    "export database 'lydite'",
    "pragma database_list",
    "use main",
    "call pragma_version()",
    "select * from query('drop table t')",
]


def refused(connection: Any, sql: str) -> None:
    try:
        result = connection.run(sql, limits(5.0))
    except (QueryFailed, TooLarge, TooLong):
        return
    raise AssertionError(f"{sql}: ran and gave {result}")


@pytest.mark.parametrize("sql", ANYWHERE)
def test_neither_engine_does_more_than_read(engine: Engine, sql: str, tmp_path: Path,
                                            monkeypatch: Any) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    connection = connect(engine)
    refused(connection, sql)
    assert connection.run("select count(*) from t", limits()).rows == [(3,)]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "sql"), [("sqlite", s) for s in SQLITE] + [("duckdb", s) for s in DUCKDB]
)
def test_nor_reaches_anything_else(name: str, sql: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    connection = connect(engine_of(name))
    refused(connection, sql)
    assert connection.run("select name from t where id = 2", limits()).rows == [("b",)]
    assert not list(tmp_path.iterdir())


def test_settings_of_duckdb_are_locked() -> None:
    connection: Any = connect(engine_of("duckdb"))
    for setting in ("enable_external_access = true", "memory_limit = '9GB'", "threads = 4"):
        with pytest.raises(Exception, match="lock"):
            connection._cursor.execute(f"set {setting}")


def test_a_runaway_query_ends_at_its_deadline(engine: Engine) -> None:
    connection = connect(engine)
    for sql in (
        "with recursive r(n) as (select 1 union all select n + 1 from r) select count(*) from r",
        "select count(*) from " + ", ".join(f"(select * from t, t u, t v) a{i}" for i in range(9)),
    ):
        begun = time.monotonic()
        with pytest.raises((TooLong, QueryFailed)):
            connection.run(sql, limits(0.3))
        assert time.monotonic() - begun < 20
    assert connection.run("select 1", limits()).rows == [(1,)]


def test_rows_and_bytes_have_an_end(engine: Engine) -> None:
    connection = connect(engine)
    many = ", ".join(f"t a{i}" for i in range(10))
    with pytest.raises(TooLarge, match="1000 rows"):
        connection.run(f"select 1 from {many}", limits())
    wide = "'" + "x" * 1000 + "'"
    with pytest.raises(TooLarge, match="bytes"):
        connection.run(f"select {wide} from {many}", Limits.within(30.0, 10**9))


def test_a_file_is_read_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    with sqlite3.connect(path) as raw:
        raw.executescript("create table t(a int); insert into t values (1), (2);")
    raw.close()
    path.chmod(0o444)
    before = path.read_bytes(), path.stat().st_mtime_ns
    connection = engine_of("sqlite").open(str(path))
    assert connection.run("select sum(a) from t", limits()).rows == [(3,)]
    refused(connection, "delete from t")
    connection.close()
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.sqlite"]


def test_a_file_that_is_no_database(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "a.db").write_text("no database " * 100)
    with pytest.raises(QueryFailed):
        engine.inspect(str(tmp_path / "a.db"), 10, limits())


def test_constraints_of_the_schema_are_read(engine: Engine) -> None:
    script = [
        "create table p(id integer primary key, name text not null, code text unique)",
        "create table c(id int primary key, p int references p(id), kind text check(kind <> 'x'))",
    ]
    rows: Any = {"p": [[1, "a", "k"], [2, "b", None]], "c": [{"kind": "y", "id": 1, "p": 2}]}
    schema, contents = engine.build(script, rows, limits())
    assert contents == {"p": [(1, "a", "k"), (2, "b", None)], "c": [(1, 2, "y")]}
    parent, child = schema.table("P"), schema.table("c")
    assert parent is not None and child is not None
    assert [column.nullable for column in parent.columns] == [False, False, True]
    assert [column.kind for column in child.columns] == ["int", "int", "text"]
    assert set(parent.keys) == {(0,), (2,)}
    assert [(k.columns, k.parent, k.parent_columns) for k in child.foreign] == [((1,), "p", (0,))]
    settled = engine.settle(
        schema,
        {
            "p": [(1, "a", "k"), (1, "b", None), (3, None, None), (4, "d", "k"), (5, "e", None)],
            "c": [(1, 1, "y"), (2, 9, "y"), (3, None, "x"), (4, None, None)],
        },
    )
    assert settled["p"] == [(1, "a", "k"), (5, "e", None)]
    assert settled["c"] == [(1, 1, "y"), (4, None, None)]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"nope": [[1]]}, "nope"),
        ({"t": [[1, "a"]]}, "2 values for 3 columns"),
        ({"t": [{"id": 1, "nmae": "a"}]}, "'nmae'"),
        ({"t": [[1, ["a"], 2]]}, "write it as text"),
        ({"t": [5]}, "no list of values"),
        ({"t": [[1, "a", 1], [1, "b", 1]]}, "(?i)constraint"),
    ],
)
def test_rows_that_do_not_fit_are_told(engine: Engine, rows: Any, said: str) -> None:
    with pytest.raises(QueryFailed, match=said):
        engine.build(SCHEMA, rows, limits())


def test_a_schema_reaches_no_files(engine: Engine, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for statement in ("attach 'lydite.db' as other; create table other.t(a int)",):
        with pytest.raises(QueryFailed):
            engine.build([statement], {}, limits())
    assert not list(tmp_path.iterdir())


def test_rows_lie_in_another_order_where_it_is_asked_for(engine: Engine) -> None:
    schema, contents = engine.build(SCHEMA, ROWS, limits())
    plain, turned = (engine.load(schema, [contents], flag)[0] for flag in (False, True))
    sql = "select name from t"
    assert plain.run(sql, limits()).rows == [("a",), ("b",), ("c",)]
    assert turned.run(sql, limits()).rows == [("c",), ("b",), ("a",)]


KEYED = [
    "create type mood as enum ('sad', 'ok')",
    "create table a(id integer primary key, m mood, price decimal(10, 2) unique, check (id > 0))",
    "create table b(x integer, y integer, id integer references a(id), primary key(x, y), "
    "foreign key(x) references a(id))",
]
KEYED_ROWS = {"a": [[1, "sad", 1.25], [2, "ok", 3.5]], "b": [[1, 1, 2], [2, 1, None]]}


def test_a_duckdb_database_takes_little_memory() -> None:
    engine = Duck()
    schema, contents = engine.build(KEYED, KEYED_ROWS, limits())
    assert schema.tables[0].keys and schema.tables[1].foreign  # known, though no index holds them
    databases = [engine.load(schema, [contents])[0] for _ in range(8)]
    size = "select sum(memory_usage_bytes) from duckdb_memory()"
    assert engine._instance.execute(size).fetchone()[0] < 8 * 2**18
    assert databases[7].run("select m, price, y from a join b using (id)", limits()).rows == [
        ("ok", 3.5, 1)
    ]
    broken = {"a": [(1, "ok", 1.0), (1, "ok", 2.0), (0, "ok", 3.0)], "b": [(9, 1, None)]}
    assert engine.settle(schema, broken) == {"a": [(1, "ok", 1.0)], "b": []}


def test_workers_make_room_and_start_a_lost_engine_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options("duckdb", False, 1e-9, "observed", 4, 1000, 10_000)
    answer = handler(options)
    sources = [Source(f"select name from t where n > {n}", tuple(SCHEMA), ROWS) for n in (4, 5, 6)]
    packed = [answer(Prepare(str(n), source, 20.0)) for n, source in enumerate(sources)]
    assert len(answer._sessions) == 3
    monkeypatch.setattr(Duck, "crowded", lambda self: True)
    answer(Prepare("3", Source("select n from t", tuple(SCHEMA), ROWS), 20.0))
    assert list(answer._sessions) == ["3"]
    monkeypatch.setattr(Duck, "crowded", lambda self: False)
    lost = []

    class Once(Duck):
        def load(self, *args: Any, **kwargs: Any) -> Any:
            if not lost:
                lost.append(self)
                raise EngineLost("it ran out of memory")
            return super().load(*args, **kwargs)

    answer._engine = Once()
    monkeypatch.setattr(worker, "engine_of", lambda name: Duck())
    query = Check("0", str(packed[0]["packed"]), "select name from t where not n <= 4", 20.0)
    assert answer(query)["outcome"] == "correct"
    assert lost and type(answer._engine) is Duck
    assert answer(Look(sources[0], 20.0))["fault"] is None


def test_an_engine_that_can_do_no_more_is_no_fault_of_a_query() -> None:
    import duckdb

    engine = Duck()
    schema, contents = engine.build(SCHEMA, ROWS, limits())
    connection: Any = engine.load(schema, [contents])[0]

    class Broken:
        def execute(self, *_: object) -> None:
            raise duckdb.FatalException("database has been invalidated")

        def interrupt(self) -> None:
            pass

    connection._cursor = Broken()
    with pytest.raises(EngineLost):
        connection.run("select 1", limits())
    assert not engine.crowded() and CROWDED > 0
