"""Where a completion's query is read from."""

from __future__ import annotations

import re
from typing import Literal

from lydite.verify.answer import FinalAnswer, ThinkingRule, after_thinking
from lydite.verify.sql.statement import looks_like_query

SqlPlace = Literal["auto", "block", "tag", "text"]

_FENCE = re.compile(r"^[ \t]*(```+|~~~+)[ \t]*([A-Za-z0-9_+.-]*)[^\n]*$", re.MULTILINE)
_TAG = re.compile(r"<(answer|sql)>((?:(?!<\1>).)*?)</\1>", re.DOTALL | re.IGNORECASE)
_LABELS = frozenset({"", "sql", "sqlite", "sqlite3", "duckdb", "postgresql", "postgres", "mysql"})
_STATEMENT = re.compile(
    r"[\s(]*+(?:(?>--[^\n]*)\s*+|(?>/\*.*?\*/)\s*+)*+\(*+\s*+"
    r"(?:select|with|values|from|insert|update|delete|drop|create|alter|attach|detach|pragma|vacuum"
    r"|replace|explain|begin|copy|install|load|set)\b",
    re.DOTALL | re.IGNORECASE,
)


def read_sql(text: str, place: SqlPlace = "auto", thinking: ThinkingRule = "auto") -> FinalAnswer:
    """The query that a completion states, after its thinking.

    ``block``: the last fenced block that is labelled sql, or not at all. ``tag``: the last
    ``<answer>…</answer>`` or ``<sql>…</sql>``, and the block in it if there is one. ``text``: all
    of it. ``auto``: the first of tag and block that occurs, else all of it if it begins as a
    statement does.
    """
    spoken = after_thinking(text, thinking)
    if spoken.text is None:
        return spoken
    found: str | None = None
    if place == "text":
        found = spoken.text
    elif place == "block":
        found = last_block(spoken.text)
    else:
        found = last_tagged(spoken.text)
        if found is None and place == "auto":
            found = last_block(spoken.text)
            if found is None and _STATEMENT.match(spoken.text[:2000]):
                found = spoken.text
    if found is None:
        return FinalAnswer(None, _MISSING[place])
    found = found.strip()
    return FinalAnswer(found) if found else FinalAnswer(None, "the query is empty")


_MISSING: dict[SqlPlace, str] = {
    "auto": "no SQL was found: no ```sql block, no <answer>, no statement by itself",
    "block": "no ```sql block was found",
    "tag": "no <answer>…</answer> was found",
    "text": "the completion is empty",
}


def last_block(text: str) -> str | None:
    """The last fenced block that may hold SQL. One that is never closed goes to the end."""
    found: str | None = None
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opened is None:
            opened = fence
        elif fence[1][0] == opened[1][0] and len(fence[1]) >= len(opened[1]) and not fence[2]:
            if opened[2].lower() in _LABELS:
                found = text[opened.end() : fence.start()]
            opened = None
    if opened is not None and opened[2].lower() in _LABELS:
        found = text[opened.end() :]
    if found is None and (inline := re.findall(r"(?<!`)`([^`\n]{6,})`(?!`)", text)):
        queries = [part for part in inline if looks_like_query(part[:2000])]
        found = queries[-1] if queries else None
    return found


def last_tagged(text: str) -> str | None:
    """What the last ``<answer>`` or ``<sql>`` holds, or the block inside it."""
    found: str | None = None
    for match in _TAG.finditer(text):
        found = match[2]
    if found is None:
        return None
    block = last_block(found)
    return found if block is None else block
