"""``lydite diagnose``: what it prints, and how it ends."""

import json
from pathlib import Path
from typing import Any

ROWS = [{"step": s, "reward": 0.5, "my/cut": 0.4 + 0.001 * (s % 2)} for s in range(1, 21)]


def log(folder: Path) -> Path:
    path = folder / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)))
    return path


def test_a_problem_is_told_with_its_remedy_and_exits_with_1(cli: Any, tmp_path: Path) -> None:
    result = cli("diagnose", log(tmp_path), "--map", "truncated=my/cut")
    assert result.exit_code == 1
    assert "40% of the completions are cut off" in result.output
    assert "mask_truncated_completions" in result.output


def test_nothing_found_says_so_and_exits_with_0(cli: Any, tmp_path: Path) -> None:
    result = cli("diagnose", log(tmp_path))
    assert result.exit_code == 0
    assert "No problem found" in result.output


def test_json(cli: Any, tmp_path: Path) -> None:
    result = cli("diagnose", log(tmp_path), "--map", "truncated=my/cut", "--json")
    (finding,) = json.loads(result.output)
    assert finding["rule"] == "truncation"
    assert finding["confidence"] == "high"


def test_a_finished_run_is_read(cli: Any, finished: Path) -> None:
    result = cli("diagnose", finished)
    assert result.exit_code in (0, 1)
    assert "Read: " in result.output


def test_a_wrong_map_is_one_line(cli: Any, tmp_path: Path) -> None:
    result = cli("diagnose", log(tmp_path), "--map", "reward")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1 and "OURS=THEIRS" in result.stderr


def test_compare_two_stages_of_a_run(cli: Any, finished: Path) -> None:
    result = cli("compare", finished, finished, "--json")
    assert result.exit_code == 0, result.output
    assert all(row["sentence"] == "no difference was seen" for row in json.loads(result.output))
    table = cli("compare", finished, finished)
    assert "better on" in table.output and "no difference was seen" in table.output
