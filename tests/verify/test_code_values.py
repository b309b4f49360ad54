"""Values and output are compared as what they are, by the policy that the docs state."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lydite.verify.code.guest import spelling
from lydite.verify.code.stdout import same_output
from lydite.verify.code.values import MAX_DEPTH, SpellingError, Tolerance, same_value, show, spell

EXACT = Tolerance(0.0, 0.0)
USUAL = Tolerance()
NAN = {"$float": "nan"}


def tuple_(*items: object) -> dict[str, Any]:
    return {"$tuple": list(items)}


def set_(*items: object) -> dict[str, Any]:
    return {"$set": list(items)}


def dict_(*pairs: object) -> dict[str, Any]:
    return {"$dict": [list(pair) for pair in pairs]}  # type: ignore[call-overload]


SAME = [
    (1, 1),
    (2, 2.0),
    (2.0, 2),
    (10**30, {"$int": hex(10**30)}),
    (0.1 + 0.2, 0.3),
    (1.0, 1.0 + 5e-7),
    (0.0, 5e-10),
    (NAN, NAN),
    ({"$float": "inf"}, {"$float": "inf"}),
    ("a", "a"),
    (None, None),
    (True, True),
    ([1, [2, 3]], [1, [2, 3]]),
    ([1, [2]], tuple_(1, tuple_(2))),
    (tuple_(1, 2), tuple_(1, 2)),
    (set_(1, 2), set_(2, 1)),
    (set_(tuple_(1, 2)), set_(tuple_(1.0, 2))),
    (set_({"$frozenset": [1, 2]}), set_({"$frozenset": [2, 1]})),
    (dict_(("a", 1), ("b", [2])), dict_(("b", [2.0]), ("a", 1))),
    (dict_((1, "x")), dict_((1.0, "x"))),
    ({"$bytes": "00ff"}, {"$bytes": "00ff"}),
    ({"$complex": [1.0, 2.0]}, {"$complex": [1.0, 2.0]}),
    ([], []),
    (dict_(), dict_()),
]
DIFFERENT = [
    (1, 2),
    (1, True),
    (True, 1),
    (0, False),
    (1, "1"),
    (1, None),
    (0, None),
    (1.0, 1.001),
    (10**17, 1e17 + 16),
    (10**17 + 1, 1e17),
    (3, 3.0000001),
    (1.0, NAN),
    (NAN, 1.0),
    ({"$float": "inf"}, 1e308),
    ({"$float": "inf"}, {"$float": "-inf"}),
    ({"$float": "inf"}, 10**400),
    (1.0, 10**400),
    ("a", "A"),
    ("a", ["a"]),
    ("ab", ["a", "b"]),
    ("", None),
    ([], None),
    ([1, 2], [1]),
    ([1], [1, 2]),
    ([1, 2], [2, 1]),
    ([1, 2], set_(1, 2)),
    (tuple_(1, 2), [1, 2]),
    (set_(1, 2), [1, 2]),
    (set_(1, 2), {"$frozenset": [1, 2]}),
    (set_(1, 2), set_(1)),
    (set_(1), set_(True)),
    (set_(1), set_(1, 2)),
    (dict_(("a", 1)), dict_(("a", 2))),
    (dict_(("a", 1)), dict_(("a", 1), ("b", 2))),
    (dict_(("1", 1)), dict_((1, 1))),
    (dict_((1, 1)), dict_((True, 1))),
    ({"$bytes": "61"}, "a"),
    ("a", {"$bytes": "61"}),
    ([1], {"$iterator": [1]}),
    ({"$complex": [1.0, 0.0]}, 1.0),
]
# What no process of ours says: a candidate may have written it itself.
FORGED = [
    {}, {"$tuple": 1}, {"$tuple": None}, {"$set": [[1]]}, {"$dict": [1]}, {"$dict": [[1]]},
    {"$dict": [[[1], 2]]}, {"$dict": {"a": 1}}, {"$int": "zz"}, {"$int": 3}, {"$float": "x"},
    {"$bytes": "zz"}, {"$complex": [1]}, {"value": 1}, {"$tuple": [1], "$set": [2]}, {"$any": [1]},
    {"$set": {"a": 1}}, {"$float": ["nan"]}, {"$frozenset": "abc"},
]  # fmt: skip
EXPECTED = [1, 1.5, "a", None, True, [1], tuple_(1), set_(1), dict_(("a", 1)), {"$bytes": "00"},
            {"$complex": [1.0, 2.0]}, NAN, {"$frozenset": [1]}]  # fmt: skip


@pytest.mark.parametrize(("expected", "got"), SAME)
def test_same_values(expected: Any, got: Any) -> None:
    assert same_value(expected, got, USUAL)


@pytest.mark.parametrize(("expected", "got"), DIFFERENT)
def test_different_values(expected: Any, got: Any) -> None:
    assert not same_value(expected, got, USUAL)


@pytest.mark.parametrize("forged", FORGED)
def test_a_forged_reply_equals_nothing(forged: Any) -> None:
    for expected in EXPECTED:
        assert not same_value(expected, forged, USUAL)
        assert not same_value([expected], [forged], USUAL)
        assert not same_value(dict_(("k", expected)), dict_(("k", forged)), USUAL)


def test_tolerance_is_the_larger_of_the_two() -> None:
    assert Tolerance(1e-3, 0).close(1000.0, 1000.9)
    assert not Tolerance(1e-3, 0).close(0.0, 1e-9)
    assert Tolerance(0, 0.5).close(1.0, 1.4) and not Tolerance(0, 0.5).close(1.0, 1.6)
    assert not same_value(0.1 + 0.2, 0.3, EXACT)


def test_numbers_that_hash_alike_cost_nothing() -> None:
    """As Python's own sets they would take minutes: each is compared with each."""
    alike = [n * (2**61 - 1) for n in range(30_000)]
    assert same_value(set_(*alike), set_(*reversed(alike)), USUAL)
    assert same_value(dict_(*((n, n) for n in alike)), dict_(*((n, n) for n in alike)), USUAL)


def nested(depth: int) -> Any:
    tree: Any = 1
    for _ in range(depth):
        tree = [tree]
    return tree


def test_depth_is_limited() -> None:
    assert same_value(nested(MAX_DEPTH - 1), nested(MAX_DEPTH - 1), USUAL)
    assert not same_value(nested(MAX_DEPTH + 2), nested(MAX_DEPTH + 2), USUAL)
    assert not same_value(set_(nested(900)), set_(nested(900)), USUAL)
    with pytest.raises(SpellingError, match="nested more than 60 deep"):
        spell(nested(MAX_DEPTH + 2))


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4)
    | st.binary(max_size=4) | st.complex_numbers(allow_nan=False, max_magnitude=1e6),
    lambda inner: st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple)
    | st.frozensets(st.integers() | st.text(max_size=3), max_size=4)
    | st.sets(st.integers() | st.text(max_size=3), max_size=4)
    | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(PLAIN)
def test_a_value_survives_the_way_out_and_back(value: Any) -> None:
    tree = json.loads(json.dumps(spelling.spell(value)))
    back = spelling.read(tree)
    assert back == value and type(back) is type(value)
    assert same_value(tree, tree, EXACT)


@given(PLAIN, PLAIN)
def test_only_equal_values_are_the_same(one: Any, other: Any) -> None:
    trees = [json.loads(json.dumps(spelling.spell(value))) for value in (one, other)]
    if same_value(trees[0], trees[1], EXACT):
        relaxed = [
            repr(v).replace("(", "[").replace(")", "]").replace(",]", "]") for v in (one, other)
        ]
        assert one == other or relaxed[0] == relaxed[1] or _listed(one) == _listed(other)


def _listed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_listed(item) for item in value]
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    return value


class Word(str):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__

    def __str__(self) -> str:
        return "lie"


class Many(list):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return iter([7])

    def __len__(self) -> int:
        return 0


class Number(int):
    def __int__(self) -> int:
        return 7

    def __add__(self, other: object) -> int:
        return 7


def test_subclasses_are_what_their_built_in_type_holds() -> None:
    assert spelling.spell(Word("no")) == "no" and type(spelling.spell(Word("no"))) is str
    assert spelling.spell(Many([1, 2])) == [1, 2]
    assert spelling.spell(Number(3)) == 3 and type(spelling.spell(Number(3))) is int


def test_what_is_no_plain_data_is_said() -> None:
    with pytest.raises(spelling.Unspelled, match="object, which is no plain data"):
        spelling.spell(object())
    with pytest.raises(spelling.TooLarge, match="iterator of more than"):
        spelling.spell(iter(int, 1))
    assert spelling.spell(x for x in (1, 2)) == {"$iterator": [1, 2]}
    assert spelling.spell({"a": 1}.items()) == {"$iterator": [tuple_("a", 1)]}


def test_data_files_spell_dictionaries_plainly() -> None:
    assert spell({"a": [1, {"b": None}]}) == dict_(("a", [1, dict_(("b", None))]))
    assert spell(float("nan")) == NAN
    assert spell({"$tuple": [1, {"a": 2}]}) == tuple_(1, dict_(("a", 2)))
    assert spell({"$tuple": 1, "x": 2}) == dict_(("$tuple", 1), ("x", 2))


@pytest.mark.parametrize(
    "wrong",
    [{"$tuple": 1}, {"$int": "zz"}, {"$float": "big"}, {"$bytes": "x"}, {"$set": [[1]]},
     {"$dict": [1]}, {"$dict": [[[1], 2]]}, {"$complex": [1]}],
)  # fmt: skip
def test_data_that_spells_no_value_is_refused(wrong: Any) -> None:
    with pytest.raises(SpellingError):
        spell(wrong)


def test_a_value_is_shown_short() -> None:
    assert show([1, "é"]) == '[1, "é"]'
    assert len(show("x" * 1000)) == 61


OUTPUT_SAME = [
    ("1\n2\n", "1\n2"),
    ("1\n2", "1\n2\n\n\n"),
    ("1 \t\r\n2", "1\n2"),
    ("a b", "a b"),
    ("0.5", "0.50000001"),
    ("x 1.0 y", "x 1 y"),
    ("1e-3", "0.001"),
    ("  1.5", "  1.5000000001"),
    ("é", "é"),
]
OUTPUT_DIFFERENT = [
    ("1\n2\n3", "1"),
    ("1\n2\n3", "1\n2\n3\n4"),
    ("1", ""),
    ("1", "\n1"),
    ("1\n\n2", "1\n2"),
    ("1 2", "1  2"),
    ("1 2", "12"),
    ("  1", "1"),
    ("YES", "Yes"),
    ("1", "1.0"),
    ("10000000", "10000001"),
    ("0.5", "0.51"),
    ("0.5", "0.5 0.5"),
    ("0.5", "nan"),
    ("0.5", "0.5" + "0" * 500 + "x"),
    ("1.5  2.5", "1.5 2.5"),
    ("[1.0]", "[1]"),
]


@pytest.mark.parametrize(("expected", "got"), OUTPUT_SAME)
def test_same_output(expected: str, got: str) -> None:
    assert same_output(expected, got, USUAL)


@pytest.mark.parametrize(("expected", "got"), OUTPUT_DIFFERENT)
def test_different_output(expected: str, got: str) -> None:
    assert not same_output(expected, got, USUAL)
