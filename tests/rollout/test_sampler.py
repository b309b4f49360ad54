"""The order of problems and dynamic sampling."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import pytest

from lydite.config import UserError
from lydite.rollout.sampler import Collected, Cursor, Drawn, Sampler, collect
from lydite.types import Problem

PROBLEMS = [Problem(id=str(i), question="", messages=()) for i in range(10)]


def ids(drawn: list[Drawn]) -> list[str]:
    return [each.problem.id for each in drawn]


def test_an_epoch_draws_each_problem_once_in_an_order_of_its_own() -> None:
    sampler = Sampler(PROBLEMS, seed=3)
    first, second = ids(sampler.next(10)), ids(sampler.next(10))
    assert sorted(first) == sorted(second) == sorted(p.id for p in PROBLEMS)
    assert first != second
    assert first != ids(Sampler(PROBLEMS, seed=4).next(10))
    assert first == ids(Sampler(PROBLEMS, seed=3).next(10))


def test_how_many_are_drawn_at_a_time_does_not_matter() -> None:
    whole = Sampler(PROBLEMS, seed=0).next(25)
    sampler = Sampler(PROBLEMS, seed=0)
    assert [each for count in (3, 9, 1, 12) for each in sampler.next(count)] == whole
    assert [each.epoch for each in whole] == [0] * 10 + [1] * 10 + [2] * 5


def test_a_cursor_survives_json_and_goes_on_where_it_stood() -> None:
    sampler = Sampler(PROBLEMS, seed=0)
    sampler.next(13)
    saved = json.dumps(dataclasses.asdict(sampler.cursor))
    rest = sampler.next(12)
    assert Sampler(PROBLEMS, 0, Cursor(**json.loads(saved))).next(12) == rest


def test_a_retired_problem_is_passed_over_and_moves_no_other() -> None:
    whole = ids(Sampler(PROBLEMS, seed=0).next(30))
    sampler = Sampler(PROBLEMS, seed=0)
    drawn = ids(sampler.next(10))
    sampler.retire(["3", "7", "nobody"])
    assert (sampler.left, sampler.retired) == (8, ["3", "7"])
    drawn += ids(sampler.next(9))
    saved = json.dumps([dataclasses.asdict(sampler.cursor), sampler.retired])
    cursor, retired = json.loads(saved)
    rest = ids(sampler.next(7))
    assert ids(Sampler(PROBLEMS, 0, Cursor(**cursor), retired).next(7)) == rest
    later = [name for name in whole[10:] if name not in ("3", "7")]
    assert drawn + rest == whole[:10] + later


def test_the_last_problem_is_drawn_alone_and_then_none() -> None:
    sampler = Sampler(PROBLEMS, seed=0)
    sampler.retire(p.id for p in PROBLEMS[1:])
    three = sampler.next(3)
    assert ids(three) == ["0"] * 3 and len({each.epoch for each in three}) == 3
    sampler.retire(["0"])
    assert sampler.left == 0 and sampler.next(3) == []


def test_nothing_to_draw_or_a_changed_task_is_refused() -> None:
    with pytest.raises(UserError, match="no problems"):
        Sampler([], seed=0)
    with pytest.raises(UserError, match="resume with the same"):
        Sampler(PROBLEMS[:3], 0, Cursor(0, 7))


def run(reject: Callable[[Drawn], str | None], wanted: int, rounds: int) -> Collected[Drawn]:
    return collect(Sampler(PROBLEMS, seed=0), lambda drawn: drawn, reject, wanted, rounds)


def test_collect_stops_as_soon_as_it_has_enough() -> None:
    got = run(lambda _: None, wanted=4, rounds=5)
    assert (got.rounds, len(got.groups), len(got.seen), got.surplus) == (1, 4, 4, 0)
    assert got.report == "4 informative groups of 4 in 1 round"


def test_collect_refills_and_says_what_it_dropped() -> None:
    def even_only(each: Drawn) -> str | None:
        return None if int(each.problem.id) % 2 == 0 else "all right"

    got = run(even_only, wanted=5, rounds=20)
    assert len(got.groups) == 5
    assert all(int(each.problem.id) % 2 == 0 for each in got.groups)
    assert got.rounds > 1
    assert len(got.seen) == len(got.groups) + got.dropped["all right"] + got.surplus


def test_collect_gives_up_at_its_limit() -> None:
    got = run(lambda _: "all wrong", wanted=3, rounds=4)
    assert (got.groups, got.rounds, got.dropped["all wrong"]) == ([], 4, 12)
    assert got.report == "0 informative groups of 12 in 4 rounds; dropped: 12 all wrong"


def test_later_rounds_draw_no_more_than_they_should_need() -> None:
    """After 7 of 8 kept, one more problem or two will do; a whole round again would be waste."""
    sizes: list[int] = []

    def draw(drawn: list[Drawn]) -> list[int]:
        sizes.append(len(drawn))
        return [0] * len(drawn) if len(sizes) > 1 else [0] * 7 + [1]

    collect(Sampler(PROBLEMS, 0), draw, lambda x: "all wrong" if x else None, 8, 3)
    assert sizes == [8, 2]
