"""Test code against a program: each in its sandbox, the host between them.

The test code never meets the candidate: its stand-in sends arguments out and gets data back.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from lydite.types import Outcome
from lydite.verify.code.candidate import HOW, LATE, Answer, Candidate
from lydite.verify.code.checks import Checks
from lydite.verify.code.grade import Costs, Process, Report
from lydite.verify.code.guest import guest_files
from lydite.verify.sandbox import Ended, Program, Sandbox, Session


class TestBench:
    """Where test code is run, one check after another, each from a fresh process.

    Test code is trusted, and what it is given is plain data, so its sandbox outlives a check where
    it may start processes (bubblewrap). It has limits all the same. Not thread-safe.
    """

    __test__ = False  # the name is no test's

    def __init__(self, sandbox: Sandbox, costs: Costs) -> None:
        self._sandbox = sandbox
        self._costs = costs
        self._session: Session | None = None
        self.once = sandbox.backend != "bubblewrap"

    def ask(self, frame: Mapping[str, Any], seconds: float) -> dict[str, Any] | Ended:
        """What the test code says next, or how it ended.

        Raises:
            SandboxError: no sandbox could be started.
        """
        if self._session is None:
            # One process waits while its child runs a check.
            processes = 1 if self.once else 2
            limits = {"processes": processes, "cpu_seconds": int(self._costs.total_seconds) + 1}
            self._session = self._sandbox.start(
                Program(("python", "check.py"), guest_files("check")),
                self._costs.each.model_copy(update=limits),
            )
        reply = self._session.exchange(json.dumps(frame).encode(), seconds)
        if isinstance(reply, Ended):
            self.close()
            return reply
        said: dict[str, Any] = json.loads(reply)
        return said

    def abandon(self) -> None:
        """Ends a check that waits for an answer."""
        if self._session is not None and not self.once:
            self.ask({"abandon": True}, self._costs.each.wall_seconds)

    def close(self) -> None:
        """Ends the sandbox; the next check starts another."""
        if self._session is not None:
            self._session.close()
            self._session = None


def grade_test_code(
    bench: TestBench,
    process: Process,
    candidate: Candidate,
    checks: Checks,
    costs: Costs,
    prefix: str,
) -> Report:
    """Runs test code; every call of the candidate is a fresh process in the candidate's sandbox.

    Raises:
        SandboxError: no sandbox could be started.
    """
    try:
        process.load(candidate.program(True))
        report = _converse(bench, process, candidate, checks, costs, prefix)
        if bench.once:
            bench.close()
        return report
    except BaseException:
        bench.close()  # its test code still waits for an answer
        raise


def _converse(
    bench: TestBench,
    process: Process,
    candidate: Candidate,
    checks: Checks,
    costs: Costs,
    prefix: str,
) -> Report:
    deadline = time.monotonic() + costs.total_seconds
    name = checks.entry_point or ""
    frame: dict[str, Any] = {
        "test_code": checks.test_code,
        "prefix": prefix,
        "entry_point": name,
        "once": bench.once,
    }
    calls = 0
    while True:
        left = deadline - time.monotonic()
        said = bench.ask(frame, min(max(left, 0.0), costs.each.wall_seconds))
        if isinstance(said, Ended):
            return _tests_ended(said, calls)
        if "call" not in said:
            return _verdict(said)
        calls += 1
        asked = candidate.call(name, **said["call"])
        answer = asked.answer(process.run(asked.stdin))
        if answer.failed is not None:
            bench.abandon()
            why = f"call {calls}: {answer.failed.reason}"
            return Report(answer.failed.outcome, 0.0, why, answer.failed.malformed)
        frame = _frame(answer)


def _frame(answer: Answer) -> dict[str, Any]:
    if answer.raised is not None:
        return {"raised": answer.raised[0], "message": answer.raised[1]}
    assert answer.value is not None
    return {"value": answer.value[0]}


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
