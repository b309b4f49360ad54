"""``lydite verify``: a verdict a line, and the count of what it got wrong."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from lydite.cli.verify import verify
from lydite.config import UserError
from lydite.types import Outcome, Problem, Verdict
from lydite.verify import VerifierConfig
from lydite.verify.rows import Row, read_rows
from lydite.verify.table import CHUNK, _replacing, _score, summarise, verify_file

EXACT = VerifierConfig.model_validate("exact")
ROWS = [
    {"id": "a", "gold": "3", "completion": r"\boxed{3}", "expected": True},
    {"gold": 4, "completion": r"\boxed{5}", "expected": True},
    {"gold": "4", "completion": r"\boxed{4}", "expected": False},
    {"gold": "4", "completion": r"\boxed{4}", "expected": False, "contested": True},
    {"gold": "4", "completion": r"\boxed{}", "level": 2},
    {"completion": r"\boxed{4}", "expected": True},
]


def write(path: Path, rows: list[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_verdicts_and_report(tmp_path: Path) -> None:
    source, output = write(tmp_path / "in.jsonl", list(ROWS)), tmp_path / "out.jsonl"
    calls: list[tuple[int, int]] = []
    report = verify_file(source, EXACT, output, lambda done, total: calls.append((done, total)))
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["outcome"] for line in lines] == [
        "correct", "wrong", "correct", "correct", "unparseable", "ungradable",
    ]  # fmt: skip
    assert [line["reward"] for line in lines] == [1.0, 0.0, 1.0, 1.0, 0.0, None]
    assert lines[0]["id"] == "a" and "id" not in lines[1]
    assert lines[1]["answer"] == "5"
    assert report.total == 6 and report.outcomes[Outcome.CORRECT] == 3
    assert (report.judged, report.contested, report.undecided) == (3, 1, 1)
    assert (report.false_positives, report.false_negatives) == ([3], [2])
    assert calls[-1] == (6, 6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_columns_reach_functions(tmp_path: Path) -> None:
    def level(completions: list[str], level: list[int]) -> list[float]:
        return [float(value) for value in level]

    config = VerifierConfig.model_validate(
        {"kind": "function", "function": level, "isolation": "inline"}
    )
    source, output = write(tmp_path / "in.jsonl", [ROWS[4]]), tmp_path / "out.jsonl"
    verify_file(source, config, output)
    assert json.loads(output.read_text())["reward"] == 2.0


def test_times_are_interpolated_quantiles(tmp_path: Path) -> None:
    rows = read_rows(write(tmp_path / "in.jsonl", [ROWS[0]] * 5))
    verdict = Verdict(Outcome.CORRECT, 1.0)
    times = (5.0, 1.0, 2.0, 4.0, 3.0)
    report = summarise((row, verdict, spent) for row, spent in zip(rows, times, strict=True))
    assert report.median_seconds == 3.0
    assert report.p95_seconds == pytest.approx(4.8)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", r"in\.jsonl:2: not JSON"),
        ("[1]", r"in\.jsonl:2: expected a JSON object, got list"),
        ('{"gold": "1"}', r"in\.jsonl:2: completion: expected text, got nothing"),
        (
            '{"gold": [1], "completion": "1"}',
            r"in\.jsonl:2: gold: expected text or a number, got list",
        ),
        ('{"gold": true, "completion": "1"}', r"in\.jsonl:2: gold: .* got bool"),
        (
            '{"gold": "1", "completion": "1", "expected": "yes"}',
            r":2: expected: expected true or false, got str",
        ),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_written(tmp_path: Path, line: str, said: str) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(json.dumps(ROWS[0]) + "\n" + line + "\n")
    output.write_text("what was there")
    with pytest.raises(UserError, match=said):
        verify_file(source, EXACT, output)
    assert output.read_text() == "what was there"


def test_a_failing_function_leaves_the_old_output(tmp_path: Path) -> None:
    def fails(completions: list[str]) -> list[float]:
        raise KeyError("x")

    config = VerifierConfig.model_validate(
        {"kind": "function", "function": fails, "isolation": "inline"}
    )
    source, output = write(tmp_path / "in.jsonl", [ROWS[0]]), tmp_path / "out.jsonl"
    output.write_text("what was there")
    with pytest.raises(UserError, match="reward function fails raised KeyError"):
        verify_file(source, config, output)
    assert output.read_text() == "what was there"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_line_that_is_no_text_is_named(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    good = json.dumps(ROWS[0]).encode()
    source.write_bytes(b"\xef\xbb\xbf" + good + b"\n\n" + good[:-1] + b"\xff}\n")
    with pytest.raises(UserError, match=r"in\.jsonl:3: not UTF-8 text"):
        verify_file(source, EXACT)


WAITS = """
import pathlib, time

def pays(completions, folder):
    place, text = pathlib.Path(folder[0]), completions[0]
    (place / text).touch()
    deadline = time.monotonic() + 20
    while text == "first" and not (place / "last").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    return [float((place / "last").exists()) if text == "first" else float(len(text))] * len(
        completions
    )
"""


def test_a_slow_line_holds_up_no_other_and_the_order_stays(tmp_path: Path) -> None:
    """The first line is decided only once the last was seen, many lines further down."""
    (tmp_path / "waits.py").write_text(WAITS)
    seen = tmp_path / "seen"
    seen.mkdir()
    texts = ["first", *("x" * (1 + n % 9) for n in range(30)), "last"]
    source = write(
        tmp_path / "in.jsonl", [{"completion": text, "folder": str(seen)} for text in texts]
    )
    config = VerifierConfig.model_validate(
        {"rewards": f"{tmp_path}/waits.py:pays", "limits": {"seconds": 60.0, "workers": 2}}
    )
    told: list[int] = []
    verify_file(source, config, tmp_path / "out.jsonl", lambda done, total: told.append(done))
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line)["reward"] for line in lines] == [
        1.0, *(float(1 + n % 9) for n in range(30)), 4.0,
    ]  # fmt: skip
    assert told == list(range(1, 33))


def test_lines_are_read_as_they_are_needed() -> None:
    class Counts:
        def verify_timed(self, problems: list[Problem], texts: list[str]) -> object:
            return [(Verdict(Outcome.CORRECT, 1.0), 0.0) for _ in texts]

        def close(self) -> None: ...

    read = 0

    def rows() -> Iterator[Row]:
        nonlocal read
        for number in range(500):
            read += 1
            yield Row(number, None, Problem(str(number), "", ()), "")

    ahead = [read - row.line for row, _, _ in _score(Counts(), rows(), 2)]  # type: ignore[arg-type]
    assert len(ahead) == 500 and max(ahead) <= 2 * 2 * CHUNK


def test_a_function_with_one_number_for_all_is_noticed(tmp_path: Path) -> None:
    """One completion a line would hide that it returns one reward for any number of them."""

    def constant(completions: list[str]) -> list[float]:
        return [1.0]

    config = VerifierConfig.model_validate(
        {"kind": "function", "function": constant, "isolation": "inline"}
    )
    with pytest.raises(UserError, match="returned 1 rewards for 2 completions"):
        verify_file(write(tmp_path / "in.jsonl", [ROWS[0]]), config)


def test_files_that_cannot_serve(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", [ROWS[0]])
    empty = write(tmp_path / "empty.jsonl", [])
    for path, output, said in [
        (tmp_path / "no.jsonl", None, "no such file"),
        (empty, None, "is empty"),
        (source, source, "it is the input"),
        (source, tmp_path / "no" / "out.jsonl", "make the folder first"),
        (source, tmp_path, "not a file"),
    ]:
        with pytest.raises(UserError, match=said):
            verify_file(path, EXACT, output)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "in.jsonl", [ROWS[0]])
    opened = Path.open

    def full(self: Path, *arguments: object, **named: object) -> object:
        target = Path("/dev/full") if self.name.endswith(".part") else self
        return opened(target, *arguments, **named)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(UserError, match="No space left on device"):
        verify_file(source, EXACT, tmp_path / "out.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_the_command(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(verify)
    source, output = write(tmp_path / "in.jsonl", list(ROWS)), tmp_path / "out.jsonl"
    settings, recipe = tmp_path / "exact.yaml", tmp_path / "recipe.yml"
    settings.write_text("kind: exact\nanswer: boxed\nlimits: {workers: 1}\n")
    recipe.write_text("seed: 3\nstages: []\nverifier:\n  kind: exact\n  answer: boxed\n")
    for name in ("exact", str(settings), str(recipe)):
        arguments = [
            "--verifier",
            name,
            "--input",
            str(source),
            "--output",
            str(output),
            "--seconds",
            "2",
        ]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        assert "false positives: 1 of 3 (lines 3)" in result.output
        assert "false negatives: 1 of 3 (lines 2)" in result.output
        assert "left out: 1 contested, 1 undecided" in result.output
        assert len(output.read_text().splitlines()) == 6
    helped = CliRunner().invoke(app, ["--help"])
    assert "lydite verify --verifier math --input answers.jsonl" in helped.output


def test_an_answer_paid_like_every_other_is_told(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(verify)
    source = write(tmp_path / "in.jsonl", [ROWS[0]] * 3)
    said = CliRunner().invoke(app, ["--verifier", "exact", "--input", str(source)]).output
    assert "every answer was paid 1: nothing is told apart here" in said
    source = write(tmp_path / "in.jsonl", list(ROWS))
    said = CliRunner().invoke(app, ["--verifier", "exact", "--input", str(source)]).output
    assert "every answer" not in said


def test_a_recipe_without_a_verifier_says_which_it_uses(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("stages: []\n")
    with pytest.raises(UserError, match="give --verifier math"):
        verify(str(tmp_path / "recipe.yaml"), tmp_path / "in.jsonl")


def test_what_a_killed_process_had_begun_to_write_goes_and_what_a_living_one_writes_stays(
    tmp_path: Path,
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    output = tmp_path / "out[1].jsonl"
    stale, alive, foreign = (
        tmp_path / f".{name}.part"
        for name in (f"{output.name}.{ended.pid}", f"{output.name}.{os.getpid()}1x", "other.1")
    )
    for path in (stale, alive, foreign):
        path.write_text("{")
    living = tmp_path / f".{output.name}.{os.getppid()}.part"
    living.write_text("{")
    with _replacing(output) as file:
        assert file is not None
        assert not stale.exists() and living.exists() and alive.exists() and foreign.exists()
        file.write("{}")
    assert output.read_text() == "{}"
