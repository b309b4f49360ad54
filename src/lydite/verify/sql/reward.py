"""The reward of SQL queries: what is asked of the workers, and what becomes of their replies."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lydite.types import Outcome, Problem
from lydite.verify.answer import FinalAnswer
from lydite.verify.pool import Handler, Item, Pool, Reply
from lydite.verify.score import Score, Table
from lydite.verify.sql.config import SqlConfig
from lydite.verify.sql.prepare import Options, Source
from lydite.verify.sql.read import read_sql
from lydite.verify.sql.worker import Check, Look, Prepare

PROBLEMS_KEPT = 4096
"""Problems whose databases the host keeps, packed: a few kilobytes each."""

SUFFIXES = {
    "sqlite": (".sqlite", ".sqlite3", ".db", ".db3"),
    "duckdb": (".duckdb", ".ddb", ".db"),
}
NO_GOLD = "gold: the problem has no reference query"


def options_of(config: SqlConfig) -> Options:
    """The part of the settings that workers need."""
    return Options(
        config.engine,
        config.columns == "any",
        config.tolerance,
        config.nulls,
        config.variants,
        config.max_rows,
        config.max_chars,
    )


def sql_handler(config: SqlConfig) -> Handler:
    """The pool handler for a reward's settings."""
    return Handler("lydite.verify.sql.worker:handler", options_of(config))


class Unusable(Exception):
    """A problem whose columns do not say what to run on, in one line."""


def source_of(problem: Problem, config: SqlConfig) -> Source:
    """The reference and database of a problem: ``schema`` and ``rows``, or ``database``.

    Raises:
        Unusable: one is missing, or of the wrong form.
    """
    if problem.reference is None:
        raise Unusable(NO_GOLD)
    schema, rows, database = (problem.fields.get(k) for k in ("schema", "rows", "database"))
    # Columnar files fill what a row lacks with null, and keep records as text.
    schema, rows = _parsed(schema), _parsed(rows)
    if schema is not None:
        statements = [schema] if isinstance(schema, str) else schema
        if not isinstance(statements, list | tuple) or not all(
            isinstance(statement, str) for statement in statements
        ):
            raise Unusable("schema: expected SQL text, or a list of statements")
        rows = {} if rows is None else rows
        if not isinstance(rows, Mapping):
            raise Unusable("rows: expected table names, each with a list of rows")
        contents = {str(name): list(given) for name, given in rows.items() if given is not None}
        return Source(problem.reference, tuple(statements), contents)
    if not isinstance(database, str) or not database:
        raise Unusable(
            "the problem has neither `schema` and `rows` nor `database` (a file, or a folder of "
            "them)"
        )
    return Source(problem.reference, files=_files(database, config))


def _parsed(value: object) -> Any:
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _files(database: str, config: SqlConfig) -> tuple[str, ...]:
    path = Path(config.databases or ".") / database
    suffixes = SUFFIXES[config.engine]
    if path.is_dir():
        found = sorted(str(file) for file in path.iterdir() if file.suffix.lower() in suffixes)
        if not found:
            raise Unusable(f"database: no {' or '.join(suffixes)} file in the folder {path}")
        return tuple(found)
    if not path.is_file():
        hint = "" if config.databases else "; `databases` says which folder such paths start from"
        raise Unusable(f"database: no file or folder {path}{hint}")
    return (str(path),)


@dataclass(frozen=True, slots=True)
class _Ready:
    """A problem's databases, packed, and how long loading them takes; or why there are none."""

    key: str
    packed: str = ""
    load: float = 0.0
    fault: str | None = None


class SqlReward:
    """1.0 if the query agrees with the reference on every database, else 0.0.

    A problem's databases are made once, by the first worker that needs them, and then handed to
    whichever worker checks a query of it; making them is not counted against the query. A query
    that passes its time or memory limit is ``timeout`` and pays 0, because the query is what cost
    it.
    """

    def __init__(
        self, config: SqlConfig, name: str, pool: Pool, handler: int, seconds: float
    ) -> None:
        self.name = name
        self.weight = config.weight
        self.decides = 2
        self._config = config
        self._pool = pool
        self._handler = handler
        self._seconds = seconds
        self._lock = threading.Lock()
        self._ready: OrderedDict[str, Future[Reply]] = OrderedDict()
        self._tally: dict[str, Counter[str]] = {}
        self._counted: set[str] = set()
        self._databases = 0

    def score(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Score]:
        """One score per completion, in order."""
        prepared = [self._prepared(problem) for problem in problems]
        queries = [read_sql(text, self._config.answer, self._config.thinking) for text in texts]
        scores: list[Score | None] = []
        items: list[Item] = []
        for made, query in zip(prepared, queries, strict=True):
            ready = made if isinstance(made, _Ready) else self._settled(*made)
            early = _early(ready, query)
            scores.append(early)
            if early is None:
                assert query.text is not None
                check = Check(ready.key, ready.packed, query.text, self._seconds)
                # The engine is interrupted in time; the rest is for loading and for what is not.
                limit = self._seconds + 3 * ready.load + 1.0
                items.append(Item(self._handler, check, limit))
        replies = iter(self._pool.run(items))
        return [
            score if score is not None else _score(next(replies), query.text)
            for score, query in zip(scores, queries, strict=True)
        ]

    def check_golds(self, problems: Sequence[Problem]) -> list[str | None]:
        """Every reference must be one SELECT that runs. One that finds nothing on its database
        must find something on a variant.
        """
        faults: list[str | None] = [None] * len(problems)
        looks: list[tuple[int, Item]] = []
        for index, problem in enumerate(problems):
            try:
                source = source_of(problem, self._config)
            except Unusable as error:
                faults[index] = str(error)
                continue
            looks.append((index, Item(self._handler, Look(source, self._seconds), self._limit)))
        replies = self._pool.run([item for _, item in looks])
        empty: list[int] = []
        for (index, _), reply in zip(looks, replies, strict=True):
            value = reply.value if isinstance(reply.value, dict) else {}
            faults[index] = _fault(reply)
            if faults[index] is None and value.get("empty"):
                empty.append(index)
        made = [(index, self._prepared(problems[index])) for index in empty]
        for index, ready in made:
            faults[index] = (ready if isinstance(ready, _Ready) else self._settled(*ready)).fault
        return faults

    def tables(self) -> list[Table]:
        """How many neighbours of the references the databases tell apart, by what was changed."""
        with self._lock:
            if not self._counted:
                return []
            rows = [
                [kind, str(count["all"]), str(count["told"]), f"{count['told'] / count['all']:.0%}"]
                for kind, count in sorted(self._tally.items())
            ]
            whole = sum(count["all"] for count in self._tally.values())
            told = sum(count["told"] for count in self._tally.values())
            problems, databases = len(self._counted), self._databases
        share = f"{told / whole:.0%}" if whole else ""
        return [
            Table(
                f"{self.name}: neighbours of {problems} reference queries",
                ["what was changed", "neighbours", "told apart", "share"],
                [*rows, ["all", str(whole), str(told), share]],
                f"{databases / problems:.1f} databases a problem. A neighbour that is not told "
                "apart may mean the same as the reference.",
            )
        ]

    @property
    def _limit(self) -> float:
        """Wall seconds for making databases: what the settings allow, and some for loading."""
        return max(self._config.build_seconds, self._seconds) + 5.0

    def _prepared(self, problem: Problem) -> _Ready | tuple[str, Future[Reply]]:
        """A problem's databases, asked for if nobody has yet."""
        try:
            source = source_of(problem, self._config)
        except Unusable as error:
            return _Ready("", fault=str(error))
        key = hashlib.blake2b(repr(_stamped(source)).encode(), digest_size=16).hexdigest()
        with self._lock:
            found = self._ready.pop(key, None)
            if found is None:
                request = Prepare(key, source, self._config.build_seconds)
                found = self._pool.submit(Item(self._handler, request, self._limit))
            self._ready[key] = found
            while len(self._ready) > PROBLEMS_KEPT:
                self._ready.popitem(last=False)
        return key, found

    def _settled(self, key: str, future: Future[Reply]) -> _Ready:
        reply = future.result()
        fault = _fault(reply)
        if fault is not None:
            if reply.status != "done":  # a worker that was lost says nothing of the problem
                with self._lock:
                    self._ready.pop(key, None)
            return _Ready(key, fault=fault)
        value = reply.value
        with self._lock:
            if key not in self._counted:
                self._counted.add(key)
                self._databases += int(value["databases"])
                for kind, (whole, told) in value["tally"].items():
                    self._tally.setdefault(kind, Counter()).update({"all": whole, "told": told})
        return _Ready(key, str(value["packed"]), float(value["load"]))


def _stamped(source: Source) -> tuple[object, ...]:
    """A source and when its files were last written: an edited one is prepared again."""
    stamps = tuple((path, Path(path).stat().st_mtime_ns) for path in source.files)
    return replace(source, files=()), stamps


def _fault(reply: Reply) -> str | None:
    if reply.status == "done" and isinstance(reply.value, dict):
        fault = reply.value.get("fault")
        return None if fault is None else str(fault)
    return f"its databases could not be made: {reply.detail or reply.status}"


def _early(ready: _Ready, query: FinalAnswer) -> Score | None:
    """What is decided without running anything."""
    if ready.fault is not None:
        return Score(Outcome.UNGRADABLE, None, query.text, ready.fault)
    if query.text is None:
        return Score(Outcome.UNPARSEABLE, 0.0, detail=query.reason)
    return None


def _score(reply: Reply, query: str | None) -> Score:
    seconds = reply.seconds
    if reply.status == "done" and isinstance(reply.value, dict):
        fault = reply.value.get("fault")
        if fault is not None:
            return Score(Outcome.UNGRADABLE, None, query, str(fault), seconds)
        outcome = Outcome(reply.value["outcome"])
        reward = float(outcome is Outcome.CORRECT)
        return Score(outcome, reward, query, str(reply.value["detail"]), seconds)
    if reply.status in ("timeout", "memory"):
        return Score(Outcome.TIMEOUT, 0.0, query, reply.detail, seconds)
    return Score(Outcome.CRASHED, None, query, reply.detail, seconds)
