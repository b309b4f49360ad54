"""The thinking switch that a chat template has or is given, and what is saved of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from lydite.config import UserError
from lydite.model.loading import ModelConfig, load_policy
from lydite.model.policy import Policy
from lydite.model.render import completion_ids, decode, prompt_text, render_example
from lydite.model.saving import save_policy
from lydite.model.thinking import EMPTY, add_switch, has_switch, prefilled
from lydite.model.tiny_tokenizer import SWITCH_TOKENS, build_tokenizer
from lydite.types import Message, Problem

WORDS = ["add ", *"0123456789+=", "[", "]", "\n"]
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
TURNS = [
    {"role": "user", "content": "1+1 /think"},
    {"role": "assistant", "content": "<think>\n1+1=2\n</think>\n\n2"},
    {"role": "user", "content": "2+2 /no_think"},
]

# The ways in which templates are written: by expressions, by raw text that ends in a line break,
# with space around all of it, with loop controls, with variables of the names that a wrapper would
# use, and one that opens the thinking by itself.
RAW = (
    "\n{%- for m in messages %}[{{ m['role'] }}]\n{{ m['content'] }}<eos>\n"
    "{% endfor %}{% if add_generation_prompt %}[assistant]\n{% endif %}\n"
)
NAMES = (
    "{%- set ns = namespace(said='', last=0) %}{% set message = 'x' %}"
    "{% if messages[0].role == 'system' %}{% set messages = messages[1:] %}{% endif %}"
    "{% for message in messages %}{% if message.role == 'tool' %}{% continue %}{% endif %}"
    "[{{ message.role }}]{{ message.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant]' }}{%- endif %}"
)
SPACES = "\n [{% for m in messages %}{{ m.content }}<eos>{% endfor %}]\n \n"
OPENING = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant]<think>\n' }}{% endif %}"
)
NATIVE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant]' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n' }}"
    "{% endif %}{% endif %}"
)


def tokenizer(template: str | None = None) -> Any:
    built = build_tokenizer([*WORDS, *(t for t in SWITCH_TOKENS if t != "\n")])
    if template is not None:
        built.chat_template = template
    return built


def show(made: Any, turns: list[dict[str, str]] | None = None, **extra: Any) -> str:
    settings = {"tokenize": False, "add_generation_prompt": True, **extra}
    text = made.apply_chat_template(TURNS if turns is None else turns, **settings)
    assert isinstance(text, str)
    return text


def policy(**settings: object) -> Policy:
    values = {"path": "init:llama", "init": SMALL, "vocabulary": WORDS, **settings}
    return load_policy(ModelConfig.model_validate(values))


def test_the_switch_of_the_small_tokenizer_by_hand() -> None:
    made = tokenizer()
    assert not has_switch(made)
    add_switch(made)
    asked = "<bos><user>1+1 /think<assistant>2<eos><user>2+2 /no_think<assistant>"
    assert show(made) == asked
    assert show(made, enable_thinking=True) == asked
    assert show(made, enable_thinking=False) == f"{asked}<think>\n\n</think>\n\n"
    assert not show(made, add_generation_prompt=False, enable_thinking=False).endswith(EMPTY)


@pytest.mark.parametrize(
    "template", [None, RAW, NAMES, SPACES], ids=["expressions", "raw", "names", "spaces"]
)
@pytest.mark.parametrize("turns", [TURNS[:1], TURNS[:2], TURNS], ids=["1", "2", "3"])
@pytest.mark.parametrize("ask", [True, False])
def test_around_a_template_nothing_else_changes(
    template: str | None, turns: list[dict[str, str]], ask: bool
) -> None:
    plain, switched = tokenizer(template), tokenizer(template)
    add_switch(switched, strip_history=False)
    settings = {"add_generation_prompt": ask}
    assert show(switched, turns, **settings) == show(plain, turns, **settings)
    off = show(switched, turns, **settings, enable_thinking=False)
    assert off == show(plain, turns, **settings) + (EMPTY if ask else "")
    stripping = tokenizer(template)
    add_switch(stripping)
    spoken = [*turns]
    if len(turns) == 3:
        spoken[1] = {"role": "assistant", "content": "2"}
    assert show(stripping, turns, **settings) == show(plain, spoken, **settings)


def test_what_the_switch_does_not_understand_in_a_turn_it_leaves_alone() -> None:
    template = "{% for m in messages %}{{ m.role }}:{{ m.content }}:{{ m.calls }};{% endfor %}"
    made = tokenizer(template + "{% if add_generation_prompt %}>{% endif %}")
    add_switch(made)
    turns: list[dict[str, Any]] = [
        {"role": "assistant", "content": [{"text": "</think>"}], "calls": 1},
        {"role": "assistant", "content": "<think>a</think>b</think>c", "calls": 2},
        {"role": "user", "content": "<think>3</think>4"},
        {"role": "assistant", "content": "<think>a</think>b", "calls": 3},
    ]
    assert show(made, turns) == (
        "assistant:[{'text': '</think>'}]:1;assistant:c:2;user:<think>3</think>4:;"
        "assistant:<think>a</think>b:3;>"
    )


def test_thinking_that_the_template_opens_is_closed() -> None:
    made = tokenizer(OPENING)
    add_switch(made)
    asked = show(made, TURNS[:1])
    assert asked.endswith("[assistant]<think>\n")
    assert show(made, TURNS[:1], enable_thinking=False) == asked + "\n</think>\n\n"


@pytest.mark.parametrize("template", [NATIVE, NATIVE.replace("is defined and", "is undefined or")])
def test_a_template_with_a_switch_stays_as_it_is(template: str) -> None:
    made = tokenizer(template)
    assert has_switch(made)
    add_switch(made)
    assert made.chat_template == template
    twice = tokenizer()
    add_switch(twice)
    once = twice.chat_template
    add_switch(twice)
    assert twice.chat_template == once


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("", "no chat template"),
        ("{{ 'on' if enable_thinking else 'off' }}", "reads enable_thinking, but does not"),
        ("{{ messages | nothing }}", "the chat template fails"),
        ("{{ messages[0].content }}{% if true %}", "the chat template fails"),
        ("{{ messages[0].content }}{#", "does not work inside another"),
        ({"default": RAW, "tools": RAW}, "several chat templates"),
    ],
)
def test_a_template_that_cannot_have_one_says_why(template: Any, reason: str) -> None:
    made = tokenizer()
    made.chat_template = template
    with pytest.raises(UserError, match=rf"^model\.thinking_switch: .*{reason}"):
        add_switch(made)
    assert made.chat_template == template


def test_a_template_that_always_ends_in_an_empty_block_has_no_switch() -> None:
    made = tokenizer("{{ messages[0].content }}{{ '<think></think>' }}")
    assert not has_switch(made)


def test_the_saved_model_has_the_switch(tmp_path: Path) -> None:
    made = policy(thinking_switch="strip")
    save_policy(made, tmp_path / "model")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "model")
    asked = show(loaded)
    assert asked.endswith("<assistant>") and "1+1=2" not in asked
    assert show(loaded, enable_thinking=False) == asked + EMPTY
    assert loaded(asked, add_special_tokens=False)["input_ids"].count(loaded.unk_token_id) == 0
    assert loaded.decode(loaded(asked, add_special_tokens=False)["input_ids"]) == asked
    again = load_policy(ModelConfig(path=str(tmp_path / "model"), thinking_switch="keep"))
    assert again.tokenizer.chat_template == made.tokenizer.chat_template


def test_the_tokens_of_the_switch_come_behind_all_others() -> None:
    plain, switched = policy().tokenizer, policy(thinking_switch="keep").tokenizer
    ours, theirs = switched.get_vocab(), plain.get_vocab()
    assert {token: ours[token] for token in theirs} == theirs
    more = sorted(ours.keys() - theirs.keys(), key=ours.__getitem__)
    assert more == [" /think", " /no_think", "\n\n"]  # "\n" was there.
    assert min(ours[token] for token in more) == len(theirs)


@pytest.mark.parametrize(
    ("prompt", "written"),
    [
        ("2+2<assistant>", ""),
        ("2+2<assistant><think>", "<think>"),
        ("2+2<assistant><think>\n", "<think>\n"),
        (f"2+2<assistant>{EMPTY}", EMPTY),
        ("<think>1</think>", ""),
        ("<think>\n\n</think>\n\n2<assistant>", ""),
    ],
)
def test_what_a_prompt_ends_in(prompt: str, written: str) -> None:
    assert prefilled(prompt) == written


def test_the_hard_switch_of_a_problem_comes_before_the_models() -> None:
    made = policy(thinking_switch="strip", thinking=False)
    problem = Problem("p", "1+1", (Message("user", "1+1"),))
    assert prompt_text(made, problem.messages).endswith(EMPTY)
    assert not prompt_text(made, problem.messages, thinking=True).endswith(EMPTY)
    fast = Problem("p", "1+1", problem.messages, thinking=False)
    ids, mask = render_example(policy(thinking_switch="strip"), fast, f"{EMPTY}2")
    shown = decode(made, ids)
    assert shown == f"<bos><user>1+1<assistant>{EMPTY}2"
    assert decode(made, [i for i, bit in zip(ids, mask, strict=True) if bit]) == "2"


def test_thinking_behind_an_empty_block_is_refused() -> None:
    made = policy(thinking_switch="strip")
    fast = Problem("p-7", "1+1", (Message("user", "1+1"),), thinking=False)
    with pytest.raises(UserError, match=r"problem p-7: its worked solution thinks, and its prompt"):
        completion_ids(made, fast, "<think>1+1=2</think>2")
    assert decode(made, completion_ids(made, fast, "2")) == "2"
