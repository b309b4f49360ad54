from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lydite.watch.intervals import (
    accuracy_interval,
    mean_interval,
    paired_difference,
    student_quantile,
    wilson,
)
from lydite.watch.metrics import avg_at_k, maj_at_k, majority_score, mean_pass_at_k, pass_at_k
from lydite.watch.repeated import flat, repeated_scores, tag_scores


def test_wilson_of_15_in_20() -> None:
    # z² = 3.84146; centre (0.75 + 0.096036)/1.192073; half 1.959964/1.192073·√(0.009375 +
    # 0.0024009).
    lo, hi = wilson(15, 20)
    assert lo == pytest.approx(0.53130, abs=1e-5)
    assert hi == pytest.approx(0.88814, abs=1e-5)


def test_wilson_at_the_ends() -> None:
    # 0 of n reaches up to z²/(n + z²).
    assert wilson(0, 10) == (0.0, pytest.approx(3.841459 / 13.841459, abs=1e-6))
    assert wilson(10, 10) == (pytest.approx(10 / 13.841459, abs=1e-6), 1.0)
    assert all(math.isnan(bound) for bound in wilson(0, 0))


def test_one_sample_a_problem_is_wilson_itself() -> None:
    interval = accuracy_interval([[1.0]] * 15 + [[0.0]] * 5)
    assert interval.mean == 0.75
    # SE² = 0.75·0.25/19 gives 19, which is kept at the 20 problems that there are.
    assert (interval.lo, interval.hi) == pytest.approx(wilson(15, 20))
    assert interval.n == 20


def test_samples_that_agree_within_a_problem_count_as_one() -> None:
    few = accuracy_interval([[1.0]] * 12 + [[0.0]] * 8)
    many = accuracy_interval([[1.0] * 8] * 12 + [[0.0] * 8] * 8)
    assert (many.lo, many.hi) == pytest.approx((few.lo, few.hi))


def test_samples_that_differ_within_a_problem_narrow_it_by_hand() -> None:
    # Means 0.25, 0.5, 0.75, 0.5: p = 0.5, variance 0.125/3, SE² = 0.0104167, effective 0.25/SE² =
    # 24, kept to 16.
    interval = accuracy_interval([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 1, 1]])
    assert (interval.lo, interval.hi) == pytest.approx(wilson(8, 16))
    # Means 0, 1, 0.5, 0.5: variance 0.5/3, SE² = 0.0416667, effective 6, between 4 and 8.
    interval = accuracy_interval([[0, 0], [1, 1], [1, 0], [0, 1]])
    assert (interval.lo, interval.hi) == pytest.approx(wilson(3, 6))


def test_all_right_is_not_certain() -> None:
    interval = accuracy_interval([[1.0] * 4] * 10)
    assert interval.mean == interval.hi == 1.0
    assert interval.lo == pytest.approx(wilson(10, 10)[0])


def test_problems_without_a_verdict_are_left_out() -> None:
    assert accuracy_interval([[1.0], [], [0.0]]).n == 2
    assert math.isnan(accuracy_interval([]).mean)
    with pytest.raises(ValueError, match="correct"):
        accuracy_interval([[1.5]])


@pytest.mark.parametrize("samples", [1, 4])
def test_the_interval_holds_the_truth_about_19_times_in_20(samples: int) -> None:
    random.seed(1)
    held = 0
    for _ in range(400):
        chances = [random.betavariate(2, 1) for _ in range(60)]
        scores = [[float(random.random() < c) for _ in range(samples)] for c in chances]
        interval = accuracy_interval(scores)
        held += interval.lo <= 2 / 3 <= interval.hi
    assert 0.92 <= held / 400 <= 0.985


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=5), min_size=1, max_size=30))
def test_bounds_stay_within_0_and_1_around_the_mean(scores: list[list[bool]]) -> None:
    interval = accuracy_interval(scores)
    assert 0 <= interval.lo <= interval.mean + 1e-12
    assert interval.mean - 1e-12 <= interval.hi <= 1
    assert interval.lo < interval.hi


@pytest.mark.parametrize(
    ("freedom", "table", "within"),
    [(1, 12.7062, 1e-4), (2, 4.30265, 1e-5), (3, 3.18245, 8e-3), (4, 2.77645, 2e-3),
     (5, 2.57058, 1e-3), (10, 2.22814, 1e-4), (30, 2.04227, 1e-5), (10**6, 1.95997, 1e-5)],
)  # fmt: skip
def test_student_against_the_printed_table(freedom: int, table: float, within: float) -> None:
    assert student_quantile(freedom) == pytest.approx(table, abs=within)
    with pytest.raises(ValueError, match="freedom"):
        student_quantile(0)


def test_mean_interval_by_hand() -> None:
    # 1, 2, 3: mean 2, SE 1/√3, t(2) = 4.30265, half 2.48414.
    interval = mean_interval([1.0, 2.0, 3.0])
    assert (interval.mean, interval.lo, interval.hi) == pytest.approx(
        (2, -0.48414, 4.48414), abs=1e-5
    )
    assert mean_interval([5.0]).hi == math.inf
    assert mean_interval([]).n == 0


def test_paired_difference_by_hand() -> None:
    # Differences 1, 0, 0, 1 over shared problems: mean 0.5, sd 0.57735, SE 0.288675, t(3) ≈ 3.1824,
    # half 0.9187.
    before = {"a": 0.0, "b": 1.0, "c": 0.0, "d": 0.0, "gone": 1.0}
    after = {"a": 1.0, "b": 1.0, "c": 0.0, "d": 1.0, "new": 0.0}
    interval = paired_difference(before, after)
    assert interval.n == 4
    assert interval.mean == 0.5
    assert interval.lo == pytest.approx(0.5 - 0.9187, abs=3e-3)
    assert interval.hi == 1.0
    assert not interval.excludes_zero


def test_pairing_sees_a_change_that_separate_intervals_do_not() -> None:
    before = {str(i): float(i % 2) for i in range(200)}
    after = {p: 1.0 if int(p) % 20 == 0 else s for p, s in before.items()}
    assert paired_difference(before, after).excludes_zero
    apart = [accuracy_interval([[s] for s in scores.values()]) for scores in (before, after)]
    assert apart[0].hi > apart[1].lo


def test_no_change_at_all_is_not_certain_either() -> None:
    same = {str(i): 1.0 for i in range(10)}
    interval = paired_difference(same, same)
    upper = 3.841459 / 13.841459
    assert (interval.mean, interval.lo, interval.hi) == pytest.approx((0, -upper, upper), abs=1e-6)
    assert math.isnan(paired_difference({"a": 1.0}, {"b": 1.0}).mean)


def test_avg_at_k_weighs_problems_the_same() -> None:
    assert avg_at_k([[1, 0], [1, 1, 1, 1]]) == 0.75
    assert avg_at_k([[1], []]) == 1.0
    assert math.isnan(avg_at_k([]))


def test_pass_at_k_by_hand() -> None:
    # 4 samples, 1 right, 2 drawn: 1 − C(3,2)/C(4,2) = 1 − 3/6.
    assert pass_at_k(4, 1, 2) == 0.5
    assert pass_at_k(4, 1, 1) == 0.25
    assert pass_at_k(4, 3, 2) == 1.0
    assert pass_at_k(4, 0, 4) == 0.0
    assert mean_pass_at_k([[True, False, False, False], [False] * 4], 2) == 0.25
    assert math.isnan(mean_pass_at_k([], 1))
    for samples, right, k in ((4, 1, 5), (4, 1, 0), (4, 5, 1)):
        with pytest.raises(ValueError):
            pass_at_k(samples, right, k)


@given(st.integers(1, 12), st.data())
def test_pass_at_k_is_the_share_of_all_draws(samples: int, data: st.DataObject) -> None:
    from itertools import combinations

    right = data.draw(st.integers(0, samples))
    k = data.draw(st.integers(1, samples))
    draws = list(combinations([True] * right + [False] * (samples - right), k))
    assert pass_at_k(samples, right, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_majority_by_hand() -> None:
    assert majority_score(["7", "8", "7"], [1, 0, 1]) == 1.0
    assert majority_score(["7", "8", "8"], [1, 0, 0]) == 0.0
    # A tie between a right and a wrong answer is worth half, whatever the order.
    assert majority_score(["7", "8"], [1, 0]) == majority_score(["8", "7"], [0, 1]) == 0.5
    # Three that gave no answer do not outvote the one that did.
    assert majority_score([None, None, None, "7"], [0, 0, 0, 1]) == 1.0
    assert majority_score([None], [0]) == 0.0
    assert maj_at_k([["7", "7"], [None, "1"]], [[1, 1], [0, 0]]) == 0.5
    assert math.isnan(maj_at_k([], []))


def test_pass_at_k_and_maj_at_k_of_four_samples_by_hand() -> None:
    problems = [
        [("7", 1.0), ("7.0", 1.0), ("8", 0.0), ("8", 0.0)],  # two right, written in two ways
        [("3", 0.0), ("3", 0.0), ("3", 0.0), ("5", 1.0)],
        [("1", 0.0), (None, 0.0), ("2", 0.0), (None, 0.0)],
    ]
    found = repeated_scores(problems, 4)
    assert list(found) == ["pass@2", "pass@4", "maj@4"]
    # 1 − C(2,2)/C(4,2) = 5/6; 1 − C(3,2)/C(4,2) = 1/2; 0.
    assert found["pass@2"].mean == pytest.approx((5 / 6 + 1 / 2 + 0) / 3)
    assert found["pass@4"].mean == pytest.approx(2 / 3)
    # The first vote is tied between the right answer and 8.
    assert found["maj@4"].mean == pytest.approx((0.5 + 0 + 0) / 3)
    assert (found["pass@4"].lo, found["pass@4"].hi) == pytest.approx(wilson(2, 3))
    assert all(each.lo <= each.mean <= each.hi and each.n == 3 for each in found.values())


def test_samples_that_could_not_be_judged_leave_pass_at_k_and_not_the_rest() -> None:
    found = repeated_scores([[("1", 1.0), ("2", 0.0), ("1", 1.0)], [("1", 0.0), ("1", 0.0)], []], 3)
    assert found["pass@3"].n == 1 and found["pass@3"].mean == 1
    assert found["pass@2"].n == 2 and found["maj@3"].n == 2
    assert repeated_scores([[("1", 1.0)]], 1) == {}
    # Nothing was read as an answer: nobody can vote.
    assert list(repeated_scores([[(None, 1.0), (None, 0.0)]], 2)) == ["pass@2"]


def test_half_as_many_draws_widen_the_interval() -> None:
    """pass@2 of 8 samples is known better than pass@2 of 2."""
    few = repeated_scores([[("1", 1.0), ("2", 0.0)], [("1", 0.0), ("2", 0.0)]] * 10, 2)["pass@2"]
    many = repeated_scores([[("1", 1.0), ("2", 0.0)] * 4, [("1", 1.0), *[("2", 0.0)] * 7]] * 10, 8)
    assert few.hi - few.lo > many["pass@2"].hi - many["pass@2"].lo


def test_scores_by_tag() -> None:
    scores = {"a": [1.0, 0.0], "b": [1.0, 1.0], "c": [0.0, 0.0], "d": []}
    found = tag_scores(scores, {"a": "x", "b": "x", "c": "y", "d": "z"})
    assert {tag: (i.mean, i.n) for tag, i in found.items()} == {"x": (0.75, 2), "y": (0.0, 1)}
    assert tag_scores(scores, dict.fromkeys("abcd", "x")) == {}
    assert flat({"t": found["y"]}) == {"t": 0.0, "t_lo": found["y"].lo, "t_hi": found["y"].hi}


def test_an_interval_counts_the_draws_that_have_no_sample_in_common() -> None:
    """Ten problems alike: 1 − C(4,2)/C(8,2) = 11/14 each, from 8/2 draws each."""
    found = repeated_scores([[("1", 1.0), ("2", 0.0)] * 4] * 10, 8)["pass@2"]
    assert found.mean == pytest.approx(11 / 14)
    assert (found.lo, found.hi) == pytest.approx(wilson(40 * 11 / 14, 40))
