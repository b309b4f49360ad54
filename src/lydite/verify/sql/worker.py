"""What the pool's workers run for SQL: a reference looked at, a problem prepared, a query
checked.
"""

from __future__ import annotations

import base64
import pickle
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lydite.config import UserError
from lydite.types import Outcome
from lydite.verify.sql.check import Session
from lydite.verify.sql.compare import total
from lydite.verify.sql.engine import Engine, EngineLost, Limits
from lydite.verify.sql.prepare import (
    BadProblem,
    Options,
    Source,
    check_files,
    gold_rows,
    prepare,
    read_source,
)
from lydite.verify.sql.statement import MISSING, need_sqlglot

SESSIONS = 64
"""Problems whose databases a worker keeps loaded."""


@dataclass(frozen=True, slots=True)
class Look:
    """Whether a reference works on its database; the reply is ``{fault, empty}``."""

    source: Source
    seconds: float


@dataclass(frozen=True, slots=True)
class Prepare:
    """Make the databases; the reply is ``{fault, packed, tally, databases, load}``, the last being
    the seconds that it took to load them.
    """

    key: str
    source: Source
    seconds: float


@dataclass(frozen=True, slots=True)
class Check:
    """Check a query on prepared databases; the reply is ``{outcome, detail}``."""

    key: str
    packed: str
    query: str
    seconds: float


def engine_of(name: str) -> Engine:
    """The engine of that name, its library imported.

    Raises:
        UserError: the library is not installed.
    """
    if name == "sqlite":
        from lydite.verify.sql.sqlite import Sqlite

        return Sqlite()
    try:
        from lydite.verify.sql.duck import Duck
    except ImportError:
        raise UserError(f"the sql reward {MISSING.replace('sqlglot', 'duckdb')}") from None
    return Duck()


def handler(setup: Any) -> Callable[[Any], dict[str, object]]:
    """A pool handler; ``setup`` is the :class:`~lydite.verify.sql.prepare.Options`."""
    need_sqlglot()
    assert isinstance(setup, Options)
    return _Worker(setup, engine_of(setup.engine))


class _Worker:
    def __init__(self, options: Options, engine: Engine) -> None:
        self._options = options
        self._engine = engine
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def __call__(self, request: Look | Prepare | Check) -> dict[str, object]:
        try:
            return self._answer(request)
        except EngineLost:  # what other problems left in it may be why
            self._sessions.clear()
            self._engine = engine_of(self._options.engine)
            return self._answer(request)

    def _answer(self, request: Look | Prepare | Check) -> dict[str, object]:
        try:
            if isinstance(request, Check):
                return self._check(request)
            if isinstance(request, Prepare):
                return self._prepare(request)
            return self._look(request)
        except BadProblem as error:
            return {"fault": str(error)}

    def _look(self, request: Look) -> dict[str, object]:
        limits = Limits.within(request.seconds, self._options.max_rows)
        gold, _, schema, contents = read_source(request.source, self._engine, self._options, limits)
        filled = check_files(gold, request.source.files, self._engine, limits)
        if not request.source.files:
            connection = self._engine.load(schema, [contents])[0]
            filled = total(gold_rows(gold, connection, limits)[1]) > 0
            connection.close()
        return {"fault": None, "empty": not filled}

    def _prepare(self, request: Prepare) -> dict[str, object]:
        prepared = prepare(request.source, self._engine, self._options, request.seconds)
        begun = time.monotonic()
        self._keep(request.key, Session(prepared, self._engine, self._options))
        load = time.monotonic() - begun
        packed = base64.b85encode(zlib.compress(pickle.dumps(prepared), 1)).decode("ascii")
        return {
            "fault": None,
            "packed": packed,
            "tally": {kind: list(counts) for kind, counts in prepared.tally.items()},
            "databases": len(prepared.variants) + len(prepared.files),
            "load": load,
        }

    def _keep(self, key: str, session: Session) -> None:
        self._sessions[key] = session
        while len(self._sessions) > SESSIONS or (
            len(self._sessions) > 1 and self._engine.crowded()
        ):
            self._sessions.popitem(last=False)[1].close()

    def _check(self, request: Check) -> dict[str, object]:
        session = self._sessions.pop(request.key, None)
        if session is None:
            # Packed by a worker like this one, on its way through the host.
            prepared = pickle.loads(zlib.decompress(base64.b85decode(request.packed)))
            session = Session(prepared, self._engine, self._options)
        self._keep(request.key, session)
        try:
            decision = session.check(request.query, request.seconds)
        except RecursionError:
            return {"outcome": Outcome.WRONG.value, "detail": "the query is nested too deeply"}
        return {"outcome": decision.outcome.value, "detail": decision.detail}
