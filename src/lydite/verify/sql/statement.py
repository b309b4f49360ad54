"""Text to one SELECT statement, or why it is none. Sizes are checked before anything is parsed."""

from __future__ import annotations

import logging
import re
from typing import Any

from lydite.config import UserError

MAX_TOKENS = 4000
MAX_DEPTH = 60
MISSING = "needs sqlglot, which is not installed; pip install 'lydite[sql]'"

_WORD = re.compile(r"[A-Za-z]+")
_QUERY_WORDS = ("select", "with", "values", "from")


class NotAQuery(Exception):
    """The text is not exactly one SELECT. ``unreadable`` when it cannot be parsed at all."""

    def __init__(self, reason: str, unreadable: bool = False) -> None:
        super().__init__(reason)
        self.unreadable = unreadable


def need_sqlglot() -> None:
    """Raises ``UserError`` in one line when the parser is not installed."""
    try:
        import sqlglot  # noqa: F401
    except ImportError:
        raise UserError(f"the sql reward {MISSING}") from None
    # What sqlglot cannot parse it also logs; the verdict says it once.
    logging.getLogger("sqlglot").setLevel(logging.CRITICAL)


def read_select(text: str, dialect: str, max_chars: int) -> Any:
    """The syntax tree (``sqlglot.Expression``) of the one SELECT in the text: with CTEs, set
    operations, comments and a closing semicolon if it likes.

    Raises:
        NotAQuery: it is too large, not SQL, several statements, or does anything but read.
    """
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    check_size(text, max_chars)
    try:
        tokens = sqlglot.tokenize(text, read=dialect)
        if len(tokens) > MAX_TOKENS:
            raise NotAQuery(f"the query has more than {MAX_TOKENS} tokens")
        trees = [tree for tree in sqlglot.parse(text, read=dialect) if tree is not None]
    except (SqlglotError, RecursionError, ValueError) as error:
        raise NotAQuery(f"it cannot be parsed as SQL: {_brief(error)}", unreadable=True) from None
    trees = [tree for tree in trees if not isinstance(tree, exp.Semicolon)]
    if not trees:
        raise NotAQuery("there is no statement in it", unreadable=True)
    if len(trees) > 1:
        raise NotAQuery(f"it is {len(trees)} statements; one SELECT is asked for")
    tree = trees[0]
    inner = tree
    while isinstance(inner, exp.Subquery | exp.Paren):
        inner = inner.this
    if not isinstance(inner, exp.Select | exp.SetOperation):
        raise NotAQuery(f"it is not a SELECT but {_name(tree, text)}")
    writes = tree.find(
        exp.Insert, exp.Update, exp.Delete, exp.Create, exp.Drop, exp.Command, exp.Into, exp.Attach
    )
    if writes is not None:
        raise NotAQuery(f"it does more than read: {writes.key.upper()}")
    return tree


def check_size(text: str, max_chars: int) -> None:
    """Raises :class:`NotAQuery` for what is not worth handing to a parser."""
    if len(text) > max_chars:
        raise NotAQuery(f"the query has {len(text)} characters, more than {max_chars}")
    if "\0" in text:
        raise NotAQuery("there is a NUL character in it", unreadable=True)
    depth = deepest = 0
    for character in text:
        if character == "(":
            depth += 1
            deepest = max(deepest, depth)
        elif character == ")":
            depth -= 1
    if deepest > MAX_DEPTH:
        raise NotAQuery(f"its brackets are nested more than {MAX_DEPTH} deep")


def looks_like_query(text: str) -> bool:
    """Whether the first word is one that a query begins with; for dialect that sqlglot lacks."""
    bare = re.sub(r"--[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL).lstrip(" \t\r\n(")
    word = _WORD.match(bare)
    return word is not None and word[0].lower() in _QUERY_WORDS


def _name(tree: Any, text: str) -> str:
    word = _WORD.search(re.sub(r"--[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL))
    return word[0].upper() if word else str(tree.key).upper()


def _brief(error: BaseException) -> str:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    return " ".join(plain.split())[:160]
