"""Generated problems: right answers, honest styles, and a held-out share that stays out."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace

import pytest

from lydite.tasks.generated import (
    BASE,
    COLD_START,
    KINDS,
    STYLES,
    Mixture,
    Split,
    below,
    check_disjoint,
    generate,
    is_held_out,
    vocabulary,
    weights_of,
    worked,
)
from lydite.tasks.task import fingerprint
from lydite.types import Message, Problem

TAGGED = re.compile(r"<think>([^<]+)</think><answer>(\d+)</answer>")


def answer_by_other_means(question: str) -> str:
    name, rest = question.split(" ", 1)
    if name == "count":
        letter, word = rest.split(" in ")
        return str(word.count(letter))
    return str(sum(int(number) for number in re.findall(r"\d+", rest)))


def problem_of(question: str) -> Problem:
    kind = question.split(" ")[0]
    reference = answer_by_other_means(question)
    return Problem("p", question, (Message("user", question),), reference, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_references_are_right(kind: str) -> None:
    for problem in generate([kind], 500, 0, "train"):
        assert problem.reference == answer_by_other_means(problem.question)
        assert problem.messages == (Message("user", problem.question),)
        assert problem.tag == kind
        assert problem.worked is None


@pytest.mark.parametrize(
    ("question", "steps", "answer"),
    [
        ("add 47+85", "7+5=12;4+8+1=13", "132"),
        ("add 10+23", "0+3=3;1+2=3", "33"),
        ("sum 3,8,6,9", "3+8=11;+6=17;+9=26", "26"),
        ("count A in BACAAB", "B0A1C1A2A3B3", "3"),
    ],
)
def test_a_clean_solution_is_the_one_worked_by_hand(question: str, steps: str, answer: str) -> None:
    text = worked(problem_of(question), "clean", random.Random(0))
    assert text == f"<think>{steps}</think><answer>{answer}</answer>"


@pytest.mark.parametrize("kind", KINDS)
def test_a_slip_always_ends_in_a_wrong_answer_and_shows_it(kind: str) -> None:
    rng = random.Random(1)
    for problem in generate([kind], 300, 1, "train"):
        clean = TAGGED.fullmatch(worked(problem, "clean", rng))
        slip = TAGGED.fullmatch(worked(problem, "slip", rng))
        assert clean and slip
        assert clean[2] == problem.reference
        assert slip[2] != problem.reference
        assert slip[1] != clean[1]


@pytest.mark.parametrize("kind", KINDS)
def test_terse_guesses_are_near_but_seldom_right(kind: str) -> None:
    rng = random.Random(2)
    problems = generate([kind], 1000, 2, "train")
    guesses = [TAGGED.fullmatch(worked(p, "terse", rng)) for p in problems]
    errors = [
        int(g[2]) - int(p.reference or "") for g, p in zip(guesses, problems, strict=True) if g
    ]
    assert len(errors) == 1000
    assert max(abs(error) for error in errors) <= 2
    assert 0.12 < errors.count(0) / 1000 < 0.28


def test_a_mixture_has_its_shares_and_its_form() -> None:
    cold = generate(list(KINDS), 3000, 0, "train", COLD_START)
    styles = Counter(problem.fields["style"] for problem in cold)
    for style in STYLES:
        assert styles[style] / 3000 == pytest.approx(COLD_START.styles[style], abs=0.04)
    assert all(TAGGED.fullmatch(problem.worked or "") for problem in cold)
    base = generate(list(KINDS), 300, 0, "train", BASE)
    assert not any(TAGGED.fullmatch(problem.worked or "") for problem in base)


def test_train_and_held_out_share_no_prompt_whatever_the_seed() -> None:
    train = [p for seed in range(5) for p in generate(list(KINDS), 2000, seed, "train", BASE)]
    heldout = generate(list(KINDS), 600, 0, "heldout")
    said = check_disjoint(train, heldout)
    assert said.startswith("600 held-out prompts, all distinct; none among the ")
    assert not {p.question for p in train} & {p.question for p in heldout}


def test_a_leak_a_repeat_and_a_misplaced_prompt_are_refused() -> None:
    train, heldout = generate(["add"], 20, 0, "train"), generate(["add"], 20, 0, "heldout")
    with pytest.raises(ValueError, match="1 held-out prompts are trained on"):
        check_disjoint([*train, heldout[3]], heldout)
    with pytest.raises(ValueError, match="2 held-out prompts are repeated"):
        check_disjoint(train, [*heldout, *heldout[:2]])
    other = generate(["sum"], 1, 0, "train")
    with pytest.raises(ValueError, match="1 prompts are misplaced"):
        check_disjoint(train, other)


def test_the_held_out_share_is_a_fifth() -> None:
    sums = [f"add {a}+{b}" for a in range(10, 100) for b in range(10, 100)]
    assert sum(map(is_held_out, sums)) / len(sums) == pytest.approx(0.20, abs=0.02)


def test_the_same_arguments_give_the_same_problems_and_more_only_adds() -> None:
    few = generate(list(KINDS), 50, 7, "train", COLD_START)
    assert generate(list(KINDS), 80, 7, "train", COLD_START)[:50] == few
    assert generate(list(KINDS), 50, 8, "train", COLD_START) != few
    assert len({problem.id for problem in few}) == 50


def test_a_mixture_does_not_change_the_prompts() -> None:
    bare = generate(list(KINDS), 50, 7, "heldout")
    dressed = generate(list(KINDS), 50, 7, "heldout", BASE)
    assert [replace(p, worked=None, fields={}) for p in dressed] == bare


def test_kinds_follow_their_weights() -> None:
    tags = Counter(p.tag for p in generate({"add": 3, "sum": 1, "count": 0}, 2000, 0, "train"))
    assert tags["count"] == 0
    assert tags["add"] / 2000 == pytest.approx(0.75, abs=0.04)


def test_the_vocabulary_spells_every_prompt_and_solution() -> None:
    tokens = vocabulary()
    assert len(set(tokens)) == len(tokens) == 37
    spelled = re.compile("|".join(re.escape(t) for t in sorted(tokens, key=len, reverse=True)))
    for mixture in (BASE, COLD_START):
        for problem in generate(list(KINDS), 300, 0, "train", mixture):
            text = f"<user>{problem.question}<assistant>{problem.worked}<eos>"
            assert "".join(spelled.findall(text)) == text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["sub"], 1, 0, "train"), "kinds: 'sub' is none of add, sum, count"),
        (({"add": -1.0}, 1, 0, "train"), "kinds: weights must be at least 0"),
        (([], 1, 0, "train"), "kinds: weights must be at least 0"),
        ((["add"], 1, 0, "test"), "split: 'test' is neither"),
        ((["add"], 1, 0, "train", Mixture({"sloppy": 1.0})), "styles: 'sloppy' is none of"),
        ((["add"], 2000, 0, "heldout"), "found no new heldout prompt of kind 'add'"),
    ],
)
def test_bad_arguments_are_named(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        generate(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 8, 9, 90, 2**40 + 1])
def test_whole_numbers_are_those_of_the_standard_library(count: int) -> None:
    ours, theirs = random.Random(4), random.Random(4)
    assert [below(ours, count) for _ in range(300)] == [theirs.randrange(count) for _ in range(300)]
    assert ours.random() == theirs.random()


def test_names_are_drawn_as_the_standard_library_does() -> None:
    weights = {"add": 0.44, "sum": 0.0, "count": 3}
    drawn = weights_of(weights, KINDS, "kinds")
    ours, theirs = random.Random(5), random.Random(5)
    names, values = list(weights), list(weights.values())
    assert [drawn.draw(ours) for _ in range(300)] == [
        theirs.choices(names, values)[0] for _ in range(300)
    ]


@pytest.mark.parametrize("bad", [{}, {"add": 0}, {"add": -1, "sum": 2}, {"add": float("inf")}])
def test_weights_without_sense_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="kinds: weights must be at least 0, and one"):
        generate(bad, 1, 0, "train")
    with pytest.raises(ValueError, match="kinds: weights must be at least 0, and one"):
        generate({"add": float("nan")}, 1, 0, "train")


@pytest.mark.parametrize(
    ("split", "mixture", "expected"),
    [
        ("heldout", None, "343676c1f330d508"),
        ("train", BASE, "f7937dabd8b81b14"),
        (
            "train",
            Mixture({"slip": 2, "terse": 1}, True, 0.7),
            "6d666f6c1e5824eb",
        ),
    ],
)
def test_problems_stay_what_they_were(split: Split, mixture: Mixture | None, expected: str) -> None:
    kinds = {"add": 0.44, "sum": 0.28, "count": 0.28}
    assert fingerprint(generate(kinds, 200, 7, split, mixture)).startswith(expected)
