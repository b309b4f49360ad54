"""Verdicts by what was asked, in one file that survives ``kill -9`` and several readers."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
import threading
from pathlib import Path

from lydite.config import UserError
from lydite.verify.judge.config import JudgeConfig
from lydite.verify.judge.prompt import Case, Said

VERSION = 1
"""Of the prompt: another wording may be answered otherwise."""


def key_of(config: JudgeConfig, case: Case) -> str:
    """SHA-256, in hex, of all that a verdict depends on."""
    asked = [
        VERSION,
        config.base_url,
        config.model,
        config.requests.max_tokens,
        config.requests.body,
        case.rubric,
        case.question,
        case.reference,
        case.candidate,
    ]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


class Verdicts:
    """The verdicts kept in a folder; in memory alone where there is none. Thread-safe."""

    def __init__(self, folder: str | None, name: str) -> None:
        """
        Raises:
            UserError: the folder cannot be made, or holds something else.
        """
        self._lock = threading.Lock()
        self._field = f"{name}.cache"
        place = None if folder is None else Path(folder).expanduser()
        try:
            if place is not None:
                place.mkdir(parents=True, exist_ok=True)
            path = ":memory:" if place is None else str(place / "verdicts.sqlite")
            self._file = sqlite3.connect(
                path, timeout=60.0, isolation_level=None, check_same_thread=False
            )
            self._file.execute("pragma journal_mode = wal")
            self._file.execute("pragma synchronous = normal")
            self._file.execute(
                "create table if not exists verdicts "
                "(key text primary key, correct integer not null, reason text not null)"
            )
        except (OSError, sqlite3.Error) as error:
            raise self._fault(error) from error

    def get(self, key: str) -> Said | None:
        """What was said, if it was asked before."""
        try:
            with self._lock:
                row = self._file.execute(
                    "select correct, reason from verdicts where key = ?", (key,)
                ).fetchone()
        except sqlite3.Error as error:
            raise self._fault(error) from error
        return None if row is None else Said(bool(row[0]), str(row[1]))

    def put(self, key: str, said: Said) -> None:
        """Keeps what was said."""
        try:
            with self._lock:
                self._file.execute(
                    "insert or replace into verdicts values (?, ?, ?)",
                    (key, int(said.correct), said.reason),
                )
        except sqlite3.Error as error:
            raise self._fault(error) from error

    def close(self) -> None:
        with self._lock, contextlib.suppress(sqlite3.Error):
            self._file.close()

    def _fault(self, error: Exception) -> UserError:
        return UserError(f"{self._field}: {error}; free some space, or give another folder or null")
