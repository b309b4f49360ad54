"""Which part of a completion is the program, and what a problem's columns say of its tests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lydite.verify.code.checks import CheckError, read_checks
from lydite.verify.code.extract import read_program, sources
from lydite.verify.code.languages import LANGUAGES

PYTHON, CPP = LANGUAGES["python"], LANGUAGES["cpp"]
DONE = "<think>hm</think>"


def block(code: str, tag: str = "python") -> str:
    return f"```{tag}\n{code}\n```\n"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (block("x = 1"), "x = 1\n"),
        (block("x = 1") + "then\n" + block("x = 2"), "x = 2\n"),
        (block("x = 1", "py"), "x = 1\n"),
        (block("x = 1", "Python3"), "x = 1\n"),
        (block("x = 1", ""), "x = 1\n"),
        (block("x = 1") + "prints\n" + block("1", "text"), "x = 1\n"),
        (block("x = 1") + "prints\n" + block("1", ""), "x = 1\n"),
        (block("x = 1", "python title=a.py"), "x = 1\n"),
        ("~~~python\nx = 1\n~~~", "x = 1\n"),
        ("````python\nx = '''\n```\n'''\n````", "x = '''\n```\n'''\n"),
        ("1. So:\n   ```python\n   if x:\n       y\n   ```", "if x:\n    y\n"),
        ("```python\r\nx = 1\r\n```", "x = 1\n"),
        ("```python\nx = 1", "x = 1\n"),
        ("```python\nx = 1\n```<|im_end|>", "x = 1\n"),
        (f"<think>{block('x = 0')}</think>{block('x = 1')}", "x = 1\n"),
        ("x = `1`\n", "x = `1`\n"),
        ("    return 1", "    return 1\n"),
        (DONE + "\n\n    return 1", "    return 1\n"),
    ],
)
def test_the_program_is_the_last_block(text: str, code: str) -> None:
    assert read_program(text, PYTHON).code == code


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (block("int main() {}", "cpp"), "no code block is tagged python"),
        (f"<think>{block('x = 1')}", "the thinking is opened and never closed"),
        (block("  "), "the code is empty"),
        ("", "the code is empty"),
        (block("x" * 100_001), "more than 100000"),
    ],
)
def test_no_program(text: str, reason: str) -> None:
    program = read_program(text, PYTHON)
    assert program.code is None and reason in program.reason


def test_a_bare_text_is_a_setting() -> None:
    assert read_program("x = 1", PYTHON).fenced is False
    refused = read_program("x = 1", PYTHON, unfenced="refuse")
    assert (refused.code, refused.reason) == (None, "there is no code block")
    assert read_program(block("x"), PYTHON, thinking="required").code is None
    assert read_program(DONE + block("x"), PYTHON, thinking="required").code == "x\n"


def test_each_language_has_its_tags() -> None:
    both = block("x = 1") + block("int main() {}", "c++")
    assert read_program(both, CPP).code == "int main() {}\n"
    assert read_program(both, PYTHON).code == "x = 1\n"


def test_cutting_a_hostile_text_takes_no_longer_than_reading_it() -> None:
    """Patterns that back-track would need hours for these."""
    for text in ("```\n" * 100_000, "```" + " " * 500_000, "```python\n" * 50_000, "~" * 500_000):
        assert read_program(text, PYTHON).code is None


PREFIX = 'import math\n\ndef helper(x):\n    return x\n\ndef f(x):\n    """Doubles."""\n'


def test_a_continuation_goes_on_where_the_prompt_stopped() -> None:
    first = sources("    return 2 * x\n", PREFIX, "f")[0]
    space: dict[str, Any] = {}
    exec(first, space)
    assert space["f"](3) == 6
    assert sources("    return 2 * x\n", PREFIX.rstrip("\n"), "f")[0] == first


def test_a_whole_function_keeps_the_prompts_imports() -> None:
    space: dict[str, Any] = {}
    exec(sources("def f(x):\n    return math.sqrt(helper(x))\n", PREFIX, "f")[0], space)
    assert space["f"](9) == 3.0


def test_a_prompt_in_words_is_no_prefix() -> None:
    assert sources("x = 1\n", "Write a function f(x).", "f") == ["x = 1\n"]
    assert sources("x = 1\n", "def f(x):\n", None) == ["x = 1\n"]
    future = "from __future__ import annotations\ndef f(x): return x\n"
    tried = sources(future, PREFIX, "f")
    assert tried[-1] == future
    for source in tried:  # the import of the future stays in front of the prompt's
        space: dict[str, Any] = {}
        exec(compile(source, "f", "exec", dont_inherit=True), space)
        assert space["f"](2) == 2


CLASS = "from math import sqrt\n\nclass Solution:\n    def root(self, x: int) -> float:\n        "


def test_a_class_that_a_prompt_begins_is_a_prefix() -> None:
    whole = "class Solution:\n    def root(self, x):\n        return sqrt(x)\n"
    for code in (whole, "def root(x):\n    return sqrt(x)\n", "        return sqrt(x)\n"):
        for source in sources(code, CLASS, "root"):
            try:
                exec(compile(source, "f", "exec", dont_inherit=True), space := {})
            except SyntaxError:
                continue
            function = space["root"] if "root" in space else space["Solution"]().root
            assert function(9) == 3.0
            break
        else:
            raise AssertionError(code)


GOOD = "print(int(input()) + 1)"


@pytest.mark.parametrize(
    "text",
    [
        f"```{{python}}\n{GOOD}\n```",
        f"```{{.python}}\n{GOOD}\n```",
        f"```python:main.py\n{GOOD}\n```\n```text\n2\n```",
        f"```python,linenos\n{GOOD}\n```",
        f'```python title="a.py"\n{GOOD}\n```',
        f"> ```python\n> {GOOD}\n> ```\n",
        f"Here it is: ```python\n{GOOD}\n```\nDone.",
        f"```python\n{GOOD}```\nDone.",
        f"<answer>\n{GOOD}\n</answer>",
        f"<answer>print(0)</answer> no: <answer>{GOOD}</answer>",
        f"\ufeff{GOOD}\r\n",
    ],
)
def test_how_blocks_are_written(text: str) -> None:
    code = read_program(text, PYTHON).code
    assert code is not None and code.strip() == GOOD


OUTPUTS = [{"input": "1", "output": "2"}, {"input": "3", "output": "4", "hidden": True}]
CASES = [{"args": [1, [2]], "expected": {"a": 1}}, {"args": [], "kwargs": {"x": 1}, "expected": 2}]


def test_columns_as_lists_and_as_json_text() -> None:
    for tests in (OUTPUTS, json.dumps(OUTPUTS), [json.dumps(test) for test in OUTPUTS]):
        checks = read_checks({"tests": tests, "cases": None, "test_code": None})
        assert [(t.input, t.output, t.hidden) for t in checks.outputs] == [
            ("1", "2", False), ("3", "4", True),
        ]  # fmt: skip
    columns = {"input": ["1", "3"], "output": ["2", "4"], "hidden": [None, True]}
    assert read_checks({"tests": columns}).outputs == checks.outputs
    spelled = [{**case, "args": json.dumps(case["args"])} for case in CASES]
    for cases in (CASES, json.dumps(CASES), spelled):
        checks = read_checks({"entry_point": "f", "cases": cases})
        assert checks.calls[0].args == [1, [2]]
        assert checks.calls[0].expected == {"$dict": [["a", 1]]}
        assert (checks.calls[1].args, checks.calls[1].kwargs) == ([], {"x": 1})
    text = {"entry_point": "f", "cases": [{"args": ["[1]"], "expected": "[1]"}]}
    assert read_checks(text).calls[0].expected == "[1]"


def test_which_tests_are_hidden() -> None:
    tests = [{"input": str(n), "output": "x"} for n in range(3)]
    assert [t.hidden for t in read_checks({"tests": tests}).outputs] == [False] * 3
    assert [t.hidden for t in read_checks({"tests": tests}, 1).outputs] == [False, True, True]
    tests[2]["hidden"] = False  # type: ignore[assignment]
    assert [t.hidden for t in read_checks({"tests": tests}, 1).outputs] == [False, True, False]
    assert len(read_checks({"tests": tests}, 1).only_hidden().outputs) == 1


CHECK = "def check(candidate):\n    assert candidate(1) == 1\n"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "no tests; give the column tests, or entry_point with cases or with test_code"),
        ({"tests": []}, "tests: the list is empty"),
        ({"tests": "["}, "tests: text that is not JSON"),
        ({"tests": "{}"}, "tests: expected a list, got dict"),
        ({"tests": 3}, "tests: expected a list, got int"),
        ({"tests": {"input": ["1"], "output": []}}, "tests: columns of different length"),
        ({"tests": [3]}, "tests[0]: expected input and output, got int"),
        ({"tests": [{"input": "1"}]}, "tests[0].output: expected text, got nothing"),
        ({"tests": [{"input": 1, "output": "1"}]}, "tests[0].input: expected text, got int"),
        ({"tests": [{**OUTPUTS[0], "hidden": 1}]}, "tests[0].hidden: expected true or false"),
        ({"tests": [{"input": "1", "output": " \n"}]}, "tests: every output is blank"),
        ({"tests": OUTPUTS, "test_code": CHECK}, "tests and test_code are given; give one"),
        ({"cases": CASES}, "entry_point: expected the name of a function, got None"),
        ({"cases": CASES, "entry_point": "f()"}, "entry_point: expected the name"),
        ({"cases": [{"args": [1]}], "entry_point": "f"}, "cases[0].expected: not given"),
        ({"cases": [{"expected": 1}], "entry_point": "f"}, "cases[0].args: expected a list"),
        ({"cases": [{"args": 1, "expected": 1}], "entry_point": "f"}, "cases[0].args: expected"),
        (
            {"cases": [{"args": [], "kwargs": [1], "expected": 1}], "entry_point": "f"},
            "cases[0].kwargs: expected an object",
        ),
        (
            {"cases": [{"args": [], "expected": {"$tuple": 1}}], "entry_point": "f"},
            "cases[0]: $tuple holds int",
        ),
        ({"cases": [{"args": [], "expected": None}], "entry_point": "f"}, "all expect null"),
        ({"test_code": CHECK}, "entry_point: expected the name of a function"),
        ({"test_code": "def check(", "entry_point": "f"}, "test_code: not Python"),
        ({"test_code": "def check(c):\n    c(1)", "entry_point": "f"}, "it asserts nothing"),
        ({"test_code": 3, "entry_point": "f"}, "test_code: expected text, got int"),
    ],
)
def test_columns_that_cannot_be_used_are_named_in_one_line(
    fields: dict[str, object], said: str
) -> None:
    with pytest.raises(CheckError) as caught:
        read_checks(fields)
    assert said in str(caught.value) and "\n" not in str(caught.value)
