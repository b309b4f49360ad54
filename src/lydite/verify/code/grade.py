"""One program against one problem's tests: run in the sandbox, compared here.

The candidate's process is given inputs, one a process, and says bytes. It never holds an expected
output, never shares an interpreter with a comparison, and its exit code alone proves nothing.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lydite.types import Outcome
from lydite.verify.code.candidate import HOW, LATE, Answer, Candidate, Result, failure
from lydite.verify.code.checks import CallTest, Checks, OutputTest
from lydite.verify.code.guest import guest_files
from lydite.verify.code.stdout import same_output
from lydite.verify.code.values import Tolerance, same_value, show
from lydite.verify.sandbox import Ended, Program, Runner, Sandbox, SandboxLimits, Session


@dataclass(frozen=True, slots=True)
class Costs:
    """What one test may cost, and for how many seconds a program may be tested in all."""

    each: SandboxLimits
    total_seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """How a program fared: the outcome over all tests, the share that it passed."""

    outcome: Outcome
    share: float
    detail: str = ""
    malformed: bool = False


PASSED = Result(Outcome.CORRECT)


def grade_tests(
    sandbox: Sandbox,
    candidate: Candidate,
    checks: Checks,
    costs: Costs,
    tolerance: Tolerance,
    to_the_end: bool,
) -> Report:
    """Runs the tests that are data, in order, each in a fresh process.

    Without ``to_the_end`` the first failure ends it; the share is then of no use. A program that
    needs more than the total time fails the tests that are left.

    Raises:
        SandboxError: no sandbox could be started.
    """
    tests: Sequence[OutputTest | CallTest] = checks.outputs or checks.calls
    deadline = time.monotonic() + costs.total_seconds
    results: list[Result] = []
    with _Process(sandbox, candidate.program(bool(checks.calls)), costs.each) as process:
        for test in tests:
            if time.monotonic() >= deadline:
                late = f"the tests take more than {costs.total_seconds:g} s together"
                results.append(Result(Outcome.TIMEOUT, late))
                break
            if isinstance(test, OutputTest):
                result = _output(
                    process.run(test.input.encode("utf-8", "replace")), test, tolerance
                )
            else:
                asked = candidate.call(checks.entry_point or "", test.args, test.kwargs)
                result = _value(asked.answer(process.run(asked.stdin)), test, tolerance)
            results.append(result)
            if result is not PASSED and not to_the_end:
                break
    return _report(results, tests)


def _report(results: Sequence[Result], tests: Sequence[OutputTest | CallTest]) -> Report:
    passed = sum(result is PASSED for result in results)
    if passed == len(tests):
        return Report(Outcome.CORRECT, 1.0)
    at, first = next((n, r) for n, r in enumerate(results) if r is not PASSED)
    hidden = tests[at].hidden
    outcome = next((r.outcome for r in results if r.outcome is Outcome.TIMEOUT), Outcome.WRONG)
    said = "" if hidden or not first.said else f": {first.said}"
    where = f"test {at + 1} of {len(tests)}{' (hidden)' if hidden else ''}"
    malformed = all(result.malformed for result in results)
    return Report(outcome, passed / len(tests), f"{where}: {first.reason}{said}", malformed)


class _Process:
    """The candidate's sandbox, started again when a run took it down."""

    def __init__(self, sandbox: Sandbox, program: Program, limits: SandboxLimits) -> None:
        self._start: Callable[[], Runner] = lambda: sandbox.runner(program, limits)
        self._runner: Runner | None = None

    def run(self, stdin: bytes) -> Ended:
        """Runs it once, from nothing."""
        if self._runner is None:
            self._runner = self._start()
        ended = self._runner.run(stdin)
        if ended.code is None:
            self.close()
        return ended

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _output(ended: Ended, test: OutputTest, tolerance: Tolerance) -> Result:
    failed = failure(ended)
    if failed is not None:
        return failed
    got = ended.stdout.decode("utf-8", "replace")
    if same_output(test.output, got, tolerance):
        return PASSED
    said = f"expected {show(test.output)}, got {show(got)}"
    return Result(Outcome.WRONG, "wrong output", said)


def _value(answer: Answer, test: CallTest, tolerance: Tolerance) -> Result:
    if answer.failed is not None:
        return answer.failed
    if answer.raised is not None:
        return _raised(answer.raised)
    assert answer.value is not None
    if same_value(test.expected, answer.value[0], tolerance):
        return PASSED
    said = f"expected {show(test.expected)}, got {show(answer.value[0])}"
    return Result(Outcome.WRONG, "wrong value", said)


def _raised(raised: tuple[Sequence[str], str]) -> Result:
    names, message = raised
    name = names[0][:60] if names else "an exception"
    if name == "MemoryError":
        return Result(Outcome.TIMEOUT, HOW["memory"])
    return Result(Outcome.WRONG, f"the call raised {name}", message[:120])


def grade_test_code(
    sandbox: Sandbox, candidate: Candidate, checks: Checks, costs: Costs, prefix: str
) -> Report:
    """Runs test code in a sandbox of its own, every call of the candidate in the candidate's.

    Raises:
        SandboxError: no sandbox could be started.
    """
    deadline = time.monotonic() + costs.total_seconds
    each = costs.each
    limits = each.model_copy(update={"cpu_seconds": int(costs.total_seconds) + 1})
    program = Program(("python", "check.py"), guest_files("check"))
    frame: dict[str, Any] = {
        "test_code": checks.test_code,
        "prefix": prefix,
        "entry_point": checks.entry_point,
    }
    with contextlib.ExitStack() as stack:
        tests: Session = stack.enter_context(sandbox.start(program, limits))
        process = stack.enter_context(_Process(sandbox, candidate.program(True), each))
        calls = 0
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                late = f"the tests take more than {costs.total_seconds:g} s"
                return Report(Outcome.TIMEOUT, 0.0, late)
            reply = tests.exchange(json.dumps(frame).encode(), min(left, each.wall_seconds))
            if isinstance(reply, Ended):
                return _tests_ended(reply, calls)
            said = json.loads(reply)
            if "call" not in said:
                return _verdict(said)
            calls += 1
            asked = candidate.call(checks.entry_point or "", **said["call"])
            answer = asked.answer(process.run(asked.stdin))
            if answer.failed is not None:
                failed = answer.failed
                return Report(
                    failed.outcome, 0.0, f"call {calls}: {failed.reason}", failed.malformed
                )
            if answer.raised is not None:
                frame = {"raised": answer.raised[0], "message": answer.raised[1]}
            else:
                assert answer.value is not None
                frame = {"value": answer.value[0]}


def _tests_ended(ended: Ended, calls: int) -> Report:
    """The test code itself did not come to a verdict: what the candidate returned made it, if it
    was called at all.
    """
    how = HOW.get(ended.how, "it ended")
    if calls == 0:
        return Report(Outcome.UNGRADABLE, 0.0, f"test_code: {how} before the first call")
    outcome = Outcome.TIMEOUT if ended.how in LATE else Outcome.WRONG
    return Report(outcome, 0.0, f"test_code, after {calls} calls: {how}")


def _verdict(said: Mapping[str, Any]) -> Report:
    calls = said.get("calls", 0)
    after = f"after {calls} call{'s' * (calls != 1)}"
    if "uncarried" in said:
        why = f"test_code passes an argument that cannot cross: {said['uncarried']}"
        # What is too large may have grown from what the candidate returned; its type has not.
        grown = bool(said.get("large")) and calls > 0
        return Report(Outcome.WRONG if grown else Outcome.UNGRADABLE, 0.0, why)
    if said.get("passed"):
        if calls == 0:
            return Report(Outcome.UNGRADABLE, 0.0, "test_code never called the candidate")
        return Report(Outcome.CORRECT, 1.0)
    failed = str(said.get("failed", "an exception"))[:60]
    if calls == 0:
        message = str(said.get("message", ""))[:120]
        return Report(Outcome.UNGRADABLE, 0.0, f"test_code fails by itself: {failed}: {message}")
    return Report(Outcome.WRONG, 0.0, f"test_code failed with {failed} {after}")
