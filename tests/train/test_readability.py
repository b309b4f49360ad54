"""Readability: the share of well-formed answers, and how far languages are mixed."""

import pytest

from lydite.config import UserError, validate
from lydite.train.readability import (
    Form,
    ReadabilityConfig,
    form_asked,
    readability,
    rollout_readability,
)
from lydite.types import Completion, Group, Message, Outcome, Problem, Verdict
from lydite.verify.settings import VerifierConfig

GOOD = "<think>first 3+4=7 then 1+2=3</think><answer>37</answer>"
MIXED = "<think>先 3+4=7 then 1+2=3</think><answer>37</answer>"  # one word of two
BARE = "先 3+4=7 so 37"  # one word of two
SILENT = "<think>3+4=7</think><answer>7</answer>"  # no words


def config(**changes):
    return validate(ReadabilityConfig, {"answer": "tag", "language": "en", **changes}, "r")


def test_by_hand():
    found = readability([GOOD, MIXED, BARE, SILENT], config())
    assert found == {"well_formed": 0.75, "mixing": pytest.approx((0 + 0.5 + 0.5) / 3)}


def test_a_text_without_words_mixes_nothing_and_counts_for_nothing():
    assert readability([SILENT], config()) == {"well_formed": 1.0}
    assert readability([SILENT, MIXED], config())["mixing"] == 0.5
    assert readability([], config()) == {}


def test_what_is_read_and_what_counts_can_be_said():
    assert readability([MIXED], config(language=None)) == {"well_formed": 1.0}
    assert readability([MIXED], config(language="Chinese"))["mixing"] == 0.5
    assert readability([BARE], config(thinking="optional", answer="any"))["well_formed"] == 1.0
    # No tag is closed: nothing of it is thinking, all of it is the answer.
    assert "mixing" not in readability([BARE], config(part="thinking"))
    assert readability([BARE], config(part="answer"))["mixing"] == 0.5
    with pytest.raises(UserError, match="no language 'klingon'"):
        config(language="klingon")


def group(question, texts, reference=None):
    problem = Problem("p", question, (Message("user", question),), reference=reference)
    completions = [
        Completion("p", n, (1,), (1,), (0.0,), (1,), "stop", text) for n, text in enumerate(texts)
    ]
    return Group(problem, completions, [Verdict(Outcome.WRONG, 0.0)] * len(texts))


def asked(*rewards, given=None):
    return form_asked(VerifierConfig.model_validate({"rewards": list(rewards)}), given)


@pytest.mark.parametrize(
    ("rewards", "structure"),
    [
        (["math"], None),
        ([{"kind": "math", "answer": "boxed"}], ("optional", "boxed", "auto")),
        ([{"kind": "exact", "answer": "tag", "thinking": "required"}], ("required", "tag", "auto")),
        (["math", {"kind": "format", "opening": "prefilled"}], ("required", "any", "prefilled")),
        ([{"kind": "format", "thinking": "asked"}], None),
        ([{"kind": "format", "when": {"tag": "x"}}, {"kind": "math"}], None),
    ],
)
def test_the_form_that_rewards_ask_for(rewards, structure):
    assert asked(*rewards).structure == structure


def test_a_form_that_is_given_goes_first():
    given = config(thinking="optional", part="thinking")
    form = asked({"kind": "format"}, given=given)
    assert form == Form(("optional", "tag", "auto"), "en", (), "thinking")


def test_the_language_is_that_of_a_reward_for_it():
    form = asked("math", {"kind": "language", "language": "Chinese", "others": []})
    assert (form.language, form.others, form.structure) == ("zh", (), None)
    found = rollout_readability([group("How many?", ["五个苹果", "five apples"])], form)
    assert found == {"language_share": 0.5}


def test_without_a_language_the_script_of_the_question_counts():
    texts = ["it is five", "所以 five"]
    found = rollout_readability([group("How many are left?", texts)], Form())
    assert found == {"language_share": pytest.approx((1 + 1 / 3) / 2)}
    # A translation is asked for in one script and written in another.
    assert rollout_readability([group("Translate: five", ["五"], "五")], Form()) == {
        "language_share": 1.0
    }
    assert rollout_readability([group("3+4", ["seven"])], Form()) == {}
    assert rollout_readability([group("How many?", ["7"])], Form()) == {}


def test_the_share_with_the_structure_is_of_all_completions():
    form = Form(("required", "any", "auto"))
    made = group("3+4", ["<think>3 and 4</think>7", "7", "<think>3", "<think>a</think>7"])
    assert rollout_readability([made], form)["well_formed"] == 0.5
