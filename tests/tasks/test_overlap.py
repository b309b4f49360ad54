"""Held-out questions that are nearly trained on, by hand and against all pairs."""

import random
from itertools import product

import pytest

from lydite.tasks.overlap import ALIKE, near_duplicates, pairs_shown, runs_of, sentence
from lydite.tasks.select import comparable
from lydite.types import Message, Problem


def problem(name, question, earlier=()):
    return Problem(name, question, (*earlier, Message("user", question)))


APPLES = "Anna has 12 apples and gives 5 of them to her brother. How many apples has she left now?"


def near(train, heldout):
    trained = [problem(f"t{n}", text) for n, text in enumerate(train)]
    tested = [problem(f"h{n}", text) for n, text in enumerate(heldout)]
    return [(e.heldout.id, e.trained.id, e.same_numbers) for e in near_duplicates(trained, tested)]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (APPLES.replace("12", "17"), [("h0", "t0", False)]),
        (APPLES.replace("now", "today"), [("h0", "t0", True)]),
        (APPLES.replace("now", "today").replace("5", "4"), [("h0", "t0", False)]),
        # The numbers in another order are the same numbers.
        (APPLES.replace("12", "x").replace("5", "12").replace("x", "5"), [("h0", "t0", True)]),
        # What is equal is refused elsewhere.
        (APPLES.upper() + " ", []),
        ("Ben has 12 pears and buys 5 more. How many pears has he?", []),
        ("How many apples has she left now?", []),
    ],
)
def test_what_differs_is_told_apart(asked, found):
    assert near([APPLES], [asked]) == found


def test_a_rewording_goes_before_what_is_more_alike_with_other_numbers():
    train = [APPLES.replace("12", "13"), APPLES.replace("now", "today")]
    assert near(train, [APPLES]) == [("h0", "t1", True)]


def test_similarity_by_hand():
    """20 words give 18 runs; one in the middle replaced leaves 15 of 21."""
    words = [f"w{n}" for n in "abcdefghijklmnopqrst"]
    other = [*words[:9], "new", *words[10:]]
    assert len(runs_of(" ".join(words))) == 18
    (found,) = near_duplicates([problem("t", " ".join(words))], [problem("h", " ".join(other))])
    assert found.similarity == pytest.approx(15 / 21)
    assert near([" ".join(words)], [" ".join([*other[:3], "more", *other[4:]])]) == []


def test_the_very_least_that_is_alike_is_found():
    """7 of 10 runs, and the 3 that are not shared are the rarest."""
    words = [f"w{n}" for n in "abcdefghijkl"]
    for part in (words[3:], words[:9]):
        assert near([" ".join(part)], [" ".join(words)]) == [("h0", "t0", True)]
        assert near([" ".join(words)], [" ".join(part)]) == [("h0", "t0", True)]
        assert near([" ".join(part[:-1])], [" ".join(words)]) == []


def test_short_questions_are_alike_only_when_equal_but_for_numbers():
    assert near(["3 + 4", "5 + 4"], ["4 + 3", "9 + 9", "3 - 4"]) == [
        ("h0", "t0", True),
        ("h1", "t0", False),
    ]


def test_scripts_without_spaces_are_compared_by_characters():
    text = "小明有十二个苹果他给了弟弟五个请问他现在还剩下多少个苹果呢"
    assert near([text], [text.replace("呢", "吗")]) == [("h0", "t0", True)]
    assert near([text], ["今天天气很好我们一起去公园散步吧"]) == []


def test_turns_that_are_learned_count_as_trained_on():
    turns = (Message("user", APPLES), Message("assistant", "7", learned=True))
    trained = [problem("t", "And how many did she give away?", turns)]
    found = near_duplicates(trained, [problem("h", APPLES.replace("now", "today"))])
    assert [each.same_numbers for each in found] == [True]


def test_none_is_missed_and_none_is_made_up():
    """Against a comparison of all pairs, on questions that share most of their words."""
    rng = random.Random(0)
    words = [f"w{chr(97 + n)}" for n in range(12)]

    base = [[rng.choice(words) for _ in range(rng.randint(4, 40))] for _ in range(16)]

    def made(count):
        for number in range(count):
            text = list(rng.choice(base))
            for _ in range(rng.randint(0, 4)):
                text[rng.randrange(len(text))] = rng.choice([*words, "7", "8"])
            yield problem(str(number), " ".join(text))

    train = list(made(120))
    equal = {comparable(p) for p in train}
    heldout = [p for p in made(80) if comparable(p) not in equal]
    expected = set()
    for a, b in product(train, heldout):
        x, y = (runs_of(comparable(p).replace("8", "7")) for p in (a, b))
        if len(x & y) >= ALIKE * len(x | y):
            expected.add(b.id)
    assert {each.heldout.id for each in near_duplicates(train, heldout)} == expected
    assert 10 < len(expected) < len(heldout) - 10


def test_what_is_said_of_them():
    trained = [problem("t", APPLES)]
    tested = [
        problem("h", APPLES.replace("now", "today")),
        problem("g", APPLES.replace("12", "99")),
        problem("f", "What is the capital of France?"),
    ]
    found = near_duplicates(trained, tested)
    said = sentence("test", 3, found)
    assert said.startswith("test: 2 of 3 held-out questions are nearly trained on")
    assert "1 in their wording alone and 1 in their numbers" in said
    assert "(h) from" in said and "part: {by: numbers}" in said and "\n" not in said
    assert "new numbers" in sentence("test", 3, found[1:])
    assert sentence("test", 3, []) == ""
    lines = pairs_shown(found)
    assert len(lines) == 2 and "the same numbers" in lines[0] and "other numbers" in lines[1]
