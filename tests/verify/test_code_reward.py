"""Programs in completions become verdicts: what passes, what does not, and why."""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lydite.config import UserError
from lydite.types import Outcome, Problem, Verdict
from lydite.verify import ComposedVerifier, VerifierConfig, build, verify_golds
from lydite.verify.code import reward
from lydite.verify.sandbox import Sandbox
from lydite.verify.table import verify_file

SPELLING = "lydite.verify.code.guest.spelling"
LIMITS = {"per_test": {"wall_seconds": 1.0, "cpu_seconds": 1, "memory_mb": 256}}


def make(**settings: Any) -> ComposedVerifier:
    return build(VerifierConfig.model_validate({"kind": "code", **LIMITS, **settings}))


@pytest.fixture(scope="module")
def verifier() -> Iterator[ComposedVerifier]:
    built = make()
    yield built
    built.close()


@pytest.fixture(scope="module")
def sharing() -> Iterator[ComposedVerifier]:
    built = make(reward="share", shown=1)
    yield built
    built.close()


def ask(verifier: ComposedVerifier, text: str, **fields: object) -> Verdict:
    (verdict,) = verifier.verify([Problem("p", "", (), fields=fields)], [text])
    return verdict


def python(code: str) -> str:
    return f"```python\n{code}\n```"


SQUARES = [{"input": f"{n}\n", "output": f"{n * n}\n"} for n in (1, 2, 3, 4)]


def squares_up_to(last: int) -> str:
    return python(f"n = int(input())\nprint(n * n if n <= {last} else 0)")


def test_standard_input_to_standard_output(verifier: ComposedVerifier) -> None:
    for code in (
        "print(int(input()) ** 2)",
        "import sys\nfor line in sys.stdin:\n    sys.stdout.write(str(int(line) ** 2))",
        "import os\nn = int(os.read(0, 99))\nos.write(1, b'%d' % (n * n))",
        "if __name__ == '__main__':\n    print(int(open(0).read()) ** 2)\n    exit()",
        "def main():\n    print(int(input()) ** 2)\nimport threading\n"
        "threading.Thread(target=main).start()",
    ):
        verdict = ask(verifier, python(code), tests=SQUARES)
        assert (verdict.outcome, verdict.reward) == (Outcome.CORRECT, 1.0), (code, verdict)
    assert verdict.answer is not None and "threading" in verdict.answer


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("print(int(input()) + 1)", 'test 1 of 4: wrong output: expected "1\\n", got "2\\n"'),
        ("print(1)", "test 2 of 4: wrong output"),
        ("print(int(input()) ** 2)\n1 / 0", "ended with code 1: ZeroDivisionError"),
        ("print(int(input()) ** 2)\nexit(3)", "ended with code 3"),
        ("import os\nprint(int(input()) ** 2, flush=True)\nos.abort()", "was killed"),
        ("print(int(input() ** 2)", "SyntaxError"),
    ],
)
def test_wrong_programs(verifier: ComposedVerifier, code: str, said: str) -> None:
    verdict = ask(verifier, python(code), tests=SQUARES)
    assert (verdict.outcome, verdict.reward) == (Outcome.WRONG, 0.0)
    assert said in verdict.detail


def test_a_failure_after_the_right_output_is_no_pass_when_nothing_is_expected(
    verifier: ComposedVerifier,
) -> None:
    tests = [{"input": "a", "output": ""}, {"input": "b", "output": "b"}]
    good = "s = input()\nif s != 'a':\n    print(s)"
    assert ask(verifier, python(good), tests=tests).reward == 1.0
    assert ask(verifier, python("s = input()\nif s == 'a':\n    1 / 0\nprint(s)"),
               tests=tests).reward == 0.0  # fmt: skip


def test_the_share_of_tests(sharing: ComposedVerifier) -> None:
    for last in (0, 1, 3, 4):
        verdict = ask(sharing, squares_up_to(last), tests=SQUARES)
        assert verdict.reward == last / 4
        assert verdict.outcome is (Outcome.CORRECT if last == 4 else Outcome.WRONG)


def test_details_do_not_tell_what_hidden_tests_expect(sharing: ComposedVerifier) -> None:
    shown = ask(sharing, squares_up_to(0), tests=SQUARES).detail
    assert shown == 'test 1 of 4: wrong output: expected "1\\n", got "0\\n"'
    assert ask(sharing, squares_up_to(2), tests=SQUARES).detail == (
        "test 3 of 4 (hidden): wrong output"
    )


def test_a_timeout_costs_its_test_and_not_the_others(sharing: ComposedVerifier) -> None:
    code = "n = int(input())\nwhile n == 2: pass\nprint(n * n)"
    verdict = ask(sharing, python(code), tests=SQUARES)
    assert (verdict.outcome, verdict.reward) == (Outcome.TIMEOUT, 0.75)
    assert "in time" in verdict.detail or "processor time" in verdict.detail


def test_a_test_that_takes_its_sandbox_down_costs_no_other(sharing: ComposedVerifier) -> None:
    code = "import os, sys\nn = int(input())\nif n == 2:\n    os.kill(os.getpid(), 9)\nprint(n * n)"
    verdict = ask(sharing, python(code), tests=SQUARES)
    assert (verdict.outcome, verdict.reward) == (Outcome.WRONG, 0.75)


def test_all_tests_together_have_a_limit() -> None:
    slow = make(total_seconds=0.8)
    try:
        code = "import time\ntime.sleep(0.3)\nprint(int(input()) ** 2)"
        verdict = ask(slow, python(code), tests=SQUARES)
        assert (verdict.outcome, verdict.reward) == (Outcome.TIMEOUT, 0.0)
        assert "more than 0.8 s together" in verdict.detail
    finally:
        slow.close()


def test_memory_is_limited(verifier: ComposedVerifier) -> None:
    for code in ("x = bytearray(2 ** 30)\nprint(1)", "x = [0] * 2 ** 28\nprint(1)"):
        assert ask(verifier, python(code), tests=SQUARES).outcome is Outcome.TIMEOUT
        call = ask(verifier, python(f"def f():\n    {code.splitlines()[0]}\n    return 1"),
                   entry_point="f", cases=[{"args": [], "expected": 1}])  # fmt: skip
        assert (call.outcome, call.reward) == (Outcome.TIMEOUT, 0.0)


VALUES: list[tuple[str, Any, bool]] = [
    ("1", 1, True),
    ("1.0", 1, True),
    ("True", 1, False),
    ("[1, 2]", [1, 2], True),
    ("(1, 2)", [1, 2], True),
    ("[1, 2]", {"$tuple": [1, 2]}, False),
    ("{1: 'a'}", {"1": "a"}, False),
    ("{1: 'a'}", {"$dict": [[1, "a"]]}, True),
    ("{'a': [1, None]}", {"a": [1, None]}, True),
    ("{2, 1}", {"$set": [1, 2]}, True),
    ("{2, 1}", [1, 2], False),
    ("b'ab'", {"$bytes": "6162"}, True),
    ("'ab'", "ab", True),
    ("2 ** 20000", {"$int": hex(2**20000)}, True),
    ("float('nan')", float("nan"), True),
    ("0.1 + 0.2", 0.3, True),
    ("__import__('collections').Counter('aab')", {"a": 2, "b": 1}, True),
    ("__import__('collections').namedtuple('P', 'x y')(1, 2)", [1, 2], True),
    ("range(3)", [0, 1, 2], False),
    ("(n for n in [1])", [1], False),
    ("print", "print", False),
    ("None", [], False),
]


@pytest.mark.parametrize(("written", "expected", "passes"), VALUES)
def test_values(verifier: ComposedVerifier, written: str, expected: Any, passes: bool) -> None:
    cases = [{"args": [], "expected": expected}]
    verdict = ask(verifier, python(f"def f():\n    return {written}"), entry_point="f", cases=cases)
    assert (verdict.outcome is Outcome.CORRECT) is passes, verdict
    assert verdict.reward == float(passes)


def test_arguments_arrive_as_they_are_spelled(verifier: ComposedVerifier) -> None:
    args = [1, 2.5, "a", None, True, [1], {"a": 1}, {"$tuple": [1]}, {"$set": [1]},
            {"$bytes": "00"}, {"$dict": [[1, 2]]}, {"$float": "nan"}]  # fmt: skip
    kinds = [
        "int",
        "float",
        "str",
        "NoneType",
        "bool",
        "list",
        "dict",
        "tuple",
        "set",
        "bytes",
        "dict",
        "float",
    ]
    code = "def f(*args, **more):\n    return [type(a).__name__ for a in args] + [more]"
    cases = [{"args": args, "kwargs": {"k": {"$tuple": [2]}}, "expected": [*kinds, {"k": [2]}]}]
    assert ask(verifier, python(code), entry_point="f", cases=cases).reward == 1.0


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def g(x): return x", "defines no such function"),
        ("def f(x): raise KeyError(x)", "the call raised KeyError"),
        ("def f(x): return f(x)", "the call raised RecursionError"),
        ("def f(x): return object()", "the call returned object, which is no plain data"),
        ("def f(x)\n    return x", "it is no program"),
        ("import nothing_of_that_name\ndef f(x): return x", "raised ModuleNotFoundError"),
        ("def f(x):\n    y = []\n    y.append(y)\n    return y", "nested more than 60 deep"),
        ("def f(): return 1", "the call raised TypeError"),
    ],
)
def test_calls_that_fail(verifier: ComposedVerifier, code: str, said: str) -> None:
    cases = [{"args": [1], "expected": 1}]
    verdict = ask(verifier, python(code), entry_point="f", cases=cases)
    assert (verdict.outcome, verdict.reward) == (Outcome.WRONG, 0.0)
    assert said in verdict.detail


def test_a_reply_that_does_not_answer_the_call_is_none(verifier: ComposedVerifier) -> None:
    """What stands where a reply is read counts only with the nonce of its call."""
    code = """
import os
for fd in range(3, 64):
    try:
        os.write(fd, b'{REPLY}')
    except OSError:
        pass
os._exit(0)
def f(x): return x
"""
    cases = [{"args": [1], "expected": 1}]
    for reply in ('{"value": 1}', '{"nonce": "", "value": 1}', '{"nonce": null, "value": 1}'):
        verdict = ask(
            verifier, python(code.replace("{REPLY}", reply)), entry_point="f", cases=cases
        )
        assert (verdict.outcome, verdict.reward) == (Outcome.WRONG, 0.0)
        assert "the call gave no result" in verdict.detail


def test_a_method_of_a_solution_class(verifier: ComposedVerifier) -> None:
    code = "class Solution:\n    def f(self, x):\n        return x + 1"
    cases = [{"args": [1], "expected": 2}]
    assert ask(verifier, python(code), entry_point="f", cases=cases).reward == 1.0


TESTS = """
def check(candidate):
    assert candidate([3, 1]) == [1, 3]
    assert tuple(candidate([])) == ()
    try:
        candidate(None)
    except ValueError as error:
        assert "nothing" in str(error)
    else:
        raise AssertionError
    assert isinstance(candidate([1]), list)
    assert all(candidate([n, 0]) == [0, n] for n in range(1, 4))
"""
GOOD = "def f(xs):\n    if xs is None:\n        raise ValueError('nothing')\n    return sorted(xs)"


def test_test_code(verifier: ComposedVerifier) -> None:
    fields = {"entry_point": "f", "test_code": TESTS}
    assert ask(verifier, python(GOOD), **fields).reward == 1.0
    custom = "class Odd(ValueError): pass\n" + GOOD.replace("raise ValueError", "raise Odd")
    assert ask(verifier, python(custom), **fields).reward == 1.0
    for old, new in (("sorted(xs)", "xs"), ("ValueError", "KeyError"), ("nothing", "none"),
                     ("sorted(xs)", "tuple(sorted(xs))")):  # fmt: skip
        verdict = ask(verifier, python(GOOD.replace(old, new)), **fields)
        assert (verdict.outcome, verdict.reward) == (Outcome.WRONG, 0.0), (old, new)
    assert "test_code failed with AssertionError after" in verdict.detail


def test_test_code_by_the_functions_own_name_and_with_iterators(verifier: ComposedVerifier) -> None:
    tests = "assert list(evens(5)) == [0, 2, 4]\nassert next(evens(1)) == 0"
    code = "def evens(n):\n    for k in range(0, n, 2):\n        yield k"
    assert ask(verifier, python(code), entry_point="evens", test_code=tests).reward == 1.0


def test_test_code_may_use_what_the_prompt_defines(verifier: ComposedVerifier) -> None:
    prompt = 'def encode(s):\n    return s[::-1]\n\ndef decode(s):\n    """Undoes it."""\n'
    tests = "def check(candidate):\n    assert candidate(encode('abc')) == 'abc'\n"
    fields = {"entry_point": "decode", "test_code": tests, "prompt": prompt}
    assert ask(verifier, "    return s[::-1]\n", **fields).reward == 1.0
    assert ask(verifier, python("def decode(s):\n    return encode(s)"), **fields).reward == 1.0
    assert ask(verifier, "    return s\n", **fields).reward == 0.0


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        ("assert undefined_name", "fails by itself: NameError"),
        ("import time\ntime.sleep(60)\nassert candidate(1)", "before the first call"),
        ("assert candidate(lambda: 1)", "cannot cross: function"),
        ("candidate(1)\nassert candidate(object())", "cannot cross: object"),
        ("def check(candidate):\n    pass\nassert True", "never called the candidate"),
    ],
)
def test_test_code_at_fault_is_no_fault_of_the_programs(
    verifier: ComposedVerifier, tests: str, said: str
) -> None:
    verdict = ask(verifier, python("def f(x): return x"), entry_point="f", test_code=tests)
    assert (verdict.outcome, verdict.reward) == (Outcome.UNGRADABLE, None)
    assert said in verdict.detail


def test_what_a_program_returns_cannot_make_its_test_code_ungradable(
    verifier: ComposedVerifier,
) -> None:
    tests = "x = candidate(1)\nfor _ in range(70):\n    x = [x]\nassert candidate(x) == 1"
    code = "def f(x):\n    return x"
    verdict = ask(verifier, python(code), entry_point="f", test_code=tests)
    assert (verdict.outcome, verdict.reward) == (Outcome.WRONG, 0.0)
    looping = "x = candidate(1)\nwhile x: pass\nassert candidate(2) == 2"
    verdict = ask(verifier, python(code), entry_point="f", test_code=looping)
    assert (verdict.outcome, verdict.reward) == (Outcome.TIMEOUT, 0.0)


def test_a_check_that_is_given_up_leaves_nothing_to_the_next() -> None:
    single = build(VerifierConfig.model_validate({"rewards": ["code"], "limits": {"workers": 1}}))
    bad = [
        "import os\ndef f(xs): os._exit(0)",
        "def g(): pass",
        "def f(xs): return print",
        "def f(",
    ]
    texts = [python(code) for other in bad for code in (other, GOOD)]
    problem = Problem("p", "", (), fields={"entry_point": "f", "test_code": TESTS})
    try:
        verdicts = single.verify([problem] * len(texts), texts)
        assert [verdict.reward for verdict in verdicts] == [0.0, 1.0] * len(bad)
    finally:
        single.close()


def test_a_text_without_a_program_is_unparseable(verifier: ComposedVerifier) -> None:
    verdict = ask(verifier, "I would rather not.", tests=SQUARES)
    assert (verdict.outcome, verdict.reward) == (Outcome.UNPARSEABLE, 0.0)
    assert ask(verifier, "print(int(input()) ** 2)", tests=SQUARES).reward == 1.0
    refusing = make(unfenced="refuse")
    try:
        verdict = ask(refusing, "print(int(input()) ** 2)", tests=SQUARES)
        assert (verdict.outcome, verdict.detail) == (Outcome.UNPARSEABLE, "there is no code block")
    finally:
        refusing.close()


def test_many_at_once_keep_their_order(verifier: ComposedVerifier) -> None:
    problems, texts, expected = [], [], []
    for n in range(60):
        tests = [{"input": "", "output": str(n)}]
        problems.append(Problem(f"p{n}", "", (), fields={"tests": tests}))
        texts.append(python(f"print({n if n % 3 else n + 1})"))
        expected.append(float(n % 3 != 0))
    assert [v.reward for v in verifier.verify(problems, texts)] == expected


def test_references_must_pass_their_own_tests(verifier: ComposedVerifier) -> None:
    def problem(name: str, gold: str | None, **fields: object) -> Problem:
        return Problem(name, "", (), reference=gold, fields=fields)

    problems = [
        problem("good", "print(int(input()) ** 2)", tests=SQUARES),
        problem("wrong", "print(int(input()) ** 3)", tests=SQUARES),
        problem("untested", "print(1)", tests=[]),
        problem("open", None, tests=SQUARES),
        problem("continued", "    return x + 1\n", entry_point="f", prompt="def f(x):\n",
                cases=[{"args": [1], "expected": 2}]),
    ]  # fmt: skip
    faults = {fault.problem_id: fault.reason for fault in verify_golds(verifier, problems)}
    assert sorted(faults) == ["untested", "wrong"]
    assert faults["wrong"].startswith("the reference solution does not pass: test 2 of 4")
    assert faults["untested"].startswith("tests: the list is empty")
    wrong = verifier.verify([problems[1]] * 2, [python("print(int(input()) ** 2)")] * 2)
    assert [(v.outcome, v.reward) for v in wrong] == [(Outcome.UNGRADABLE, None)] * 2
    assert "the reference solution does not pass" in wrong[0].detail
    with pytest.raises(UserError, match="1 of 2 reference answers cannot be checked: wrong"):
        build(VerifierConfig.model_validate({"kind": "code", **LIMITS}), problems[:2])


def test_references_are_not_tried_where_that_is_switched_off() -> None:
    trusting = make(check_golds=False)
    try:
        problem = Problem("p", "", (), reference="print(0)", fields={"tests": SQUARES})
        (verdict,) = trusting.verify([problem], [python("print(int(input()) ** 2)")])
        assert verdict.reward == 1.0 and verify_golds(trusting, [problem]) == []
    finally:
        trusting.close()


def test_a_file_of_completions(tmp_path: Path) -> None:
    rows = [
        {"tests": SQUARES, "completion": squares_up_to(last), "expected": last == 4}
        for last in (4, 3) * 10
    ]
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    seen: list[int] = []
    config = VerifierConfig.model_validate("code")
    report = verify_file(source, config, progress=lambda done, total: seen.append(done))
    assert (report.judged, report.false_positives, report.false_negatives) == (20, [], [])
    assert seen[-1] == 20


CPP = """#include <iostream>
int main() { long long n; std::cin >> n; std::cout << n * n << std::endl; }"""
JAVASCRIPT = "const n = Number(require('fs').readFileSync(0)); console.log(n * n);"


def in_language(language: str, per_test: dict[str, Any]) -> ComposedVerifier:
    try:
        return make(language=language, per_test=per_test)
    except UserError as error:
        assert "needs bubblewrap" in str(error)
        pytest.skip("bubblewrap does not work on this machine")


def test_without_bubblewrap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Landlock lets no program start processes: the bench of the test code does without."""
    try:
        Sandbox("landlock").close()
    except UserError:
        pytest.skip("no Landlock on this machine")
    monkeypatch.setattr(reward, "Sandbox", functools.partial(Sandbox, "landlock"))
    verifier = make()
    try:
        fields = {"entry_point": "f", "test_code": TESTS}
        texts = [GOOD, "import os\ndef f(xs): os._exit(0)", GOOD, GOOD.replace("sorted(xs)", "xs")]
        verdicts = [ask(verifier, python(code), **fields) for code in texts]
        assert [verdict.reward for verdict in verdicts] == [1.0, 0.0, 1.0, 0.0]
        assert ask(verifier, squares_up_to(4), tests=SQUARES).reward == 1.0
    finally:
        verifier.close()
    if shutil.which("g++") is not None:
        with pytest.raises(UserError, match="language cpp: needs bubblewrap"):
            make(language="cpp")


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine")
def test_cpp() -> None:
    verifier = in_language("cpp", {"wall_seconds": 2})
    try:
        assert ask(verifier, f"```cpp\n{CPP}\n```", tests=SQUARES).reward == 1.0
        wrong = ask(verifier, f"```cpp\n{CPP.replace('n * n', 'n + n')}\n```", tests=SQUARES)
        assert (wrong.outcome, wrong.reward) == (Outcome.WRONG, 0.0)
        broken = ask(verifier, f"```cpp\n{CPP[:-3]}\n```", tests=SQUARES)
        assert broken.outcome is Outcome.WRONG and "it does not compile" in broken.detail
        loop = ask(verifier, f"```cpp\n{CPP.replace('{', '{ for (;;) ;', 1)}\n```", tests=SQUARES)
        assert (loop.outcome, loop.reward) == (Outcome.TIMEOUT, 0.0)
        calls = ask(verifier, f"```cpp\n{CPP}\n```", entry_point="f",
                    cases=[{"args": [1], "expected": 1}])  # fmt: skip
        assert calls.outcome is Outcome.UNGRADABLE and "not checked in cpp" in calls.detail
    finally:
        verifier.close()


@pytest.mark.skipif(shutil.which("node") is None, reason="no node on this machine")
def test_javascript() -> None:
    verifier = in_language("javascript", {"wall_seconds": 4, "cpu_seconds": 4})
    try:
        assert ask(verifier, f"```js\n{JAVASCRIPT}\n```", tests=SQUARES[:2]).reward == 1.0
        wrong = JAVASCRIPT.replace("n * n", "n + 0")
        assert ask(verifier, f"```js\n{wrong}\n```", tests=SQUARES[:2]).reward == 0.0
        code = "```js\nconst f = (xs) => { console.log('x'); return {sum: xs[0] + xs[1]}; };\n```"
        cases = [{"args": [[1, 2]], "expected": {"sum": 3}}]
        assert ask(verifier, code, entry_point="f", cases=cases).reward == 1.0
        cases[0]["expected"] = {"sum": 4}
        assert ask(verifier, code, entry_point="f", cases=cases).reward == 0.0
        tests = "def check(candidate):\n    assert candidate([1, 2])['sum'] == 3\n"
        assert ask(verifier, code, entry_point="f", test_code=tests).reward == 1.0
    finally:
        verifier.close()


def test_a_language_without_its_tools_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match=r"language cpp: no 'g\+\+' on this machine; install it"):
        make(language="cpp")


def test_the_guest_needs_nothing_but_the_standard_library() -> None:
    folder = Path(__file__).parents[2] / "src/lydite/verify/code/guest"
    for path in (folder / "spelling.py", folder / "call.py", folder / "check.py"):
        imported = {
            node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
        }
        assert imported <= {*sys.stdlib_module_names, "collections.abc", SPELLING}


def test_a_forked_process_checks_with_threads_of_its_own(verifier: ComposedVerifier) -> None:
    code = python("print(int(input()) ** 2)")
    assert ask(verifier, code, tests=SQUARES).outcome is Outcome.CORRECT
    pid = os.fork()
    if pid == 0:
        status = 1
        with contextlib.suppress(BaseException):
            status = int(ask(verifier, code, tests=SQUARES).outcome is not Outcome.CORRECT)
            verifier.close()
        os._exit(status)
    deadline = time.monotonic() + 30
    while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.02)
    if ended == (0, 0):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert ended == (pid, 0)
    assert ask(verifier, code, tests=SQUARES).outcome is Outcome.CORRECT
