"""What a probe says, against policies whose pass rates are known."""

from __future__ import annotations

import math
import random
from itertools import combinations
from statistics import fmean

import pytest

from lydite.watch.probing import (
    HEADROOM,
    Lengths,
    Tally,
    best_size,
    completion_limit,
    doublings,
    fit_beta,
    group_sizes,
    mixed,
    pass_curve,
    share_interval,
    shares,
    skill,
    tally,
)


def sampled(rates, samples, seed=0):
    """Tallies of a policy with these pass rates."""
    draw = random.Random(seed)
    found = []
    for number, rate in enumerate(rates):
        right = [draw.random() < rate for _ in range(samples)]
        each = tally(f"p{number}", right, [float(r) for r in right])
        assert each is not None
        found.append(each)
    return found


def counted(right, samples=8):
    alike = tuple(n for n in sorted((right, samples - right)) if n)
    return Tally("p", right, samples, alike)


def test_a_mixed_group_is_counted_over_all_subsets():
    rewards = [0, 0, 0, 1, 1, 2]
    for size in range(1, 7):
        groups = list(combinations(rewards, size))
        by_hand = sum(len(set(group)) > 1 for group in groups) / len(groups)
        assert mixed((3, 2, 1), size) == pytest.approx(by_hand)
    with pytest.raises(ValueError, match="size"):
        mixed((3, 2), 6)


@pytest.mark.parametrize("rate", [0.03, 0.4, 0.9])
def test_the_share_of_informative_groups_is_estimated_without_bias(rate):
    found = sampled([rate] * 6000, 8)
    for group in group_sizes(found):
        truth = 1 - rate**group.size - (1 - rate) ** group.size
        assert group.informative.mean == pytest.approx(truth, abs=0.012)
        assert group.cost == pytest.approx(group.size / group.informative.mean)


def test_intervals_cover_the_truth():
    """Pass rates drawn from a known distribution: nineteen intervals in twenty hold the mean."""
    draw = random.Random(1)
    trials = 300
    held = dict.fromkeys(("pass@1", "pass@8", "informative", "sometimes"), 0)
    for trial in range(trials):
        rates = [draw.betavariate(0.4, 0.8) for _ in range(60)]
        found = sampled(rates, 8, trial)
        curve = dict(pass_curve(found))
        # E[1 − (1−p)^8] of Beta(a, b) is 1 − Π (b+i)/(a+b+i).
        never = math.prod((0.8 + i) / (1.2 + i) for i in range(8))
        always = math.prod((0.4 + i) / (1.2 + i) for i in range(8))
        truth = {"pass@1": 1 / 3, "pass@8": 1 - never, "informative": 1 - never - always}
        got = {
            "pass@1": curve[1],
            "pass@8": curve[8],
            "informative": group_sizes(found)[-1].informative,
            "sometimes": shares(found).sometimes,
        }
        truth["sometimes"] = truth["informative"]
        for name, interval in got.items():
            held[name] += interval.lo <= truth[name] <= interval.hi
    assert all(0.91 <= count / trials <= 0.985 for count in held.values()), held


@pytest.mark.parametrize(
    ("rates", "best"),
    [([0.5], 4), ([0.15], 8), ([0.08], 16), ([0.5] + [0.04] * 9, 16), ([0.0, 1.0, 0.4], 4)],
)
def test_the_group_size_is_what_brute_force_finds(rates, best):
    def worth(size):
        return fmean(1 - p**size - (1 - p) ** size for p in rates) / math.sqrt(size)

    assert max((4, 8, 16), key=worth) == best
    found = best_size(sampled(rates * (3000 // len(rates)), 16))
    assert found is not None and found.size == best
    assert found.sure


def test_a_group_size_that_chance_decides_is_not_sure():
    # At p = 0.2, groups of 4 and of 8 are worth the same.
    found = best_size(sampled([0.2] * 40, 16))
    assert found is not None and not found.sure


def test_no_group_size_where_nothing_differs():
    assert best_size([counted(0), counted(8)]) is None
    assert best_size([]) is None


def test_shares_by_hand():
    found = shares([counted(0), counted(8), counted(8), counted(3)])
    assert (found.always.mean, found.never.mean, found.sometimes.mean) == (0.5, 0.25, 0.25)
    # One value for each problem, 0 or 1: Wilson's interval itself.
    assert (found.never.lo, found.never.hi) == pytest.approx((0.0456, 0.6994), abs=1e-4)


def test_numbers_between_0_and_1_say_more_than_right_and_wrong():
    narrow, wide = share_interval([0.4, 0.6] * 20), share_interval([0.0, 1.0] * 20)
    assert narrow.hi - narrow.lo < 0.3 * (wide.hi - wide.lo)
    assert share_interval([1.0] * 10).hi == 1 and share_interval([1.0] * 10).lo < 0.75
    assert math.isnan(share_interval([]).mean)


def test_a_tally_leaves_out_the_undecided_and_needs_two():
    assert tally("a", [True], [1.0]) is None
    assert tally("a", [True, False, False], [0.1 + 0.2, 0.3, 0.0]) == Tally("a", 1, 3, (1, 2))


def test_curves_reach_as_far_as_every_problem():
    assert doublings(12) == [1, 2, 4, 8, 12]
    assert [k for k, _ in pass_curve([counted(3, 8), counted(1, 6)])] == [1, 2, 4, 6]
    assert pass_curve([]) == []


@pytest.mark.parametrize("a", [0.3, 2.0])
def test_the_distribution_of_pass_rates_is_found_again(a):
    draw = random.Random(0)
    found = sampled([draw.betavariate(a, 2 * a) for _ in range(4000)], 8)
    assert fit_beta(found) == pytest.approx((a, 2 * a), rel=0.15)
    alike = fit_beta(sampled([0.3] * 500, 8))
    assert alike[0] / sum(alike) == pytest.approx(0.3, abs=0.03) and sum(alike) > 30


def lengths(tokens, truncated=0):
    return Lengths(tuple(sorted(tokens)), truncated)


def test_a_limit_is_lowered_kept_or_raised():
    right = lengths(range(1, 101))
    low = completion_limit(right, lengths(range(1, 301)), 512)
    assert (low.tokens, low.verdict) == (152, "lower")  # 1.5 × 99, to the next multiple of 8
    assert low.tokens >= HEADROOM * right.within(0.99)
    assert completion_limit(right, right, 180).verdict == "keep"
    assert completion_limit(lengths([5] * 20), right, 512).verdict == "keep"
    cut = lengths([*range(1, 91), *[128] * 10], truncated=10)
    high = completion_limit(cut, cut, 128)
    assert (high.tokens, high.verdict) == (256, "raise")
    # Wrong answers that ramble on are no reason, as long as the right ones end.
    assert completion_limit(right, lengths([128] * 100, 60), 128).verdict != "raise"
    # Nothing right, and most of it cut off: it may be the limit.
    assert completion_limit(lengths([]), lengths([128] * 100, 60), 128).verdict == "raise"


def test_it_says_whether_the_skill_is_there():
    def said(rates):
        found = sampled(rates * 50, 16)
        return skill(pass_curve(found), shares(found))

    assert "hardly there" in said([0.001])
    assert "nearly all of this already" in said([0.99, 1.0])
    assert "RL can sharpen" in said([0.15])
    assert "more tries hardly help" in said([0.0, 1.0])


def test_the_present_size_stays_where_another_is_hardly_better():
    # At p = 0.5, q(G)/√G is 0.4375 for 4, 0.3508 for 8 and 0.25 for 16.
    found = sampled([0.5] * 800, 16)
    assert best_size(found, 8) == best_size(found, 16) == best_size(found)
    # At p = 0.25: 0.3398 and 0.3182.
    found = sampled([0.25] * 800, 16)
    sizes = [best_size(found, now) for now in (None, 4, 8, 16, 6)]
    assert [choice and choice.size for choice in sizes] == [4, 4, 8, 4, 4]
