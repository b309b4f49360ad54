"""The small tokenizer and what is rendered with it and with other chat templates."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from lydite.config import UserError
from lydite.model.loading import ModelConfig, load_policy
from lydite.model.policy import Policy
from lydite.model.render import decode, prompt_text, render_example, render_prompt
from lydite.model.tiny_tokenizer import CONTROL, TAGS, build_tokenizer, check_encodable
from lydite.types import Message, Problem

WORDS = ["add ", "sum ", " so ", *"0123456789+=.([|", "=" + "="]
TOKENIZER = build_tokenizer(WORDS)
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}


def policy(**settings: object) -> Policy:
    values = {"path": "init:llama", "init": SMALL, "vocabulary": WORDS, **settings}
    return load_policy(ModelConfig.model_validate(values))


def ask(text: str, *before: Message) -> Problem:
    return Problem("p-1", text, (*before, Message("user", text)))


@given(st.lists(st.sampled_from([*WORDS, *TAGS]), max_size=30))
def test_what_the_vocabulary_covers_comes_back(parts: list[str]) -> None:
    text = "".join(parts)
    ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    assert TOKENIZER.decode(ids) == text
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == text
    check_encodable(TOKENIZER, text, "here")


def test_the_longest_token_wins_and_order_is_kept() -> None:
    assert TOKENIZER.convert_ids_to_tokens(TOKENIZER("add 1==2")["input_ids"]) == [
        "add ",
        "1",
        "==",
        "2",
    ]
    tokenizer = build_tokenizer(["<eos>", "<pad>", "x"])
    assert tokenizer.convert_ids_to_tokens([len(tokenizer) - 1]) == ["x"]
    assert len(tokenizer) == len(CONTROL) + len(TAGS) + 1


@pytest.mark.parametrize("tokens", [["a", "a"], ["a", ""]])
def test_doubled_and_empty_tokens_are_refused(tokens: list[str]) -> None:
    with pytest.raises(UserError, match=r"model\.vocabulary"):
        build_tokenizer(tokens)


def test_an_unknown_character_is_named() -> None:
    with pytest.raises(
        UserError, match="problem p-1: the tokenizer has no token for 'x' in 'add 1x'"
    ):
        render_prompt(policy(), ask("add 1x"))
    with pytest.raises(UserError, match=r"p-1, worked solution.*no token for 'é'"):
        render_example(policy(), ask("add 1"), "1é")


def test_prompt_and_example_by_hand(tmp_path: Path) -> None:
    small = policy()
    tokens = small.tokenizer.convert_tokens_to_ids
    prompt = render_prompt(small, ask("add 1"))
    assert list(prompt) == tokens(["<bos>", "<user>", "add ", "1", "<assistant>"])
    ids, mask = render_example(small, ask("add 1"), "<think>1</think>")
    assert list(ids) == [*prompt, *tokens(["<think>", "1", "</think>", "<eos>"])]
    assert mask == (0, 0, 0, 0, 0, 1, 1, 1, 1)
    assert decode(small, ids[5:]) == "<think>1</think>"
    small.tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    turns = [
        {"role": "user", "content": "add 1"},
        {"role": "assistant", "content": "<think>1</think>"},
    ]
    assert tuple(again.apply_chat_template(turns, return_dict=False)) == ids


def test_nothing_is_encoded_across_the_boundary() -> None:
    """``=`` ends the prompt and begins the completion; together they would be the token ``==``."""
    plain = policy(chat=False)
    ids, mask = render_example(plain, ask("1="), "=2")
    pieces = plain.tokenizer.convert_ids_to_tokens(list(ids))
    assert pieces == ["1", "=", "=", "2", "<eos>"]
    assert mask == (0, 0, 1, 1, 1)


def test_plain_prompts_join_the_turns() -> None:
    plain = policy(chat=False, vocabulary=[*WORDS, "\n"])
    assert prompt_text(plain, ask("1", Message("system", "2")).messages) == "2\n\n1"


TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system turns') }}{% "
    "endif %}"
    "<{{ m.role }}>{{ m.content }}{% if m.role == 'assistant' %}<stop>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% if enable_thinking %}<think>{% endif %}{% endif %}"
)


def test_turn_end_of_the_template_stops_and_ends_examples() -> None:
    own = policy(chat_template=TEMPLATE.replace("<stop>", "<unk>"))
    unknown = own.tokenizer.unk_token_id
    assert own.end_id == unknown
    assert own.stop_ids == {unknown, own.tokenizer.eos_token_id}
    assert render_example(own, ask("1"), "2")[0][-1] == unknown


def test_thinking_reaches_the_template_and_its_tag_is_not_repeated() -> None:
    thinking = policy(chat_template=TEMPLATE, thinking=True)
    ids, mask = render_example(thinking, ask("1"), "<think>2</think>3")
    assert decode(thinking, ids) == "<user>1<assistant><think>2</think>3"
    assert sum(mask) == 4
    assert not prompt_text(policy(chat_template=TEMPLATE), ask("1").messages).endswith("<think>")


def test_a_template_that_refuses_is_one_line() -> None:
    with pytest.raises(UserError, match=r"problem p-1: the chat template refuses.*no system turns"):
        render_prompt(policy(chat_template=TEMPLATE), ask("1", Message("system", "2")))


def test_too_long_for_the_context_is_refused() -> None:
    short = policy(context=8)
    assert len(render_prompt(short, ask("1234"))) == 7
    with pytest.raises(
        UserError, match="problem p-1: its prompt has 8 tokens and the model's context is 8"
    ):
        render_prompt(short, ask("12345"))
    render_example(short, ask("1234"), "")
    with pytest.raises(UserError, match="have 9 tokens"):
        render_example(short, ask("1234"), "5")


def test_chat_without_a_template_is_refused(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(WORDS)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    base = {"vocabulary": None, "tokenizer": str(tmp_path)}
    assert policy(**base).chat is False
    with pytest.raises(UserError, match=r"model\.chat: the tokenizer has no chat template"):
        policy(**base, chat=True)
    with pytest.raises(UserError, match=r"model.chat_template: cannot read no-such\.jinja"):
        policy(chat_template="no-such.jinja")
