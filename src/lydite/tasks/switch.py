"""The soft switch: ``/think`` and ``/no_think`` in what the user says (Qwen3, 2505.09388, section
4.3).

It is text that the model reads and learns to follow. Of several flags the last one holds, also
across turns; without any, the model thinks. The hard switch, ``Problem.thinking``, is the chat
template's: off it comes before any flag, on it leaves the choice to them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal, get_args

from lydite.types import Message, Problem

THINK, NO_THINK = "/think", "/no_think"

Mode = Literal[
    "unflagged", "think", "no_think", "hard_think", "hard_no_think", "last_think", "last_no_think"
]
"""How a model is asked to think or not: no flag; a flag; the hard switch; a flag that contradicts
the one of an earlier turn."""
MODES: tuple[Mode, ...] = get_args(Mode)

_FLAG = re.compile(r"(?<![\w/])/(?:no_)?think(?![\w/])")
_SPACED_FLAG = re.compile(rf"\A{_FLAG.pattern}\s*|\s*{_FLAG.pattern}")


def last_flag(messages: Iterable[Message]) -> str | None:
    """The flag that holds: the last one that a user or system turn has."""
    found = [flag for m in messages if m.role != "assistant" for flag in _FLAG.findall(m.content)]
    return found[-1] if found else None


def asks_to_think(problem: Problem) -> bool:
    """Whether the prompt of a problem asks for thinking."""
    return problem.thinking is not False and last_flag(problem.messages) != NO_THINK


def flagged(problem: Problem, *flags: str) -> Problem:
    """The problem with flags behind its last user turn."""
    *before, last = problem.messages
    said = " ".join((last.content, *flags))
    return replace(problem, messages=(*before, replace(last, content=said)))


def without_flags(problem: Problem) -> Problem:
    """The problem with no flag in its user and system turns."""
    plain = (
        m if m.role == "assistant" else replace(m, content=_SPACED_FLAG.sub("", m.content))
        for m in problem.messages
    )
    return replace(problem, messages=tuple(plain))


def in_mode(problem: Problem, mode: Mode) -> Problem:
    """The problem, asked in a mode whatever it asks for itself; of ``last_…`` the last turn alone,
    for :func:`after`.
    """
    plain = replace(without_flags(problem), thinking=None)
    if mode in ("hard_think", "hard_no_think"):
        return replace(plain, thinking=mode == "hard_think")
    if mode == "unflagged":
        return plain
    return flagged(plain, NO_THINK if mode.endswith("no_think") else THINK)


def earlier_mode(mode: Mode) -> Mode | None:
    """Of ``last_…``: how the turn before was asked, namely the other way."""
    if mode not in ("last_think", "last_no_think"):
        return None
    return "think" if mode == "last_no_think" else "no_think"


def after(problem: Problem, earlier: Problem, answer: str) -> Problem:
    """The problem asked when ``earlier`` has been asked and answered. Its own system turn goes: the
    conversation has that of its beginning.
    """
    turns = tuple(m for m in problem.messages if m.role != "system")
    return replace(problem, messages=(*earlier.messages, Message("assistant", answer), *turns))
