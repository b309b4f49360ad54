"""Comparing two runs: by hand, and what cannot be compared."""

from pathlib import Path

import pytest

from lydite.config import UserError
from lydite.watch.compare import Scores, compare, read_scores
from lydite.watch.events import Evaluated, EventLog
from lydite.watch.samples import Sample, write_sample_file


def scores(values: dict[str, float], tags: dict[str, str] | None = None) -> dict[str, Scores]:
    return {"t": Scores("here", values, tags or {})}


def test_by_hand() -> None:
    a = {"1": 1.0, "2": 0.0, "3": 0.0, "4": 0.0, "only": 1.0}
    b = {"1": 1.0, "2": 1.0, "3": 1.0, "4": 0.0}
    (found,) = compare(scores(a), scores(b))
    assert (found.first.mean, found.second.mean, found.difference.mean) == (0.25, 0.75, 0.5)
    # Deviation of (0, 1, 1, 0) is 0.577, its error 0.289, times Student's 3.182.
    assert found.difference.hi - 0.5 == pytest.approx(0.5)
    assert (found.only_first, found.only_second) == (0, 2)
    assert "may be chance" in found.sentence


def test_a_real_difference_is_called_one() -> None:
    a = {str(i): 0.0 for i in range(50)}
    b = {str(i): float(i % 2) for i in range(50)}
    up, down = compare(scores(a), scores(b))[0], compare(scores(b), scores(a))[0]
    assert "the second is better than the first by 50.0 points" in up.sentence
    assert "the first is better than the second by 50.0 points" in down.sentence
    assert up.told("grpo", "dapo").startswith("dapo is better than grpo by 50.0 points")
    assert down.told("grpo", "dapo").startswith("grpo is better than dapo by 50.0 points")


def test_the_same_scores_show_no_difference() -> None:
    same = {"1": 1.0, "2": 0.0}
    assert compare(scores(same), scores(same))[0].sentence == "no difference was seen"


def test_pairs_show_what_two_intervals_hide() -> None:
    a = {str(i): float(i < 100) for i in range(200)}
    b = {str(i): float(i < 110) for i in range(200)}
    (found,) = compare(scores(a), scores(b))
    assert found.first.hi > found.second.lo
    assert found.difference.excludes_zero


def test_each_tag() -> None:
    a = {"1": 1.0, "2": 0.0, "3": 1.0}
    found = compare(scores(a, {"1": "x", "2": "x", "3": "y"}), scores(a))
    assert [each.task for each in found] == ["t", "t: x", "t: y"]
    assert [each.difference.n for each in found] == [3, 2, 1]
    assert len(compare(scores(a, {"1": "x", "2": "y"}), scores(a), tags=False)) == 1


def test_what_cannot_be_compared_is_one_line() -> None:
    with pytest.raises(UserError, match="no held-out task in common: t and u"):
        compare(scores({"1": 1.0}), {"u": Scores("", {"1": 1.0}, {})})
    with pytest.raises(UserError, match="no problem in common"):
        compare(scores({"1": 1.0}), scores({"2": 1.0}))


def test_a_run_gives_its_last_scores_or_those_of_a_stage(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        for stage, step, score in (("a", 0, 0.1), ("a", 9, 0.2), ("b", 4, 0.3)):
            log.append(Evaluated(stage=stage, step=step, task="t", scores={"1": score}, avg=score))
    assert read_scores(tmp_path)["t"].by_problem == {"1": 0.3}
    assert read_scores(tmp_path, "a")["t"].where == "a step 9"
    with pytest.raises(UserError, match="stage 'c' has no held-out scores"):
        read_scores(tmp_path, "c")


def test_a_start_that_was_measured_again_is_not_the_end(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        for stage, step, score in (("a", 0, 0.1), ("a", 9, 0.2), ("a", 0, 0.15)):
            log.append(Evaluated(stage=stage, step=step, task="t", scores={"1": score}, avg=score))
    assert read_scores(tmp_path)["t"].where == "a step 9"


def test_a_file_of_samples(tmp_path: Path) -> None:
    rows = [
        Sample(step=0, problem_id="1", sample=i, prompt="", completion="", reward=r, outcome=o)
        for i, (r, o) in enumerate([(1.0, "correct"), (0.0, "wrong"), (None, "crashed")])
    ]
    write_sample_file(tmp_path / "t.parquet", rows)
    assert read_scores(tmp_path / "t.parquet")["t"].by_problem == {"1": 0.5}
    (tmp_path / "x.parquet").write_text("no")
    with pytest.raises(UserError, match="is no file of samples"):
        read_scores(tmp_path / "x.parquet")
    with pytest.raises(UserError, match="is no folder of a run"):
        read_scores(tmp_path / "none")
