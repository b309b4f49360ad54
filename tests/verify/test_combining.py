"""Gates, cascades and conditions: who is asked, what is paid, what the outcome is."""

from dataclasses import dataclass, field

import pytest

from lydite.config import UserError, validate
from lydite.types import Outcome, Problem
from lydite.verify import ComposedVerifier, VerifierConfig, build, verify_golds
from lydite.verify.branch import CascadeReward, GateReward
from lydite.verify.compose import Part
from lydite.verify.describe import describe_rewards
from lydite.verify.score import Score
from lydite.verify.settings import CascadeConfig, GateConfig

RIGHT, WRONG = Score(Outcome.CORRECT, 1.0), Score(Outcome.WRONG, 0.0)
LOST = Score(Outcome.CRASHED, None, detail="gone")
UNREAD = Score(Outcome.UNPARSEABLE, 0.0)
A = Problem("a", "q", (), "7", tag="math")


@dataclass
class Says:
    """A reward that says what it is told to, by text, and keeps what it was asked."""

    name: str
    scores: dict[str, Score]
    weight: float = 1.0
    decides: int = 2
    asked: list[str] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)

    def score(self, problems: list[Problem], texts: list[str]) -> list[Score]:
        self.asked += texts
        return [self.scores[text] for text in texts]

    def check_golds(self, problems: list[Problem]) -> list[str | None]:
        return [self.faults.get(problem.id) for problem in problems]


def gate(require: list[Part], then: list[Part], **settings: float) -> ComposedVerifier:
    config = GateConfig.model_validate({"require": "format", "then": "math", **settings})
    return ComposedVerifier([GateReward(config, "gate", require, then)])


def cascade(parts: list[Part], *pass_on: str) -> ComposedVerifier:
    config = CascadeConfig.model_validate({"rewards": ["exact", "math"], "pass_on": pass_on})
    return ComposedVerifier([CascadeReward(config, "cascade", parts)])


def test_a_shut_gate_pays_its_value_and_asks_nobody_behind_it() -> None:
    form = Says("form", {"x": RIGHT, "y": WRONG, "z": LOST, "u": UNREAD}, decides=0)
    sense = Says("sense", {"x": RIGHT})
    extra = Says("extra", {"x": Score(Outcome.WRONG, 0.5)}, weight=0.1, decides=0)
    verifier = gate([Part(form)], [Part(sense), Part(extra)], otherwise=-1)
    verdicts = verifier.verify([A] * 4, ["x", "y", "z", "u"])
    assert [v.outcome for v in verdicts] == ["correct", "wrong", "crashed", "unparseable"]
    assert [v.reward for v in verdicts] == [1.05, -1.0, None, -1.0]
    assert sense.asked == ["x"]
    assert verdicts[0].parts == {
        "gate": 1.05, "gate.form": 1.0, "gate.sense": 1.0, "gate.extra": 0.5,
    }  # fmt: skip
    assert verdicts[1].parts == {
        "gate": -1.0, "gate.form": 0.0, "gate.sense": None, "gate.extra": None,
    }  # fmt: skip
    assert verdicts[1].detail == "form: 0 is less than 1"


def test_each_requirement_must_reach_its_mark_and_a_correct_one_that_does_not_is_wrong() -> None:
    half = Says("half", {"x": Score(Outcome.CORRECT, 0.5)}, decides=0)
    full = Says("full", {"x": RIGHT}, decides=0)
    sense = Says("sense", {"x": RIGHT})
    strict = gate([Part(full), Part(half)], [Part(sense)]).verify([A], ["x"])[0]
    assert (strict.outcome, strict.reward) == (Outcome.WRONG, 0.0)
    lax = gate([Part(full), Part(half)], [Part(sense)], at_least=0.5).verify([A], ["x"])[0]
    assert (lax.outcome, lax.reward) == (Outcome.CORRECT, 1.0)


def test_a_requirement_that_does_not_apply_requires_nothing() -> None:
    form = Says("form", {"x": WRONG}, decides=0)
    sense = Says("sense", {"x": RIGHT})
    verifier = gate([Part(form, ({"tag": "code"},))], [Part(sense)])
    assert verifier.verify([A], ["x"])[0].reward == 1.0
    behind = gate([Part(sense)], [Part(form, ({"tag": "code"},))]).verify([A], ["x"])[0]
    assert (behind.outcome, behind.reward) == (Outcome.UNGRADABLE, None)
    assert "no reward applies" in behind.detail
    both = ComposedVerifier(
        [*gate([Part(sense)], [Part(form, ({"tag": "code"},))]).parts, Says("other", {"x": RIGHT})]
    ).verify([A], ["x"])[0]
    assert (both.reward, both.parts["gate"], both.parts["other"]) == (1.0, None, 1.0)


def test_an_undecided_part_behind_the_gate_leaves_all_undecided() -> None:
    verdict = gate(
        [Part(Says("form", {"x": RIGHT}))], [Part(Says("sense", {"x": LOST}))]
    ).verify([A], ["x"])[0]  # fmt: skip
    assert (verdict.outcome, verdict.reward, verdict.detail) == (Outcome.CRASHED, None, "gone")


def test_a_cascade_asks_the_next_only_where_it_must() -> None:
    first = Says("first", {"x": RIGHT, "y": WRONG, "z": LOST, "u": UNREAD}, weight=2.0)
    second = Says("second", {"y": RIGHT, "z": RIGHT, "u": LOST})
    verdicts = cascade([Part(first), Part(second)]).verify([A] * 4, ["x", "y", "z", "u"])
    assert [v.reward for v in verdicts] == [2.0, 0.0, 1.0, 0.0]
    assert [v.outcome for v in verdicts] == ["correct", "wrong", "correct", "unparseable"]
    assert second.asked == ["z"]
    assert verdicts[0].parts == {"cascade": 2.0, "cascade.first": 1.0, "cascade.second": None}
    assert verdicts[2].parts == {"cascade": 1.0, "cascade.first": None, "cascade.second": 1.0}


def test_outcomes_that_are_passed_on() -> None:
    first = Says("first", {"x": RIGHT, "y": WRONG, "z": WRONG, "u": UNREAD})
    second = Says("second", {"y": RIGHT, "z": LOST, "u": WRONG})
    verifier = cascade([Part(first), Part(second)], "wrong", "unparseable")
    verdicts = verifier.verify([A] * 4, ["x", "y", "z", "u"])
    # z: the first hands over its refusal, and the second cannot decide: never a silent 0.
    assert [v.reward for v in verdicts] == [1.0, 1.0, None, 0.0]
    assert [v.outcome for v in verdicts] == ["correct", "correct", "crashed", "wrong"]
    assert second.asked == ["y", "z", "u"]


def test_a_reference_must_suit_one_of_a_cascade_and_all_of_a_gate() -> None:
    good = Says("good", {})
    bad = Says("bad", {}, faults={"a": "unreadable"})
    assert verify_golds(cascade([Part(bad), Part(good)]), [A]) == []
    assert verify_golds(cascade([Part(bad), Part(bad)]), [A])[0].reason == "unreadable"
    assert verify_golds(gate([Part(good)], [Part(bad)]), [A])[0].reason == "unreadable"
    elsewhere = Part(good, ({"tag": "code"},))
    assert verify_golds(cascade([Part(bad), elsewhere]), [A])[0].reason == "unreadable"


def rewards_by_tag() -> ComposedVerifier:
    return build(
        VerifierConfig.model_validate(
            [
                {"kind": "math", "when": {"tag": "math"}},
                {"kind": "exact", "when": {"tag": ["trivia", "spelling"], "level": 3}},
                {"kind": "format", "weight": 0.5, "thinking": "optional", "when": {"level": 3}},
            ]
        )
    )


def test_conditions_on_columns() -> None:
    verifier = rewards_by_tag()
    problems = [
        Problem("a", "q", (), "1/2", tag="math"),
        Problem("b", "q", (), "Rome", tag="trivia", fields={"level": "3"}),
        Problem("c", "q", (), "Rome", tag="trivia", fields={"level": 2}),
        Problem("d", "q", (), "1/2", tag="math", fields={"level": 3}),
    ]
    verdicts = verifier.verify(problems, ["0.5", "rome", "Rome", "0.3"])
    assert [v.reward for v in verdicts] == [1.0, 1.5, None, 0.5]
    assert [v.outcome for v in verdicts] == ["correct", "correct", "ungradable", "wrong"]
    assert verdicts[0].parts == {"math": 1.0, "exact": None, "format": None}
    assert verdicts[3].parts == {"math": 0.0, "exact": None, "format": 1.0}
    faults = verify_golds(verifier, problems)
    verifier.close()
    assert [fault.problem_id for fault in faults] == ["c"]
    assert "no `when` holds" in faults[0].reason


def test_a_missing_column_has_no_value() -> None:
    part = Part(Says("sense", {}), ({"level": "None"},))
    assert not part.applies(A)
    assert Part(Says("sense", {})).applies(A)


def test_a_part_without_weight_that_is_lost_takes_nothing_with_it() -> None:
    sense, lost = Says("sense", {"x": RIGHT}), Says("lost", {"x": LOST}, weight=0.0, decides=0)
    verdict = ComposedVerifier([sense, lost]).verify([A], ["x"])[0]
    assert (verdict.reward, verdict.parts) == (1.0, {"sense": 1.0, "lost": None})
    lost.decides = 2
    assert ComposedVerifier([lost, sense]).verify([A], ["x"])[0].reward is None


def test_recipes_say_it_as_one_would_guess() -> None:
    nested = VerifierConfig.model_validate(
        {
            "kind": "gate",
            "require": "format",
            "then": [
                {"kind": "cascade", "rewards": ["exact", "math"], "pass_on": "wrong"},
                {"kind": "language", "weight": 0.1, "others": []},
            ],
        }
    )
    verifier = build(nested)
    texts = ["<think>half it</think> <answer>0.5</answer>", "<answer>0.5</answer>"]
    verdicts = verifier.verify([Problem("a", "q", (), "1/2")] * 2, texts)
    verifier.close()
    assert [v.reward for v in verdicts] == [1.1, 0.0]
    # What was not asked is there too, so that every row has the same parts.
    assert list(verdicts[0].parts) == list(verdicts[1].parts)
    assert verdicts[1].parts["gate.cascade.exact"] is None
    assert verdicts[0].parts["gate.cascade.math"] is None  # exact compares plain numbers
    assert verdicts[0].parts["gate.cascade.exact"] == 1.0
    assert validate(VerifierConfig, nested.model_dump(mode="json")) == nested


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ([{"kind": "gate", "require": "format"}], r"then: required"),
        ([{"kind": "gate", "require": [], "then": "math"}], "require"),
        ([{"kind": "cascade", "rewards": ["math"]}], "at least 2"),
        ([{"kind": "cascade", "rewards": ["math", "mth"]}], "no kind 'mth'; did you mean 'math'"),
        ([{"kind": "gate", "require": "math", "then": "math"}], "two rewards are named 'math'"),
        ([{"kind": "math", "when": {}}], "name a column and its value"),
        ([{"kind": "math", "when": {"tag": []}}], "name a column and its value"),
        ([{"require": "format", "then": "math"}], r"^rewards\.0: say which by `kind:`$"),
    ],
)
def test_mistakes_are_one_line(settings: list[object], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        validate(VerifierConfig, {"rewards": settings})
    assert "\n" not in str(caught.value)


def test_nesting_has_an_end() -> None:
    reward: object = "math"
    for _ in range(3000):
        reward = {"kind": "gate", "require": "format", "then": reward}
    with pytest.raises(UserError, match="more than 4 deep"):
        validate(VerifierConfig, {"rewards": [reward]})


def test_described_for_a_dry_run() -> None:
    settings = [
        {"kind": "cascade", "rewards": ["exact", "math"], "pass_on": "wrong"},
        {
            "kind": "gate",
            "name": "style",
            "weight": 0.5,
            "require": ["format", {"kind": "language", "others": []}],
            "then": [{"kind": "repetition", "weight": 2, "name": "loops"}],
            "at_least": 0.9,
            "otherwise": -1,
            "when": {"tag": ["math", "code"], "level": 3},
        },
    ]
    problems = [A, Problem("b", "q", (), "1", tag="code", fields={"level": 3})]
    assert describe_rewards(VerifierConfig.model_validate(settings), problems) == [
        "cascade (exact, else math; wrong is passed on)",
        "0.5 × style (2 × loops (repetition) if format ≥ 0.9 and language ≥ 0.9, else -1) "
        "when tag is math or code and level is 3: 1 of 2 problems",
    ]
