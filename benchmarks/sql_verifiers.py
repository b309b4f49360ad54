"""Lydite's `sql` reward beside the comparisons that others use, on the same cases.

    python benchmarks/sql_verifiers.py [CASES.json ...]

By default the cases are those of `benchmarks/sql_cases.json`. A file holds databases (`schema`,
`rows`) with `cases` (`gold`, `query`, `expected`, `kind`); cases without `expected` are left out.

The others' rules of comparison are written anew here, each in a few lines, with a time limit that
works; only what they decide is compared, not how they run. Each runs a query as they do: on a
database that can be written to.

- BIRD: the two sets of rows are equal.
- SkyRL-SQL: the same, of frozen rows.
- test suite (one database): bags of rows under some order of the columns; row order counts if the
  reference has "order by" anywhere; every DISTINCT is taken out first. The further databases that
  it makes at random are left out.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

from lydite.types import Problem
from lydite.verify import VerifierConfig, build

HERE = Path(__file__).parent
SECONDS = 2.0
Rows = list[tuple[Any, ...]]
Rule = Callable[[str, Rows, Rows], bool]


def main(paths: Sequence[str]) -> None:
    """Prints the counts by grader, and the cases by kind that each decides wrongly."""
    cases = [
        (database, case)
        for path in (paths or [str(HERE / "sql_cases.json")])
        for database in _databases(Path(path))
        for case in database["cases"]
        if case.get("expected") is not None
    ]
    good = sum(case["expected"] for _, case in cases)
    print(f"{len(cases)} cases: {good} to accept, {len(cases) - good} to refuse")
    print(f"{'grader':<28}{'wrongly accepted':>18}{'wrongly refused':>17}{'harmed':>8}{'ms':>8}")
    wrong: dict[str, Counter[str]] = {}
    for name, rule in RULES.items():
        begun = time.perf_counter()
        found = [_peer(database, case, rule) for database, case in cases]
        verdicts, harmed = [ok for ok, _ in found], sum(harm for _, harm in found)
        wrong[name] = _print(name, cases, verdicts, harmed, time.perf_counter() - begun)
    begun = time.perf_counter()
    verdicts = _ours(cases)
    wrong["Lydite"] = _print("Lydite", cases, verdicts, 0, time.perf_counter() - begun)
    print("\nwrong by kind of case")
    for name, kinds in wrong.items():
        print(f"  {name}: {', '.join(f'{k} {n}' for k, n in sorted(kinds.items())) or 'none'}")


def _databases(path: Path) -> list[dict[str, Any]]:
    read = json.loads(path.read_text(encoding="utf-8"))
    return [read] if isinstance(read, dict) else list(read)


def _query(case: Mapping[str, Any]) -> str:
    return str(case.get("query", case.get("candidate")))


def _print(
    name: str, cases: Sequence[Any], verdicts: Sequence[bool], harmed: int, seconds: float
) -> Counter[str]:
    pairs = [(case, ok) for (_, case), ok in zip(cases, verdicts, strict=True)]
    accepted = [case for case, ok in pairs if ok and not case["expected"]]
    refused = [case for case, ok in pairs if not ok and case["expected"]]
    each = 1000 * seconds / len(cases)
    print(f"{name:<28}{len(accepted):>18}{len(refused):>17}{harmed:>8}{each:>8.1f}")
    return Counter(str(case.get("kind", case.get("name"))) for case in accepted + refused)


def _bird(gold: str, ours: Rows, theirs: Rows) -> bool:
    return set(ours) == set(theirs)


def _skyrl(gold: str, ours: Rows, theirs: Rows) -> bool:
    return frozenset(map(tuple, ours)) == frozenset(map(tuple, theirs))


def _test_suite(gold: str, ours: Rows, theirs: Rows) -> bool:
    if len(ours) != len(theirs):
        return False
    if not ours:
        return True
    width = len(ours[0])
    if len(theirs[0]) != width:
        return False
    ordered = "order by" in gold.lower()
    for order in permutations(range(width)):
        moved = [tuple(row[i] for i in order) for row in theirs]
        if moved == ours if ordered else Counter(moved) == Counter(ours):
            return True
    return False


RULES: dict[str, Rule] = {
    "BIRD": _bird,
    "SkyRL-SQL": _skyrl,
    "test suite, one database": _test_suite,
}


def _peer(database: Mapping[str, Any], case: Mapping[str, Any], rule: Rule) -> tuple[bool, bool]:
    """Whether a rule accepts a case, and whether the query left something changed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "db.sqlite"
        raw = sqlite3.connect(path, isolation_level=None)
        raw.executescript(";\n".join(database["schema"]))
        for table, rows in database["rows"].items():
            places = ", ".join("?" * len(rows[0]))
            raw.executemany(f'insert into "{table}" values ({places})', rows)
        before = list(raw.iterdump())
        texts = [case["gold"], _query(case)]
        if rule is _test_suite:
            texts = [re.sub(r"\bdistinct\b", "", text, flags=re.IGNORECASE) for text in texts]
        here = os.getcwd()
        os.chdir(folder)
        try:
            ours, theirs = (_run(raw, text) for text in texts)
            accepted = ours is not None and theirs is not None and rule(case["gold"], ours, theirs)
            harmed = list(raw.iterdump()) != before or len(list(Path(folder).iterdir())) > 1
        except sqlite3.Error:
            accepted, harmed = False, True
        finally:
            os.chdir(here)
            raw.close()
    return accepted, harmed


def _run(raw: sqlite3.Connection, sql: str) -> Rows | None:
    deadline = time.monotonic() + SECONDS
    raw.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)
    try:
        return raw.execute(sql).fetchall()
    except (sqlite3.Error, sqlite3.Warning, MemoryError):
        return None
    finally:
        raw.set_progress_handler(None, 0)


def _ours(cases: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[bool]:
    config = VerifierConfig.model_validate(
        {"kind": "sql", "nulls": "declared", "limits": {"seconds": SECONDS}}
    )
    problems = [
        Problem(str(number), "", (), case["gold"], fields={k: db[k] for k in ("schema", "rows")})
        for number, (db, case) in enumerate(cases)
    ]
    verifier = build(config)
    try:
        verdicts = verifier.verify(problems, [f"```sql\n{_query(case)}\n```" for _, case in cases])
    finally:
        verifier.close()
    return [verdict.outcome == "correct" for verdict in verdicts]


if __name__ == "__main__":
    main(sys.argv[1:])
