"""Constraints on answers, each on both sides of its edge."""

import time
from typing import Any

import pytest

from lydite.config import UserError, validate
from lydite.types import Problem
from lydite.verify import VerifierConfig, build, verify_golds
from lydite.verify.constraints import Constraints
from lydite.verify.instruction import COUNTERS, check_text, occurrences

TEXT = """Dear [name],

tea costs 3.50 euros, e.g. in Paris. Is it *too* much? No! We **love TEA** NOW.

- one
* two
3. three
"""


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("words", 21),  # 9 up to Paris, 9 up to NOW, 3; a list's number is none
        ("sentences", 8),  # Dear; tea…Paris; Is…much; No; We…NOW; three lines
        ("paragraphs", 3),
        ("bullets", 3),
        ("characters", len(TEXT)),
        ("capital_words", 2),
        ("placeholders", 1),
        ("highlights", 2),
    ],
)
def test_counts(name: str, count: int) -> None:
    assert COUNTERS[name](TEXT) == count


def test_phrases_are_whole_words_in_any_case() -> None:
    assert occurrences("Tea, tea and TEA; teapot, tea-time", "tea") == 4
    assert occurrences("meat, eating, eat", "eat") == 1
    assert occurrences("in  the\nend", "In the end") == 1
    assert occurrences("C++ and c++", "C++") == 2
    assert occurrences("我喜欢茶", "茶") == 1


KEPT: list[tuple[dict[str, Any], str, str]] = [
    ({"words": {"min": 2, "max": 3}}, "one two", "one"),
    ({"words": 2}, "one, two!", "one two three"),
    ({"sentences": {"max": 1}}, "It costs 3.50 euros.", "One. Two."),
    ({"paragraphs": 2}, "a\n\nb", "a\nb"),
    ({"characters": {"max": 3}}, "abc", "abcd"),
    ({"case": "lower"}, "all lower 1", "Not lower"),
    ({"case": "upper"}, "ALL UPPER", "Upper"),
    ({"case": "upper"}, "A", "123"),
    ({"include": ["tea", "milk"]}, "Milk with tea", "teapot and milk"),
    ({"include": "tea"}, "tea", "coffee"),
    ({"exclude": ["tea"]}, "teapot", "Tea"),
    ({"counts": {"tea": 2}}, "tea Tea", "tea"),
    ({"counts": {"tea": {"max": 1}}}, "no", "tea tea"),
    ({"starts_with": "dear"}, "Dear all", "Oh dear"),
    ({"ends_with": "Yours."}, "bye. yours.", "Yours"),
    ({"no_commas": True}, "a b", "a, b"),
    ({"no_commas": True}, "a b", "a，b"),
    ({"quoted": True}, '"so"', "so"),
    ({"one_of": ["yes", "no"]}, "Yes.", "yes and no"),
    ({"only_json": True}, '{"a": 1}', 'Here: {"a": 1}'),
    ({"only_json": True}, '```json\n{"a": 1}\n```', "[1] [2]"),
    ({"language": "zh"}, "我们先算一下", "so it is"),
]


@pytest.mark.parametrize(("stated", "good", "bad"), KEPT)
def test_both_sides(stated: dict[str, Any], good: str, bad: str) -> None:
    wanted = validate(Constraints, stated)
    assert [kept.fault for kept in check_text(good, wanted)] == [None] * len(
        check_text(good, wanted)
    )
    assert any(kept.fault for kept in check_text(bad, wanted))


def test_every_constraint_is_tried_here() -> None:
    tried = {name for stated, _, _ in KEPT for name in stated} | set(COUNTERS) | {"json_schema"}
    assert tried == set(Constraints.model_fields)


def row(constraints: object, name: str = "a") -> Problem:
    return Problem(name, "q", (), fields={"constraints": constraints})


def test_rewards_of_rows_and_settings() -> None:
    settings = {"constraints": {"no_commas": True, "words": {"max": 1}}}
    problems = [
        row({"words": {"max": 3}, "include": None, "counts": {"tea": None, "milk": 1}}),
        row('{"ends_with": "!"}'),
        row(None),
    ]
    verifier = build(VerifierConfig.model_validate({"kind": "instruction", **settings}))
    share = build(
        VerifierConfig.model_validate({"kind": "instruction", "reward": "share", **settings})
    )
    texts = ["<think>one, two</think> milk it is", "so, what!", "one two"]
    verdicts = verifier.verify(problems, texts)
    assert [v.reward for v in verdicts] == [1.0, 0.0, 0.0]
    # Of the second, commas and words fail and the ending is kept; of the third, words fail.
    assert [v.reward for v in share.verify(problems, texts)] == pytest.approx([1.0, 1 / 3, 1 / 2])
    assert verdicts[1].detail == "words: words: 2, not at most 1; no_commas: there is a comma"
    empty = verifier.verify(problems[2:] * 2, ["", "<think>so"])
    assert [(v.outcome, v.reward) for v in empty] == [("unparseable", 0.0)] * 2


def test_a_schema_is_fitted_in_the_workers() -> None:
    schema = {"type": "object", "required": ["a"]}
    verifier = build(VerifierConfig.model_validate("instruction"))
    problem = row({"json_schema": schema, "characters": {"max": 12}})
    texts = ['{"a": 1}', '{"b": 1}', "a", '{"a": 1, "b": 2}']
    verdicts = verifier.verify([problem] * 4, texts)
    verifier.close()
    assert [v.reward for v in verdicts] == [1.0, 0.0, 0.0, 0.0]
    assert "json_schema: 'a' is a required property" in verdicts[1].detail
    assert "json_schema: not JSON" in verdicts[2].detail


@pytest.mark.parametrize(
    ("constraints", "said"),
    [
        (None, "no column `constraints`"),
        ({}, "no column `constraints`"),
        ({"wrds": 3}, "unknown key 'wrds'; did you mean 'words'"),
        ({"words": {"min": 3, "max": 2}}, "min 3 is more than max 2"),
        ({"words": {}}, "give min, max or both"),
        ({"language": "Germn"}, "did you mean german"),
        ({"include": [" "]}, "a phrase is empty"),
        ("[1", "no JSON"),
        ([1], "expected names with values, got list"),
        ({"json_schema": {"type": "objekt"}}, "no JSON schema"),
    ],
)
def test_columns_that_cannot_be_used(constraints: object, said: str) -> None:
    verifier = build(VerifierConfig.model_validate("instruction"))
    faults = verify_golds(verifier, [row({"words": 1}, "good"), row(constraints, "bad")])
    assert [fault.problem_id for fault in faults] == ["bad"]
    assert said in faults[0].reason and "\n" not in faults[0].reason
    verdict = verifier.verify([row(constraints)], ["x"])[0]
    assert (verdict.outcome, verdict.reward) == ("ungradable", None)


@pytest.mark.parametrize("unit", [",", "*", "a", "A'", "[", "\n", "- ", "a.", "“", "```\n", "é "])
def test_hostile_texts_cost_no_more_than_their_length(unit: str) -> None:
    stated = {name: {"max": 1} for name in COUNTERS}
    wanted = validate(Constraints, {**stated, "include": ["a b c"], "only_json": True})
    begun = time.monotonic()
    check_text(unit * (100_000 // len(unit)), wanted)
    assert time.monotonic() - begun < 20


def test_mistakes_in_the_settings_are_one_line() -> None:
    with pytest.raises(UserError, match=r"constraints\.words: give min, max or both"):
        validate(VerifierConfig, {"kind": "instruction", "constraints": {"words": {}}})


@pytest.mark.parametrize("name", ["words", "sentences", "bullets"])
@pytest.mark.parametrize("value", ["many", "3", True, 2.5, [1, 2]])
def test_a_count_that_is_no_count_is_told_what_to_give(name: str, value: object) -> None:
    settings = {"kind": "instruction", "constraints": {name: value}}
    with pytest.raises(UserError, match=rf"{name}: give a number, or such as {{min: 2, max: 5}}"):
        validate(VerifierConfig, {"rewards": settings}, "verifier")
