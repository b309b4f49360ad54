"""Conversations as training examples: what is learned of them, and behind which prompt."""

from __future__ import annotations

import pytest

from lydite.config import UserError
from lydite.model.loading import ModelConfig, load_policy
from lydite.model.policy import Policy
from lydite.model.render import decode, render_conversation, render_example, render_prompt
from lydite.types import Message, Problem

WORDS = [*"0123456789+=", "[", "]", "\n", "11"]
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}


def policy(**settings: object) -> Policy:
    values = {"path": "init:llama", "init": SMALL, "vocabulary": WORDS, **settings}
    return load_policy(ModelConfig.model_validate(values))


def talk(*answers: str, learned: bool = True) -> tuple[Problem, str]:
    """``0`` is answered by the first, ``1`` by the second, …"""
    messages = []
    for number, answer in enumerate(answers):
        messages += [Message("user", str(number)), Message("assistant", answer, learned)]
    return Problem("p", str(len(answers) - 1), tuple(messages[:-1])), answers[-1]


def shown(made: Policy, *talks: str, learned: bool = True) -> list[tuple[str, list[str]]]:
    """Each example as text, and what is learned of it, run by run."""
    found = []
    for ids, mask in render_conversation(made, *talk(*talks, learned=learned)):
        runs: list[list[int]] = []
        before = 0
        for token, bit in zip(ids, mask, strict=True):
            if bit and not before:
                runs.append([])
            if bit:
                runs[-1].append(token)
            before = bit
        plain = made.tokenizer.decode
        found.append((plain(list(ids)), [plain(run) for run in runs]))
    return found


def test_every_answer_and_its_end_is_learned_once_by_hand() -> None:
    made = policy()
    ((ids, mask),) = render_conversation(made, *talk("2", "34"))
    #              bos user 0 assistant 2 eos user 1 assistant 3 4 eos
    assert mask == (0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 1)
    assert decode(made, ids) == "<bos><user>0<assistant>2<eos><user>1<assistant>34"
    assert shown(made, "2", "34", "5")[0][1] == ["2<eos>", "34<eos>", "5<eos>"]


def test_turns_that_are_not_marked_are_not_learned() -> None:
    made = policy()
    assert shown(made, "2", "34", learned=False) == [
        ("<bos><user>0<assistant>2<eos><user>1<assistant>34<eos>", ["34<eos>"])
    ]
    problem, last = talk("2", "34")
    assert render_example(made, problem, last)[1].count(1) == 3


def test_thinking_that_is_left_out_of_earlier_turns_is_learned_where_it_was_said() -> None:
    made = policy(thinking_switch="strip")
    assert shown(made, "<think>2</think>3", "<think>4</think>5") == [
        ("<bos><user>0<assistant><think>2</think>3<eos>", ["<think>2</think>3<eos>"]),
        (
            "<bos><user>0<assistant>3<eos><user>1<assistant><think>4</think>5<eos>",
            ["<think>4</think>5<eos>"],
        ),
    ]
    # Only what goes before a thought is apart: the turns without one are of one piece.
    mixed = shown(made, "2", "3", "<think>4</think>5", "6")
    assert [learned for _, learned in mixed] == [
        ["2<eos>", "3<eos>", "<think>4</think>5<eos>"],
        ["6<eos>"],
    ]
    kept = policy(thinking_switch="keep")
    assert len(shown(kept, "<think>2</think>3", "<think>4</think>5")) == 1


@pytest.mark.parametrize("switch", ["strip", "keep", None])
def test_each_answer_is_learned_behind_the_prompt_that_the_model_will_see(
    switch: str | None,
) -> None:
    made = policy(thinking_switch=switch)
    answers = ["2", "<think>4</think>5", "<think>6</think>7", "8"]
    problem, last = talk(*answers)
    ends = []
    for ids, mask in render_conversation(made, problem, last):
        starts = [n for n in range(len(ids)) if mask[n] and not mask[n - 1]]
        ends += [ids[:n] for n in starts]
    prompts = [
        render_prompt(made, Problem("p", "", problem.messages[: 2 * n + 1])) for n in range(4)
    ]
    assert ends == prompts


def test_what_the_tokenizer_joins_across_turns_is_an_example_of_its_own() -> None:
    """The end of a turn is text here, and ``1`` before the next turn's ``1`` would be ``11``."""
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    made = policy(chat_template=template)
    found = render_conversation(made, *talk("1", "2"))
    assert [decode(made, ids) for ids, _ in found] == ["01", "0112"]
    assert [sum(mask) for _, mask in found] == [2, 2]


def test_plain_text_turns_are_learned_apart() -> None:
    made = policy(chat=False, vocabulary=[*WORDS, "\n\n"])
    found = shown(made, "2", "3")
    assert found == [("02<eos>", ["2<eos>"]), ("0\n\n2\n\n13<eos>", ["3<eos>"])]


def test_a_template_that_refuses_a_turn_is_one_line() -> None:
    template = (
        "{{ raise_exception('one turn only') if messages | length > 1 }}{{ messages[0].content }}"
    )
    with pytest.raises(UserError, match=r"problem p: the chat template refuses.*one turn only"):
        render_conversation(policy(chat_template=template), *talk("1", "2"))


def test_a_conversation_past_the_context_is_refused() -> None:
    with pytest.raises(UserError, match="problem p: prompt and worked solution have 11 tokens"):
        render_conversation(policy(context=10), *talk("2", "34"[:1]))
