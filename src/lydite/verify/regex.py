"""Whether a text matches a pattern: tried in the killable workers, since backtracking may never
end.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from lydite.types import Outcome, Problem
from lydite.verify.pool import Handler, Item, Pool, Reply
from lydite.verify.score import Score
from lydite.verify.spoken import part_of
from lydite.verify.text_config import RegexConfig


def regex_handler(config: RegexConfig) -> Handler:
    """The pool handler for a pattern."""
    return Handler("lydite.verify.regex:matcher", (config.pattern, config.match))


def matcher(setup: Any) -> Callable[[Any], str | None]:
    """A pool handler: a text to what matches, at most 200 characters of it, or ``None``."""
    pattern, how = setup
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = re.compile(pattern)
    find = compiled.fullmatch if how == "full" else compiled.search

    def match(text: Any) -> str | None:
        found = find(text)
        return None if found is None else found[0][:200]

    return match


class RegexReward:
    """1.0 if the pattern matches, else 0.0. A text that makes it pass its limit of time is
    ``timeout`` and pays 0.
    """

    def __init__(
        self, config: RegexConfig, name: str, pool: Pool, handler: int, seconds: float
    ) -> None:
        self.name = name
        self.weight = config.weight
        self.decides = 1
        self._config = config
        self._pool = pool
        self._handler = handler
        self._seconds = seconds

    def score(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Score]:
        """One score per completion, in order."""
        parts = [part_of(text, self._config.part).strip() for text in texts]
        most = self._config.max_chars
        items = [Item(self._handler, text, self._seconds) for text in parts if len(text) <= most]
        replies = iter(self._pool.run(items))
        return [
            self._score(next(replies))
            if len(text) <= most
            else Score(Outcome.UNPARSEABLE, 0.0, detail=f"longer than {most} characters")
            for text in parts
        ]

    def check_golds(self, problems: Sequence[Problem]) -> list[str | None]:
        """A pattern needs no reference."""
        return [None] * len(problems)

    def _score(self, reply: Reply) -> Score:
        seconds = reply.seconds
        if reply.status in ("timeout", "memory"):
            return Score(Outcome.TIMEOUT, 0.0, detail=reply.detail, seconds=seconds)
        if reply.status != "done":
            return Score(Outcome.CRASHED, None, detail=reply.detail, seconds=seconds)
        if reply.value is None:
            return Score(Outcome.WRONG, 0.0, detail="the pattern does not match", seconds=seconds)
        return Score(Outcome.CORRECT, 1.0, str(reply.value), seconds=seconds)
