"""The demonstration of the masked-mean defect runs, and the docs show what it prints."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def rows(text: str) -> list[tuple[int, float, float]]:
    """(sequences per micro-batch, distance of a mean per micro-batch, distance of ours)."""
    table = text[text.index("sequences per micro-batch   mean") :].splitlines()[1:5]
    found = [line.split() for line in table]
    return [(int(size), float(theirs), float(ours)) for size, theirs, ours in found]


def test_the_docs_show_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "benchmarks" / "masked_mean.py"), run_name="__main__")
    printed = rows(capsys.readouterr().out)
    shown = rows((ROOT / "docs" / "objectives.md").read_text(encoding="utf-8"))
    assert [size for size, _, _ in printed] == [8, 4, 2, 1]
    assert [row[:2] for row in printed] == [row[:2] for row in shown]
    assert all(ours < 1e-12 for *_, ours in printed + shown)
    # At one sequence each, the mean is further away than no gradient at all.
    assert printed[-1][1] > 1 > printed[1][1] > 0.1
