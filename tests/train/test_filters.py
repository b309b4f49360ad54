"""Rejection sampling's filters on samples written by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lydite.config import UserError, validate
from lydite.train.filters import FilterConfig, filter_samples, ngrams, overlap
from lydite.watch.samples import Sample

OFF = {
    "correct": False, "cut_off": False, "repetition": None, "duplicates": False,
    "near_duplicates": None, "per_problem": None,
}  # fmt: skip


def sample(number: int, text: str = "", problem: str = "p", **changes: Any) -> Sample:
    values = {
        "step": 1, "prompt": problem, "reward": 1.0, "outcome": "correct", "finish": "stop",
        "tokens": len(text), **changes,
    }  # fmt: skip
    return Sample(problem_id=problem, sample=number, completion=text or f"text {number}", **values)


def kept(samples: list[Sample], **settings: Any) -> tuple[list[int], dict[str, int]]:
    config = validate(FilterConfig, {**OFF, **settings})
    found = filter_samples(samples, config)
    assert found.sampled == len(samples) == len(found.kept) + sum(found.dropped.values())
    return [s.sample for s in found.kept], found.dropped


def test_only_what_is_undecided_goes_when_every_filter_is_off() -> None:
    samples = [
        sample(0, outcome="wrong", reward=0.0, finish="length"),
        sample(1, outcome="crashed", reward=None),
        sample(2, outcome="ungradable", reward=None),
        sample(3),
    ]
    assert kept(samples) == ([0, 3], {"undecided": 2})


@pytest.mark.parametrize(
    ("settings", "dropped", "samples", "left"),
    [
        ({"correct": True}, "incorrect",
         [sample(0), sample(1, outcome="wrong", reward=0.9), sample(2, outcome="unparseable"),
          sample(3, outcome="timeout", reward=0.0)], [0]),
        ({"reward_at_least": 0.5}, "reward",
         [sample(0, reward=0.49), sample(1, reward=0.5)], [1]),
        ({"cut_off": True}, "cut_off",
         [sample(0, finish="length"), sample(1), sample(2, cut=True)], [1]),
        ({"format": {"answer": "tag"}}, "format",
         [sample(0, "<think>a</think><answer>1</answer>"), sample(1, "<answer>1</answer>"),
          sample(2, "<think>a</think>1")], [0]),
        ({"language": {"language": "en", "others": []}}, "language",
         [sample(0, "plain words"), sample(1, "two words 你好你好"), sample(2, "1+1=2")], [0, 2]),
        ({"repetition": {"n": 2, "at_most": 0.5}}, "repetition",
         # 2-grams: ab ba ab → 1/3 repeated; ab ba ab ba ab → 3/5 repeated
         [sample(0, "a b a b"), sample(1, "a b a b a b")], [0]),
        ({"length": {"at_least": 2, "at_most": 3}}, "length",
         [sample(0, "a"), sample(1, "ab"), sample(2, "abc"), sample(3, "abcd")], [1, 2]),
        ({"duplicates": True}, "duplicate",
         [sample(0, "a b"), sample(1, " a b\n"), sample(2, "a b", problem="q"), sample(3, "a c")],
         [0, 2, 3]),
    ],
)  # fmt: skip
def test_each_filter_drops_its_own(
    settings: Any, dropped: str, samples: list[Sample], left: list[int]
) -> None:
    numbers, counts = kept(samples, **settings)
    assert numbers == left
    assert counts == {"undecided": 0, dropped: len(samples) - len(left)}


def test_overlap_by_hand() -> None:
    one, two = ngrams("a b c d", 2), ngrams("A b c e", 2)
    assert one == {("a", "b"), ("b", "c"), ("c", "d")}
    assert overlap(one, two) == 2 / 4
    assert overlap(ngrams("x", 3), ngrams("x", 3)) == 1
    assert overlap(ngrams("x", 3), ngrams("y", 3)) == 0


def test_near_duplicates_go_only_beside_one_that_is_kept() -> None:
    """2 is like 1 and 1 is like 0, but 2 is unlike 0: when 1 is dropped, 2 stays."""
    samples = [sample(0, "a b c d"), sample(1, "a b c e"), sample(2, "a b f e c")]
    near = {"n": 1, "at_most": 0.59}  # 0·1: 3/5; 1·2: 4/5; 0·2: 3/6
    assert kept(samples, near_duplicates=near) == ([0, 2], {"undecided": 0, "near_duplicate": 1})
    apart = [sample(0, "a b c d"), sample(1, "a b c d", problem="q")]
    assert kept(apart, near_duplicates=near)[0] == [0, 1]


@pytest.mark.parametrize(
    ("prefer", "left"),
    [("first", [0, 1]), ("shortest", [1, 3]), ("longest", [0, 2]), ("reward", [2, 3])],
)
def test_of_a_problem_so_many_are_kept_by_the_stated_rule(prefer: str, left: list[int]) -> None:
    samples = [
        sample(3, "aa", reward=0.9), sample(0, "aaaa", reward=0.5),
        sample(1, "a", reward=0.5), sample(2, "aaaa", reward=0.9),
    ]  # fmt: skip
    numbers, counts = kept(samples, per_problem=2, prefer=prefer)
    assert sorted(numbers) == left and counts["balance"] == 2
    more = [sample(7, problem="q"), *samples]
    assert sorted(kept(more, per_problem=2, prefer=prefer)[0]) == [*left, 7]


def test_of_duplicates_the_preferred_one_is_kept() -> None:
    samples = [sample(0, "a b", tokens=5), sample(1, "a b", tokens=4), sample(2, "a b", tokens=4)]
    assert kept(samples, duplicates=True, prefer="shortest")[0] == [1]
    assert kept(samples, duplicates=True, prefer="longest")[0] == [0]


def test_problems_with_the_same_prompt_are_one() -> None:
    samples = [
        sample(0, "a", problem="q2", prompt="q"), sample(0, "a", problem="q1", prompt="q"),
        sample(1, "b", problem="q1", prompt="q"), sample(0, "a", problem="r"),
    ]  # fmt: skip
    config = validate(FilterConfig, {**OFF, "duplicates": True})
    found = filter_samples(samples, config)
    assert [(s.problem_id, s.sample) for s in found.kept] == [("q1", 0), ("q1", 1), ("r", 0)]
    assert found.dropped["duplicate"] == 1


def test_filters_count_in_their_order() -> None:
    samples = [
        sample(0, "a", outcome="wrong", finish="length"), sample(1, "b", finish="length"),
        sample(2, "c"), sample(3, "c"), sample(4, "d"),
    ]  # fmt: skip
    config = FilterConfig.model_validate({"per_problem": 1})
    found = filter_samples(samples, config)
    assert list(found.dropped.items()) == [
        ("undecided", 0), ("incorrect", 1), ("cut_off", 1), ("repetition", 0), ("duplicate", 1),
        ("near_duplicate", 0), ("balance", 1),
    ]  # fmt: skip
    assert [s.sample for s in found.kept] == [2]


@given(st.permutations(range(8)))
def test_the_order_that_samples_come_in_chooses_nothing(order: list[int]) -> None:
    samples = [sample(n, f"{n % 3} {n % 2} x y", problem="pq"[n % 2]) for n in range(8)]
    config = FilterConfig.model_validate({"per_problem": 2, "prefer": "shortest"})
    found = filter_samples([samples[n] for n in order], config)
    assert {s.sample for s in found.kept} == {
        s.sample for s in filter_samples(samples, config).kept
    }
    assert [s.sample for s in found.kept] == [n for n in order if samples[n] in found.kept]


def test_settings_that_mean_nothing_are_refused() -> None:
    with pytest.raises(UserError, match=r"length: at_most: 2 is below at_least, 3"):
        validate(FilterConfig, {"length": {"at_least": 3, "at_most": 2}})
    with pytest.raises(UserError, match="language"):
        validate(FilterConfig, {"language": {"language": "klingon"}})


def test_a_language_filter_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"lydite\[language\]"):
        validate(FilterConfig, {"language": {"language": "en"}}).check()
    validate(FilterConfig, {"language": {"language": "zh"}}).check()
