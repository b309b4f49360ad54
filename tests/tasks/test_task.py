"""Loading problems: every source, every kind of bad row, selection, and identity."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lydite.config import UserError, validate
from lydite.tasks.select import Part, check_disjoint, in_part, normalise
from lydite.tasks.task import TaskConfig, TaskData, load_task, task_of_rows
from lydite.types import Message, Problem


def load(seed: int = 0, **settings: Any) -> TaskData:
    return load_task("t", validate(TaskConfig, settings), seed)


def write(path: Path, *rows: object) -> str:
    path.write_text("".join(r if isinstance(r, str) else json.dumps(r) + "\n" for r in rows))
    return str(path)


def test_jsonl_json_and_parquet_hold_the_same_problems(tmp_path: Path) -> None:
    rows = [{"question": "1+1?", "answer": 2}, {"question": "1+2?", "answer": 3}]
    jsonl = write(tmp_path / "a.jsonl", *rows)
    listed = write(tmp_path / "b.json", json.dumps(rows))
    lines = write(tmp_path / "c.json", *rows)
    parquet = str(tmp_path / "d.parquet")
    pq.write_table(pa.Table.from_pylist(rows), parquet)
    prints = {load(path=path).fingerprint for path in (jsonl, listed, lines, parquet)}
    assert len(prints) == 1
    assert [p.reference for p in load(path=jsonl).problems] == ["2", "3"]


def test_fingerprint_changes_with_content(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"question": "q", "answer": 1})
    assert load(path=path).fingerprint == load(path=path).fingerprint
    assert load(path=path).fingerprint != load(path=path, system="Think.").fingerprint


@pytest.mark.parametrize(
    ("value", "reference"),
    [
        (43.0, "43"),
        (0.2, "0.2"),
        (-7, "-7"),
        (" 1/2 ", "1/2"),
        ("43.0", "43.0"),
        (1e20, "1" + "0" * 20),
    ],
)
def test_references_as_text(tmp_path: Path, value: object, reference: str) -> None:
    path = write(tmp_path / "a.jsonl", {"question": "q", "answer": value})
    assert load(path=path).problems[0].reference == reference


def test_gsm8k_reference_and_worked_solution(tmp_path: Path) -> None:
    row = {"question": "q", "answer": "1 #### 2\nso\n#### 1,234,567"}
    path = write(tmp_path / "a.jsonl", row)
    problem = load(
        path=path,
        reference_marker="####",
        worked="<think>{answer}</think><answer>{reference}</answer>",
    ).problems[0]
    assert problem.reference == "1234567"
    assert problem.worked == f"<think>{row['answer']}</think><answer>1234567</answer>"


def test_commas_that_are_not_thousands_stay(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"question": "q", "answer": "#### (1,2), 3,4567"})
    assert load(path=path, reference_marker="####").problems[0].reference == "(1,2), 3,4567"


def test_templates_fill_only_their_own_placeholders(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"B": "has {Q} in it", "Q": "why {problem}?", "answer": 1})
    problem = load(
        path=path,
        prompt="{B}. {Q}",
        template="{question} Put it in \\boxed{} or {answer}.",
        system="Be brief.",
    ).problems[0]
    assert problem.question == "has {Q} in it. why {problem}?"
    assert problem.messages == (
        Message("system", "Be brief."),
        Message("user", "has {Q} in it. why {problem}? Put it in \\boxed{} or {answer}."),
    )


def test_chat_messages_and_nested_columns(tmp_path: Path) -> None:
    turns = [
        {"role": "system", "content": "old"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yes?"},
        {"role": "user", "content": "2+2?"},
    ]
    path = write(tmp_path / "a.jsonl", {"prompt": turns, "reward_model": {"ground_truth": "4"}})
    settings = {"path": path, "prompt": "prompt", "reference": "reward_model.ground_truth"}
    problem = load(**settings, template="Solve: {prompt}").problems[0]
    assert problem.question == "2+2?" and problem.reference == "4"
    assert [m.content for m in problem.messages] == ["old", "hi", "yes?", "Solve: 2+2?"]
    other = load(**settings, system="new").problems[0]
    assert [m.content for m in other.messages] == ["new", "hi", "yes?", "2+2?"]


def test_every_column_reaches_reward_functions_but_a_raw_answer(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"question": "q", "answer": "x #### 1", "level": 3})
    assert dict(load(path=path, reference_marker="####").problems[0].fields) == {
        "question": "q",
        "level": 3,
    }


BAD_ROWS = [
    ("{not json\n", "a.jsonl:2: not JSON"),
    ("[1, 2]\n", "a.jsonl:2: expected an object"),
    ({"answer": 1}, "a.jsonl:2: no column 'question'; there are 'answer'"),
    ({"question": "q2"}, "a.jsonl:2: no column 'answer'"),
    ({"question": "  ", "answer": 1}, "a.jsonl:2: question: the question is empty"),
    ({"question": None, "answer": 1}, "a.jsonl:2: question: expected text or a number, got empty"),
    ({"question": "q2", "answer": None}, "a.jsonl:2: answer: expected text or a number, got empty"),
    ({"question": "q2", "answer": [1]}, "a.jsonl:2: answer: expected text or a number, got list"),
    ({"question": "q2", "answer": True}, "a.jsonl:2: answer: expected text or a number, got bool"),
    ('{"question": "q2", "answer": NaN}\n', "a.jsonl:2: answer: expected text or a number"),
    ({"question": "q2", "answer": ""}, "a.jsonl:2: answer: the reference is empty"),
    ({"question": [], "answer": 1}, "a.jsonl:2: question: the last message must be a user's"),
    ({"question": [{"role": "x"}], "answer": 1}, "a.jsonl:2: question: a message needs `role`"),
    ('{"question": "q2", "answer": ' + "9" * 5000 + "}\n", "a.jsonl:2: not usable JSON"),
    ({"question": "q\ud8002", "answer": 1}, "a.jsonl:2: not text: a lone surrogate \\ud800"),
    ({"question": "q2", "answer": "\udfff"}, "a.jsonl:2: not text: a lone surrogate \\udfff"),
    ('{"question": ' + "[" * 100_000 + "\n", "a.jsonl:2: not"),
]  # fmt: skip


@pytest.mark.parametrize(("row", "message"), BAD_ROWS)
def test_bad_rows_name_file_line_and_reason(tmp_path: Path, row: object, message: str) -> None:
    path = write(tmp_path / "a.jsonl", {"question": "q", "answer": 1}, row)
    with pytest.raises(UserError) as error:
        load(path=path)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_bad_row_of_a_json_file_is_counted_from_one(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", '[{"question": "q", "answer": 1}, 5]')
    with pytest.raises(UserError, match=r"a\.json: row 2: expected an object"):
        load(path=path)


def test_missing_marker_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"question": "q", "answer": "7"})
    with pytest.raises(UserError, match=r"a\.jsonl:1: answer: no '####' in it"):
        load(path=path, reference_marker="####")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "none is given"),
        ({"path": "a.jsonl", "gym": "chain_sum"}, "path and gym are given"),
        ({"path": "a.jsonl", "template": "Answer in \\boxed{}"}, "no place for the question"),
        ({"path": "nowhere.jsonl"}, "tasks.t.path: no file nowhere.jsonl"),
        ({"path": "a.txt"}, "none of .jsonl, .json, .parquet"),
        ({"path": []}, "no file named"),
        ({"gym": "chain_sun"}, "did you mean 'chain_sum'"),
        ({"gym": {"name": "chain_sum", "config": {"min_terms": -1}}}, "refuses its settings"),
        ({"generated": {"kinds": ["ad"]}}, "'ad' is none of"),
        ({"generated": {"cnt": 3}}, "unknown key 'generated.cnt'; did you mean 'count'"),
    ],
)
def test_wrong_settings_are_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        load(**settings)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_empty_file_binary_file_and_empty_part(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="empty; it needs at least one problem"):
        load(path=write(tmp_path / "a.jsonl", "\n"))
    (tmp_path / "b.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not UTF-8"):
        load(path=str(tmp_path / "b.jsonl"))
    (tmp_path / "c.parquet").write_bytes(b"nonsense")
    with pytest.raises(UserError, match="not a Parquet file"):
        load(path=str(tmp_path / "c.parquet"))
    one = write(tmp_path / "d.jsonl", {"question": "q", "answer": 1})
    sides = []
    for side in ("train", "heldout"):
        try:
            sides.append(len(load(path=one, part={"name": side}).problems))
        except UserError as error:
            assert "no problems in it" in str(error)
    assert sides == [1]


def test_duplicates_across_files_are_removed_and_counted(tmp_path: Path) -> None:
    a = write(
        tmp_path / "a.jsonl",
        {"question": "Two cats .", "answer": 1},
        {"question": "b", "answer": 2},
    )
    b = write(
        tmp_path / "b.jsonl",
        {"question": "two  cats.", "answer": 3},
        {"question": "c", "answer": 4},
    )
    data = load(path=[a, b])
    assert [p.reference for p in data.problems] == ["1", "2", "4"]
    assert data.notes == (
        "t: 1 repeated questions removed, 3 left, 1 of them with another reference",
    )


def test_several_worked_solutions_of_one_question_are_kept(tmp_path: Path) -> None:
    rows = [{"question": "q", "answer": 1, "s": s} for s in ("one way", "another", "one way")]
    data = load(path=write(tmp_path / "a.jsonl", *rows), worked="s")
    assert [p.worked for p in data.problems] == ["one way", "another"]
    assert len({p.id for p in data.problems}) == 2


def test_ids_do_not_depend_on_order_and_own_ids_must_differ(tmp_path: Path) -> None:
    rows = [{"question": f"q{i}", "answer": i, "n": i // 2} for i in range(6)]
    a, b = write(tmp_path / "a.jsonl", *rows), write(tmp_path / "b.jsonl", *rows[::-1])
    assert {p.question: p.id for p in load(path=a).problems} == {
        p.question: p.id for p in load(path=b).problems
    }
    assert [p.id for p in load(path=a, prompt="question", id="question").problems][:2] == [
        "q0",
        "q1",
    ]
    with pytest.raises(UserError, match="two different problems have the id '0'"):
        load(path=a, id="n")


def test_parts_are_disjoint_complete_and_near_their_share(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", *({"question": f"q {i}", "answer": i} for i in range(2000)))
    train = load(path=path, part={"name": "train", "share": 0.2}).problems
    heldout = load(path=path, part={"name": "heldout", "share": 0.2}).problems
    assert len(train) + len(heldout) == 2000
    assert 340 < len(heldout) < 460
    assert "none among the" in check_disjoint(train, heldout)


def test_equal_questions_fall_on_one_side() -> None:
    part = Part(name="heldout", share=0.5)
    for i in range(50):
        spaced, tight = (
            Problem("", q, (Message("user", q),)) for q in (f"How many {i} ?", f"how many {i}?")
        )
        assert in_part(spaced, part) == in_part(tight, part)


def test_rewordings_with_the_same_numbers_stay_together() -> None:
    part = Part(name="heldout", share=0.5, by="numbers")
    sides = set()
    for i in range(50):
        texts = (f"Ann has {i} and 7.5 dogs", f"7.5 dogs joined {i} of Ann's", "no numbers")
        first, second, bare = (in_part(Problem("", q, (Message("user", q),)), part) for q in texts)
        assert first == second
        sides.add((first, bare))
    assert len({first for first, _ in sides}) == 2 and len({bare for _, bare in sides}) == 1


def test_check_disjoint_names_the_two_and_ignores_templates() -> None:
    train = Problem("a-1", "2 + 2 ?", (Message("user", "2 + 2 ?"),))
    heldout = Problem("b-7", "2 + 2?", (Message("system", "s"), Message("user", "Solve 2 + 2?")))
    with pytest.raises(UserError, match=r"'2 \+ 2\?' \(a-1 and b-7\)"):
        check_disjoint([train], [heldout])


@pytest.mark.parametrize(
    ("a", "b", "same"), [("1.5 x", "1.5  X", True), ("1 2", "12", False), ("3-4", "3+4", False)]
)
def test_normalise(a: str, b: str, same: bool) -> None:
    assert (normalise(a) == normalise(b)) is same


def test_rows_in_memory() -> None:
    rows = [{"q": "1+1?", "gold": 2}, {"q": "1+2?", "gold": 3}]
    data = task_of_rows("mine", rows, {"prompt": "q", "reference": "gold", "limit": 1})
    assert [(p.question, p.reference) for p in data.problems] == [("1+1?", "2")]
    with pytest.raises(UserError, match=r"mine: row 2: no column 'gold'"):
        task_of_rows("mine", [rows[0], {"q": "x"}], {"prompt": "q", "reference": "gold"})
    with pytest.raises(UserError, match="mine: unknown key 'promt'; did you mean 'prompt'"):
        task_of_rows("mine", rows, {"promt": "q"})
    with pytest.raises(UserError, match="no problems in it"):
        task_of_rows("mine", [], {})


def test_shuffle_and_limit_are_deterministic_and_noted(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", *({"question": f"q{i}", "answer": i} for i in range(50)))
    first = load(path=path, shuffle_seed=1, limit=10)
    assert first.problems == load(seed=9, path=path, shuffle_seed=1, limit=10).problems
    assert first.problems != load(path=path, shuffle_seed=2, limit=10).problems
    assert first.notes == ("t: the first 10 of 50 problems are used",)


def test_generated_problems_follow_the_run_seed_unless_given_their_own() -> None:
    settings: dict[str, Any] = {"kinds": ["add"], "count": 20, "worked": "cold_start"}
    assert load(seed=1, generated=settings).problems != load(seed=2, generated=settings).problems
    fixed = {**settings, "seed": 5}
    assert load(seed=1, generated=fixed).problems == load(seed=2, generated=fixed).problems
    problem = load(generated=settings, system="Think.", template="Q: {question}").problems[0]
    assert problem.worked is not None and problem.worked.startswith("<think>")
    assert [m.content for m in problem.messages] == ["Think.", f"Q: {problem.question}"]
    clean = {**settings, "worked": {"styles": {"clean": 1.0}, "tagged": False}}
    assert {p.fields["style"] for p in load(generated=clean).problems} == {"clean"}


def test_reasoning_gym_keeps_what_its_scorer_needs() -> None:
    pytest.importorskip("reasoning_gym")
    data = load(gym={"name": "chain_sum", "count": 5, "seed": 3, "config": {"max_terms": 3}})
    problem = data.problems[0]
    assert problem.tag == "chain_sum" and problem.id == "chain_sum-3-0"
    assert problem.fields["gym_config"] == {"max_terms": 3, "size": 5, "seed": 3}
    assert json.loads(json.dumps(problem.fields["metadata"]))["source_dataset"] == "chain_sum"
    assert problem.reference is not None and int(problem.reference) is not None


def test_tasks_of_one_run_ask_different_questions() -> None:
    questions = {
        (name, seed): [p.question for p in load_task(name, config, seed).problems]
        for config in [TaskConfig.model_validate({"generated": {"count": 20}})]
        for name in ("train", "cold_start")
        for seed in (0, 1)
    }
    assert len({tuple(each) for each in questions.values()}) == 4
    fixed = TaskConfig.model_validate({"generated": {"count": 20, "seed": 0}})
    assert load_task("a", fixed, 1).problems == load_task("b", fixed, 2).problems


def test_hub_source_reads_rows_and_explains_absence(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    asked: list[object] = []

    def fake(name: str, subset: str | None, split: str) -> list[dict[str, object]]:
        asked.append((name, subset, split))
        if name == "no/such":
            raise FileNotFoundError("cannot reach\nthe hub")
        return [{"question": "q", "answer": "1"}]

    monkeypatch.setattr(datasets, "load_dataset", lambda n, s, split: fake(n, s, split))
    assert load(hub="openai/gsm8k").problems[0].reference == "1"
    assert asked == [("openai/gsm8k", None, "train")]
    with pytest.raises(UserError, match=r"hub: cannot read no/such \(train\): cannot reach$"):
        load(hub={"name": "no/such"})


@pytest.mark.parametrize(("source", "package"), [("hub", "datasets"), ("gym", "reasoning_gym")])
def test_missing_extra_is_named(source: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"pip install 'lydite\[{source}\]'"):
        load(**{source: "x"})


def test_tasks_import_without_torch() -> None:
    heavy = "{'torch', 'transformers'} & set(sys.modules)"
    code = f"import sys, lydite.tasks.task; sys.exit(bool({heavy}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_pair_is_a_worked_and_a_rejected_solution(tmp_path):
    rows = [
        {"question": "2 + 2?", "good": "4", "bad": "5"},
        {"question": "2 + 2?", "good": "4", "bad": "22"},
        {"question": "2 + 2?", "good": "4", "bad": "5"},
        {"question": "3 + 3?", "good": [{"role": "assistant", "content": "6"}], "bad": "{x}"},
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = {"path": str(path), "reference": None, "worked": "good", "rejected": "bad"}
    task = load_task("t", TaskConfig(**columns), 0)
    assert [(p.worked, p.rejected) for p in task.problems] == [
        ("4", "5"), ("4", "22"), ("6", "{x}"),
    ]  # fmt: skip
    assert len({p.id for p in task.problems}) == 3
    assert task.notes == ("t: 1 repeated questions removed, 3 left",)
    other = load_task("t", TaskConfig(**{**columns, "rejected": None}), 0)
    assert other.fingerprint != task.fingerprint


@pytest.mark.parametrize(
    "bad", [[], [{"role": "user", "content": "x"}], [{"role": "assistant"}], "  ", "\ud800", None]
)
def test_a_solution_that_is_none_is_refused_with_its_line(tmp_path, bad):
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({"question": "q", "good": "4", "bad": bad}) + "\n")
    config = TaskConfig(path=str(path), reference=None, worked="good", rejected="bad")
    with pytest.raises(UserError, match=rf"^{path}:1: "):
        load_task("t", config, 0)


def test_a_tag_can_be_given_to_all_problems(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "1+1?", "answer": "2"}\n{"question": "1+2?", "answer": "3"}\n')
    config = validate(TaskConfig, {"path": str(path), "tag_as": "sums"}, "t")
    assert [p.tag for p in load_task("t", config, 0).problems] == ["sums", "sums"]
    made = validate(TaskConfig, {"generated": {"count": 2}, "tag_as": "sums"}, "t")
    assert {p.tag for p in load_task("t", made, 0).problems} == {"sums"}
    with pytest.raises(UserError, match="give one of tag "):
        validate(TaskConfig, {"path": "x.jsonl", "tag": "kind", "tag_as": "sums"}, "t")
