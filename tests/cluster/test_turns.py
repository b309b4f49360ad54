"""Who samples when two engines have the same workers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from lydite.cluster.turns import Turns

LIMIT = 20.0


def turns(every: float = 60.0) -> tuple[Turns, list[str]]:
    said: list[str] = []
    return Turns(said.append, every), said


def taking(
    turn: Callable[[], AbstractContextManager[None]], name: str, order: list[str]
) -> threading.Thread:
    def take() -> None:
        with turn():
            order.append(name)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    return thread


def until(condition: Callable[[], bool]) -> None:
    for _ in range(int(LIMIT / 0.01)):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not come about")


def test_an_evaluation_goes_before_rollouts_that_have_waited_longer() -> None:
    shared, _ = turns()
    order: list[str] = []
    gave_way = threading.Event()
    shared.give_way = gave_way.set
    with shared.behind():
        behind = taking(shared.behind, "rollouts", order)
        first = taking(shared.first, "evaluation", order)
        assert gave_way.wait(LIMIT), "what holds the turn is told"
        assert not order, "and ends it by itself"
    for thread in (behind, first):
        thread.join(LIMIT)
    assert order == ["evaluation", "rollouts"]


def test_nobody_is_told_to_give_way_where_nobody_samples() -> None:
    shared, _ = turns()
    told: list[int] = []
    shared.give_way = lambda: told.append(1)
    with shared.first():
        pass
    assert not told


def test_a_turn_that_fails_is_over() -> None:
    shared, _ = turns()
    with pytest.raises(RuntimeError), shared.behind():
        raise RuntimeError
    order: list[str] = []
    for name, turn in (("a", shared.first), ("b", shared.behind)):
        taking(turn, name, order).join(LIMIT)
    assert order == ["a", "b"]


def test_a_long_wait_is_said_by_its_name() -> None:
    shared, said = turns(every=0.01)
    order: list[str] = []
    with shared.first():
        threads = [taking(shared.first, "a", order), taking(shared.behind, "b", order)]
        until(lambda: {line.split(",")[0] for line in said} >= NAMED)
    for thread in threads:
        thread.join(LIMIT)
    assert order == ["a", "b"]


NAMED = {
    "waiting for the rollout workers: the turn of evaluation",
    "waiting for the rollout workers: the turn of rollouts that run ahead",
}
