"""The reward that asks a language model whether an answer is correct.

A judge is a grader that can be talked to, so what it is given is as little as decides the case (the
final answer, capped, closed in), what it says is read strictly, and answers known to be wrong go
along with the others: accepted past a set rate, they stop the run. Anything but a clear verdict is
``ungradable``, never a 0.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from lydite.config import UserError
from lydite.remote import Declined, Down
from lydite.types import Outcome, Problem, Unit
from lydite.verify.answer import FinalAnswer, after_thinking, read_answer
from lydite.verify.final import NO_REFERENCE
from lydite.verify.function import TRIED
from lydite.verify.judge.cache import Verdicts, key_of
from lydite.verify.judge.canary import Canaries, Canary
from lydite.verify.judge.config import JudgeConfig
from lydite.verify.judge.prompt import (
    WITH_REFERENCE,
    WITHOUT_REFERENCE,
    Case,
    Said,
    Unreadable,
    messages,
    read_verdict,
)
from lydite.verify.judge.server import ChatServer
from lydite.verify.score import Score, Table
from lydite.verify.spoken import part_of

EARLIER = 8
"""Problems of earlier calls that are remembered."""
PATIENCE = 3
"""Requests in a row that come to nothing before the rest of a batch is not sent."""


class _Outage:
    """Whether a batch still asks: a server that is down is not asked for every answer in turn."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_a_row = 0
        self.line: str | None = None

    def failed(self, line: str) -> None:
        with self._lock:
            self._in_a_row += 1
            if self._in_a_row >= PATIENCE:
                self.line = line

    def answered(self) -> None:
        with self._lock:
            self._in_a_row = 0


Result = tuple[Said | str, float]
"""What the judge said, or why it said nothing; and the seconds it took."""


class JudgeReward:
    """1.0 if the judge finds the answer correct, 0.0 if incorrect; no reward without a verdict."""

    def __init__(self, config: JudgeConfig, name: str) -> None:
        """
        Raises:
            UserError: the key is not in its environment variable, or verdicts cannot be kept.
        """
        self.name = name
        self.weight = config.weight
        self.decides = 1
        self.unit: Unit = "problem"  # equal answers to a problem are asked about once
        self._config = config
        self._server = ChatServer(config, name)
        self._verdicts = Verdicts(config.cache, name)
        self._canaries = Canaries(config.canaries.share, config.canaries.rate)
        self._threads = ThreadPoolExecutor(config.requests.concurrency, thread_name_prefix="judge")
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._earlier: deque[Problem] = deque(maxlen=EARLIER)

    def score(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Score]:
        """One score per completion, in order. Equal answers to a problem are asked about once.

        Raises:
            UserError: the judge accepts answers known to be wrong; or its address, its model's
                name or its key is wrong.
        """
        answers = [self._read(text) for text in texts]
        cases = [
            None
            if answer.text is None or self._unfit(problem)
            else self._case(problem, answer.text)
            for problem, answer in zip(problems, answers, strict=True)
        ]
        found = self._judge([case for case in cases if case is not None], problems)
        return [
            self._score(problem, answer, None if case is None else found[case])
            for problem, answer, case in zip(problems, answers, cases, strict=True)
        ]

    def check_golds(self, problems: Sequence[Problem]) -> list[str | None]:
        """Every problem has a reference if it is shown; and for the first few problems, the judge
        accepts it and refuses what is known to be wrong.

        Raises:
            UserError: as :meth:`score`; or the judge does not answer.
        """
        faults = [self._unfit(problem) for problem in problems]
        tried = [p for p, fault in zip(problems, faults, strict=True) if fault is None][:TRIED]
        golds = {p.id: self._case(p, p.reference) for p in tried if p.reference is not None}
        found = self._judge(list(golds.values()), tried)
        for index, problem in enumerate(problems):
            said = found[golds[problem.id]][0] if problem.id in golds else None
            if isinstance(said, str):
                raise UserError(f"{self.name}: {said}")
            if said is not None and not said.correct:
                faults[index] = f"the judge does not accept it: {said.reason or 'without a reason'}"
        return faults

    def warm(self) -> None:
        """There is nothing to start: the server is another's."""

    def close(self) -> None:
        """Gives up what is under way."""
        self._server.close()
        self._threads.shutdown(cancel_futures=True)
        self._verdicts.close()

    def tables(self) -> list[Table]:
        """How the judge was used, and what it made of the canaries."""
        given = self._canaries.given
        rows = [
            (f"{kind!r}", str(count), str(self._canaries.accepted[kind]))
            for kind, count in sorted(given.items())
        ]
        judged, kept = self._counts["judged"], self._counts["kept"]
        note = f"answers judged by {self._config.model}: {judged}; taken from the cache: {kept}"
        title = f"{self.name}: known wrong answers"
        return [Table(title, ("answer", "given", "accepted"), rows, note)] if rows else []

    def _read(self, text: str) -> FinalAnswer:
        config = self._config
        if config.shows == "answer":
            return read_answer(
                text, config.answer, config.marker, config.thinking, config.max_chars, config.strict
            )
        whole = config.shows == "whole"
        spoken = (
            FinalAnswer(part_of(text, "whole")) if whole else after_thinking(text, config.thinking)
        )
        if spoken.text is None:
            return spoken
        if not spoken.text.strip():
            nothing = "the completion is empty" if whole else "nothing follows the thinking"
            return FinalAnswer(None, nothing)
        if len(spoken.text) > config.max_chars:
            count = len(spoken.text)
            return FinalAnswer(
                None, f"the response has {count} characters, more than {config.max_chars}"
            )
        return FinalAnswer(spoken.text.strip())

    def _unfit(self, problem: Problem) -> str | None:
        needed = self._config.reference and not (problem.reference or "").strip()
        return NO_REFERENCE if needed else None

    def _case(self, problem: Problem, candidate: str) -> Case:
        shown = self._config.reference
        default = WITH_REFERENCE if shown else WITHOUT_REFERENCE
        rubric = problem.fields.get("rubric") or self._config.rubric or default
        question = problem.question or next(
            (m.content for m in reversed(problem.messages) if m.role == "user"), ""
        )
        return Case(str(rubric), question, problem.reference if shown else None, candidate)

    def _judge(self, cases: Sequence[Case], problems: Sequence[Problem]) -> dict[Case, Result]:
        """What the judge says of each case, kept verdicts first, with canaries among the others."""
        keys = {case: key_of(self._config, case) for case in dict.fromkeys(cases)}
        kept = {case: old for case, key in keys.items() if (old := self._verdicts.get(key))}
        asked = [case for case in keys if case not in kept]
        outage = _Outage()
        dealt = self._canaries.deal(self._several(problems) if asked else [], len(asked))
        proofs = [
            (canary, self._submit(self._case(canary.problem, canary.text), outage))
            for canary in dealt
            if self._unfit(canary.problem) is None
        ]
        replies = [(case, self._submit(case, outage)) for case in asked]
        try:
            for canary, proof in proofs:
                self._count(canary, proof)
            results = {case: reply.result() for case, reply in replies}
        finally:
            for _, future in (*proofs, *replies):
                future.cancel()
        for case, (said, _) in results.items():
            if isinstance(said, Said):
                self._verdicts.put(keys[case], said)
        with self._lock:
            self._counts["judged"] += sum(isinstance(said, Said) for said, _ in results.values())
            self._counts["kept"] += len(kept)
        return {**results, **{case: (old, 0.0) for case, old in kept.items()}}

    def _several(self, problems: Sequence[Problem]) -> list[Problem]:
        """The problems of a call, each once; with earlier ones beside a single one, since some
        canaries are the answer to another problem.
        """
        own = {problem.id: problem for problem in problems}
        with self._lock:
            earlier = list(self._earlier) if len(own) == 1 else []
            self._earlier.extend(own.values())
        return list({**{problem.id: problem for problem in earlier}, **own}.values())

    def _submit(self, case: Case, outage: _Outage) -> Future[Result]:
        return self._threads.submit(self._ask, case, outage)

    def _count(self, canary: Canary, proof: Future[Result]) -> None:
        said, _ = proof.result()
        if isinstance(said, Said):
            self._canaries.count(canary, said.correct)
        alarm = self._canaries.alarm()
        if alarm is not None:
            raise UserError(f"{self.name}: {self._config.model} is no judge to train by: {alarm}")

    def _ask(self, case: Case, outage: _Outage) -> Result:
        if outage.line is not None:
            return outage.line, 0.0
        begun = time.perf_counter()
        said: Said | str
        try:
            said = read_verdict(self._server.ask(messages(case)))
            outage.answered()
        except Down as error:
            said = str(error)
            outage.failed(said)
        except (Declined, Unreadable) as error:
            said = str(error)
            outage.answered()
        return said, time.perf_counter() - begun

    def _score(self, problem: Problem, answer: FinalAnswer, found: Result | None) -> Score:
        unfit = self._unfit(problem)
        if unfit is not None:
            return Score(Outcome.UNGRADABLE, None, answer.text, unfit)
        if found is None:
            return Score(Outcome.UNPARSEABLE, 0.0, detail=answer.reason)
        said, seconds = found
        if isinstance(said, str):
            return Score(Outcome.UNGRADABLE, None, answer.text, said, seconds)
        outcome = Outcome.CORRECT if said.correct else Outcome.WRONG
        return Score(outcome, float(said.correct), answer.text, said.reason, seconds)
