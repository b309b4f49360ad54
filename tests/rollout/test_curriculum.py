"""Drawing problems by their chance to teach."""

from __future__ import annotations

import json
from collections import Counter
from math import comb

import pytest

from lydite.config import UserError
from lydite.rollout.curriculum import (
    CurriculumConfig,
    CurriculumSampler,
    Estimates,
    known_rates,
    mixed_chance,
)
from lydite.rollout.sampler import Cursor, collect
from lydite.types import Problem

PROBLEMS = [Problem(id=str(i), question="", messages=()) for i in range(10)]


def sampler(problems=PROBLEMS, seed=0, size=4, cursor=None, retired=(), state=None, **settings):
    config = CurriculumConfig(**settings)
    return CurriculumSampler(problems, seed, config, size, cursor, retired, state)


def ids(drawn):
    return [each.problem.id for each in drawn]


def test_the_chance_of_a_mixed_group_by_hand():
    # Uniform pass rate: every count of right answers is as likely, and two of G + 1 are not mixed.
    assert mixed_chance(1, 1, 8) == pytest.approx(7 / 9)
    # Two draws: 2 E[p(1−p)] = 2ab / ((a+b)(a+b+1)).
    assert mixed_chance(3, 2, 2) == pytest.approx(2 * 6 / (5 * 6))
    # Much evidence: the binomial's 1 − p^G − (1−p)^G.
    assert mixed_chance(3e6, 1e6, 4) == pytest.approx(1 - 0.75**4 - 0.25**4, rel=1e-5)
    assert mixed_chance(0.5, 0.5, 4) == pytest.approx(1 - 2 * comb(8, 4) / 2**8)
    assert mixed_chance(1, 1, 1) == 0


def test_what_was_seen_of_a_problem_counts_less_as_steps_go_by():
    known = Estimates(CurriculumConfig(half_life=10, prior=1), size=4)
    assert known.beta("a", 0) == (0.5, 0.5)
    known.learn("a", right=3, decided=4, step=0)
    known.learn("b", right=0, decided=4, step=0)
    mean = (3 + 0.5) / (8 + 1)
    assert known.beta("a", 0) == pytest.approx((3 + mean, 1 + 1 - mean))
    mean = (1.5 + 0.5) / (4 + 1)
    assert known.beta("a", 10) == pytest.approx((1.5 + mean, 0.5 + 1 - mean))
    known.learn("a", right=4, decided=4, step=10)
    mean = (1.5 + 4 + 0.5) / (4 + 4 + 1)
    assert known.beta("a", 10) == pytest.approx((5.5 + mean, 0.5 + 1 - mean))
    assert known.beta("c", 10) == pytest.approx((mean, 1 - mean))
    # In the end nothing of it is left but the mean of all, and that is a half again.
    assert known.rate("b", 10_000) == pytest.approx(0.5)


def test_undecided_completions_are_no_evidence():
    known = Estimates(CurriculumConfig(), size=4)
    known.learn("a", right=0, decided=0, step=3)
    assert known.beta("a", 3) == (0.5, 0.5)


def test_problems_come_in_proportion_to_their_chance():
    """Three problems; first draws over many steps, with estimates that do not fade."""
    three = PROBLEMS[:3]
    it = sampler(three, explore=1e-9, half_life=1e9)
    for name, right in (("0", 0), ("1", 4), ("2", 2)):
        for _ in range(5):
            it.learn(name, right, 4)
    chances = dict(zip("012", it._estimates.chances(["0", "1", "2"], 0), strict=True))
    firsts: Counter[str] = Counter()
    steps = 6000
    for step in range(steps):
        it.begin(step)
        firsts[it.next(1)[0].problem.id] += 1
    for name, chance in chances.items():
        share = chance / sum(chances.values())
        assert firsts[name] / steps == pytest.approx(share, abs=4 * (share / steps) ** 0.5)
    assert chances["2"] > 3 * chances["0"] and chances["2"] > 3 * chances["1"]


def test_power_sharpens_and_0_makes_all_alike():
    def share(power):
        it = sampler(PROBLEMS[:2], explore=1e-9, half_life=1e9, power=power)
        for _ in range(5):
            it.learn("0", 0, 4)
            it.learn("1", 2, 4)
        drawn = []
        for step in range(1500):
            it.begin(step)
            drawn += ids(it.next(1))
        return drawn.count("1") / len(drawn)

    assert share(0) == pytest.approx(0.5, abs=0.05)
    assert share(1) < share(3)


def test_no_problem_starves():
    """A problem thought hopeless is met within N / (explore × prompts a step) steps, twice over."""
    many = [Problem(id=str(i), question="", messages=()) for i in range(40)]
    it = sampler(many, explore=0.25, half_life=1e9, power=8)
    met: dict[str, list[int]] = {p.id: [] for p in many}
    for step in range(100):
        it.begin(step)
        for drawn in it.next(8):
            name = drawn.problem.id
            met[name].append(step)
            it.learn(name, 2 if int(name) < 10 else 0, 4)
    bound = 40 / (0.25 * 8)
    gaps = [
        after - before
        for steps in met.values()
        for before, after in zip([0, *steps], [*steps, 99], strict=True)
    ]
    assert max(gaps) <= 2 * bound
    often = sum(len(met[str(i)]) for i in range(10))
    assert often > 0.5 * 800, "a quarter of the problems teach and get most of the draws"


def test_the_order_of_problems_plays_no_part_beside_the_walk():
    there = sampler(PROBLEMS, explore=1e-9)
    back = sampler(PROBLEMS[::-1], explore=1e-9)
    for step in range(20):
        for each in (there, back):
            each.begin(step)
        one, two = there.next(4), back.next(4)
        assert one == two
        for drawn in one:
            for each in (there, back):
                each.learn(drawn.problem.id, int(drawn.problem.id) % 5, 4)
    assert ids(sampler(seed=1, explore=1e-9).next(6)) != ids(sampler(seed=2, explore=1e-9).next(6))


def test_a_resumed_one_draws_the_same_to_the_bit():
    def step(it, number):
        it.begin(number)
        drawn = it.next(3)
        for each in drawn:
            it.learn(each.problem.id, (int(each.problem.id) * 7 + number) % 5, 4)
        return drawn, it.figures()

    whole = sampler(half_life=3)
    for number in range(7):
        step(whole, number)
    whole.retire(["4"])
    saved = json.dumps([whole.cursor.epoch, whole.cursor.offset, whole.retired, whole.state()])
    epoch, offset, retired, state = json.loads(saved)
    again = sampler(cursor=Cursor(epoch, offset), retired=retired, state=state, half_life=3)
    for number in range(7, 20):
        assert step(again, number) == step(whole, number)
    assert again.state() == whole.state()


def test_a_step_meets_a_problem_again_only_after_all_others_and_with_other_noise():
    it = sampler(PROBLEMS[:4], explore=0.5)
    it.begin(0)
    drawn = [*it.next(3), *it.next(3), *it.next(4)]
    assert [Counter(ids(drawn[:4])), Counter(ids(drawn[:8]))] == [
        {str(i): n for i in range(4)} for n in (1, 2)
    ]
    assert len({(each.problem.id, each.epoch) for each in drawn}) == len(drawn)


def test_the_retired_are_drawn_no_more_and_none_is_left_in_the_end():
    it = sampler()
    it.retire(["3", "7"])
    drawn = []
    for step in range(30):
        it.begin(step)
        drawn += ids(it.next(4))
    assert set(drawn) == {p.id for p in PROBLEMS} - {"3", "7"}
    it.retire(p.id for p in PROBLEMS)
    assert it.next(4) == [] and it.left == 0


def test_it_goes_with_dynamic_sampling():
    it = sampler(explore=0.25)
    it.begin(0)
    got = collect(it, lambda drawn: drawn, lambda d: "odd" if int(d.problem.id) % 2 else None, 4, 9)
    assert len(got.groups) == 4
    assert len(set(ids(got.seen))) == len(got.seen) <= 10


def test_the_first_step_goes_by_known_pass_rates():
    rated = [
        Problem(id=str(i), question="", messages=(), fields={"rate": rate})
        for i, rate in enumerate([0.0, 1.0, 0.5, 0, 1])
    ]
    it = sampler(rated, pass_rate="rate", size=8)
    chances = it._estimates.chances([p.id for p in rated], 0)
    assert chances[2] > 2 * chances[0] and chances[2] > 2 * chances[1]
    assert it.figures()["accuracy_estimate"] == pytest.approx(0.5)
    for bad in (None, "0.5", 1.5, True):
        wrong = Problem(id="x", question="", messages=(), fields={"rate": bad})
        with pytest.raises(UserError, match="numbers from 0 to 1"):
            known_rates([wrong], "rate", "curriculum.pass_rate")


def test_what_it_expects_of_a_step():
    it = sampler(PROBLEMS[:2], size=2, explore=1e-9)
    it.begin(5)
    it.next(2)
    assert it.figures() == {
        "informative_expected": pytest.approx(mixed_chance(0.5, 0.5, 2)),
        "accuracy_estimate": pytest.approx(0.5),
    }


def test_one_at_a_time_they_are_drawn_as_together():
    """As long as nothing is learned in between; a retired one is passed over."""
    together, single = sampler(explore=1e-9), sampler(explore=1e-9)
    for it in (together, single):
        it.learn("2", 2, 4)
        it.begin(3)
    whole = ids(together.next(9))
    first = [ids(single.next(1))[0] for _ in range(4)]
    assert first == whole[:4]
    single.retire([whole[4]])
    assert [ids(single.next(1))[0] for _ in range(4)] == whole[5:9]
