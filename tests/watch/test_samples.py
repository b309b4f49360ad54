from __future__ import annotations

import math
from pathlib import Path

import pytest

from lydite.types import Completion, Group, Message, Outcome, Problem, Verdict
from lydite.watch.samples import Sample, read_samples, samples_of, samples_path, write_samples


def group() -> Group:
    problem = Problem(
        id="sum-1",
        question="1+1?",
        messages=(Message("system", "Be brief."), Message("user", "1+1?")),
        reference="2",
        tag="sum",
    )
    completions = [
        Completion(
            "sum-1", i, (1, 2), (3,) * (i + 1), (-0.1,) * (i + 1), (1,) * (i + 1), "stop", text
        )
        for i, text in enumerate(["2", "three"])
    ]
    verdicts = [
        Verdict(Outcome.CORRECT, 1.0, "2", {"answer": 1.0, "format": None}, "equal"),
        Verdict(Outcome.CRASHED, None, detail="the reference is broken"),
    ]
    return Group(problem, completions, verdicts)


def test_a_group_becomes_a_row_a_completion() -> None:
    first, second = samples_of(group(), [0.5, math.nan], step=12)
    assert first == Sample(
        step=12,
        problem_id="sum-1",
        sample=0,
        prompt="system: Be brief.\n\nuser: 1+1?",
        completion="2",
        reward=1.0,
        outcome="correct",
        advantage=0.5,
        answer="2",
        reference="2",
        finish="stop",
        tokens=1,
        tag="sum",
        detail="equal",
        parts={"answer": 1.0, "format": None},
    )
    assert (second.reward, second.advantage, second.outcome) == (None, None, "crashed")
    assert samples_of(group(), [0.5, 0.5], step=1, prompt="<s>1+1?")[0].prompt == "<s>1+1?"
    with pytest.raises(ValueError):
        samples_of(group(), [0.5], step=1)


def test_rows_come_back_from_a_file_and_from_a_folder(tmp_path: Path) -> None:
    rows = samples_of(group(), [0.5, math.nan], step=2)
    path = write_samples(tmp_path, "rl", 2, rows)
    assert path == tmp_path / "rl" / "step-000002.parquet" == samples_path(tmp_path, "rl", 2)
    assert read_samples(path) == rows
    later = samples_of(group(), [1.0, 1.0], step=10)
    write_samples(tmp_path, "rl", 10, later)
    assert read_samples(tmp_path) == rows + later
    assert sorted(p.name for p in path.parent.iterdir()) == [
        "step-000002.parquet",
        "step-000010.parquet",
    ]


def test_a_step_done_again_replaces_its_file(tmp_path: Path) -> None:
    write_samples(tmp_path, "rl", 2, samples_of(group(), [0.5, 0.5], step=2))
    path = write_samples(tmp_path, "rl", 2, samples_of(group(), [0.9, 0.9], step=2))
    assert [row.advantage for row in read_samples(path)] == [0.9, 0.9]


def test_hostile_text_and_missing_numbers_are_written(tmp_path: Path) -> None:
    row = Sample(
        step=1,
        problem_id="p",
        sample=0,
        prompt="",
        completion="a\ud800\x00b",
        reward=math.nan,
        outcome="wrong",
        parts={"x": math.inf},
    )
    (back,) = read_samples(write_samples(tmp_path, "rl", 1, [row]))
    assert back.completion == "a\\ud800\x00b"
    assert back.reward is None
    assert back.parts == {"x": None}


def test_no_rows_keep_the_columns_and_their_types(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    path = write_samples(tmp_path, "rl", 1, [])
    schema = pq.read_schema(path)
    assert str(schema.field("reward").type) == "double"
    assert str(schema.field("answer").type) == "string"
    assert read_samples(path) == []
