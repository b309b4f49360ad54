"""Queries of every kind of error and of every kind of rewrite, against their references."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlglot")

from lydite.verify.sql.check import Session
from lydite.verify.sql.engine import Limits
from lydite.verify.sql.gold import expected_rows
from lydite.verify.sql.prepare import Options, Prepared, Source, prepare, read_source, stable
from lydite.verify.sql.statement import need_sqlglot
from lydite.verify.sql.worker import engine_of

CASES = Path(__file__).parents[2] / "benchmarks" / "sql_cases.json"
OPTIONS = Options("sqlite", False, 1e-9, "declared", 40, 10_000, 10_000)
need_sqlglot()


@functools.cache
def databases() -> dict[str, Any]:
    return {database["name"]: database for database in json.loads(CASES.read_text())}


def all_cases() -> list[Any]:
    return [
        pytest.param(name, case, id=f"{name}-{number}-{case['kind']}")
        for name, database in databases().items()
        for number, case in enumerate(database["cases"])
    ]


@functools.lru_cache(maxsize=1)
def session(name: str, gold: str) -> tuple[Session, Prepared]:
    database = databases()[name]
    source = Source(gold, tuple(database["schema"]), database["rows"])
    engine = engine_of("sqlite")
    prepared = prepare(source, engine, OPTIONS, 60.0)
    return Session(prepared, engine, OPTIONS), prepared


@pytest.mark.parametrize(("name", "case"), all_cases())
def test_case(name: str, case: dict[str, Any], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    found = session(name, case["gold"])[0].check(case["query"], 0.5 if not case["expected"] else 30)
    assert (found.outcome == "correct") == case["expected"], found
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", list(databases()))
def test_every_reference_agrees_with_itself(name: str) -> None:
    for gold in sorted({case["gold"] for case in databases()[name]["cases"]})[::4]:
        found = session(name, gold)[0].check(f"{gold} -- as it is\n;", 60.0)
        assert found.outcome == "correct", (gold, found)


def test_neighbours_are_counted_and_most_are_told_apart() -> None:
    _, prepared = session("shop", "select title from product where price>=80")
    assert prepared.tally["comparison"] == (3, 3)
    assert prepared.tally["literal"] == (2, 2)
    assert prepared.tally["constant"] == (1, 1)
    whole = sum(count for count, _ in prepared.tally.values())
    assert whole == sum(told for _, told in prepared.tally.values()) >= 8


def test_databases_are_the_same_every_time() -> None:
    database = databases()["staff"]
    gold = "select name from person where boss=(select id from person where name='Ada')"
    source = Source(gold, tuple(database["schema"]), database["rows"])
    first, second = (prepare(source, engine_of("sqlite"), OPTIONS, 60.0) for _ in range(2))
    assert first.variants == second.variants and first.tally == second.tally


def test_declared_constraints_hold_in_every_variant() -> None:
    _, prepared = session("staff", "select t.id from task t")
    people = {"open", "done"}
    for variant in prepared.variants:
        ids = [row[0] for row in variant.contents["person"]]
        assert len(ids) == len(set(ids)) and None not in ids
        assert {row[2] for row in variant.contents["person"]} <= {*ids, None}
        assert {row[1] for row in variant.contents["task"]} <= set(ids)
        assert {row[2] for row in variant.contents["task"]} <= people


def test_every_question_is_asked() -> None:
    gold = "select p.name, sum(t.hours) from person p join task t on t.owner=p.id where p.pay>300"
    _, prepared = session("staff", gold + " group by p.id order by p.hired")
    assert {variant.kind for variant in prepared.variants} == {
        "given", "row order", "boundaries", "other keys", "ties", "duplicates", "NULLs",
        "no partner", "other values", "swapped values", "an empty table", "random rows",
    }  # fmt: skip
    given = prepared.variants[0].contents
    kinds = {variant.kind: variant.contents for variant in prepared.variants}
    assert {299, 300, 301} <= {row[3] for row in kinds["boundaries"]["person"]}
    assert {row[0] for row in kinds["other keys"]["person"]}.isdisjoint(
        row[0] for row in given["person"]
    )
    nulled = [v.contents for v in prepared.variants if v.kind == "NULLs"]
    assert any(row[4] is None for contents in nulled for row in contents["person"])
    assert [] in kinds["an empty table"].values()


@pytest.mark.parametrize(
    ("gold", "sure"),
    [
        ("select b from t where b = (select b from t order by a limit 1)", False),
        ("select b from t where b = (select b from t order by a, b limit 1)", True),
        ("select b from t order by a limit 1", True),
        ("select b from t limit 2", True),
        ("select b, max(a) from t", False),
    ],
)
def test_a_reference_that_depends_on_how_rows_lie_is_known(gold: str, sure: bool) -> None:
    engine, limits = engine_of("sqlite"), Limits.within(60.0)
    source = Source(gold, ("create table t(a int, b int)",), {"t": [[1, 5], [1, 6], [0, None]]})
    read, _, schema, contents = read_source(source, engine, OPTIONS, limits)
    contents = {"t": [(1, 5), (1, 6)]}
    connection = engine.load(schema, [contents])[0]
    _, expected = expected_rows(read, connection, limits)
    assert stable(read, engine, schema, contents, expected) is sure


def test_observed_nulls_stay_where_they_are() -> None:
    database = databases()["shop"]
    source = Source("select count(*) from product", tuple(database["schema"]), database["rows"])
    for nulls, outcome in (("declared", "wrong"), ("observed", "correct")):
        options = Options("sqlite", False, 1e-9, nulls, 40, 10_000, 10_000)
        engine = engine_of("sqlite")
        found = Session(prepare(source, engine, options, 60.0), engine, options)
        assert found.check("select count(kind) from product", 60.0).outcome == outcome
