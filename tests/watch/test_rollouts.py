"""Figures of a step's rollouts, counted by hand."""

import math
from dataclasses import replace

import pytest

from lydite.types import Completion, Group, Message, Outcome, Problem, Verdict
from lydite.watch.rollouts import (
    PASS_RATES,
    advantage_figures,
    band,
    percentile,
    repetition,
    rollout_figures,
)


def group(
    rights: list[bool | None], texts: list[str] | None = None, tag: str = "", name: str = "p"
) -> Group:
    texts = texts or [f"text {i}" for i in range(len(rights))]
    completions = [
        Completion(name, i, (1,), tuple(range(len(t))), (0.0,) * len(t), (1,) * len(t), "stop", t)
        for i, t in enumerate(texts)
    ]
    verdicts = [
        Verdict(Outcome.UNGRADABLE, None)
        if right is None
        else Verdict(Outcome.CORRECT if right else Outcome.WRONG, float(right), answer=str(right))
        for right in rights
    ]
    problem = Problem(name, "q", (Message("user", "q"),), tag=tag)
    return Group(problem, completions, verdicts)


def test_shares_of_groups_and_pass_rates() -> None:
    found = rollout_figures(
        [group([True, True]), group([False, False]), group([True, False]), group([None, False])]
    )
    assert found["groups_all_right"] == 0.25
    assert found["groups_all_wrong"] == 0.5  # what could not be decided is in neither
    assert found["pass_rate_0"] == 0.5
    assert found["pass_rate_26_50"] == 0.25
    assert found["pass_rate_100"] == 0.25
    assert found["reward_std"] == pytest.approx(math.sqrt(3 / 7 * 4 / 7))


@pytest.mark.parametrize(
    ("rate", "expected"),
    [(0, "0"), (0.01, "1_25"), (0.25, "1_25"), (0.26, "26_50"), (0.5, "26_50"), (0.75, "51_75"),
     (0.76, "76_99"), (0.99, "76_99"), (1, "100")],
)  # fmt: skip
def test_bands(rate: float, expected: str) -> None:
    assert band(rate) == expected
    assert expected in PASS_RATES


def test_lengths_by_right_and_wrong() -> None:
    found = rollout_figures([group([True, False, None], ["ab", "abcdef", "abcdefghij"])])
    assert found["length_right"] == 2
    assert found["length_wrong"] == 6
    assert found["length_p99"] == 6


def test_what_was_injected_is_no_length() -> None:
    whole = group([True, False], ["abcdef", "ab"])
    first = replace(whole.completions[0], loss_mask=(1, 0, 0, 0, 1, 1))
    found = rollout_figures([replace(whole, completions=[first, whole.completions[1]])])
    assert (found["length_right"], found["length_wrong"]) == (3, 2)


def test_no_right_answer_has_no_length() -> None:
    assert "length_right" not in rollout_figures([group([False])])


def test_variety() -> None:
    found = rollout_figures([group([True, True, True, False], ["a", "a", "a", "b"])])
    assert found["distinct_completions"] == 0.5
    assert found["distinct_answers"] == 0.5
    assert "distinct_completions" not in rollout_figures([group([True])])


def test_accuracy_by_tag_only_where_there_are_several() -> None:
    found = rollout_figures([group([True, False], tag="a"), group([True, True], tag="b")])
    assert (found["accuracy_tag_a"], found["accuracy_tag_b"]) == (0.5, 1.0)
    assert not [n for n in rollout_figures([group([True], tag="a")]) if "tag" in n]


def test_spread_of_parts() -> None:
    problem = Problem("p", "q", (Message("user", "q"),))
    base = group([True, False])
    verdicts = [
        Verdict(Outcome.CORRECT, 1.5, parts={"math": 1.0, "format": 0.5}),
        Verdict(Outcome.WRONG, 0.5, parts={"math": 0.0, "format": 0.5}),
    ]
    found = rollout_figures([Group(problem, base.completions, verdicts)])
    assert found["spread_math"] == 0.5
    assert found["spread_format"] == 0


def test_repetition() -> None:
    assert repetition("") == 0
    assert repetition("every word of this sentence is another one and none comes back") == 0
    assert repetition("again and again and " * 20) > 0.9
    assert repetition("1+1=2;" * 40) > 0.8
    assert repetition("x" * 10_000_000) > 0.9  # bounded, whatever the length


def test_spread_of_advantages() -> None:
    assert advantage_figures([1.0, -1.0, math.nan]) == {
        "advantage_std": 1.0, "advantage_min": -1.0, "advantage_max": 1.0,
    }  # fmt: skip
    assert advantage_figures([]) == {}


def test_nothing_decided_says_nothing_of_right_and_wrong() -> None:
    found = rollout_figures([group([None, None])])
    assert "groups_all_right" not in found
    assert all(map(math.isfinite, found.values()))


def test_cut_off_and_longest_by_right_and_wrong() -> None:
    made = group([True, True, False, False], ["a" * 3, "a" * 9, "a" * 5, "a" * 2])
    cut = [replace(c, finish="length") if n in (1, 2) else c
           for n, c in enumerate(made.completions)]  # fmt: skip
    found = rollout_figures([replace(made, completions=cut)])
    assert found["truncated_right"] == 0.5 and found["truncated_wrong"] == 0.5
    assert (found["length_right_p99"], found["length_wrong_p99"]) == (9, 5)
    assert "truncated_right" not in rollout_figures([group([False])])


def test_the_99th_percentile_by_hand() -> None:
    assert percentile([float(n) for n in range(1, 101)]) == 99
    assert percentile([float(n) for n in range(1, 102)]) == 100
    assert percentile([7.0]) == 7
    assert math.isnan(percentile([]))


def test_prompts_and_the_time_of_verdicts() -> None:
    first, second = group([True, False]), group([True, False], name="q")
    longer = [replace(c, prompt_ids=(1, 2, 3, 4, 5)) for c in second.completions]
    timed = [replace(v, seconds=s) for v, s in zip(second.verdicts, (0.5, 1.5), strict=True)]
    found = rollout_figures([first, replace(second, completions=longer, verdicts=timed)])
    assert (found["prompt_length"], found["prompt_length_max"]) == (3, 5)
    assert (found["verdict_seconds"], found["verdict_seconds_p99"]) == (0.5, 1.5)
    assert "verdict_seconds" not in rollout_figures([first])


def test_reward_by_tag_may_differ_from_accuracy() -> None:
    made = group([True, False], tag="hard")
    paid = [replace(v, reward=0.25) for v in made.verdicts]
    found = rollout_figures([replace(made, verdicts=paid), group([True], tag="easy")])
    assert found["reward_tag_hard"] == 0.25 and found["accuracy_tag_hard"] == 0.5
    assert found["reward_tag_easy"] == 1
