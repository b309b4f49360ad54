"""Where a completion's program is read from: its last fenced block after the thinking.

The text is only cut here, line by line; what it says is for the sandbox to find out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lydite.verify.answer import ThinkingRule, after_thinking
from lydite.verify.code.languages import Language

_FENCE = re.compile(r"(?P<indent>[ \t>]{0,12})(?P<marks>`{3,}|~{3,})[ \t]*(?P<tag>[^\s`]*)[^`]*\Z")
_TAG_NOISE = re.compile(r"^\{\.?|[:,;{}=].*$", re.DOTALL)
# A fence that opens at the end of a line of prose.
_LATE_FENCE = re.compile(r"(?P<indent>)[^`]*?(?P<marks>`{3,})(?P<tag>[A-Za-z][\w+]*)[ \t]*\Z")
_ANSWER = re.compile(r"<answer>(.*?)(?:</answer>|\Z)", re.DOTALL | re.IGNORECASE)
_FUTURE = re.compile(r"^from[ \t]+__future__[ \t]+import\b[^(\n]*$", re.MULTILINE)
_SOLUTION = re.compile(r"^class[ \t]+Solution\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Program:
    """What was read. ``code`` is ``None`` when there is no program, and ``reason`` says why.
    ``fenced`` tells a block from a bare text, which may turn out to be no program at all.
    """

    code: str | None
    fenced: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Block:
    tag: str
    lines: Sequence[str]

    @property
    def language(self) -> str:
        """The tag without what some put around it: `{python}`, `{.python}`, `python:main.py`."""
        return _TAG_NOISE.sub("", self.tag.lower())


def read_program(
    text: str,
    language: Language,
    unfenced: str = "whole",
    thinking: ThinkingRule = "auto",
    max_chars: int = 100_000,
) -> Program:
    """The program of a completion.

    It is the last block that carries a tag of the language; failing that the last one without a
    tag. A block that is never closed ends with the text: a stop string may have taken its fence.
    Without a block, ``unfenced`` says what happens: ``whole`` takes the whole text, ``refuse``
    nothing.
    """
    spoken = after_thinking(text, thinking)
    if spoken.text is None:
        return Program(None, reason=spoken.reason)
    blocks = _blocks(spoken.text)
    answers = [] if blocks else _ANSWER.findall(spoken.text)
    chosen = next((b for b in reversed(blocks) if b.language in language.tags), None)
    chosen = chosen or next((b for b in reversed(blocks) if not b.tag), None)
    if chosen is not None:
        code = "\n".join(chosen.lines) + "\n"
    elif blocks:
        return Program(None, reason=f"no code block is tagged {language.name} or untagged")
    elif unfenced == "refuse":
        return Program(None, reason="there is no code block")
    else:
        code = (answers[-1] if answers else spoken.text).lstrip("\ufeff\r\n") + "\n"
    if not code.strip():
        return Program(None, reason="the code is empty")
    if len(code) > max_chars:
        return Program(None, reason=f"the code has {len(code)} characters, more than {max_chars}")
    return Program(code, fenced=chosen is not None)


def _blocks(text: str) -> list[_Block]:
    """Fenced blocks in order, in one pass. The opening fence's indent is taken off its lines."""
    blocks: list[_Block] = []
    fence: re.Match[str] | None = None
    lines: list[str] = []
    for line in text.split("\n"):
        line = line.rstrip("\r")
        mark = _FENCE.match(line) if line.lstrip(" \t>")[:1] in ("`", "~") else None
        if fence is None:
            fence, lines = mark or _LATE_FENCE.match(line), []
        elif mark is not None and not mark["tag"] and mark["marks"].startswith(fence["marks"]):
            blocks.append(_Block(fence["tag"], lines))
            fence = None
        else:
            lines.append(_dedent(line, fence["indent"]))
    if fence is not None:
        blocks.append(_Block(fence["tag"], _ended(lines, fence["marks"])))
    return blocks


def _ended(lines: Sequence[str], marks: str) -> Sequence[str]:
    """A block that no line closes, up to a fence that ends one of its lines."""
    for number, line in enumerate(lines):
        if line.endswith(marks):
            return [*lines[:number], line.removesuffix(marks)]
    return lines


def _dedent(line: str, indent: str) -> str:
    return line.removeprefix(indent) if line.strip() else ""


def sources(code: str, prefix: str | None, entry_point: str | None) -> list[str]:
    """What to try as the program, in order; the first that compiles is run.

    ``prefix`` is the code that the prompt began with (imports, helpers, the head of the function).
    A completion that defines the function itself is run after it, since it may rely on its imports,
    or alone if the two do not compile together; any other goes on where the prefix stopped.
    """
    if not prefix or not prefix.strip() or not is_code_prefix(prefix, entry_point):
        return [code]
    joined = prefix if prefix.endswith("\n") else prefix + "\n"
    if entry_point is not None and not _defines(code, entry_point):
        return [joined + code, _continued(prefix) + code, code]
    future = "".join(f"{line}\n" for line in _FUTURE.findall(code))
    head = _head(prefix, entry_point)
    # A head of a class or function alone is no program: then what stands above it is the prefix.
    both = [] if _SOLUTION.search(code) else [future + joined + "\n" + _FUTURE.sub("", code)]
    return [*both, future + head + "\n" + _FUTURE.sub("", code), code]


def _head(prefix: str, entry_point: str | None) -> str:
    """What a prefix has above the entry point: imports and helpers."""
    at = _definition(prefix, entry_point or "")
    return prefix[: at.start()] if at is not None else prefix


def _continued(prefix: str) -> str:
    """The prefix without what follows its last line: a completion may start within that line."""
    return prefix.rstrip(" \t")


def is_code_prefix(prefix: str, entry_point: str | None) -> bool:
    """Whether a prompt is the beginning of a program rather than a question in words."""
    return entry_point is not None and _defines(prefix, entry_point)


def _defines(code: str, name: str) -> bool:
    return _definition(code, name) is not None


def _definition(code: str, name: str) -> re.Match[str] | None:
    """Where a name is defined: as a method of ``class Solution``, or by itself."""
    word = re.escape(name)
    if re.search(rf"^[ \t]+(?:async\s+)?def\s+{word}\s*\(", code, re.MULTILINE):
        solution = _SOLUTION.search(code)
        if solution is not None:
            return solution
    return re.search(
        rf"^(?:(?:async\s+)?def\s+{word}\s*\(|class\s+{word}\b|{word}\s*(?::[^=\n]*)?=(?!=)"
        rf"|(?:async\s+)?function\s*\*?\s*{word}\s*\(|(?:const|let|var)\s+{word}\s*=)",
        code,
        re.MULTILINE,
    )
