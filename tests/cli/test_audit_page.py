"""docs/audit.md shows what the command prints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "audit.md").read_text(encoding="utf-8")


def test_the_page_shows_what_is_printed(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    rewards = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    printed = re.search(r"```text\n(rewards\.py:contains.*?)```", PAGE, re.DOTALL)
    assert rewards is not None and printed is not None
    (tmp_path / "rewards.py").write_text(rewards[1])
    result = cli("audit", "rewards.py:contains", "--show", 8)
    said = [line.rstrip() for line in result.stdout.strip().splitlines()]
    assert said == printed[1].strip().splitlines()


def test_the_page_states_the_rule_of_grades() -> None:
    from lydite.pipeline.audit.report import GRADES

    for grade, accepted, refused in GRADES:
        assert f"| {grade} | {accepted:.0%} | {refused:.0%} |" in PAGE
