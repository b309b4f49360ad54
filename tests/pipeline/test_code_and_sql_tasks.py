"""Programs and queries as tasks: the columns reach their rewards as they are in the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_runs import recipe, rl_stage, write

from lydite.pipeline.recipe import load_recipe
from lydite.pipeline.runner import run_recipe
from lydite.tasks.task import TaskConfig, load_task
from lydite.types import Outcome
from lydite.verify import VerifierConfig, build

CODE: list[dict[str, Any]] = [
    {
        "question": "count 3", "answer": "print(int(input()) + 1)",
        "tests": [{"input": "1\n", "output": "2\n", "hidden": None},
                  {"input": "5", "output": "6", "hidden": True}],
    },
    {
        "question": "sum 9", "answer": "def f(a, *, b): return [a, {'b': b}]", "entry_point": "f",
        "cases": [{"args": [[1, None, 2.5]], "kwargs": {"b": {"x": [True]}},
                   "expected": [[1, None, 2.5], {"b": {"x": [True]}}]}],
    },
    {
        "question": "add 4", "answer": "def g(x): return x", "entry_point": "g",
        "test_code": "def check(candidate):\n    assert candidate('é') == 'é'\n",
    },
]  # fmt: skip
SQL: list[dict[str, Any]] = [
    {
        "question": "count 2", "answer": "select b from t where a > 1",
        "schema": ["create table t(a int, b text)"], "rows": {"t": [[1, "x"], [2, None], [3, "y"]]},
    },
    {
        "question": "sum 2", "answer": "select sum(a) from u",
        "schema": ["create table u(a int)"], "rows": {"u": [[1], [5]]},
    },
]  # fmt: skip


def lines(rows: list[dict[str, Any]], place: Path) -> Path:
    path = place / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def native(rows: list[dict[str, Any]], place: Path) -> Path:
    """Typed columns: what each row lacks is null, and lists hold one type."""
    path = place / "native.parquet"
    rows = [row for row in rows if "tests" in row] or [
        {**row, "rows": {n: [dict(zip("ab", r, strict=False)) for r in v]}}
        for row in rows
        for n, v in row["rows"].items()
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def written(rows: list[dict[str, Any]], place: Path) -> Path:
    """What is no text as JSON text."""
    path = place / "text.parquet"
    keys = sorted({key for row in rows for key in row})
    given = [
        {k: v if isinstance(v := row.get(k), str | None) else json.dumps(v) for k in keys}
        for row in rows
    ]
    pq.write_table(pa.Table.from_pylist(given), path)
    return path


@pytest.mark.parametrize("form", [lines, native, written])
@pytest.mark.parametrize(("kind", "rows"), [("code", CODE), ("sql", SQL)])
def test_columns_arrive_as_they_are(
    kind: str, rows: list[dict[str, Any]], form: Any, tmp_path: Path
) -> None:
    if kind == "sql":
        pytest.importorskip("sqlglot")
    config = TaskConfig(path=str(form(rows, tmp_path)), prompt="question", reference="answer")
    problems = list(load_task("train", config, 0).problems)
    assert len(problems) >= 1
    verifier = build(VerifierConfig.model_validate({"kind": kind}), problems)
    try:
        right = verifier.verify(problems, [f"```\n{p.reference}\n```" for p in problems])
        wrong = verifier.verify(problems, ["```\nselect 1\n```"] * len(problems))
    finally:
        verifier.close()
    assert [verdict.outcome for verdict in right] == [Outcome.CORRECT] * len(problems)
    assert not any(verdict.reward for verdict in wrong)


def test_a_run_on_programs_trains_and_keeps_its_samples(tmp_path: Path) -> None:
    task = {"path": str(lines(CODE, tmp_path)), "prompt": "question", "reference": "answer"}
    values = recipe([rl_stage(steps=1, name="rl")], tmp_path, verifier="code")
    values["tasks"], values["evaluation"] = {"train": task}, {"tasks": []}
    done = run_recipe(load_recipe(write(values, tmp_path / "recipe.yaml")), tmp_path / "run")
    (file,) = (done.folder / "samples/rl").iterdir()
    outcomes = {row["outcome"] for row in pq.read_table(file).to_pylist()}
    assert outcomes and outcomes <= {"wrong", "unparseable"}
