"""The reward through the workers, from a recipe's settings and from a file."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlglot")

from lydite.config import UserError
from lydite.types import Outcome, Problem
from lydite.verify import ComposedVerifier, VerifierConfig, build, verify_golds
from lydite.verify.sql.prepare import Options
from lydite.verify.sql.worker import handler
from lydite.verify.table import verify_file

SCHEMA = ["create table emp(id int primary key, name text, sal real)"]
ROWS = {"emp": [[1, "Ann", 50.0], [2, "Bob", 70.0], [3, "Cyd", 70.0]]}
GOLD = "select name from emp where sal > 60"


def problem(gold: str | None = GOLD, name: str = "p", **fields: Any) -> Problem:
    return Problem(name, "q", (), gold, fields=fields or {"schema": SCHEMA, "rows": ROWS})


def config(**settings: Any) -> VerifierConfig:
    return VerifierConfig.model_validate({"kind": "sql", **settings, "limits": {"seconds": 4.0}})


def fenced(query: str) -> str:
    return f"So:\n```sql\n{query}\n```"


@pytest.fixture(scope="module")
def sql() -> Iterator[ComposedVerifier]:
    verifier = build(config())
    yield verifier
    verifier.close()


def test_verdicts(sql: ComposedVerifier) -> None:
    asked = [
        (fenced("select name from emp where 60 < sal"), Outcome.CORRECT),
        (fenced("select name from emp where id > 1"), Outcome.WRONG),
        (fenced("select name from emp where sal >= 60"), Outcome.WRONG),
        (fenced("select nmae from emp"), Outcome.WRONG),
        (fenced("drop table emp"), Outcome.WRONG),
        (fenced("select name frm emp where"), Outcome.UNPARSEABLE),
        ("I cannot.", Outcome.UNPARSEABLE),
        (fenced("with recursive r(n) as (select 1 union all select n+1 from r) select n from r "
                "where n < 0"), Outcome.TIMEOUT),
    ]  # fmt: skip
    verdicts = sql.verify([problem()] * len(asked), [text for text, _ in asked])
    assert [v.outcome for v in verdicts] == [outcome for _, outcome in asked]
    assert [v.reward for v in verdicts] == [1.0] + [0.0] * 7
    assert verdicts[0].answer == "select name from emp where 60 < sal"
    assert "neighbours of the reference apart" in verdicts[0].detail
    assert "no such column: nmae" in verdicts[3].detail


def test_references_that_cannot_be_used(sql: ComposedVerifier, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    problems = [
        problem(name="good"),
        problem("delete from emp", "delete"),
        problem("select nmae from emp", "column"),
        problem("select (", "syntax"),
        problem(None, "none"),
        problem("select name from emp where 1 = 0", "never"),
        problem("select name from emp where sal > 1000", "not here but elsewhere"),
        problem(name="no database", other=1),
        problem(name="bad schema", schema="create tabel t(a)"),
        problem(name="bad rows", schema=SCHEMA, rows={"emp": [[1]]}),
        problem(name="gone", database=str(tmp_path / "gone.sqlite")),
        problem(name="empty folder", database=str(tmp_path / "empty")),
    ]
    faults = {fault.problem_id: fault.reason for fault in verify_golds(sql, problems)}
    assert "not a SELECT but DELETE" in faults["delete"]
    assert "no such column" in faults["column"]
    assert "cannot be parsed" in faults["syntax"]
    assert "no reference query" in faults["none"]
    assert "no rows, here or on any variant" in faults["never"]
    assert "neither `schema` and `rows` nor `database`" in faults["no database"]
    assert "schema:" in faults["bad schema"] and "1 values for 3" in faults["bad rows"]
    assert "no file or folder" in faults["gone"] and "in the folder" in faults["empty folder"]
    assert faults.keys().isdisjoint({"good", "not here but elsewhere"})
    verdict = sql.verify([problems[2]], [fenced("select name from emp")])[0]
    assert (verdict.outcome, verdict.reward) == (Outcome.UNGRADABLE, None)
    assert "no such column" in verdict.detail


def test_columns_in_any_order() -> None:
    verifier = build(config(columns="any"))
    gold = problem("select name, sal from emp")
    texts = ["select sal, name from emp", "select sal, id from emp", "select name, name from emp"]
    assert [v.reward for v in verifier.verify([gold] * 3, texts)] == [1.0, 0.0, 0.0]
    verifier.close()


def make(path: Path, rows: list[tuple[int, str, float]]) -> None:
    with sqlite3.connect(path) as raw:
        raw.execute(SCHEMA[0])
        raw.executemany("insert into emp values (?, ?, ?)", rows)
    raw.close()


def test_a_file_and_a_folder_of_databases(tmp_path: Path) -> None:
    folder = tmp_path / "db"
    folder.mkdir()
    make(folder / "a.sqlite", [(1, "Ann", 50.0), (2, "Bob", 70.0)])
    make(folder / "b.db", [(1, "Zoe", 70.0), (2, "Yan", 10.0)])
    before = {path: path.read_bytes() for path in folder.iterdir()}
    alone = build(config(databases=str(tmp_path), variants=0))
    right, lucky = "select name from emp where sal > 60", "select name from emp where id = 2"
    one, both = problem(database="db/a.sqlite"), problem(database="db")
    assert [v.reward for v in alone.verify([one] * 2, [right, lucky])] == [1.0, 1.0]
    assert [v.reward for v in alone.verify([both] * 2, [right, lucky])] == [1.0, 0.0]
    alone.close()
    varied = build(config(databases=str(tmp_path)))
    assert [v.reward for v in varied.verify([one] * 2, [right, lucky])] == [1.0, 0.0]
    varied.close()
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_duckdb() -> None:
    pytest.importorskip("duckdb")
    verifier = build(config(engine="duckdb"))
    gold = problem(
        "select name, day + 1 as d from emp where day >= date '2024-02-28'",
        schema="create table emp(id int primary key, name varchar, day date)",
        rows={"emp": [[1, "Ann", "2024-02-28"], [2, "Bob", "2024-03-05"], [3, "Cyd", None]]},
    )
    texts = [
        "select name, day + interval 1 day from emp where not day < date '2024-02-28'",
        "select name, day + 1 from emp where day > date '2024-02-27'",
        "select name, day + 1 from emp where id <= 2",
        "select name, day + 1 from emp where day > date '2024-02-28'",
        "select * from read_csv('/etc/passwd')",
    ]
    verdicts = verifier.verify([gold] * len(texts), texts)
    assert [v.reward for v in verdicts] == [1.0, 1.0, 0.0, 0.0, 0.0], verdicts
    verifier.close()


def test_a_file_of_queries_gets_a_table(tmp_path: Path) -> None:
    rows = [
        {"gold": GOLD, "completion": fenced(query), "expected": expected, "schema": SCHEMA,
         "rows": ROWS}
        for query, expected in ((GOLD, True), ("select 'Bob' union all select 'Cyd'", False))
    ] + [{"gold": "drop table emp", "completion": "select 1", "schema": SCHEMA}]  # fmt: skip
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = verify_file(path, config())
    assert (report.false_positives, report.false_negatives) == ([], [])
    assert [(line, "not a SELECT but DROP" in said) for line, said in report.unsure] == [(3, True)]
    (table,) = report.tables
    assert table.title == "sql: neighbours of 1 reference queries"
    by_kind = {row[0]: row[1:] for row in table.rows}
    assert by_kind["literal"] == ["2", "2", "100%"] and by_kind["constant"] == ["1", "1", "100%"]
    assert by_kind["all"][0] == str(sum(int(row[1]) for row in table.rows[:-1]))


@pytest.mark.parametrize(("engine", "missing"), [("sqlite", "sqlglot"), ("duckdb", "duckdb")])
def test_without_the_extra_one_line_says_so(
    engine: str, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "lydite.verify.sql.duck", raising=False)
    with pytest.raises(UserError, match=rf"{missing}.*pip install 'lydite\[sql\]'") as caught:
        handler(Options(engine, False, 1e-9, "declared", 40, 1000, 1000))
    assert "\n" not in str(caught.value)
