"""The comparison of SQL graders: each rule by a case that it is known for."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlglot")

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "sql_verifiers.py"
CASES = [
    ("select a from t", "select distinct a from t", False),
    ("select a from t order by a", "select a from t", False),
    ("select a, b from t", "select b, a from t", None),
    ("select count(distinct a) from t", "select count(*) from (select a from t group by a)", True),
    ("select count(*) from t", "drop table t", False),
]


def test_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = {
        "schema": ["create table t(a int not null, b int)"],
        "rows": {"t": [[2, 1], [1, 5], [1, 6]]},
        "cases": [{"kind": "k", "gold": g, "query": q, "expected": e} for g, q, e in CASES],
    }
    path = tmp_path / "cases.json"
    path.write_text(json.dumps([database]))
    main: Any = runpy.run_path(str(SCRIPT))["main"]
    main([str(path)])
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "4 cases: 1 to accept, 3 to refuse"
    counts = {line[:28].strip(): line[28:].split()[:3] for line in said[2:6]}
    assert counts == {
        "BIRD": ["2", "0", "1"],
        "SkyRL-SQL": ["2", "0", "1"],
        "test suite, one database": ["1", "1", "1"],
        "Lydite": ["0", "0", "0"],
    }
