"""Problems and programs as the well-known data sets and their authors write them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lydite.types import Outcome, Problem
from lydite.verify import ComposedVerifier, VerifierConfig, build
from lydite.verify.table import verify_file


@pytest.fixture(scope="module")
def verifier() -> Iterator[ComposedVerifier]:
    built = build(VerifierConfig.model_validate({"kind": "code"}))
    yield built
    built.close()


def outcome(verifier: ComposedVerifier, code: str, **fields: object) -> Outcome:
    problem = Problem("p", "", (), fields=fields)
    (verdict,) = verifier.verify([problem], [f"```python\n{code}\n```"])
    return verdict.outcome


SUM = [{"input": "3\n1 2 3\n", "output": "6\n"}, {"input": "1\r\n-5\r\n", "output": "-5\r\n"}]
READ = "n = input()\n"
FAST = """
import os, sys
from io import BytesIO, IOBase
class Fast(IOBase):
    def __init__(self, file):
        self.fd, self.buffer, self.writable = file.fileno(), BytesIO(), True
        self.write = lambda text: self.buffer.write(text.encode())
    def flush(self):
        os.write(self.fd, self.buffer.getvalue())
        self.buffer = BytesIO()
sys.stdout = Fast(sys.stdout)
input()
print(sum(map(int, input().split())))
"""


@pytest.mark.parametrize(
    "code",
    [
        FAST,
        "import atexit, io, sys\nheld = io.StringIO()\nsys.stdout = held\n"
        "atexit.register(lambda: sys.__stdout__.write(held.getvalue()))\n"
        "input()\nprint(sum(map(int, input().split())))",
        "import io, sys\nsys.stdout = io.StringIO()\ninput()\n"
        "print(sum(map(int, input().split())))\nsys.__stdout__.write(sys.stdout.getvalue())",
        "assert input() in '13'\nprint(sum(map(int, input().split())))",
        "import sys\nprint(sum(int(x) for x in sys.stdin.read().split('\\n')[1].split(' ')))",
    ],
)
def test_programs_that_print_in_their_own_way(verifier: ComposedVerifier, code: str) -> None:
    assert outcome(verifier, code, tests=SUM) is Outcome.CORRECT


@pytest.mark.parametrize("tail", ["\\x0b", "\\x0c", "\\x1c", "\\u00a0", "\\u2028", "\\x00"])
def test_only_spaces_end_a_line(verifier: ComposedVerifier, tail: str) -> None:
    code = f"input()\nprint(str(sum(map(int, input().split()))) + '{tail}')"
    assert outcome(verifier, code, tests=SUM) is Outcome.WRONG


def test_as_much_output_as_is_expected(verifier: ComposedVerifier) -> None:
    lines = "\n".join(map(str, range(250_000)))
    tests = [{"input": "", "output": lines}]
    assert outcome(verifier, "print(*range(250000), sep='\\n')", tests=tests) is Outcome.CORRECT
    assert outcome(verifier, "print(*range(2500000), sep='\\n')", tests=tests) is Outcome.WRONG
    cases = [{"args": [], "expected": list(range(200_000))}]
    code = "def f():\n    return list(range(200000))"
    assert outcome(verifier, code, entry_point="f", cases=cases) is Outcome.CORRECT


APPS = {"inputs": ["3\n1 2 3\n", "1\n5\n"], "outputs": ["6\n", "5\n"]}


@pytest.mark.parametrize("tests", [APPS, json.dumps(APPS)])
def test_tests_of_apps(verifier: ComposedVerifier, tests: Any) -> None:
    code = "input()\nprint(sum(map(int, input().split())))"
    assert outcome(verifier, code, tests=tests) is Outcome.CORRECT
    assert outcome(verifier, "print(6)", tests=tests) is Outcome.WRONG


def test_assertions_of_mbpp(verifier: ComposedVerifier) -> None:
    tests = {
        "entry_point": "twice",
        "test_code": ["assert twice(1) == 2", "assert twice(0) == 0"],
    }
    assert outcome(verifier, "def twice(x):\n    return x + x", **tests) is Outcome.CORRECT
    assert outcome(verifier, "def twice(x):\n    return 2", **tests) is Outcome.WRONG


CASES = [{"args": [[2, 7, 11], 9], "expected": [0, 1]}, {"args": [[3, 3], 6], "expected": [0, 1]}]
STARTER = "class Solution:\n    def pair(self, nums: List[int], target: int) -> List:\n        "
BODY = """\
        seen = defaultdict(int)
        for i, x in enumerate(nums):
            if target - x in seen: return [seen[target - x], i]
            seen[x] = i
"""
LEETCODE: dict[str, dict[str, object]] = {
    "method": {"entry_point": "pair", "cases": CASES, "starter": STARTER},
    "instance": {"entry_point": "Solution().pair", "cases": CASES, "starter": STARTER},
    "class": {"entry_point": "Solution.pair", "cases": CASES},
    "check": {
        "entry_point": "Solution().pair",
        "test_code": "def check(candidate):\n    assert candidate([3, 3], target=6) == [0, 1]\n",
    },
    "written out": {
        "entry_point": "pair",
        "test_code": "assert Solution().pair([3, 3], target=6) == [0, 1]",
    },
}


@pytest.mark.parametrize("fields", LEETCODE.values(), ids=list(LEETCODE))
def test_classes_of_leetcode(verifier: ComposedVerifier, fields: dict[str, object]) -> None:
    assert outcome(verifier, STARTER.rstrip() + "\n" + BODY, **fields) is Outcome.CORRECT
    wrong = STARTER.rstrip() + "\n" + BODY.replace("seen[x] = i", "seen[x] = 1")
    assert outcome(verifier, wrong, **fields) is Outcome.WRONG
    if "starter" in fields:
        assert outcome(verifier, BODY, **fields) is Outcome.CORRECT


def test_what_a_class_finds_defined_is_not_its_own(verifier: ComposedVerifier) -> None:
    fields: dict[str, object] = {
        "entry_point": "gcd",
        "cases": [{"args": [12, 18], "expected": 6}],
    }
    assert outcome(verifier, "class Solution:\n    pass", **fields) is Outcome.WRONG
    power = "class Solution:\n    def gcd(self, a, b):\n        return pow(6, 1, a)"
    assert outcome(verifier, power, **fields) is Outcome.CORRECT
    assert outcome(verifier, "def gcd(a, b):\n    return reduce(min, [6])", **fields) is (
        Outcome.WRONG
    )


def test_verdicts_are_utf8_whatever_a_program_says(tmp_path: Path) -> None:
    row = {
        "completion": "def f():\n    return '\\udcfc \\ud800'",
        "entry_point": "f",
        "cases": [{"args": [], "expected": "a"}],
    }
    (tmp_path / "in.jsonl").write_text(json.dumps(row) + "\n")
    config = VerifierConfig.model_validate({"kind": "code"})
    verify_file(tmp_path / "in.jsonl", config, tmp_path / "out.jsonl")
    said = json.loads((tmp_path / "out.jsonl").read_text("utf-8"))
    assert (
        said["outcome"] == "wrong" and "\\udcfc" in said["detail"].encode("unicode_escape").decode()
    )
