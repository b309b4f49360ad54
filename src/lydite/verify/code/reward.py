"""The reward that runs a completion's program against its problem's tests."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from lydite.config import UserError
from lydite.types import Outcome, Problem
from lydite.verify.base_config import PoolLimits
from lydite.verify.code.candidate import Result, prepare
from lydite.verify.code.checks import CheckError, Checks, read_checks
from lydite.verify.code.extract import Program, is_code_prefix, read_program, sources
from lydite.verify.code.grade import Costs, Process, Report, grade_tests
from lydite.verify.code.grade_code import TestBench, grade_test_code
from lydite.verify.code.languages import LANGUAGES
from lydite.verify.code.values import Tolerance
from lydite.verify.sandbox import Sandbox, SandboxError
from lydite.verify.score import Score
from lydite.verify.settings import CodeConfig


class CodeReward:
    """1.0 if the program passes every test, else 0.0; or the share of tests that it passes.

    Programs are checked side by side, ``limits.workers`` at once, each in sandboxes of its own. A
    program that passes its limit of time or memory is ``timeout``, a text that turns out to be no
    program ``unparseable``; neither pays. A problem that cannot be checked is ``ungradable``, a
    sandbox that does not start ``crashed``: no reward.
    """

    def __init__(self, config: CodeConfig, name: str, limits: PoolLimits) -> None:
        """
        Raises:
            UserError: no sandbox works on this machine, or the language's tools are not on it.
        """
        self.name = name
        self.weight = config.weight
        self.decides = 2
        self._config = config
        self._language = LANGUAGES[config.language]
        self._language.require()
        self._tolerance = Tolerance(config.relative, config.absolute)
        memory = config.per_test.memory_mb + self._language.memory_mb
        self._costs = Costs(
            config.per_test.model_copy(update={"memory_mb": memory}), config.total_seconds
        )
        # Test code and its candidate take a slot each; with fewer, checks might wait forever.
        self._sandbox = Sandbox(slots=2 * limits.workers)
        if self._language.tools and self._sandbox.backend != "bubblewrap":
            self._sandbox.close()
            raise UserError(
                f"verifier.language {config.language}: needs bubblewrap, which does not work on "
                "this machine (`lydite doctor` says why); language: python does without"
            )
        self._tried: dict[tuple[str, str], tuple[Checks, Report]] = {}
        self._workers = limits.workers
        self._reset()

    def _reset(self) -> None:
        self._owner = os.getpid()
        self._local = threading.local()
        self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="code")

    @property
    def _threads(self) -> ThreadPoolExecutor:
        """Those of this process: a forked one has none of its parent's."""
        if self._owner != os.getpid():
            self._reset()
        return self._pool

    def score(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Score]:
        """One score per completion, in order. A problem whose reference solution does not pass
        its own tests is ``ungradable``.
        """
        distinct = list({id(problem): problem for problem in problems}.values())
        checks = dict(zip(map(id, distinct), self._threads.map(self._sound, distinct), strict=True))
        return list(
            self._threads.map(
                lambda pair: self._score(checks[id(pair[0])], pair[1]),
                zip(problems, texts, strict=True),
            )
        )

    def check_golds(self, problems: Sequence[Problem]) -> list[str | None]:
        """Every problem has tests, and a reference solution passes all of its own."""
        found = self._threads.map(self._sound, problems)
        return [str(sound) if isinstance(sound, CheckError) else None for sound in found]

    def warm(self) -> None:
        """Starts sandboxes, so that the first completion does not wait for them."""
        self._sandbox.warm()

    def close(self) -> None:
        """Ends every sandbox."""
        self._sandbox.close()  # first: what is under way ends with it
        self._threads.shutdown(cancel_futures=True)

    def _bench(self) -> TestBench:
        """This thread's."""
        bench: TestBench | None = getattr(self._local, "bench", None)
        if bench is None:
            bench = self._local.bench = TestBench(self._sandbox, self._costs)
        return bench

    def _process(self) -> Process:
        """This thread's."""
        process: Process | None = getattr(self._local, "process", None)
        if process is None:
            process = self._local.process = Process(self._sandbox, self._costs.each)
        return process

    def _checks(self, problem: Problem) -> Checks | CheckError:
        try:
            checks = read_checks(problem.fields, self._config.shown)
        except CheckError as error:
            return error
        if (checks.calls or checks.test_code) and self._language.call is None:
            return CheckError(
                f"function calls are not checked in {self._language.name}; give tests"
            )
        if self._config.counted == "hidden" and not checks.test_code:
            hidden = checks.only_hidden()
            if not (hidden.outputs or hidden.calls):
                return CheckError("no test is hidden, and only hidden ones count")
            return hidden
        return checks

    def _sound(self, problem: Problem) -> Checks | CheckError:
        """The problem's tests, if its reference solution passes them; tried once."""
        checks = self._checks(problem)
        gold = problem.reference
        if isinstance(checks, CheckError) or gold is None or not self._config.check_golds:
            return checks
        tried = self._tried.get((problem.id, gold))
        if tried is None or tried[0] != checks:
            try:
                report = self._grade(checks, read_program(gold, self._language))
            except SandboxError as error:
                return CheckError(f"the reference solution could not be tried: {error}")
            self._tried[problem.id, gold] = tried = (checks, report)
        report = tried[1]
        if report.outcome is Outcome.CORRECT:
            return checks
        why = report.detail or report.outcome.value
        return CheckError(f"the reference solution does not pass: {why}")

    def _score(self, checks: Checks | CheckError, text: str) -> Score:
        begun = time.perf_counter()
        if isinstance(checks, CheckError):
            return Score(Outcome.UNGRADABLE, None, detail=str(checks))
        config = self._config
        program = read_program(
            text, self._language, config.unfenced, config.thinking, config.max_chars
        )
        try:
            report = self._grade(checks, program)
        except SandboxError as error:
            report = Report(Outcome.CRASHED, 0.0, str(error))
        seconds = time.perf_counter() - begun
        if report.outcome in (Outcome.CRASHED, Outcome.UNGRADABLE):
            return Score(report.outcome, None, program.code, report.detail, seconds)
        if program.code is None:
            return Score(Outcome.UNPARSEABLE, 0.0, None, report.detail, seconds)
        if report.malformed and not program.fenced:
            detail = f"there is no code block, and the text is no program ({report.detail})"
            return Score(Outcome.UNPARSEABLE, 0.0, None, detail, seconds)
        correct = report.outcome is Outcome.CORRECT
        reward = report.share if config.reward == "share" else float(correct)
        return Score(report.outcome, reward, program.code, report.detail, seconds)

    def _grade(self, checks: Checks, program: Program) -> Report:
        if program.code is None:
            return Report(Outcome.UNPARSEABLE, 0.0, program.reason)
        code = sources(program.code, checks.prefix, checks.entry_point)
        process = self._process()
        if self._language.compile:  # the compiler needs the slot
            process.close()
        candidate = prepare(self._sandbox, self._language, code)
        if isinstance(candidate, Result):
            why = f"{candidate.reason}: {candidate.said}" if candidate.said else candidate.reason
            return Report(candidate.outcome, 0.0, why, candidate.malformed)
        if checks.test_code:
            prefix = checks.prefix if is_code_prefix(checks.prefix, checks.entry_point) else ""
            bench = self._bench()
            return grade_test_code(bench, process, candidate, checks, self._costs, prefix)
        to_the_end = self._config.reward == "share"
        return grade_tests(process, candidate, checks, self._costs, self._tolerance, to_the_end)
