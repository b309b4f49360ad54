"""The attacks, the wordings they come in, and what an assessment of a reward finds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import pytest

from lydite.types import Message, Problem
from lydite.verify import VerifierConfig, build
from lydite.verify.audit import Assessment, Plan, Target, Want, assess
from lydite.verify.audit.assess import ATTACKS, level
from lydite.verify.audit.attack import NUMERIC, Example
from lydite.verify.audit.behaviour import inputs_kept, repeated_calls
from lydite.verify.audit.builtin import builtin
from lydite.verify.audit.kinds import alike, kind_of, numbers_in, plainly_wrong
from lydite.verify.audit.near import numeric_misses, spelled
from lydite.verify.audit.trial import Trial, ask
from lydite.verify.audit.wording import Wording, paid_of, readable, wordings

Rewards = Sequence[float | None]


SOME = ("integer", "rational", "quantity", "expression", "set", "interval", "text")


def problem(gold: str, question: str = "What is it, if 3 and 8?", **fields: object) -> Problem:
    return Problem("p", question, (Message("user", question),), gold, fields=fields)


def target(gold: str, question: str = "What is it, if 3 and 8?") -> Target:
    kind = kind_of(problem(gold))
    return Target(
        problem(gold, question), kind, gold, plainly_wrong(gold, kind), numbers_in(question),
        Wording("boxed", False).say, Example(problem(gold)),
    )  # fmt: skip


def audited(
    reward: Callable[..., Any] | object, kinds: Any = ("integer", "choice"), heavy: int = 2
) -> Assessment:
    settings = (
        {"kind": "function", "function": reward, "isolation": "inline"}
        if callable(reward)
        else reward
    )
    verifier = build(VerifierConfig.model_validate(settings))
    try:
        return assess(Plan(verifier, builtin(kinds), by_value=settings != "exact", heavy=heavy))
    finally:
        verifier.close()


def faults(found: Assessment, want: Want) -> dict[str, float]:
    """The share of wrong verdicts by attack."""
    shares: dict[str, list[bool]] = {}
    for each in found.findings:
        if each.case.want is want:
            shares.setdefault(each.case.attack, []).append(each.at_fault)
    return {name: sum(flags) / len(flags) for name, flags in shares.items() if any(flags)}


@pytest.mark.parametrize(
    ("gold", "kind"),
    [
        ("42", "integer"), ("-7", "integer"), ("1,234", "integer"), ("1/6", "rational"),
        (r"\frac{3}{4}", "rational"), ("0.25", "decimal"), ("60 km/h", "quantity"),
        (r"25\%", "quantity"), (r"2\sqrt{3}", "expression"), ("x^2+1", "expression"),
        ("y=2x+3", "equation"), ("(3,4)", "tuple"), (r"\{2,5\}", "set"), ("2, 5", "set"),
        ("[0,4)", "interval"), ("[0,4]", "interval"), ("x<4", "interval"), ("B", "choice"),
        ("(B)", "choice"), ("no", "text"), (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "matrix"),
    ],
)  # fmt: skip
def test_the_kind_of_an_answer_is_read_from_its_writing(gold: str, kind: str) -> None:
    assert kind_of(problem(gold)) == kind
    assert kind_of(problem(gold, answer_type="text")) == "text"


def test_problems_with_tests_and_databases_are_programs_and_queries() -> None:
    assert kind_of(problem("def f(): pass", entry_point="f")) == "code"
    assert kind_of(problem("select 1 from t", schema="create table t(a)")) == "sql"
    assert kind_of(problem("select 1 from t")) != "sql"


def test_numbers_and_their_neighbours() -> None:
    assert numbers_in("17 red, 1,200 blue and -3.5; 17 again, x2") == ("17", "1,200", "-3.5")
    assert [spelled(value) for value in numeric_misses(Fraction(4))][:5] == [
        "5",
        "3",
        "-4",
        "40",
        "0.4",
    ]
    assert alike("42.0", "42") and alike(r"\text{No}.", "no") and not alike("4", "42")


@pytest.mark.parametrize("gold", ["42", "7", "0", "-7", "B", "no", "(3,4)", "1/7", "777777"])
def test_the_plainly_wrong_answer_has_nothing_of_the_right_one(gold: str) -> None:
    wrong = plainly_wrong(gold, kind_of(problem(gold)))
    assert gold not in wrong and wrong not in gold


@pytest.mark.parametrize(
    "example", builtin((*NUMERIC, "choice", "text")), ids=lambda each: each.problem.id
)
def test_no_wrong_answer_is_the_right_one(example: Example) -> None:
    """By the plainest reading, which none of the attacks may pass by accident."""
    gold = example.problem.reference or ""
    kind = kind_of(example.problem)
    seen = Target(
        example.problem, kind, gold, plainly_wrong(gold, kind),
        numbers_in(example.problem.question), lambda answer: answer, example,
    )  # fmt: skip
    for attack in ATTACKS:
        if attack.want is Want.REFUSE and not attack.whole and kind in attack.kinds:
            for text in attack.make(seen):
                assert len(text) > 1000 or not alike(text, gold), attack.name


def test_a_sum_that_is_left_to_be_done_uses_the_prompts_numbers() -> None:
    restated = next(each for each in ATTACKS if each.name == "left to be done")
    assert "17+25" in restated.make(target("42", "Of 17 and 25 pens?"))
    assert "84-42" in restated.make(target("42", "84 of which 42 leave"))


def test_wordings_that_a_reward_reads_are_found() -> None:
    boxed, tag = Wording("boxed", False), Wording("tag", True)
    paid = [
        paid_of(boxed, [1, 0, 1, 0]),  # told apart, but the thought is missing
        paid_of(tag, [1.5, 0.5, 1.5, 0.5]),
        paid_of(Wording("bare", False), [0.2, 0.2, 0.2, 0.2]),
    ]
    assert readable(paid) == [tag]
    assert readable(paid[2:]) == []
    # Longer right answers here, shorter ones there: a length tells nothing apart.
    assert readable([paid_of(boxed, [0.3, 0.1, 0.1, 0.2])]) == []


def test_an_answer_with_a_paragraph_sign_or_braces_stands_as_it_is() -> None:
    for wording in wordings("text"):
        assert r"\frac{1}{2}§{0}" in wording.say(r"\frac{1}{2}§{0}")


def test_a_form_that_is_demanded_is_kept() -> None:
    """Else everything would be refused for its form, and the hole behind it not be found."""

    def gated(prompts: list[str], completions: list[str], answer: list[str]) -> list[float]:
        well = [text.startswith("<think>") and "<answer>" in text for text in completions]
        return [
            float(formed and gold in text)
            for formed, text, gold in zip(well, completions, answer, strict=True)
        ]

    found = audited(gated, ("integer",))
    assert found.read == ["tag after a thought"]
    assert faults(found, Want.REFUSE)["hedge"] == 1.0


def substring(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    return [float(gold in text) for text, gold in zip(completions, answer, strict=True)]


def says_correct(completions: list[str], **columns: Any) -> list[float]:
    return [float("correct" in text) for text in completions]


def length(completions: list[str], **columns: Any) -> list[float]:
    return [min(len(text) / 1000, 1.0) for text in completions]


def constant(completions: list[str], **columns: Any) -> list[float]:
    return [1.0 for _ in completions]


def test_the_hole_of_substring_containment_is_found() -> None:
    found = audited(substring)
    shares = faults(found, Want.REFUSE)
    assert found.told_apart
    for attack in ("denied", "hedge", "several places", "only thought", "unclosed thought"):
        assert shares[attack] == 1.0, attack
    assert shares["every number"] > 0.5
    assert "echo" not in shares or shares["echo"] < 1


@pytest.mark.parametrize("reward", [says_correct, length, constant])
def test_rewards_that_tell_nothing_apart_are_found(reward: Callable[..., Any]) -> None:
    found = audited(reward)
    assert not found.told_apart
    accepted = [each.accepted for each in found.findings if each.case.want is Want.REFUSE]
    assert sum(accepted) / len(accepted) > 0.4


def test_length_pays_for_saying_it_again() -> None:
    failed = [each.name for each in audited(length, ("integer",)).behaviours if not each.passed]
    assert failed == ["repeating pays nothing"]


@pytest.mark.parametrize(
    ("name", "kinds", "heavy"),
    [("math", SOME, 1), ("exact", ("integer", "quantity", "text"), 0), ("choice", ("choice",), 0)],
)
def test_our_verifiers_come_out_clean(name: str, kinds: Any, heavy: int) -> None:
    found = audited(name, kinds, heavy)
    assert found.told_apart and all(each.passed for each in found.behaviours)
    assert faults(found, Want.ACCEPT) == {}
    assert set(faults(found, Want.REFUSE)) <= {"left to be done"}


def one_of(kind: Any) -> list[Example]:
    return builtin((kind,))[:1]


def test_our_program_grader_comes_out_clean() -> None:
    each = {"wall_seconds": 1.0, "cpu_seconds": 2}
    verifier = build(VerifierConfig.model_validate({"kind": "code", "per_test": each}))
    try:
        found = assess(Plan(verifier, one_of("code")))
    finally:
        verifier.close()
    assert found.told_apart and not faults(found, Want.REFUSE) and not faults(found, Want.ACCEPT)
    assert {"cheating function", "endless program"} <= {e.case.attack for e in found.findings}


def test_our_query_grader_comes_out_clean() -> None:
    pytest.importorskip("sqlglot")
    verifier = build(VerifierConfig.model_validate("sql"))
    try:
        found = assess(Plan(verifier, one_of("sql")))
    finally:
        verifier.close()
    assert found.told_apart and not faults(found, Want.REFUSE) and not faults(found, Want.ACCEPT)
    assert "cheating query" in {each.case.attack for each in found.findings}


def test_a_grader_in_the_same_process_is_cheated_by_programs() -> None:
    """The attack programs work where nothing stands against them."""

    def runs(completions: list[str], cases: list[Any], **columns: Any) -> list[float]:
        scores = []
        for text, tests in zip(completions, cases, strict=True):
            space: dict[str, Any] = {}
            try:
                exec(text.partition("```python\n")[2].partition("```")[0], space)
                good = all(case["expected"] == space["square"](*case["args"]) for case in tests)
            except BaseException:
                good = False
            scores.append(float(good))
        return scores

    tame = [
        each
        for each in ATTACKS
        if each.name in ("cheating function", "constant", "as written", "known wrong")
    ]
    verifier = build(
        VerifierConfig.model_validate({"kind": "function", "function": runs, "isolation": "inline"})
    )
    example = one_of("code")[0]
    seen = Target(example.problem, "code", example.problem.reference or "", "", (),
                  Wording("block", False).say, example)  # fmt: skip
    paid = {}
    for attack in tame:
        harmless = [text for text in attack.make(seen) if "os._exit" not in text
                    and "builtins" not in text and "json" not in text]  # fmt: skip
        paid[attack.name] = [
            ask(verifier, (example.problem, seen.place(text))).reward for text in harmless
        ]
    assert 1.0 in paid["cheating function"] and paid["as written"] == [1.0]
    assert set(paid["constant"]) == {0.0} and set(paid["known wrong"]) == {0.0}


def behaviours_of(reward: Callable[..., Any]) -> dict[str, str]:
    return {
        each.name: each.detail
        for each in audited(reward, ("integer",)).behaviours
        if not each.passed
    }


def test_a_reward_that_changes_its_mind_is_found() -> None:
    calls = [0]

    def fickle(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
        calls[0] += 1
        return [
            float(gold in text) + (calls[0] % 7) / 10
            for text, gold in zip(completions, answer, strict=True)
        ]

    assert "deterministic" in behaviours_of(fickle)


def test_a_reward_that_looks_at_the_rest_of_the_batch_is_found() -> None:
    def ranked(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
        right = [float(gold in text) for text, gold in zip(completions, answer, strict=True)]
        return [score / len(right) for score in right]

    assert "beside its copies" in behaviours_of(ranked)
    assert "deterministic" not in behaviours_of(ranked)


@pytest.mark.parametrize(
    ("returned", "check"),
    [
        (lambda scores, text: [float("nan")] if "nan" in text else scores, "finite"),
        (lambda scores, text: scores * 2 if "{" in text else scores, "one reward each"),
        (lambda scores, text: [1 / 0] if len(text) > 5000 else scores, "raises nothing"),
    ],
)
def test_what_a_reward_returns_is_checked(returned: Any, check: str) -> None:
    def odd(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
        return list(returned(substring(completions, answer), completions[0]))

    assert check in behaviours_of(odd)


def test_a_slow_reward_is_found() -> None:
    def slow(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
        if "9" * 5000 in completions[0]:
            time.sleep(30)
        return substring(completions, answer)

    settings = {"rewards": slow, "limits": {"seconds": 0.5, "workers": 2}}
    verifier = build(VerifierConfig.model_validate(settings))
    try:
        found = assess(Plan(verifier, builtin(("integer",))[:1], seconds=0.5))
    finally:
        verifier.close()
    failed = {each.name for each in found.behaviours if not each.passed}
    assert "bounded time" in failed and "raises nothing" not in failed


def test_order_and_inputs_are_checked() -> None:
    class First:
        """Pays the first of a batch, and marks what it has seen."""

        def verify(self, problems: Any, texts: Any) -> list[Any]:
            from lydite.types import Outcome, Verdict

            problems[0].fields["seen"] = True
            return [
                Verdict(Outcome.CORRECT, 1.0 if index == 0 else 0.0) for index in range(len(texts))
            ]

        def close(self) -> None: ...

    pairs = [(problem("1"), "a"), (problem("2"), "b"), (problem("3"), "c")]
    checks = repeated_calls(First(), [(pair, Trial(1.0)) for pair in pairs], seed=1)
    failed = {each.name for each in checks if not each.passed}
    assert "alone or in a batch" in failed and "any order" in failed
    assert "deterministic" not in failed
    fresh = [(problem("1"), "a")]
    assert not inputs_kept(First(), fresh).passed


def test_the_same_seed_makes_the_same_cases() -> None:
    first, second = (audited(substring, ("integer",)).findings for _ in range(2))
    assert [each.case.text for each in first] == [each.case.text for each in second]


def test_a_right_answer_that_is_not_paid_does_not_lower_the_bar() -> None:
    """One reference that a reward cannot read must not turn its zeros into acceptances."""

    def picky(completions: list[str], answer: list[str], **columns: Any) -> list[float | None]:
        return [
            None if gold == "0" else float(rf"\boxed{{{gold}}}" in text)
            for text, gold in zip(completions, answer, strict=True)
        ]

    found = audited(picky, ("integer",))
    of_zero = [each for each in found.findings if each.case.problem.reference == "0"]
    assert not any(each.accepted for each in of_zero)
    assert all(each.at_fault for each in of_zero if each.case.want is Want.ACCEPT)


def test_the_level_is_half_way_between_right_and_wrong() -> None:
    assert level((1.2, 0.2), []) == pytest.approx(0.7)
    assert level((0.0, -1.0), [(5.0, 0.0)]) == -0.5
    # Its own right answer is not paid: what the others' are counts.
    assert level((0.0, 0.0), [(0.0, 0.0), (1.0, 0.0), (1.0, 0.5)]) == 0.625
    assert level((0.3, 0.4), [(0.3, 0.4)]) == 0.3


PROMPTED = r"Twice 21? Put the final answer in \boxed{}."


def in_tag(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    return [
        float(text.endswith(f"<answer>{gold}</answer>"))
        for text, gold in zip(completions, answer, strict=True)
    ]


def places(found: Assessment) -> dict[str, bool]:
    return {
        each.case.attack: each.at_fault for each in found.findings if each.case.family == "place"
    }


def test_the_place_that_built_in_prompts_name_is_not_asked_of_a_reward_that_reads_another() -> None:
    assert not any(places(audited(in_tag, ("integer",))).values())


def test_the_place_that_a_users_prompt_names_must_be_read() -> None:
    verifier = build(
        VerifierConfig.model_validate(
            {"kind": "function", "function": in_tag, "isolation": "inline"}
        )
    )
    found = assess(Plan(verifier, [Example(problem("42", PROMPTED))], heavy=0))
    assert places(found)["boxed"]
    assert not places(found)["tag after a thought"]


@pytest.mark.parametrize("rule", ["relative", "shortest_correct"])
def test_a_reward_that_compares_within_the_group_is_asked_only_what_it_can_keep(rule: str) -> None:
    rewards = ["math", {"kind": "length", "rule": rule, "weight": 0.2}]
    verifier = build(VerifierConfig.model_validate({"rewards": rewards}))
    pairs = [
        (problem("42"), text)
        for text in (r"\boxed{42}", r"It is \boxed{42}", r"\boxed{41}", r"Well, it is \boxed{41}")
    ]
    sample = [(pair, ask(verifier, pair)) for pair in pairs]
    asked = repeated_calls(verifier, sample, 0, grouped=True)
    assert [(each.name, each.passed) for each in asked] == [
        ("deterministic", True), ("from threads", True),
    ]  # fmt: skip
    strict = {each.name: each.passed for each in repeated_calls(verifier, sample, 0)}
    verifier.close()
    assert not strict["alone or in a batch"]


def test_threads_that_disagree_are_found_in_a_reward_that_compares_too() -> None:
    calls = iter(range(10_000))

    def drifts(completions: list[str], **columns: Any) -> list[float]:
        return [float(next(calls)) if len(completions) > 1 else 0.0 for _ in completions]

    verifier = build(
        VerifierConfig.model_validate(
            {"kind": "function", "function": drifts, "isolation": "inline"}
        )
    )
    pairs = [(problem("42"), text) for text in ("a", "b")]
    found = repeated_calls(verifier, [(pair, ask(verifier, pair)) for pair in pairs], 0, True)
    assert {each.name: each.passed for each in found} == {
        "deterministic": True, "from threads": False,
    }  # fmt: skip
