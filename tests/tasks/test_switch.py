"""The soft switch: which flag holds, and how a problem is asked in each mode."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lydite.tasks.switch import (
    MODES,
    after,
    asks_to_think,
    earlier_mode,
    flagged,
    in_mode,
    last_flag,
    without_flags,
)
from lydite.types import Message, Problem

ASKED = Problem("p", "2+2", (Message("system", "Brief."), Message("user", "2+2")), "4")


def talk(*turns: str) -> list[Message]:
    """User and assistant by turns."""
    return [Message("assistant" if n % 2 else "user", text) for n, text in enumerate(turns)]


@pytest.mark.parametrize(
    ("turns", "flag"),
    [
        (["2+2"], None),
        (["2+2 /think"], "/think"),
        (["2+2 /no_think"], "/no_think"),
        (["/no_think 2+2 /think"], "/think"),
        (["/think 2+2\n/no_think."], "/no_think"),
        (["2+2 /no_think", "4", "3+3"], "/no_think"),
        (["2+2 /no_think", "4", "3+3 /think"], "/think"),
        (["2+2 /think", "4 /no_think", "3+3"], "/think"),
        (["run /usr/think and no/think, /thinking, /think/x, //think"], None),
    ],
)
def test_the_last_flag_that_a_user_gives_holds(turns: list[str], flag: str | None) -> None:
    assert last_flag(talk(*turns)) == flag
    problem = replace(ASKED, messages=tuple(talk(*turns)))
    assert asks_to_think(problem) == (flag != "/no_think")
    assert not asks_to_think(replace(problem, thinking=False))
    assert asks_to_think(replace(problem, thinking=True)) == (flag != "/no_think")


def test_a_system_turn_can_hold_a_flag_too() -> None:
    assert last_flag([Message("system", "Be quick. /no_think"), *talk("2+2")]) == "/no_think"


def test_flags_are_put_behind_the_last_user_turn_and_taken_away() -> None:
    both = flagged(ASKED, "/think", "/no_think")
    assert both.messages[-1].content == "2+2 /think /no_think"
    assert without_flags(both) == ASKED
    mixed = replace(
        ASKED,
        messages=(Message("system", "a /think b"), *talk("c\n/no_think", "d /think", "/think e")),
    )
    assert [m.content for m in without_flags(mixed).messages] == ["a b", "c", "d /think", "e"]


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_asks_for_what_it_says(mode: str) -> None:
    asked = in_mode(ASKED, mode)
    assert asks_to_think(asked) == ("no_think" not in mode)
    assert asked.id == ASKED.id and asked.question == ASKED.question
    hard = mode.startswith("hard")
    assert (asked.thinking is not None) == hard
    assert (last_flag(asked.messages) is None) == (hard or mode == "unflagged")
    for given in (flagged(ASKED, "/no_think"), replace(ASKED, thinking=False)):
        assert in_mode(given, mode) == asked


def test_a_turn_before_is_asked_the_other_way_and_keeps_its_system_prompt() -> None:
    assert {m: earlier_mode(m) for m in MODES if earlier_mode(m)} == {
        "last_think": "no_think",
        "last_no_think": "think",
    }
    earlier = Problem("q", "1+1", (Message("system", "Old."), Message("user", "1+1 /think")))
    row = after(in_mode(ASKED, "last_no_think"), earlier, "2")
    assert [m.content for m in row.messages] == ["Old.", "1+1 /think", "2", "2+2 /no_think"]
    assert row.reference == "4" and row.id == "p"
