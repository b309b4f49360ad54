"""Rows of both modes: how many of each there are, what they say, and that seeds address them."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from lydite.config import UserError
from lydite.tasks.switch import asks_to_think, last_flag
from lydite.train.fusion import FusionConfig, fuse
from lydite.types import Message, Problem

EMPTY = "<think>\n\n</think>\n\n"
ALONE = {"overruled": 0, "multi_turn": 0, "unflagged": 0, "hard": 0}


def rows(count, worked="<think>s{n}</think><answer>{n}</answer>"):
    return [
        Problem(f"p{n}", f"q{n}", (Message("user", f"q{n}"),), str(n), worked=worked.format(n=n))
        for n in range(count)
    ]


def fused(problems, seed=0, fits=lambda row: True, **settings):
    return fuse(problems, FusionConfig(**settings), seed, fits).problems


def kind_of(row):
    return (
        "think" if EMPTY not in row.worked else "hard" if row.thinking is False else "no_think",
        last_flag(row.messages[-1:]),
        len(row.messages),
    )


def test_rows_of_each_kind_by_hand():
    (think,) = fused(rows(1), think_share=1, **ALONE)
    assert think.messages == (Message("user", "q0 /think"),)
    assert think.worked == "<think>s0</think><answer>0</answer>" and think.thinking is None
    (fast,) = fused(rows(1), think_share=0, **ALONE)
    assert fast.messages == (Message("user", "q0 /no_think"),)
    assert fast.worked == f"{EMPTY}<answer>0</answer>" and fast.thinking is None
    (bare,) = fused(rows(1), think_share=1, **{**ALONE, "unflagged": 1})
    assert bare.messages == (Message("user", "q0"),) and bare.worked == think.worked
    (hard,) = fused(rows(1), think_share=0, **{**ALONE, "hard": 1})
    assert hard.messages == (Message("user", "q0"),)
    assert hard.worked == fast.worked and hard.thinking is False
    (last,) = fused(rows(1), think_share=0, **{**ALONE, "overruled": 1})
    assert last.messages == (Message("user", "q0 /think /no_think"),)


def test_shares_are_kept_to_the_row():
    found = fused(rows(100), overruled=0, multi_turn=0)
    assert Counter(map(kind_of, found)) == {
        ("think", "/think", 1): 35,
        ("think", None, 1): 15,
        ("no_think", "/no_think", 1): 40,
        ("hard", None, 1): 10,
    }
    note = fuse(rows(100), FusionConfig(), 0).note
    assert note == (
        "100 rows: 50 think, 15 of them without a flag; 50 answer at once, 10 of them by the hard "
        "switch; 20 come after other turns"
    )


def test_every_row_asks_for_the_mode_that_it_shows():
    found = fused(rows(200), multi_turn=0.5, overruled=0.5, max_turns=4)
    assert [row.id for row in found] == [f"p{n}" for n in range(200)]
    for row in found:
        assert asks_to_think(row) == (EMPTY not in row.worked), row
        assert row.question == f"q{row.id[1:]}" and row.reference == row.id[1:]
    assert any("/think /no_think" in row.messages[-1].content for row in found)
    assert any("/no_think /think" in row.messages[-1].content for row in found)


def test_turns_before_are_of_the_other_mode_and_shown_in_it():
    found = fused(rows(100), multi_turn=1, carried=0.3, max_turns=3)
    assert {len(row.messages) for row in found} == {3, 5}
    carried = 0
    for row in found:
        *before, last = row.messages
        for user, assistant in zip(before[::2], before[1::2], strict=True):
            number = user.content.split()[0][1:]
            thinks = user.content.endswith(" /think")
            said = f"<think>s{number}</think>" if thinks else EMPTY
            assert assistant == Message("assistant", f"{said}<answer>{number}</answer>")
            assert not assistant.learned
        flags = [last_flag([user]) for user in before[::2]]
        assert all(one != next_one for one, next_one in pairwise(flags))
        own = last_flag([last])
        if own is None and row.thinking is None:
            carried += last_flag(before) == "/no_think"
        elif row.thinking is None:
            assert last_flag(before) != own
        else:
            assert last_flag(before) == "/think"
    assert carried > 0


def test_a_share_of_conversations_carries_its_flag_on():
    found = fused(rows(100), multi_turn=1, hard=0, unflagged=0, overruled=0, carried=0.3)
    assert sum(last_flag(row.messages[-1:]) is None for row in found) == 30


def test_the_seed_addresses_each_row():
    assert fused(rows(50), seed=3) == fused(rows(50), seed=3)
    assert fused(rows(50), seed=3) != fused(rows(50), seed=4)


def test_a_solution_without_a_thought_answers_at_once():
    plain = rows(30, worked="<answer>{n}</answer>")
    thinking = [replace(p, id=f"t{p.id}") for p in rows(30)]
    found = fused([*plain, *thinking], think_share=0.5)
    for row in found:
        assert asks_to_think(row) == row.id.startswith("t")
    for empty in ("{n}", f"{EMPTY}{{n}}", "<think> </think>{n}"):
        (row,) = fused(rows(1, worked=empty), think_share=0, **ALONE)
        assert row.worked == f"{EMPTY}0"
    with pytest.raises(UserError, match="think_share: 31 of 60 rows are to think, and 30 have"):
        fused([*plain, *thinking], think_share=0.51)


@pytest.mark.parametrize(
    ("worked", "reason"),
    [
        ("<think>1", "leaves its thought open"),
        ("<think>1</think>2<think>3", "leaves its thought open"),
        ("<think>1</think> ", "has no answer behind its thought"),
        ("", "has no answer"),
    ],
)
def test_what_cannot_be_taught_names_the_problem(worked, reason):
    with pytest.raises(UserError, match=f"problem p0: its worked solution {reason}"):
        fused(rows(1, worked=worked))


def test_turns_that_do_not_fit_are_left_out_from_the_front():
    whole = fused(rows(60), multi_turn=1, max_turns=3)
    cut = fused(rows(60), fits=lambda row: len(row.messages) <= 3, multi_turn=1, max_turns=3)
    for long, short in zip(whole, cut, strict=True):
        assert short.messages == long.messages[-3:] and short.worked == long.worked
    single = fused(rows(60), fits=lambda row: False, multi_turn=1, max_turns=3)
    for row in single:
        assert len(row.messages) == 1
        assert asks_to_think(row) == (EMPTY not in row.worked)


def test_flags_and_learned_turns_of_the_source_are_taken_away():
    messages = (
        Message("user", "q9 /no_think"),
        Message("assistant", "9", learned=True),
        Message("user", "q0 /no_think"),
    )
    source = replace(rows(1)[0], messages=messages, thinking=False)
    (row,) = fused([source], think_share=1, **ALONE)
    assert [m.content for m in row.messages] == ["q9", "9", "q0 /think"]
    assert not any(m.learned for m in row.messages) and row.thinking is None
