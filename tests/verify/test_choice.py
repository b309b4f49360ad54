"""The letter in every usual spelling, the choice's text, and what names no choice or several."""

import pytest

from lydite.config import UserError
from lydite.types import Problem
from lydite.verify import VerifierConfig, build, verify_golds
from lydite.verify.choice import Choices, choices_of, read_choice

CITIES = Choices("ABCD", ("Paris", "Rome", "Berlin", "London"))


@pytest.mark.parametrize(
    "answer",
    [
        "B", "b", "(B)", "(b)", "B.", "B)", "[B]", "$B$", "**B**", "`B`", r"\text{B}",
        r"\textbf{(B)}", r"\textbf{(B) }\text{Rome}", "Ｂ", "（Ｂ）", "Ⓑ", "Option B", "option (B)",
        "The correct answer is B", "Answer: B", "选B", "B. Rome", "(B) Rome", "B: Rome", "B - Rome",
        "B、Rome", "b) Rome", "Rome", "rome.", "I choose (B)", "It is B.", "B, not C", "B (not C)",
        "(B), rather than (C)", "(B) Rome, since it lies in Italy", "(B) is right",
    ],
)  # fmt: skip
def test_one_choice(answer: str) -> None:
    assert read_choice(answer, CITIES).labels == {"B"}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("A or B", "hedges between A, B"),
        ("A/B", "hedges between A, B"),
        ("either (A) or (B)", "hedges between A, B"),
        ("maybe B", "hedges between B"),
        ("A, B", "several choices: A, B"),
        ("AB", "several choices: A, B"),
        ("ABCD", "several choices: A, B, C, D"),
        ("(A)(B)(C)(D)", "several choices: A, B, C, D"),
        ("A. Paris, B. Rome", "several choices: A, B"),
        ("B. Rome is the capital, whereas (A) is in France", "several choices: A, B"),
        ("B. Paris", "names B beside the text of A"),
        ("not B", "names no choice"),
        ("it is not (B)", "names no choice"),
        ("it isn't option B", "says what is not the answer"),
        ("(B) is wrong", "says what is not the answer"),
        ("B. is clearly not right", "says what is not the answer"),
        ("B is incorrect", "names no choice"),
        ("A thing", "names no choice"),
        ("I am", "names no choice"),
        ("Vitamin C", "names no choice"),
        ("Lima", "names no choice"),
        ("none of the above", "names no choice"),
        ("  ", "empty"),
    ],
)
def test_no_choice_or_several(answer: str, said: str) -> None:
    found = read_choice(answer, CITIES)
    assert not found.labels
    assert said in found.reason


@pytest.mark.parametrize(
    ("answer", "labels"),
    [
        ("A, C", "AC"),
        ("A and C", "AC"),
        ("AC", "AC"),
        ("(A)(C)", "AC"),
        ("A. Paris, C. Berlin", "AC"),
        ("A和C", "AC"),
        ("A, C, not B", "AC"),
        ("C", "C"),
        ("A or C", ""),
    ],
)
def test_several_where_several_may_be_right(answer: str, labels: str) -> None:
    assert read_choice(answer, CITIES, multiple=True).labels == set(labels)


def test_a_text_that_two_choices_have_names_neither() -> None:
    assert not read_choice("Rome", Choices("ABC", ("Rome", "Rome", "Paris"))).labels


def question(reference: str | None, choices: object = None, name: str = "a") -> Problem:
    return Problem(name, "q", (), reference, fields={"choices": choices})


def test_columns_of_choices() -> None:
    texts = ["Paris", "Rome", "Berlin", "London"]
    assert choices_of(question("B", texts)) == CITIES
    assert choices_of(question("B", dict(zip("ABCD", texts, strict=True)))) == CITIES
    assert choices_of(question("B", {"label": list("ABCD"), "text": texts})) == CITIES
    assert choices_of(question("B", '["Paris", "Rome", "Berlin", "London"]')) == CITIES
    numbered = choices_of(question("2", {"label": ["1", "2"], "text": ["yes", "no"]}))
    assert isinstance(numbered, Choices)
    assert read_choice("(2)", numbered).labels == {"2"}
    for wrong in (["one"], "[", 7, {"A": "x"}, {"label": ["A", "A"], "text": ["x", "y"]}):
        assert isinstance(choices_of(question("A", wrong)), str)


def test_scores_and_the_place_of_the_answer() -> None:
    verifier = build(VerifierConfig.model_validate("choice"))
    texts = [
        r"<think>\boxed{A}</think> So \boxed{\text{B}}.",
        "The answer is B because A is in France.",
        "I weighed (A) and (C).\n\n**Answer: (B)**",
        r"\boxed{A}",
        "<think>\\boxed{B}",
        r"\boxed{A}, \boxed{B}, \boxed{C}, \boxed{D}",
        "Rome",
    ]
    rome = question("(B)", list(CITIES.texts))
    verdicts = verifier.verify([rome] * len(texts), texts)
    assert [v.reward for v in verdicts] == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0]
    assert [v.outcome for v in verdicts][3:6] == ["wrong", "unparseable", "unparseable"]
    several = build(VerifierConfig.model_validate({"kind": "choice", "multiple": True}))
    both = question("A, C", list(CITIES.texts))
    answers = ["A, C", "C and A", "A", "A, B, C", "A, B, C, D", "Paris"]
    assert [v.reward for v in several.verify([both] * 6, answers)] == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]


def test_references_are_checked_against_the_choices() -> None:
    rows = [
        ("B", "one"),
        ("Rome", "one"),
        ("E", "names none of A, B, C, D"),
        ("Oslo", "names none of"),
        ("2", "set index_from"),
        ("A, C", "set multiple: true"),
        ("", "empty"),
        (None, "no reference"),
    ]
    problems = [
        question(gold, list(CITIES.texts), str(number)) for number, (gold, _) in enumerate(rows)
    ]
    faults = verify_golds(build(VerifierConfig.model_validate("choice")), problems)
    assert [fault.problem_id for fault in faults] == ["2", "3", "4", "5", "6", "7"]
    for fault, (_, said) in zip(faults, rows[2:], strict=True):
        assert said in fault.reason
    numbered = build(VerifierConfig.model_validate({"kind": "choice", "index_from": 0}))
    assert numbered.verify([problems[4]] * 2, ["C", "B"])[0].reward == 1.0
    assert verify_golds(numbered, [question("4", list(CITIES.texts))])
    from_one = build(VerifierConfig.model_validate({"kind": "choice", "index_from": 1}))
    assert [v.reward for v in from_one.verify([problems[4]] * 2, ["C", "B"])] == [0.0, 1.0]
    with pytest.raises(UserError, match="1 of 1 reference answers cannot be checked: 2"):
        build(VerifierConfig.model_validate("choice"), [problems[2]])
