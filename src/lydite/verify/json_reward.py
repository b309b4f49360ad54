"""The reward that reads JSON, compares it as data and fits it to a schema."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lydite.types import Outcome, Problem
from lydite.verify.json_data import Leniency, NotJson, find_json, read_json, same_data
from lydite.verify.pool import Item, Pool, Reply
from lydite.verify.schema import schema_fault
from lydite.verify.score import Score
from lydite.verify.text_config import JsonConfig


class Unusable(Exception):
    """A problem whose reference or schema cannot be used, in one line."""


@dataclass(frozen=True, slots=True)
class _Demand:
    """What a problem asks for: data to be equal to (in a tuple of one, since null is data), and a
    schema as JSON text.
    """

    gold: tuple[Any, ...]
    schema: str | None


class JsonReward:
    """1.0 if the data equals the reference and fits the schema, else 0.0."""

    def __init__(
        self, config: JsonConfig, name: str, pool: Pool, handler: int, seconds: float
    ) -> None:
        self.name = name
        self.weight = config.weight
        self.decides = 2 if config.compare else 1
        self._config = config
        self._pool = pool
        self._handler = handler
        self._seconds = seconds
        self._leniency = Leniency(config.unordered, config.tolerance)

    def score(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Score]:
        """One score per completion, in order."""
        known: dict[int, _Demand | str] = {}
        for problem in problems:
            if id(problem) not in known:
                known[id(problem)] = self._known(problem)
        begun = [self._begin(known[id(p)], text) for p, text in zip(problems, texts, strict=True)]
        replies = iter(self._pool.run([item for _, item in begun if item is not None]))
        return [score if item is None else _fitted(score, next(replies)) for score, item in begun]

    def check_golds(self, problems: Sequence[Problem]) -> list[str | None]:
        """The reference must be JSON and fit its own schema; a schema must be one."""
        found = [self._known(problem) for problem in problems]
        asked = [
            (index, Item(self._handler, (demand.schema, json.dumps(demand.gold[0])), self._seconds))
            for index, demand in enumerate(found)
            if isinstance(demand, _Demand) and demand.schema is not None and demand.gold
        ]
        faults = [demand if isinstance(demand, str) else None for demand in found]
        for (index, _), reply in zip(asked, self._pool.run([i for _, i in asked]), strict=True):
            misfit = reply.value if reply.status == "done" else reply.detail
            faults[index] = None if misfit is None else f"it does not fit its schema: {misfit}"
        return faults

    def _known(self, problem: Problem) -> _Demand | str:
        try:
            return _Demand(self._gold(problem), self._schema(problem))
        except Unusable as error:
            return str(error)

    def _gold(self, problem: Problem) -> tuple[Any, ...]:
        if not self._config.compare:
            return ()
        if problem.reference is None:
            raise Unusable("the problem has no reference; set compare: false to check form alone")
        try:
            return (read_json(problem.reference, self._config.max_chars),)
        except NotJson as error:
            raise Unusable(f"the reference is no JSON: {error}") from None

    def _schema(self, problem: Problem) -> str | None:
        given = problem.fields.get("json_schema")
        if given is None:
            given = self._config.json_schema
            return None if given is None else json.dumps(given)
        if isinstance(given, str):
            try:
                given = json.loads(given)
            except (ValueError, RecursionError) as error:
                raise Unusable(f"json_schema: no JSON: {error}") from None
        if not isinstance(given, Mapping):
            raise Unusable(f"json_schema: expected an object, got {type(given).__name__}")
        fault = schema_fault(given)
        if fault is not None:
            raise Unusable(f"json_schema: {fault}")
        return json.dumps(given)

    def _begin(self, demand: _Demand | str, text: str) -> tuple[Score, Item | None]:
        """A score, and where the schema may still refuse it what is asked of the workers."""
        begun = time.perf_counter()
        if isinstance(demand, str):
            return Score(Outcome.UNGRADABLE, None, detail=demand), None
        config = self._config
        found = find_json(text, config.place, config.thinking)
        if found.text is None:
            return Score(Outcome.UNPARSEABLE, 0.0, detail=found.reason), None
        shown = found.text[:1000]
        try:
            data = read_json(found.text, config.max_chars)
        except NotJson as error:
            return Score(Outcome.UNPARSEABLE, 0.0, shown, f"not JSON: {error}"), None
        same = not demand.gold or same_data(demand.gold[0], data, self._leniency)
        seconds = time.perf_counter() - begun
        if not same:
            return Score(Outcome.WRONG, 0.0, shown, "other data than the reference", seconds), None
        right = Score(Outcome.CORRECT, 1.0, shown, seconds=seconds)
        if demand.schema is None:
            return right, None
        return right, Item(self._handler, (demand.schema, json.dumps(data)), self._seconds)


def _fitted(score: Score, reply: Reply) -> Score:
    """A right score once the schema has been asked."""
    seconds = score.seconds + reply.seconds
    if reply.status in ("timeout", "memory"):
        return Score(Outcome.TIMEOUT, 0.0, score.answer, reply.detail, seconds)
    if reply.status != "done":
        return Score(Outcome.CRASHED, None, score.answer, reply.detail, seconds)
    if reply.value is not None:
        detail = f"it does not fit the schema: {reply.value}"
        return Score(Outcome.WRONG, 0.0, score.answer, detail, seconds)
    return Score(Outcome.CORRECT, 1.0, score.answer, seconds=seconds)
