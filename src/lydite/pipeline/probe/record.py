"""Completions on disk as they end, so that nothing that was sampled is ever sampled again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TextIO

from lydite.types import (
    BusyEngine,
    Completion,
    Engine,
    OnCompletion,
    Request,
    StreamingEngine,
    Thought,
)
from lydite.watch.files import encodable, full_disk_explained

PIECE = 64
"""Requests at a time of an engine that does not hand completions over as they end."""

Tell = Callable[[int, int], None]
"""Told how many completions are there, and of how many."""


class Record:
    """An append-only file with a line for each completion. Log-probabilities are not kept: those of
    completions read back are 0.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[tuple[str, int], dict[str, Any]] = {}
        self._file: TextIO | None = None
        whole = 0
        if path.is_file():
            for line in path.read_bytes().splitlines(keepends=True):
                if not line.endswith(b"\n"):
                    break  # a kill can cut the last line short
                row = json.loads(line)
                self._known[row["problem"], row["sample"]] = row
                whole += len(line)
            if whole < path.stat().st_size:
                with path.open("r+b") as file:
                    file.truncate(whole)

    def __enter__(self) -> Record:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("a", encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def get(self, request: Request, sample: int) -> Completion | None:
        """A completion that was sampled before."""
        row = self._known.get((request.problem_id, sample))
        if row is None:
            return None
        tokens = tuple(row["tokens"])
        mask = (1,) * len(tokens) if row["mask"] is None else tuple(row["mask"])
        thought = None if row["thought"] is None else Thought(**row["thought"])
        return Completion(
            request.problem_id,
            sample,
            request.prompt_ids,
            tokens,
            (0.0,) * len(tokens),
            mask,
            row["finish"],
            row["text"],
            thought=thought,
        )

    def add(self, completion: Completion) -> None:
        """Writes one; the operating system has it when this returns."""
        assert self._file is not None, "inside a with block"
        thought = completion.thought
        row = {
            "problem": completion.problem_id,
            "sample": completion.sample,
            "finish": completion.finish,
            "text": encodable(completion.text),
            "tokens": list(completion.token_ids),
            "mask": None if all(completion.loss_mask) else list(completion.loss_mask),
            "thought": None if thought is None else asdict(thought),
        }
        with full_disk_explained(self._path):
            self._file.write(json.dumps(row, ensure_ascii=False) + "\n")
            self._file.flush()


class RecordedEngine:
    """An engine that samples only what the record lacks."""

    def __init__(self, engine: Engine, record: Record, tell: Tell) -> None:
        self.version = engine.version
        self._engine = engine
        self._record = record
        self._tell = tell

    @property
    def busy(self) -> bool:
        """See :class:`lydite.types.BusyEngine`."""
        return isinstance(self._engine, BusyEngine) and self._engine.busy

    def generate(self, requests: Sequence[Request]) -> list[list[Completion]]:
        """See :class:`lydite.types.Engine`."""
        return self.stream(requests, lambda *_: None)

    def stream(
        self, requests: Sequence[Request], on_completion: OnCompletion
    ) -> list[list[Completion]]:
        """See :class:`lydite.types.StreamingEngine`."""
        found: list[dict[int, Completion]] = [{} for _ in requests]
        total = sum(request.samples for request in requests)
        asked: list[Request] = []
        whose: list[int] = []
        for number, request in enumerate(requests):
            missing = []
            for sample in range(request.first_sample, request.first_sample + request.samples):
                known = self._record.get(request, sample)
                if known is None:
                    missing.append(sample)
                else:
                    found[number][sample] = known
                    on_completion(number, known)
            for first, count in _runs(missing):
                asked.append(replace(request, first_sample=first, samples=count))
                whose.append(number)
        done = sum(map(len, found))
        self._tell(done, total)

        def keep(place: int, completion: Completion) -> None:
            nonlocal done
            self._record.add(completion)
            found[whose[place]][completion.sample] = completion
            done += 1
            self._tell(done, total)
            on_completion(whose[place], completion)

        self._ask(asked, keep)
        return [[each[sample] for sample in sorted(each)] for each in found]

    def _ask(self, asked: Sequence[Request], keep: OnCompletion) -> None:
        if not asked:
            return
        if isinstance(self._engine, StreamingEngine):
            self._engine.stream(asked, keep)
            return
        for start in range(0, len(asked), PIECE):
            for place, group in enumerate(self._engine.generate(asked[start : start + PIECE])):
                for completion in group:
                    keep(start + place, completion)


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and length of each run of consecutive numbers."""
    start = 0
    for place in range(1, len(numbers) + 1):
        if place == len(numbers) or numbers[place] != numbers[place - 1] + 1:
            yield numbers[start], place - start
            start = place
