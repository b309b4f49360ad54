"""Settings, composition, and the verifier a recipe describes, from any thread."""

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from lydite.config import UserError, validate
from lydite.types import Outcome, Problem
from lydite.verify import ComposedVerifier, VerifierConfig, build, gold_error, verify_golds
from lydite.verify.compose import combine
from lydite.verify.score import Score


def problem(name: str, reference: str | None, worked: str | None = None) -> Problem:
    return Problem(name, "q", (), reference, worked=worked)


def config(value: object) -> VerifierConfig:
    return VerifierConfig.model_validate(value)


@dataclass
class Fixed:
    """A reward as far as combining goes."""

    name: str
    weight: float = 1.0
    decides: int = 0
    scored: list[Score] = field(default_factory=list)


def test_short_forms_mean_the_long_one() -> None:
    long = config({"rewards": [{"kind": "math"}]})
    assert config("math") == config({"kind": "math"}) == config(["math"]) == config({}) == long
    both = config([{"kind": "math", "answer": "boxed"}, "format"])
    assert [reward.kind for reward in both.rewards] == ["math", "format"]
    assert config({"kind": "exact", "limits": {"seconds": 1}}).limits.seconds == 1
    assert config("mine.py:score").rewards[0].kind == "function"
    assert config(json.loads(long.model_dump_json())) == long


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"rewards": [{"kind": "math", "wieght": 2}]},
            r"unknown key 'rewards\.0\.wieght'; did you mean 'weight'",
        ),
        ({"rewards": ["mth"]}, r"rewards\.0: .*'mth'"),
        ({"rewards": []}, "rewards"),
        ({"rewards": ["math", "math"]}, "two rewards are named 'math'"),
        ({"limits": {"seconds": 0}}, r"limits\.seconds"),
        ({"rewards": [{"kind": "math", "weight": float("nan")}]}, r"rewards\.0\.weight"),
    ],
)
def test_mistakes_in_settings_are_one_line(values: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        validate(VerifierConfig, values)
    assert "\n" not in str(caught.value)


def test_the_sum_is_weighted_and_the_parts_are_not() -> None:
    rewards = [Fixed("format", 0.25), Fixed("score", 2.0, decides=1), Fixed("math", 1.0, decides=2)]
    scores = [
        Score(Outcome.CORRECT, 1.0),
        Score(Outcome.CORRECT, 0.5),
        Score(Outcome.WRONG, 0.0, answer="7", detail="no"),
    ]
    verdict = combine(rewards, scores)  # type: ignore[arg-type]
    assert verdict.reward == 1.25
    assert verdict.parts == {"format": 1.0, "score": 0.5, "math": 0.0}
    assert (verdict.outcome, verdict.answer, verdict.detail) == (Outcome.WRONG, "7", "math: no")
    without_math = combine(rewards[:2], scores[:2])  # type: ignore[arg-type]
    assert without_math.outcome is Outcome.CORRECT


def test_a_part_that_could_not_decide_takes_the_whole_with_it() -> None:
    rewards = [Fixed("math", decides=2), Fixed("score", decides=1)]
    scores = [Score(Outcome.CORRECT, 1.0), Score(Outcome.CRASHED, None, detail="gone")]
    verdict = combine(rewards, scores)  # type: ignore[arg-type]
    assert (verdict.outcome, verdict.reward, verdict.detail) == (Outcome.CRASHED, None, "gone")
    assert verdict.parts == {"math": 1.0, "score": None}


@pytest.fixture(scope="module")
def math() -> Iterator[ComposedVerifier]:
    verifier = build(config({"rewards": ["math"], "limits": {"seconds": 1.0}}))
    yield verifier
    verifier.close()


# Only a reference that the grammar does not know goes to computer algebra.
INTEGRAL = problem("i", r"\int (x+y)^2 dx")
STUCK = r"\boxed{\int (x+y+z+w)^{59}+(a+b+c)^{59} dx}"


def test_answers_through_the_workers(math: ComposedVerifier) -> None:
    texts = [
        r"\boxed{\int (x+y)(y+x) dx}",
        r"\boxed{\int (x-y)^2 dx}",
        STUCK,
        r"\boxed{}",
        r"\boxed{\int (x + y)^2 dx}",
    ]
    begun = time.monotonic()
    verdicts = math.verify([INTEGRAL] * len(texts), texts)
    assert time.monotonic() - begun < 30
    assert [v.outcome for v in verdicts] == [
        "correct",
        "wrong",
        "timeout",
        "unparseable",
        "correct",
    ]
    assert [v.reward for v in verdicts] == [1.0, 0.0, 0.0, 0.0, 1.0]
    assert verdicts[0].answer == r"\int (x+y)(y+x) dx"


def test_a_tower_of_powers_costs_no_more_than_its_limit_from_any_thread(
    math: ComposedVerifier,
) -> None:
    half = problem("a", r"\frac{\pi}{2}")
    math.verify([half] * 2, [r"\boxed{\frac{2\pi}{4}}"] * 2)
    outcomes: dict[int, list[Outcome]] = {}
    begun = time.monotonic()

    def verify(number: int) -> None:
        texts = [r"\boxed{9^{9^{9^{9}}}}", STUCK, r"\boxed{\frac{2\pi}{4}}"]
        outcomes[number] = [v.outcome for v in math.verify([half, INTEGRAL, half], texts)]

    threads = [threading.Thread(target=verify, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = [Outcome.UNPARSEABLE, Outcome.TIMEOUT, Outcome.CORRECT]
    assert outcomes == {0: expected, 1: expected}
    assert time.monotonic() - begun < 20


def test_a_problem_without_reference_is_ungradable(math: ComposedVerifier) -> None:
    verdict = math.verify([problem("a", None)], [r"\boxed{1}"])[0]
    assert (verdict.outcome, verdict.reward) == (Outcome.UNGRADABLE, None)


def test_a_type_may_be_stated_for_all_or_in_a_column() -> None:
    verifier = build(config({"kind": "math", "type": "set", "tolerance": 0.01}))
    rows = [
        ("(1,2)", {}, "(2,1)", "correct"),
        ("(1,2)", {"answer_type": "tuple"}, "(2,1)", "wrong"),
        ("3.14", {"answer_type": "decimal"}, "3.15", "correct"),
        ("3.14", {"answer_type": "decimal", "tolerance": 0.0}, "3.15", "wrong"),
        ("3.14", {"answer_type": "real"}, "3.14", "ungradable"),
        ("3.14", {"tolerance": "x"}, "3.14", "ungradable"),
        ("seven", {"answer_type": "integer"}, "7", "correct"),
        ("7.5", {"answer_type": "integer"}, "8.5", "ungradable"),
    ]
    problems = [Problem(str(n), "q", (), row[0], fields=row[1]) for n, row in enumerate(rows)]
    verdicts = verifier.verify(problems, [rf"\boxed{{{row[2]}}}" for row in rows])
    faults = verify_golds(verifier, problems)
    verifier.close()
    assert [v.outcome for v in verdicts] == [row[3] for row in rows]
    assert [fault.problem_id for fault in faults] == ["4", "5", "7"]
    assert "answer_type 'real' is none of auto, integer" in faults[0].reason


def test_strict_refuses_answers_that_disagree() -> None:
    strict = build(config({"kind": "math", "strict": True}))
    seven = problem("a", "7")
    texts = [
        r"\boxed{3} and then \boxed{7}",
        r"\boxed{7} and again \boxed{7.0}",
        r"<answer>3</answer> <answer>7</answer>",
        "The answer is 3. No, the answer is 7.",
        r"<think>\boxed{3}</think> \boxed{7}",
    ]
    outcomes = [v.outcome for v in strict.verify([seven] * len(texts), texts)]
    strict.close()
    assert outcomes == ["unparseable", "correct", "unparseable", "unparseable", "correct"]


def test_exact_compares_text_or_numbers() -> None:
    exact = build(config({"kind": "exact", "answer": "tag"}))
    paris = problem("a", "Paris")
    texts = ["<answer> paris. </answer>", "<answer>Rome</answer>", "Paris"]
    assert [v.outcome for v in exact.verify([paris] * 3, texts)] == [
        "correct",
        "wrong",
        "unparseable",
    ]
    assert exact.verify([problem("b", "1,000")], ["<answer>1000.0</answer>"])[0].reward == 1.0
    strict = build(config({"kind": "exact", "case_sensitive": True}))
    assert strict.verify([paris] * 2, ["paris", "Paris"])[0].reward == 0.0
    assert strict.verify([paris], ["Paris"])[0].reward == 1.0


def test_references_are_tested_at_load() -> None:
    problems = [
        problem("good", r"\frac{\sqrt{3}}{2}"),
        problem("broken", r"\frac{1}{"),
        problem("none", None),
        problem("to imitate", None, worked="like so"),
        problem("huge", "9^{9^{9^{9}}}"),
    ]
    verifier = build(config("math"))
    faults = verify_golds(verifier, problems)
    verifier.close()
    assert [fault.problem_id for fault in faults] == ["broken", "none", "huge"]
    assert "no reference" in faults[1].reason
    message = str(gold_error(faults, len(problems), shown=1))
    assert "3 of 5" in message and "broken" in message and "2 more" in message
    with pytest.raises(UserError, match="reference answers cannot be checked"):
        build(config("math"), problems)
    build(config("exact"), problems[:2]).close()


@pytest.mark.parametrize(("gold", "started"), [("42", 0), (r"\sum_{k=1}^{n} k", 1)])
def test_math_starts_workers_only_for_references_that_need_them(gold: str, started: int) -> None:
    verifier = build(config({"rewards": [{"kind": "math"}], "limits": {"workers": 1}}))
    try:
        verifier.warm()
        verifier.verify([Problem("1", "", (), gold)], [r"\boxed{41}"])
        assert len(verifier._pool._threads) == started
    finally:
        verifier.close()


@pytest.mark.parametrize(
    ("gold", "text", "right"),
    [
        ("5 g", "It weighs 5 kg.", False),
        ("5 km", "The distance is 5 m.", False),
        ("5000 g", "So it weighs 5 kg.", True),
        ("5", "It weighs 5 kg.", True),
    ],
)
def test_math_minds_the_unit_of_a_closing_sentence(gold: str, text: str, right: bool) -> None:
    verifier = build(config("math"))
    (verdict,) = verifier.verify([problem("p", gold)], [text])
    assert (verdict.reward == 1.0) is right
    verifier.close()
