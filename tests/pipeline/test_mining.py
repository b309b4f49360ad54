"""Pairs out of verified answers: which are taken, which are dropped and why."""

import itertools
from pathlib import Path

import pytest

from lydite.pipeline.mining import Candidate, ChoiceConfig, Chosen, Mined, mine
from lydite.pipeline.pairs import load_pairs, save_pairs
from lydite.types import Outcome


def answer(text, outcome, finished=True):
    return Candidate(text, tuple(range(len(text))), outcome, finished, "rl step 1 sample 0")


def right(text, **changes):
    return answer(text, Outcome.CORRECT, **changes)


def wrong(text, **changes):
    return answer(text, Outcome.WRONG, **changes)


def texts(mined):
    return [(pair.better.text, pair.worse.text) for pair in mined.pairs]


ANSWERS = [right("aaaa"), right("a"), wrong("bb"), wrong("bbbbb"), wrong("bbb")]


@pytest.mark.parametrize(
    ("rule", "most", "expected"),
    [
        ("shortest_right", 1, [("a", "bbbbb")]),
        ("shortest_right", 5, [("a", "bbbbb"), ("aaaa", "bbb")]),
        ("closest_length", 1, [("a", "bb")]),
        ("closest_length", 5, [("a", "bb"), ("aaaa", "bbb")]),
    ],
)
def test_a_rule_takes_what_it_says(rule, most, expected):
    mined = mine({"p": ANSWERS}, ChoiceConfig(rule=rule, per_problem=most), seed=0)
    assert texts(mined) == expected
    left = 5 - 2 * len(expected)
    assert mined.dropped == ({"answers beyond what per_problem takes": left})


def test_random_pairs_differ_by_seed_and_by_problem_and_by_nothing_else():
    def pairs(seed=0, name="p", answers=ANSWERS, **others):
        found = mine({**others, name: answers}, ChoiceConfig(per_problem=2), seed)
        return [(p.better.text, p.worse.text) for p in found.pairs if p.problem_id == name]

    first = pairs()
    assert len(set(first)) == 2
    assert pairs(answers=ANSWERS[::-1]) == first
    assert pairs(other=[right("x"), wrong("y")]) == first
    assert any(pairs(seed=seed) != first for seed in range(1, 6))
    assert any(pairs(name=name) != first for name in "qrstu")


def test_random_pairs_are_all_there_are_and_no_more():
    mined = mine({"p": ANSWERS}, ChoiceConfig(per_problem=100), seed=0)
    every = itertools.product(["a", "aaaa"], ["bb", "bbb", "bbbbb"])
    assert sorted(texts(mined)) == sorted(every)
    assert mined.dropped == {}


def test_what_is_dropped_is_counted_by_reason():
    mined = mine(
        {
            "good": [right("a"), wrong("b"), wrong("b"), right("a")],
            "easy": [right("a")],
            "hard": [wrong("b"), answer("?", Outcome.UNPARSEABLE)],
            "none": [answer("c", Outcome.TIMEOUT), answer("d", Outcome.UNGRADABLE), wrong("")],
            "cut": [right("a", finished=False), wrong("b")],
        },
        ChoiceConfig(),
        seed=0,
    )
    assert texts(mined) == [("a", "b")]
    assert mined.dropped == {
        "answers that repeat another": 2,
        "problems with right answers only": 1,
        "problems with wrong answers only": 2,
        "answers not decided": 2,
        "empty answers": 1,
        "problems with no answer to use": 1,
        "right answers cut off": 1,
    }
    assert mined.report().startswith("1 pairs of 1 problems; dropped: 2 answers that repeat")


def test_an_unreadable_answer_and_one_cut_off_can_be_the_worse_one():
    unreadable = [right("a"), answer("?", Outcome.UNPARSEABLE)]
    cut = [right("a"), wrong("b", finished=False)]
    found = mine({"p": unreadable, "q": cut}, ChoiceConfig(), seed=0)
    assert texts(found) == [("a", "?"), ("a", "b")]


def test_right_answers_that_were_cut_off_are_taken_where_that_is_asked_for():
    answers = {"p": [right("a", finished=False), wrong("b")]}
    assert texts(mine(answers, ChoiceConfig(allow_cut_off=True), seed=0)) == [("a", "b")]
    assert texts(mine(answers, ChoiceConfig(), seed=0)) == []


def test_pairs_are_kept_and_read_back_for_the_same_lineage_only(tmp_path: Path):
    mined = Mined((Chosen("p", right("a é"), wrong("b", finished=False)),), {"empty answers": 2})
    path = tmp_path / "pairs.parquet"
    assert load_pairs(path, "one") is None
    save_pairs(path, mined, "one")
    assert load_pairs(path, "one") == mined
    assert load_pairs(path, "another") is None
