"""Where the query stands, and what is one SELECT."""

from __future__ import annotations

import pytest

pytest.importorskip("sqlglot")

from lydite.verify.sql.read import read_sql
from lydite.verify.sql.statement import NotAQuery, need_sqlglot, read_select

need_sqlglot()
BLOCK = "```sql\nselect 1\n```"


@pytest.mark.parametrize(
    ("place", "text", "found"),
    [
        ("auto", BLOCK, "select 1"),
        ("auto", f"First\n{BLOCK}\nno:\n```sql\nselect 2\n```\nso.", "select 2"),
        ("auto", "```\nselect 3\n```", "select 3"),
        ("auto", "```SQLite\nselect 3;\n```", "select 3;"),
        ("auto", f"{BLOCK}\n```python\nprint(1)\n```", "select 1"),
        ("auto", "<answer>select 4</answer>", "select 4"),
        ("auto", f"<answer>\n{BLOCK}\n</answer>", "select 1"),
        ("auto", "  -- note\nwith a as (select 1) select * from a", "-- note\nwith a as (select 1) "
         "select * from a"),
        ("auto", "drop table t", "drop table t"),
        ("auto", "Use `select name from emp` here.", "select name from emp"),
        ("auto", "I would count the rows.", None),
        ("auto", f"<think>{BLOCK}", None),
        ("auto", f"<think>{BLOCK}</think>\n```sql\nselect 5\n```", "select 5"),
        ("auto", f"{BLOCK}</think> I do not know.", None),
        ("auto", "```sql\nselect 6", "select 6"),
        ("auto", "```sql\n```", None),
        ("block", "select 7", None),
        ("tag", BLOCK, None),
        ("tag", "<sql>select 8</sql>", "select 8"),
        ("text", "select 9", "select 9"),
    ],
)  # fmt: skip
def test_place(place: str, text: str, found: str | None) -> None:
    assert read_sql(text, place).text == found  # type: ignore[arg-type]


def test_a_thought_that_must_be_closed() -> None:
    assert read_sql(BLOCK, thinking="required").text is None


@pytest.mark.parametrize(
    "text",
    [
        "-" * 9000,
        "/*" * 4500,
        "`/*" * 3000,
        "```\n" * 3000,
        "<answer>" * 3000,
        "(" * 9000 + "select",
    ],
)
def test_hostile_text_is_read_in_linear_time(text: str) -> None:
    found = read_sql(text * 10).text
    assert found is None or found in text * 10


@pytest.mark.parametrize(
    "text",
    [
        "select 1",
        "SELECT 1;",
        "(select 1)",
        "-- a\nselect 1 /* b */ ; -- c",
        "with a as (select 1 x) select x from a union all select 2",
        "select 1 intersect select 1 except select 2",
        "select ';' || '--'",
    ],
)
def test_one_select(text: str) -> None:
    assert read_select(text, "sqlite", 1000) is not None


@pytest.mark.parametrize(
    ("text", "said", "unreadable"),
    [
        ("select 1; select 2", "2 statements", False),
        ("select 1; drop table t", "2 statements", False),
        ("drop table t", "not a SELECT but DROP", False),
        ("delete from t", "not a SELECT but DELETE", False),
        ("update t set a=1", "not a SELECT but UPDATE", False),
        ("insert into t select 1", "not a SELECT but INSERT", False),
        ("replace into t values (1)", "not a SELECT", False),
        ("pragma table_info(t)", "not a SELECT but PRAGMA", False),
        ("attach 'x' as y", "not a SELECT but ATTACH", False),
        ("vacuum into 'x'", "not a SELECT but VACUUM", False),
        ("explain select 1", "not a SELECT", False),
        ("values (1)", "not a SELECT but VALUES", False),
        ("with a as (select 1) delete from t", "not a SELECT", False),
        ("begin", "not a SELECT", False),
        ("", "no statement", True),
        (";;", "no statement", True),
        ("-- nothing", "no statement", True),
        ("select ((1", "cannot be parsed", True),
        ("select 1\0", "NUL", True),
        ("select " + "1+" * 600 + "1", "1208 characters, more than 1000", False),
        ("select " + "(" * 70 + "1" + ")" * 70, "nested more than 60", False),
    ],
)
def test_anything_else_is_none(text: str, said: str, unreadable: bool) -> None:
    with pytest.raises(NotAQuery, match=said) as caught:
        read_select(text, "sqlite", 1000)
    assert caught.value.unreadable is unreadable


def test_what_python_cannot_nest_is_refused() -> None:
    deep = "select " + "not " * 3900 + "1"
    with pytest.raises(NotAQuery):
        read_select(deep, "sqlite", 100_000)
    with pytest.raises(NotAQuery, match="tokens"):
        read_select("select 1" + ",1" * 4000, "sqlite", 100_000)
