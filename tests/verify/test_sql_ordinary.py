"""Ordinary questions on a schema as data sets have them (no NOT NULL, every key declared): what a
person would call right is accepted with the default settings, near misses are not.
"""

from __future__ import annotations

import functools

import pytest

pytest.importorskip("sqlglot")

from lydite.verify.settings import SqlConfig
from lydite.verify.sql.check import Session
from lydite.verify.sql.engine import Limits
from lydite.verify.sql.facts import read_facts
from lydite.verify.sql.prepare import Source, prepare, read_source
from lydite.verify.sql.reward import options_of
from lydite.verify.sql.statement import need_sqlglot
from lydite.verify.sql.worker import engine_of

SCHEMA = (
    "create table stadium(stadium_id int, name text, capacity int, primary key(stadium_id))",
    "create table singer(singer_id int, name text, country text, age int, is_male bool, "
    "primary key(singer_id))",
    "create table concert(concert_id int, stadium_id int, year text, primary key(concert_id), "
    "foreign key(stadium_id) references stadium(stadium_id))",
)
ROWS = {
    "stadium": [[1, "Park", 10104], [2, "Somerset", 11998], [3, "Bayview", 2000]],
    "singer": [
        [1, "Joe", "Netherlands", 52, False],
        [2, "Tim", "United States", 32, True],
        [3, "Justin", "France", 29, True],
        [4, "Rose", "France", 41, False],
        [5, "John", "France", 43, True],
        [6, "King", "France", 25, True],
    ],
    "concert": [[1, 1, "2014"], [2, 2, "2014"], [3, 2, "2015"], [4, 1, "2015"]],
}
UNUSED = "select name from stadium where stadium_id not in (select stadium_id from concert)"
BOTH = (
    "select name from singer where country = 'France' intersect "
    "select name from singer where age > 30"
)
AGES = "select avg(age), max(age) from singer where country = 'France'"
PAIRS = [
    (True, UNUSED, "select name from stadium s where not exists "
     "(select 1 from concert c where c.stadium_id = s.stadium_id)"),
    (True, UNUSED, "select s.name from stadium s left join concert c "
     "on c.stadium_id = s.stadium_id where c.concert_id is null"),
    (False, UNUSED, "select name from stadium where stadium_id = 3"),
    (False, UNUSED, "select name from stadium where stadium_id not in "
     "(select stadium_id from concert where year = '2014')"),
    (True, BOTH, "select distinct name from singer where country = 'France' and name in "
     "(select name from singer where age > 30)"),
    (False, BOTH, "select distinct name from singer where country = 'France' and age > 30"),
    (True, "select name from singer where is_male = 1", "select name from singer where is_male"),
    (True, "select name from singer where is_male = 1",
     "select name from singer where is_male <> 0"),
    (False, "select name from singer where is_male = 1",
     "select name from singer where not is_male"),
    (True, "select name from singer order by age desc",
     "select name from singer order by -age"),
    (True, "select count(*) from singer", "select count(name) from singer"),
    (False, AGES, "select avg(distinct age), max(age) from singer where country = 'France'"),
    (False, AGES.replace("avg(", "sum("),
     "select sum(distinct age), max(age) from singer where country = 'France'"),
    (False, AGES.replace("avg(", "avg(distinct "), AGES),
    (True, "select name from singer where age is null or age > 30",
     "select name from singer where not coalesce(age <= 30, 0)"),
    (False, "select name from singer where age is null or age > 30",
     "select name from singer where age > 30"),
    (False, "select name, coalesce(country, 'none') from singer",
     "select name, country from singer"),
]  # fmt: skip


@functools.lru_cache(maxsize=2)
def session(engine: str, gold: str) -> Session:
    need_sqlglot()
    options = options_of(SqlConfig(engine=engine))  # type: ignore[arg-type]
    made = engine_of(engine)
    prepared = prepare(Source(gold, SCHEMA, ROWS), made, options, 60.0)
    return Session(prepared, made, options)


@pytest.mark.parametrize(("expected", "gold", "query"), PAIRS)
def test_a_pair(expected: bool, gold: str, query: str) -> None:
    found = session("sqlite", gold).check(query, 60.0)
    assert (found.outcome == "correct") == expected, found


def test_a_pair_in_duckdb() -> None:
    pytest.importorskip("duckdb")
    found = session("duckdb", AGES)
    assert found.check(PAIRS[11][2], 60.0).outcome == "wrong"
    assert found.check(f"with f as ({AGES}) select * from f", 60.0).outcome == "correct"


@pytest.mark.parametrize(
    ("query", "tested"),
    [
        ("select name from singer where age is null", {("singer", 3)}),
        ("select name from singer where country is not null", {("singer", 2)}),
        ("select ifnull(age, 0) from singer", {("singer", 3)}),
        ("select name from singer where age > 3", set()),
    ],
)
def test_what_a_reference_asks_about_null(query: str, tested: set[tuple[str, int]]) -> None:
    engine = engine_of("sqlite")
    options = options_of(SqlConfig())
    _, tree, schema, _ = read_source(
        Source(query, SCHEMA, ROWS), engine, options, Limits.within(30.0)
    )
    assert read_facts(tree, schema).null_tested == tested
