"""A file of completions through a verifier: a verdict a line, and how it fared against what was
expected.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any

from lydite.config import UserError
from lydite.types import Outcome, Problem, Verdict
from lydite.verify.settings import VerifierConfig
from lydite.verify.verifier import build

Progress = Callable[[int, int], None]
_OWN_KEYS = frozenset({"id", "gold", "completion", "expected", "contested", "question", "tag"})


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the input. ``expected`` is whether the completion should be accepted, if the
    file says.
    """

    line: int
    id: str | int | None
    problem: Problem
    completion: str
    expected: bool | None = None
    contested: bool = False


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """How a verifier fared on a file.

    ``outcomes`` counts verdicts. ``false_positives`` and ``false_negatives`` hold the line numbers
    accepted against ``expected`` and refused against it; of the ``judged`` lines, which leave out
    the ``contested`` ones, those without ``expected`` and the ``undecided`` (no reward).
    ``open_line`` is the first line of all without a reward, and ``open_detail`` says why. Times are
    wall seconds per item.
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
    open_line: int | None = None
    open_detail: str = ""


def verify_file(
    path: Path, config: VerifierConfig, output: Path | None = None, progress: Progress | None = None
) -> VerifyReport:
    """Scores every line of a JSONL file; see :func:`read_row` for its keys.

    The whole file is read and checked before anything is scored. ``output`` gets a line for each
    input line, in order: ``id`` (if the input has one), ``outcome``, ``reward``, ``answer``,
    ``parts``, ``detail``. It is written beside its place and renamed at the end, so a run that
    stops leaves what was there. ``progress(done, total)`` is called as verdicts come in.

    Raises:
        UserError: the file is missing, empty or has a bad line; the output cannot be written; a
        reward function is at fault.
    """
    rows = read_rows(path)
    if output is not None and output.resolve() == path.resolve():
        raise UserError(f"--output {output}: it is the input; give another file")
    verifier = build(config)
    scored: list[tuple[Verdict, float]] = []
    try:
        verifier.warm()
        with _replacing(output) as file:
            remaining = iter(rows)
            while chunk := list(islice(remaining, 16 * config.limits.workers)):
                done = verifier.verify_timed(
                    [row.problem for row in chunk], [row.completion for row in chunk]
                )
                scored += done
                if file is not None:
                    file.writelines(
                        _line(row, verdict) for row, (verdict, _) in zip(chunk, done, strict=True)
                    )
                if progress is not None:
                    progress(len(scored), len(rows))
    except OSError as error:
        raise UserError(
            f"--output {output}: {error.strerror or error}; free some space or give another place"
        ) from error
    finally:
        verifier.close()
    return summarise(rows, scored)


def read_rows(path: Path) -> list[Row]:
    """Every line of the file that is not blank.

    Raises:
        UserError: no such file, none with a line, or a bad line, named with its number.
    """
    if not path.is_file():
        raise UserError(f"--input {path}: no such file")
    rows = []
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                rows.append(read_row(line, number, path))
    if not rows:
        raise UserError(
            f"--input {path}: the file is empty; write a JSON object with gold and completion on "
            f"each line"
        )
    return rows


def read_row(line: str, number: int, path: Path) -> Row:
    """One line: ``gold`` (text or a number; may be missing for rewards without a reference),
    ``completion``, and if known ``expected`` (bool), ``contested`` (bool: left out of the count),
    ``id``; every other key is a column for functions.

    Raises:
        UserError: not a JSON object, or a key of the wrong type.
    """
    where = f"{path}:{number}"
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not JSON: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{where}: expected a JSON object, got {type(values).__name__}")
    completion = values.get("completion")
    if not isinstance(completion, str):
        raise UserError(f"{where}: completion: expected text, got {_kind(values, 'completion')}")
    gold = values.get("gold")
    if isinstance(gold, bool) or not isinstance(gold, str | int | float | None):
        raise UserError(f"{where}: gold: expected text or a number, got {_kind(values, 'gold')}")
    for key in ("expected", "contested"):
        if not isinstance(values.get(key), bool | None):
            raise UserError(f"{where}: {key}: expected true or false, got {_kind(values, key)}")
    row_id = values.get("id")
    problem = Problem(
        id=str(row_id if row_id is not None else f"line {number}"),
        question=str(values.get("question", "")),
        messages=(),
        reference=None if gold is None else str(gold),
        tag=str(values.get("tag", "")),
        fields={key: value for key, value in values.items() if key not in _OWN_KEYS},
    )
    return Row(
        number, row_id, problem, completion, values.get("expected"), bool(values.get("contested"))
    )


def _kind(values: Mapping[str, Any], key: str) -> str:
    return type(values[key]).__name__ if key in values else "nothing"


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
    draft = output.with_name(f".{output.name}.{os.getpid()}.part")
    try:
        with draft.open("w", encoding="utf-8", errors="surrogatepass") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(output)
    finally:
        draft.unlink(missing_ok=True)


def summarise(rows: Sequence[Row], scored: Sequence[tuple[Verdict, float]]) -> VerifyReport:
    """The report on verdicts and seconds that are parallel to the rows. A completion is accepted
    if its outcome is correct.
    """
    judged = [
        (row, verdict)
        for row, (verdict, _) in zip(rows, scored, strict=True)
        if row.expected is not None and not row.contested
    ]
    decided = [(row, verdict) for row, verdict in judged if verdict.reward is not None]
    seconds = sorted(spent for _, spent in scored)
    unsure = [
        (row.line, verdict.detail)
        for row, (verdict, _) in zip(rows, scored, strict=True)
        if verdict.reward is None
    ]
    open_line, open_detail = unsure[0] if unsure else (None, "")
    return VerifyReport(
        total=len(rows),
        outcomes=Counter(verdict.outcome for verdict, _ in scored),
        judged=len(decided),
        contested=sum(row.contested for row in rows),
        undecided=len(judged) - len(decided),
        false_positives=[
            row.line
            for row, verdict in decided
            if verdict.outcome is Outcome.CORRECT and not row.expected
        ],
        false_negatives=[
            row.line
            for row, verdict in decided
            if verdict.outcome is not Outcome.CORRECT and row.expected
        ],
        median_seconds=_quantile(seconds, 0.5),
        p95_seconds=_quantile(seconds, 0.95),
        open_line=open_line,
        open_detail=open_detail,
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Linear interpolation between the nearest ranks of an ascending sequence."""
    if not ordered:
        return 0.0
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
