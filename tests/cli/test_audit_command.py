"""`lydite audit`: what it finds out, prints and writes down."""

from __future__ import annotations

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from lydite.pipeline.audit.page import page
from lydite.pipeline.audit.report import Report, clustered_interval, grade_of, report_of, shown
from lydite.pipeline.audit.subject import Spelling, Subject
from lydite.pipeline.audit.testfile import Replay, as_tests, literal, unpack
from lydite.types import Message, Problem
from lydite.verify import VerifierConfig
from lydite.verify.audit import Assessment, Case, Finding, Target, Want
from lydite.verify.audit.attack import Example
from lydite.verify.audit.trial import Trial
from lydite.verify.audit.wording import Wording
from lydite.watch.samples import Sample, write_samples

HOSTILE = [
    "'''\"\"\"\\", "\\N{BULLET}\\u0041{x}%s{{ 7 }}{% raw %}", "\u202e42\u202c\u200b\x00\x1b[31m",
    "lone \ud800 half", "</script><script>alert(1)</script>", "line\r\n\u2028\u2029end", "",
    "9" * 100_000, "# -*- coding: utf-16 -*-\n", "\udcff" * 3000, "½ é 答案",
]  # fmt: skip

REWARDS = """
def substring(prompts, completions, answer, **columns):
    return [float(gold in text) for text, gold in zip(completions, answer)]

def boxed(prompts, completions, answer, **columns):
    return [float(text.endswith("boxed{%s}." % gold)) for text, gold in zip(completions, answer)]

def chat(prompts, completions, solution, **columns):
    assert prompts[0][0]["role"] == "user"
    return [float(gold in turns[0]["content"]) for turns, gold in zip(completions, solution)]

def hangs(completions, **columns):
    import time
    time.sleep(60)

def broken(completions, **columns):
    return completions[0]["content"]

def forgets(completions, answer, **columns):
    scores = [float(gold in text) for text, gold in zip(completions, answer)]
    completions.clear()
    return scores
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rewards.py").write_text(REWARDS)
    rows = [{"question": f"Of {n} and {n + 9} pens?", "answer": str(2 * n + 9)} for n in (13, 27)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_a_hole_is_found_shown_and_written_down(cli: Any, folder: Path) -> None:
    result = cli(
        "audit", "rewards.py:substring", "--tasks", "tasks.jsonl", "--max-false-accept", 0.05,
        "--json", "found.json", "--pytest", "test_found.py", "--html", "found.html",
    )  # fmt: skip
    assert result.exit_code == 1, result.output
    assert "grade F" in result.stdout and "failed: false accepts" in result.stdout
    assert "The answer is not 35, it is 777777." in result.stdout
    found = json.loads((folder / "found.json").read_text())
    assert found["grade"] == "F" and found["told_apart"]
    families = {each["family"]: each for each in found["families"]["must be refused"]}
    assert families["contradiction"]["share"] == 1.0 and families["empty"]["wrong"] == 0
    wrong = [each for each in found["wrong"] if each["should"] == "refuse"]
    assert found["false_accept"]["wrong"] == len(wrong)
    assert "<title>Audit of rewards.py:substring</title>" in (folder / "found.html").read_text()
    assert "test_case" in (folder / "test_found.py").read_text()


def test_the_test_file_fails_until_the_reward_is_mended(cli: Any, folder: Path) -> None:
    cli("audit", "rewards.py:substring", "--tasks", "tasks.jsonl", "--limit", 1,
        "--pytest", "test_found.py")  # fmt: skip
    source = (folder / "test_found.py").read_text()
    assert source.isascii()
    # Few of them, and in this process: what is tested is the file, not the reward.
    space: dict[str, Any] = {}
    exec(compile(source, "test_found.py", "exec"), space)
    cases = [case.values for case in space["CASES"]]
    refused = [case for case in cases if not case[1]]
    assert len(refused) > 20

    def failures(spelling: dict[str, Any]) -> int:
        count = 0
        with Replay(spelling, space["PROBLEMS"]) as replay:
            for case in refused[::7]:
                try:
                    replay.check(*case)
                except AssertionError:
                    count += 1
        return count

    assert failures(space["SPELLING"]) == len(refused[::7])
    mended = VerifierConfig.model_validate("math").model_dump(mode="json")
    assert failures({"settings": mended}) == 0


def test_the_test_file_runs(folder: Path) -> None:
    """Hostile texts come back letter by letter, whatever they hold."""
    report = reported([Case(0, PROBLEM, "odd", "odd", Want.ACCEPT, text) for text in HOSTILE])
    source = as_tests(report, "test_odd.py")
    assert source.isascii() and len(source) < 40_000
    space: dict[str, Any] = {}
    exec(compile(source, "test_odd.py", "exec"), space)
    assert [case.values[2] for case in space["CASES"]] == HOSTILE
    assert all(eval(literal(text), {"unpack": unpack}) == text for text in HOSTILE)
    (folder / "test_odd.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_odd.py"],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert f"{len(HOSTILE)} failed" in done.stdout, done.stdout + done.stderr


PROBLEM = Problem("p-1", "Why <b>?", (Message("user", "Why?"),), "42", fields={"a": [1, None]})


def reported(cases: list[Case], level: float = 0.5) -> Report:
    """A report of cases that all were judged wrongly."""
    findings = [
        Finding(case, Trial(0.0 if case.want == "accept" else 1.0), level, case.want != "accept")
        for case in cases
    ]
    target = Target(
        PROBLEM, "integer", "42", "7", (), Wording("boxed", False).say, Example(PROBLEM)
    )
    config = VerifierConfig.model_validate("exact")
    subject = Subject("a<b>:{x}", Spelling(config.model_dump(mode="json")), config, [])
    return report_of(subject, Assessment([target], findings, [], True, ["boxed"]))


def test_hostile_text_does_not_leave_its_place_on_the_page() -> None:
    cases = [Case(0, PROBLEM, f"a{n}", "odd", Want.REFUSE, text) for n, text in enumerate(HOSTILE)]
    source = page(reported(cases))

    found: set[str] = set()

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            found.add(tag)

    Tags().feed(source)
    assert not found & {"script", "b:{x}"} and "&lt;script&gt;" in source
    assert source.encode("utf-8") and "\u202e" not in source and "\x1b" not in source


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_in_plain_letters(text: str) -> None:
    assert shown(text).isprintable() or not text
    assert len(shown(text, 60)) < 500


def test_a_rate_counts_problems_not_completions() -> None:
    """By hand: 2 problems of 2, one all wrong. Squared error (1^2 + 1^2) / 16 = 1/8, so p(1-p)
    over it is 2: Wilson's interval for 1 of 2."""
    lo, hi = clustered_interval([[True, True], [False, False]])
    assert lo == pytest.approx(0.0945, abs=1e-4) and hi == pytest.approx(0.9055, abs=1e-4)
    # Wrong as often in each: the completions are as good as independent, 2 of 4.
    lo, hi = clustered_interval([[True, False], [True, False]])
    assert lo == pytest.approx(0.1500, abs=1e-3) and hi == pytest.approx(0.8500, abs=1e-3)
    assert clustered_interval([[False] * 50] * 3)[1] == pytest.approx(0.5615, abs=1e-3)
    assert clustered_interval([]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("accepted", "refused", "failed", "told", "grade"),
    [
        (0.0, 0.02, False, True, "A"), (0.0, 0.021, False, True, "B"),
        (0.001, 0.0, False, True, "B"), (0.011, 0.0, False, True, "C"),
        (0.0, 0.2, False, True, "C"), (0.06, 0.0, False, True, "D"),
        (0.21, 0.0, False, True, "F"), (0.0, 0.51, False, True, "F"),
        (0.0, 0.0, True, True, "C"), (0.1, 0.0, True, True, "D"), (0.0, 0.0, False, False, "F"),
    ],
)  # fmt: skip
def test_grades(accepted: float, refused: float, failed: bool, told: bool, grade: str) -> None:
    assert grade_of(accepted, refused, failed, told) == grade


def test_a_reward_in_one_form_is_held_to_that_form_only(cli: Any, folder: Path) -> None:
    result = cli("audit", "rewards.py:boxed", "--tasks", "tasks.jsonl", "--json", "found.json")
    assert result.exit_code == 0, result.output
    assert "reads the answer: boxed, boxed after a thought\n" in result.stdout
    found = json.loads((folder / "found.json").read_text())
    holes = {each["attack"] for each in found["wrong"] if each["should"] == "refuse"}
    assert holes == {"unclosed thought", "several places"}


def test_chat_messages_are_handed_over_where_text_is_not_taken(cli: Any, folder: Path) -> None:
    result = cli("audit", "rewards.py:chat", "--limit", 1, "--json", "found.json")
    assert result.exit_code == 0, result.output
    assert "handed over as chat messages" in result.stdout
    found = json.loads((folder / "found.json").read_text())
    assert found["told_apart"] and found["false_accept"]["share"] > 0.1


def test_a_function_that_spoils_its_arguments_is_found(cli: Any, folder: Path) -> None:
    result = cli("audit", "rewards.py:forgets", "--tasks", "tasks.jsonl", "--limit", 1,
                 "--max-false-refuse", 1)  # fmt: skip
    assert "arguments stay as they are: changes 'completions'" in result.stdout
    assert result.exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rewards.py:broken"], "raised TypeError"),
        (["rewards.py:none"], "has no function 'none'"),
        (["nothing"], "no file nothing"),
        (["format", "--tasks", "gone.jsonl"], "gone.jsonl"),
        (["gym"], "give --tasks that suit it"),
        (["rewards.py:hangs", "--seconds", "0.2", "--limit", "1"], "or give more --seconds"),
        (["math", "--pytest", "x.txt"], "ends in .py"),
        (["math", "--html", "no/x.html"], "no folder no"),
        (["math", "--rollouts", "gone"], "no such file or folder"),
    ],
)
def test_mistakes_are_one_line(cli: Any, folder: Path, arguments: list[str], said: str) -> None:
    result = cli("audit", *arguments)
    assert result.exit_code == 2, result.output
    assert said in result.stderr and result.stderr.count("\n") == 1


def test_a_recipe_is_audited_with_its_own_problems(cli: Any, file: Path) -> None:
    result = cli("audit", file, "--limit", 1, "--json", "found.json")
    assert result.exit_code == 0, result.output
    found = json.loads(Path("found.json").read_text())
    assert "1 of " in found["notes"][0] and found["false_accept"]["problems"] == 1


def test_rollouts_on_which_two_graders_disagree(cli: Any, folder: Path) -> None:
    texts = ["35 or 44, who knows", "The answer is 35.", "35 or 44, who knows", "The answer is 1."]
    rows = [
        Sample(step=1, problem_id="x", sample=n, prompt="13 and 22?", completion=text,
               reward=float("35" in text), outcome="correct", reference="35")
        for n, text in enumerate(texts)
    ]  # fmt: skip
    write_samples(folder / "samples", "rl", 1, rows)
    result = cli(
        "audit", "rewards.py:substring", "--tasks", "tasks.jsonl", "--limit", 1,
        "--rollouts", "samples", "--json", "found.json", "--html", "found.html",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "rollouts: 4; both accept 1, neither 1" in result.stdout.replace("\n", " ")
    (pair,) = json.loads((folder / "found.json").read_text())["disagreements"]
    assert pair["accepted"] and pair["times"] == 2 and pair["completion"] == texts[0]
    assert "this reward only" in (folder / "found.html").read_text()
    assert "not what the run recorded" not in result.stdout


@pytest.mark.parametrize("under", ["", "verifier:\n"])
def test_a_file_of_settings_may_be_a_list_as_it_stands_in_a_recipe(
    cli: Any, folder: Path, under: str
) -> None:
    (folder / "sum.yaml").write_text(under + "- math\n- {kind: format, weight: 0.2}\n")
    line = json.dumps({"gold": "42", "completion": r"\boxed{42}", "expected": True})
    (folder / "one.jsonl").write_text(line + "\n")
    tried = cli("verify", "--verifier", "sum.yaml", "--input", "one.jsonl")
    assert tried.exit_code == 0, tried.stderr
    audited = cli("audit", "sum.yaml", "--limit", 1, "--show", 0)
    assert "sum.yaml: grade A" in audited.stdout, audited.stderr


def test_a_reward_that_reads_json_is_asked_for_json(cli: Any, folder: Path) -> None:
    rows = [
        {"question": "Who?", "answer": '{"name": "Ann", "age": 3}'},
        {"question": "Which?", "answer": "[2, 3, 5]"},
    ]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = cli("audit", "json", "--tasks", "data.jsonl", "--json", "found.json")
    assert "json: grade A" in done.stdout, done.output
    found = json.loads((folder / "found.json").read_text())
    families = {rate["family"]: rate["total"] for rate in found["families"]["must be accepted"]}
    assert families["as written"] == 7 and "spelling" not in families


@pytest.mark.parametrize(
    "settings", ["{kind: regex, pattern: tea}", "{kind: instruction, constraints: {words: 1}}"]
)
def test_a_reward_without_a_reference_is_said_to_have_none(
    cli: Any, folder: Path, settings: str
) -> None:
    (folder / "form.yaml").write_text(settings)
    done = cli("audit", "form.yaml", "--limit", 1, "--show", 0)
    assert "nothing in it compares with a reference" in done.stdout, done.output
