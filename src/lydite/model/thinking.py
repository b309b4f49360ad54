"""The switch between thinking and answering at once, as a property of the chat template.

Qwen3 (2505.09388, section 4.3) has two switches. The soft one is text: ``/think`` or ``/no_think``
in a user turn, which the model learns to follow (:mod:`lydite.tasks.switch`). The hard one is
``enable_thinking=False``, with which the template itself writes an empty block of thinking behind
the prompt, so that the model cannot but answer. A template without the hard switch gets one here,
in Jinja, so that whoever loads the saved tokenizer has it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lydite.config import UserError
from lydite.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

OPEN, CLOSE = "<think>", "</think>"
EMPTY = f"{OPEN}\n\n{CLOSE}\n\n"
"""The block of thinking of an answer without any."""

_CLOSED = re.compile(rf"{OPEN}\s*{CLOSE}\s*\Z")
_OPENED = re.compile(rf"{OPEN}\s*\Z")

# Thinking before the last user turn is left out: a model sees the same of earlier turns whether it
# is trained or served. Plus signs keep Jinja from eating the space around the template in between.
_STRIP = """\
{%- set thinking_switch = namespace(last=-1, turns=[]) -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{%- set thinking_switch.last = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
{%- if message.role == 'assistant' and loop.index0 < thinking_switch.last \
and message.content is string and '</think>' in message.content -%}
{%- set said = message.content.split('</think>')[-1].lstrip('\\n') -%}
{%- set thinking_switch.turns = thinking_switch.turns + [dict(message, content=said)] -%}
{%- else -%}{%- set thinking_switch.turns = thinking_switch.turns + [message] -%}{%- endif -%}
{%- endfor -%}
{%- set messages = thinking_switch.turns +%}"""
_OFF = (
    "{%+ if add_generation_prompt and enable_thinking is defined and enable_thinking is false +%}"
    "{{ %r }}{%+ endif +%}"
)


def add_switch(tokenizer: PreTrainedTokenizerBase, strip_history: bool = True) -> None:
    """Gives the chat template the hard switch, around what it is; one that has it is left alone.

    With ``strip_history`` the thinking of turns before the last user's is left out of the prompt,
    as Qwen3 does. A template that opens ``<think>`` by itself has it closed at once.

    Raises:
        UserError: there is no chat template, or it reads ``enable_thinking`` in a way of its own.
    """
    if not tokenizer.chat_template:
        raise UserError(
            "model.thinking_switch: the tokenizer has no chat template; give model.chat_template"
        )
    if has_switch(tokenizer):
        return
    if isinstance(tokenizer.chat_template, dict):
        raise UserError(
            "model.thinking_switch: the tokenizer has several chat templates; give the one to use "
            "as model.chat_template"
        )
    asked = [Message("user", "1")]
    plain = _render(tokenizer, asked)
    if any(_render(tokenizer, asked, thinking) != plain for thinking in (True, False)):
        raise UserError(
            "model.thinking_switch: the chat template reads enable_thinking, but does not write an "
            f"empty {OPEN}{CLOSE} for false; give model.chat_template"
        )
    given = tokenizer.chat_template
    opened = _OPENED.search(plain)
    off = EMPTY.removeprefix(opened[0]).removeprefix(OPEN) if opened else EMPTY
    own = given.removesuffix("\n")  # Jinja drops one at the end, and not in the middle.
    tokenizer.chat_template = (
        (_STRIP if strip_history else "") + own + _OFF.replace("%r", repr(off))
    )
    try:
        kept = _render(tokenizer, asked) == plain and has_switch(tokenizer)
    except UserError:
        kept = False
    if not kept:
        tokenizer.chat_template = given
        raise UserError(
            "model.thinking_switch: the chat template does not work inside another; give one with "
            "enable_thinking as model.chat_template"
        )


def has_switch(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether ``enable_thinking=False`` ends the prompt in an empty block, and true does not. What
    holds where neither is said differs from model to model.
    """
    asked = [Message("user", "1")]
    closed = [
        _CLOSED.search(_render(tokenizer, asked, thinking)) is not None
        for thinking in (False, True)
    ]
    return closed == [True, False]


def prefilled(prompt: str) -> str:
    """The thinking that a prompt ends in: opened, opened and closed again, or ``""``."""
    found = _CLOSED.search(prompt) or _OPENED.search(prompt)
    return found[0] if found else ""


def _render(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], thinking: bool | None = None
) -> str:
    extra: dict[str, Any] = {} if thinking is None else {"enable_thinking": thinking}
    turns = [{"role": m.role, "content": m.content} for m in messages]
    try:
        text = tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=True, **extra
        )
    except Exception as error:  # A template may raise anything.
        reason = " ".join(str(error).split())
        raise UserError(f"model.thinking_switch: the chat template fails: {reason}") from error
    assert isinstance(text, str)
    return text
