"""One program against one problem's tests: run in the sandbox, compared here.

The candidate's process is given inputs, one a process, and says bytes. It never holds an expected
output, never shares an interpreter with a comparison, and its exit code alone proves nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from lydite.types import Outcome
from lydite.verify.code.candidate import HOW, Answer, Candidate, Result, failure
from lydite.verify.code.checks import CallTest, Checks, OutputTest
from lydite.verify.code.stdout import same_output
from lydite.verify.code.values import Tolerance, same_value, show
from lydite.verify.sandbox import Ended, Program, Runner, Sandbox, SandboxError, SandboxLimits


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
MOST_LOADS = 64
"""Candidates that a sandbox is used for: what they may leave in its kernel objects has an end."""


def grade_tests(
    process: Process,
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
    process.load(candidate.program(bool(checks.calls)))
    for test in tests:
        if time.monotonic() >= deadline:
            late = f"the tests take more than {costs.total_seconds:g} s together"
            results.append(Result(Outcome.TIMEOUT, late))
            break
        if isinstance(test, OutputTest):
            room = (len(test.output) * 4 >> 10) + 64
            ended = process.run(test.input.encode("utf-8", "replace"), room)
            result = _output(ended, test, tolerance)
        else:
            asked = candidate.call(checks.entry_point or "", test.args, test.kwargs)
            ended = process.run(asked.stdin, test.room)
            result = _value(asked.answer(ended), test, tolerance)
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


class Process:
    """Where one thread's candidates are run, one after another, each run from nothing.

    A sandbox is used again as long as programs end by themselves in it: one that had to be killed,
    or went past a limit, takes its sandbox with it. Not thread-safe.
    """

    def __init__(self, sandbox: Sandbox, limits: SandboxLimits) -> None:
        self._sandbox = sandbox
        self._limits = limits
        self._program = Program(("python",))
        self._runner: Runner | None = None
        self._loads = 0

    def load(self, program: Program) -> None:
        """Takes the program that is run from now on, even if it is the same: what a sandbox
        remembers of one candidate is no other's to read.
        """
        if self._loads >= MOST_LOADS or self._program.visible != program.visible:
            self.close()
        self._program = program
        self._loads += 1
        if self._runner is not None:
            try:
                self._runner.load(program)
            except SandboxError:
                self.close()

    def run(self, stdin: bytes, output_kb: int = 0) -> Ended:
        """Runs the program once; ``output_kb`` is what it has to write, at most.

        Raises:
            SandboxError: no sandbox could be started, or it did not close around the program.
        """
        if self._runner is None:
            self._runner, self._loads = self._sandbox.runner(self._program, self._limits), 1
        try:
            ended = self._runner.run(stdin, output_kb)
        except SandboxError:
            self.close()
            raise
        if ended.how != "exited":
            self.close()
        return ended

    def close(self) -> None:
        """Ends the sandbox; the next run starts another."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None


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
