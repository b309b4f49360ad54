"""A file of completions through a verifier: a verdict a line, and how it fared against what was
expected.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO

from lydite.config import UserError
from lydite.types import Outcome, Verdict
from lydite.verify.compose import ComposedVerifier
from lydite.verify.function import TRIED, FunctionReward
from lydite.verify.rows import Row, count_rows, read_rows
from lydite.verify.score import Compares, Reports, Table
from lydite.verify.settings import FunctionConfig, VerifierConfig, all_rewards
from lydite.verify.verifier import build

Progress = Callable[[int, int], None]
Scored = tuple[Row, Verdict, float]

CHUNK = 4
"""Lines that are handed over together: few, since the slowest of them holds up the others' news."""

MAX_TOGETHER = 1000
"""Lines of one problem that are handed over together where a reward compares them."""

UNDECIDED_SHOWN = 10


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """How a verifier fared on a file.

    ``outcomes`` counts verdicts. ``false_positives`` and ``false_negatives`` hold the line numbers
    accepted against ``expected`` and refused against it; of the ``judged`` lines, which leave out
    the ``contested`` ones, those without ``expected`` and the ``undecided`` (no reward).
    ``unsure`` holds the first lines of all without a reward, and why. ``rewards`` holds up to two
    different rewards that were paid: one alone tells nothing apart. ``tables`` are what the
    rewards have to report themselves. Times are wall seconds per item.
    """

    total: int
    outcomes: Mapping[Outcome, int]
    judged: int
    contested: int
    undecided: int
    false_positives: Sequence[int] = field(default_factory=tuple)
    false_negatives: Sequence[int] = field(default_factory=tuple)
    median_seconds: float = 0.0
    p95_seconds: float = 0.0
    unsure: Sequence[tuple[int, str]] = field(default_factory=tuple)
    rewards: Sequence[float] = field(default_factory=tuple)
    tables: Sequence[Table] = field(default_factory=tuple)


def verify_file(
    path: Path, config: VerifierConfig, output: Path | None = None, progress: Progress | None = None
) -> VerifyReport:
    """Scores every line of a JSONL file; see :func:`lydite.verify.rows.read_row` for its keys.

    Every line is read and checked before anything is scored, and read again then: what is held in
    memory does not grow with the file but for a number a line. Reward functions are tried first,
    as before a run. Lines are checked side by side, as many as there are workers; ``output`` gets
    a line for each input line, in order: ``id`` (if the input has one), ``outcome``, ``reward``,
    ``answer``, ``parts``, ``detail``. It is written beside its place and renamed at the end, so a
    run that stops leaves what was there. ``progress(done, total)`` is called as verdicts come in.

    Raises:
        UserError: the file is missing, empty or has a bad line; the output cannot be written; a
        reward function is at fault.
    """
    total = count_rows(path)
    if output is not None and output.resolve() == path.resolve():
        raise UserError(f"--output {output}: it is the input; give another file")
    verifier = build(config)
    tally = _Tally()
    try:
        verifier.warm()
        with _replacing(output) as file:
            _try_functions(verifier, path)
            together = any(isinstance(reward, Compares) for reward in verifier.rewards)
            most = MAX_TOGETHER if together else 0
            rows = read_rows(path)
            for row, verdict, seconds in _score(verifier, rows, _threads(config), most):
                tally.add(row, verdict, seconds)
                if file is not None:
                    file.write(_line(row, verdict))
                if progress is not None:
                    progress(tally.total, total)
    except OSError as error:
        if output is None:
            raise
        raise UserError(
            f"--output {output}: {error.strerror or error}; free some space or give another place"
        ) from error
    finally:
        verifier.close()
    tables = [
        table
        for reward in verifier.rewards
        if isinstance(reward, Reports)
        for table in reward.tables()
    ]
    return tally.report(tables)


def _try_functions(verifier: ComposedVerifier, path: Path) -> None:
    """Calls every reward function on the first problems, two completions each, as before a run:
    a file of one completion a problem would not tell that it returns one number for any list.
    """
    problems = [row.problem for row in islice(read_rows(path), TRIED)]
    for part in verifier.leaves:
        if isinstance(part.reward, FunctionReward):
            part.check_golds(problems)


def _threads(config: VerifierConfig) -> int:
    """How many chunks are under way at a time: enough that no worker waits for the slowest item
    of a chunk; one where a function of the user's runs here, since it need not be thread-safe.
    """
    inline = any(
        isinstance(reward, FunctionConfig) and reward.isolation == "inline"
        for reward in all_rewards(config.rewards)
    )
    return 1 if inline else 2 * config.limits.workers + 2


def _score(
    verifier: ComposedVerifier, rows: Iterator[Row], threads: int, together: int = 0
) -> Iterator[Scored]:
    """Verdicts in the order of the rows, of which no more than ``CHUNK`` (or ``together``) times
    twice the threads are held at a time.
    """

    def score(chunk: list[Row]) -> list[Scored]:
        done = verifier.verify_timed(
            [row.problem for row in chunk], [row.completion for row in chunk]
        )
        return [(row, *result) for row, result in zip(chunk, done, strict=True)]

    chunks = _chunks(rows, together)
    under_way: deque[Future[list[Scored]]] = deque()
    executor = ThreadPoolExecutor(threads, thread_name_prefix="verify-file")
    try:
        while True:
            while len(under_way) < 2 * threads and (chunk := next(chunks, None)):
                under_way.append(executor.submit(score, chunk))
            if not under_way:
                return
            yield from under_way.popleft().result()
    finally:
        if under_way:  # stopped half-way: what is with the workers ends with them
            executor.shutdown(wait=False, cancel_futures=True)
            verifier.close()
        executor.shutdown()


def _chunks(rows: Iterator[Row], together: int) -> Iterator[list[Row]]:
    """:data:`CHUNK` rows each, and those of one problem that stand side by side with them, up to
    ``together``: a reward may compare them.
    """
    if not together:
        while chunk := list(islice(rows, CHUNK)):
            yield chunk
        return
    chunk = []
    for row in rows:
        same = bool(chunk) and chunk[-1].problem.id == row.problem.id and len(chunk) < together
        if len(chunk) >= CHUNK and not same:
            yield chunk
            chunk = []
        chunk.append(row)
    if chunk:
        yield chunk


def _line(row: Row, verdict: Verdict) -> str:
    record = {
        **({} if row.id is None else {"id": row.id}),
        "outcome": verdict.outcome.value,
        "reward": verdict.reward,
        "answer": verdict.answer,
        "parts": dict(verdict.parts),
        "detail": verdict.detail,
    }
    return json.dumps(record, ensure_ascii=False) + "\n"


@contextlib.contextmanager
def _replacing(output: Path | None) -> Iterator[IO[str] | None]:
    """A file beside ``output`` that takes its place when the block ends well and is removed when
    it does not.
    """
    if output is None:
        yield None
        return
    if not output.parent.is_dir() or output.is_dir():
        raise UserError(
            f"--output {output}: not a file in an existing folder; make the folder first"
        )
    _clear_drafts(output)
    draft = output.with_name(f".{output.name}.{os.getpid()}.part")
    try:
        with draft.open("w", encoding="utf-8", errors="backslashreplace") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(output)
    finally:
        draft.unlink(missing_ok=True)


def _clear_drafts(output: Path) -> None:
    """Removes what processes that were killed had begun to write; those that live keep theirs."""
    for draft in output.parent.glob(f".{glob.escape(output.name)}.*.part"):
        number = draft.name.removeprefix(f".{output.name}.").removesuffix(".part")
        if number.isascii() and number.isdigit() and not _lives(int(number)):
            draft.unlink(missing_ok=True)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def summarise(scored: Iterable[Scored], tables: Sequence[Table] = ()) -> VerifyReport:
    """The report on rows with their verdicts and seconds. A completion is accepted if its outcome
    is correct.
    """
    tally = _Tally()
    for row, verdict, seconds in scored:
        tally.add(row, verdict, seconds)
    return tally.report(tables)


class _Tally:
    """The counts so far. Of each line only its seconds are kept, and its number if judged wrongly.

    Times are of what was graded; a line that a reward could not decide counts with what it took.
    """

    def __init__(self) -> None:
        self.total = 0
        self._outcomes: Counter[Outcome] = Counter()
        self._judged = self._undecided = self._contested = 0
        self._accepted = array("Q")
        self._refused = array("Q")
        self._seconds = array("d")
        self._unsure: list[tuple[int, str]] = []
        self._rewards: list[float] = []

    def add(self, row: Row, verdict: Verdict, seconds: float) -> None:
        """Counts one line."""
        self.total += 1
        self._outcomes[verdict.outcome] += 1
        self._seconds.append(seconds)
        self._contested += row.contested
        if verdict.reward is None:
            if len(self._unsure) < UNDECIDED_SHOWN:
                self._unsure.append((row.line, verdict.detail))
        elif len(self._rewards) < 2 and verdict.reward not in self._rewards:
            self._rewards.append(verdict.reward)
        if row.expected is None or row.contested:
            return
        if verdict.reward is None:
            self._undecided += 1
            return
        self._judged += 1
        accepted = verdict.outcome is Outcome.CORRECT
        if accepted != row.expected:
            (self._accepted if accepted else self._refused).append(row.line)

    def report(self, tables: Sequence[Table]) -> VerifyReport:
        """The counts as they stand."""
        seconds = sorted(self._seconds)
        return VerifyReport(
            total=self.total,
            outcomes=dict(self._outcomes),
            judged=self._judged,
            contested=self._contested,
            undecided=self._undecided,
            false_positives=list(self._accepted),
            false_negatives=list(self._refused),
            median_seconds=_quantile(seconds, 0.5),
            p95_seconds=_quantile(seconds, 0.95),
            unsure=self._unsure,
            rewards=self._rewards,
            tables=tables,
        )


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Linear interpolation between the nearest ranks of an ascending sequence."""
    if not ordered:
        return 0.0
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
