"""The parts of a completion: what it thinks and what it says."""

from __future__ import annotations

import re
from typing import Literal

from lydite.verify.answer import CLOSE_THINK, OPEN_THINK, after_thinking

TextPart = Literal["whole", "thinking", "answer"]

UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f"  # kana
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
)
"""Letters of scripts that put no spaces between words, as ranges for a character class."""

_TOKEN = re.compile(rf"[{UNSPACED}]|(?:(?![{UNSPACED}])\w){{1,30}}|[^\w\s]")


def part_of(text: str, part: TextPart) -> str:
    """A part of a completion.

    ``answer`` is what follows the last ``</think>``, nothing if a thought is left open.
    ``thinking`` is what stands before it, or after a ``<think>`` that is left open; nothing where
    neither tag occurs. Special tokens that end the text belong to neither.
    """
    spoken = after_thinking(text).text
    before, closed, after = text.rpartition(CLOSE_THINK)
    if part == "answer":
        return spoken or ""
    if part == "whole":
        return text if spoken is None else before + closed + spoken
    thought = before if spoken is not None else f"{before} {after}"
    if not closed and OPEN_THINK not in text:
        return ""
    return thought.replace(OPEN_THINK, " ").replace(CLOSE_THINK, " ").strip()


def tokens_of(text: str) -> list[str]:
    """Words and signs. In scripts without spaces each character is one, and a run of word
    characters that goes on is cut every thirty, so that no text is a single word.
    """
    return _TOKEN.findall(text)
