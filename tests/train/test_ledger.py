"""Which groups a step may take, and that every draw is settled once: against all that could be."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lydite.rollout.sampler import Drawn
from lydite.train.ledger import Ledger, choose, feasible
from lydite.types import Problem


def problem(name: str) -> Problem:
    return Problem(name, name, ())


def test_deadlines_by_hand() -> None:
    assert feasible([], 5, 2)
    assert feasible([5, 5, 6, 6], 5, 2)  # two at version 5, two at 6
    assert not feasible([5, 5, 5], 5, 2)  # the third would be trained at 6
    assert not feasible([4], 5, 2)
    assert feasible([6, 5, 7, 6, 5], 5, 2)


@given(st.lists(st.integers(0, 4), max_size=6), st.integers(0, 2), st.integers(1, 3))
def test_feasible_is_that_some_order_meets_every_deadline(deadlines, version, size) -> None:
    some = any(
        all(deadline >= version + place // size for place, deadline in enumerate(order))
        for order in permutations(deadlines)
    )
    assert feasible(deadlines, version, size) == some


def test_the_first_drawn_go_first_where_that_is_possible() -> None:
    # Numbers 4 and 7 were drawn first; nothing is urgent.
    assert choose([(4, 9), (7, 9), (8, 9)], [], 3, 2) == [4, 7]
    # The last has to be trained now.
    assert choose([(4, 9), (7, 9), (8, 3)], [], 3, 2) == [4, 8]
    # One that is not there has to be trained now: wait.
    assert choose([(4, 9), (7, 9)], [3], 3, 2) is None
    # Three that must be trained at the next step, two a step: one of them goes now.
    assert choose([(4, 9), (7, 9), (8, 4)], [4, 4], 3, 2) == [4, 8]
    assert choose([(4, 9)], [], 3, 2) == [4]
    assert choose([], [], 3, 2) == []


@given(
    st.lists(st.integers(2, 5), max_size=5),
    st.lists(st.integers(2, 5), max_size=3),
    st.integers(1, 3),
)
def test_a_choice_is_found_where_there_is_one(deadlines, others, size) -> None:
    ready = list(enumerate(deadlines))
    found = choose(ready, others, 2, size)
    count = min(size, len(ready))
    possible = any(
        feasible([d for n, d in ready if n not in set(order[:count])] + others, 3, size)
        for order in permutations(range(len(ready)))
    )
    assert (found is not None) == possible
    if found is not None:
        assert len(found) == count and found == sorted(found)


@settings(max_examples=200)
@given(st.data())
def test_a_walk_of_draws_and_steps_meets_every_deadline(data) -> None:
    """Groups are drawn whenever that is allowed, complete in any order, and are taken when they
    may: every one is trained in time, and a step is never stuck once all are complete.
    """
    size, staleness = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    version, number = 0, 0
    open_: dict[int, tuple[int, bool]] = {}  # deadline, whether it is complete
    trained: list[int] = []

    def draw(next_version: int) -> None:
        nonlocal number
        for _ in range(data.draw(st.integers(0, 4))):
            deadlines = [deadline for deadline, _ in open_.values()]
            if feasible([*deadlines, version + staleness], next_version, size):
                open_[number] = (version + staleness, False)
                number += 1

    for _ in range(12):
        draw(version)
        waiting = [n for n, (_, there) in open_.items() if not there]
        for n in data.draw(st.permutations(waiting)):
            ready = [(k, d) for k, (d, there) in open_.items() if there]
            others = [d for d, there in open_.values() if not there]
            if len(ready) >= size and choose(ready, others, version, size) is not None:
                break
            open_[n] = (open_[n][0], True)
        ready = [(k, d) for k, (d, there) in open_.items() if there]
        others = [d for d, there in open_.values() if not there]
        taken = choose(ready, others, version, size)
        assert taken is not None
        for n in taken:
            deadline, _ = open_.pop(n)
            assert version <= deadline
            trained.append(n)
        if taken:
            draw(version + 1)  # while the learner trains
            version += 1
    assert len(set(trained)) == len(trained)


def test_a_draw_is_settled_once() -> None:
    ledger: Ledger[str] = Ledger()
    a, b, c = (ledger.draw(Drawn(problem(n), 0), n) for n in "abc")
    ledger.settle([b], "trained")
    ledger.settle([a], "rejected")
    assert ledger.open == [c]
    assert ledger.fates == {"trained": 1, "rejected": 1}
    with pytest.raises(ValueError):
        ledger.settle([b], "trained")
    assert [entry.number for entry in (a, b, c)] == [0, 1, 2]
