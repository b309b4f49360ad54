"""The chat templates of models that are in use, as TRL ships them: each takes the switch."""

from __future__ import annotations

from pathlib import Path

import pytest

from lydite.config import UserError
from lydite.model.thinking import EMPTY, add_switch, has_switch
from lydite.model.tiny_tokenizer import build_tokenizer

trl = pytest.importorskip("trl", reason="TRL is not installed: pip install 'lydite[parity]'")
FOLDER = Path(trl.__file__).parent / "chat_templates"

SAID = "1 and nothing else"
TURNS = [
    {"role": "user", "content": "1 /think"},
    {"role": "assistant", "content": f"<think>\n2\n</think>\n\n{SAID}"},
    {"role": "user", "content": "2 /no_think"},
]
OPENS = "\n</think>\n\n"
"""Behind a template that opens the thinking itself."""


@pytest.mark.parametrize(
    ("name", "off"),
    [
        ("cohere", EMPTY),
        ("deepseek_r1_distill", OPENS),
        ("deepseekv3", OPENS),
        ("gemma", EMPTY),
        ("gemma3", EMPTY),
        ("gptoss", EMPTY),
        ("llama3", EMPTY),
        ("llama3_2", EMPTY),
        ("phi3", EMPTY),
        ("qwen2_5", EMPTY),
        ("qwen3", EMPTY),
        ("qwen3_5_think", OPENS),
        ("qwen3_instruct_2507", EMPTY),
    ],
)
def test_a_template_in_use_takes_the_switch(name: str, off: str) -> None:
    path = FOLDER / f"{name}.jinja"
    if not path.is_file():
        pytest.skip(f"this TRL has no {name}")
    made = build_tokenizer(["1"])
    made.chat_template = path.read_text()
    settings = {"tokenize": False, "add_generation_prompt": True}
    spoken = [TURNS[0], {"role": "assistant", "content": SAID}, TURNS[2]]
    before = made.apply_chat_template(spoken, **settings)
    native = has_switch(made)
    add_switch(made)
    assert (made.chat_template == path.read_text()) == native
    shown = made.apply_chat_template(TURNS, **settings)
    assert SAID in shown and "\n2\n" not in shown
    assert shown == before
    assert made.apply_chat_template(TURNS, **settings, enable_thinking=False) == shown + off


def test_a_template_that_thinks_in_other_words_is_refused() -> None:
    path = FOLDER / "gemma4.jinja"
    if not path.is_file():
        pytest.skip("this TRL has no gemma4")
    made = build_tokenizer(["1"])
    made.chat_template = path.read_text()
    with pytest.raises(UserError, match="reads enable_thinking, but does not write an empty"):
        add_switch(made)
