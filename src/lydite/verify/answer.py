"""Where a completion's final answer is read from.

Only the text after the last ``</think>`` counts: a box inside the thinking is a thought, not an
answer. Every scan is one pass over the text, so a hostile completion costs no more than its length.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from lydite.verify import notation
from lydite.verify.number import read_number
from lydite.verify.units import is_measure, read_unit

AnswerPlace = Literal["auto", "boxed", "tag", "phrase"]
ThinkingRule = Literal["auto", "required"]
AnswerType = Literal[
    "auto", "integer", "rational", "decimal", "quantity", "expression", "equation", "tuple", "set",
    "interval", "matrix", "choice", "text",
]  # fmt: skip

OPEN_THINK, CLOSE_THINK = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    """What was read. ``text`` is ``None`` when there is no readable answer, and ``reason`` says
    why.
    """

    text: str | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Box:
    start: int
    end: int
    content: str


_ENDING = re.compile(r"(?:<\|[^|<>]{1,40}\|>|</s>|<eos>)\Z")
_TAGGED = re.compile(
    r"<(?:final_)?answer>((?:(?!<(?:final_)?answer>).)*?)</(?:final_)?answer>",
    re.DOTALL | re.IGNORECASE,
)
_BOX_TOKEN = re.compile(r"\\(?:boxed|fbox|framebox)\s*\{|\\.|[{}]", re.DOTALL)
_BARE_BOX = re.compile(
    r"\\boxed\s+(?P<content>[+-]?\\?\$?\d[\d,./]*|[A-Za-z](?![A-Za-z])|\\[A-Za-z]+(?:\{[^{}]{0,80}\})+)"
)
_BETWEEN_BOXES = re.compile(r"[\s$,;&]*(?:and|or|\\text\{\s*(?:and|or)\s*\})?[\s$,;&]*")
_PHRASES = re.compile(
    r"(?:\b(?:answers?|solutions?|correct\s+(?:option|choice)|respuesta|antwort|réponse|risposta)\b"
    r"(?:\s+to\b[^.\n]{0,60})?\**\s*(?:\bis\b|\bare\b|\bes\b|\bist\b|\best\b|=|:|：)"
    r"(?:\s+(?:therefore|thus|hence|simply|just|then|indeed|exactly|equal\s+to)\b,?)?"
    r"|\bfinal\s+answer\b\**\s*\n|ответ\s*[:：]|정답(?:은)?|答え(?:は)?"
    r"|答案(?:是|为|為|：|:|选)?|[故此以应]选|(?:正确)?选项(?:是|为|：|:)|(?<![回解作])答[：:]|####)\s*[:：]?\s*(?:\*\*)?",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!](?=\s|\*|\Z)|[。！]|です|\n")
_AFTERTHOUGHT = re.compile(
    r",\s(?:not|rather\sthan|instead\sof)\s.*|(?:,?\s|\()(?:because|since|which|where|as\s[a-z]+)\b.*|\s[-–—]+\s[A-Za-z]{2,}\s.*",
    re.DOTALL,
)
_SUM = re.compile(
    r"(?<![A-Za-z\d=])[-+*/×÷·().\d\s,$%]*\d\s*=\s*[-\d.,/$%]+(?:\s+[A-Za-z]+)?(?=[.!]?\Z)"
)
_IN_DOLLARS = re.compile(r"^\$([^$\s]|[^$\s][^$]{0,200}[^$\s])\$\s([A-Za-z ]+)$")
_HAN_SENTENCE = re.compile(r"[\u4e00-\u9fff,，]{1,20}?(-?\d[\d.,/]{0,20}[\u4e00-\u9fff]{0,8})")
_HAN_HEDGE = re.compile("[不非或约至到少超]|小于|大于")
_FORMULA = re.compile(r"\$([^$]{1,200})\$|\\\(([^$]{1,200}?)\\\)")
_CONCLUDED = re.compile(
    r"\b(?:is|are|equals|be|get|obtain)\s*:?\s*(?:\$([^$]{1,200})\$|\\\(([^$]{1,200}?)\\\))[.!*\s]*\Z"
)
_LABEL = re.compile(r"(?<![A-Za-z])(?!A\s[a-z])[A-J](?![A-Za-z'])")
_DISPLAY = re.compile(r"(?:\\\[(.{1,4000}?)\\\]|\$\$(.{1,4000}?)\$\$)", re.DOTALL)
_SIGNED_NUMBER = re.compile(
    r"(?<![A-Za-z0-9_.])(?:[-−]\s?|–(?=\d))?(?:\\?\$|[€£¥])?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:/\d+)?(?:\\?%)?"
)
_DENIED = re.compile(
    r"(?:\b(?:not|never|at\s+(?:least|most)|(?:more|less|fewer|greater|other)\s+than)|n't"
    r"|[<>≤≥≠±]=?|\\(?:leq?|geq?|neq?|pm|mp)(?![A-Za-z]))\s*\Z",
    re.IGNORECASE,
)
_WORD = re.compile(r"(?<!\\)\b[A-Za-z]{2,}\b|[\u4e00-\u9fff]")
_CHOSEN = re.compile(
    r"\b(?:option|choice|answer)\s+\(?([A-J])\)?(?:\s+is\s+(?:the\s+)?(?:correct|right|answer)\b|[.*\s]*\Z)",
    re.IGNORECASE,
)


def after_thinking(text: str, thinking: ThinkingRule = "auto") -> FinalAnswer:
    """The part of a completion that speaks to the reader: what follows the last ``</think>``.

    A completion that closes a thought it did not open is fine (chat templates prefill
    ``<think>``). One that opens a thought and never closes it has no answer. With
    ``thinking="required"`` neither has one that never closes a thought: use it when the template
    prefills ``<think>``, since a completion cut short while thinking then holds neither tag.
    """
    _, closed, tail = text.rpartition(CLOSE_THINK)
    if OPEN_THINK in tail:
        return FinalAnswer(None, "the thinking is opened and never closed")
    if thinking == "required" and not closed:
        return FinalAnswer(None, "the thinking is never closed")
    return FinalAnswer(_without_ending(tail))


def _without_ending(text: str) -> str:
    """The text without the special tokens that ended it."""
    text = text.rstrip()
    # Only the last few characters are searched, and a few tokens peeled: the cost stays linear.
    for _ in range(4):
        ending = _ENDING.search(text, max(0, len(text) - 48))
        if ending is None:
            break
        text = text[: ending.start()].rstrip()
    return text


def read_answer(
    text: str,
    place: AnswerPlace = "auto",
    marker: str | None = None,
    thinking: ThinkingRule = "auto",
    max_chars: int = 1000,
    strict: bool = False,
    units: bool = False,
) -> FinalAnswer:
    """The final answer that a completion states.

    ``boxed``: the last ``\\boxed{}`` with balanced braces; boxes joined by nothing but a comma,
    "and" or "or" are one answer with several items, so "\\boxed{3} or \\boxed{7}" is not 7.
    ``tag``: the last ``<answer>…</answer>``, and the box in it if there is one. ``phrase``: what
    follows the last ``marker`` (any case), to the end of the sentence or line; without a marker,
    the usual phrases ("the answer is", "Answer:", "答案：").
    ``strict`` refuses a completion that states several answers in that place which differ.
    ``auto``: the first of tag, box, phrase that occurs; failing these, the only number of the last
    sentence, or a last line short enough to be an answer. ``units`` keeps that number's unit.
    """
    spoken = after_thinking(text, thinking)
    if spoken.text is None:
        return spoken
    found = _find(spoken.text, place, marker, units)
    if found is None:
        return FinalAnswer(None, _MISSING[place])
    if strict and (several := _disagreeing(spoken.text, place, marker)):
        return FinalAnswer(None, f"it states {several} final answers that differ")
    found = found.strip()
    if not found:
        return FinalAnswer(None, "the final answer is empty")
    if len(found) > max_chars:
        return FinalAnswer(
            None, f"the final answer has {len(found)} characters, more than {max_chars}"
        )
    return FinalAnswer(found)


_MISSING: dict[AnswerPlace, str] = {
    "auto": "no final answer was found",
    "boxed": "no \\boxed{} with an answer was found",
    "tag": "no <answer>…</answer> was found",
    "phrase": "no phrase that announces the answer was found",
}


def _find(spoken: str, place: AnswerPlace, marker: str | None, units: bool) -> str | None:
    if place == "boxed":
        return last_boxed(spoken)
    if place == "tag":
        return last_tagged(spoken)
    if place == "phrase":
        return last_announced(spoken, marker)
    for found in (last_tagged(spoken), last_boxed(spoken), last_announced(spoken, marker)):
        if found is not None:
            return found
    return _closing_statement(spoken, units)


def _disagreeing(spoken: str, place: AnswerPlace, marker: str | None) -> int:
    """How many different answers stand in the place that is read; 0 when they agree."""
    stated: list[str] = []
    if place in ("auto", "tag"):
        stated = [_inside(match[1]) for match in _TAGGED.finditer(spoken)]
    if place in ("auto", "boxed") and not stated:
        stated = [box.content for box in _boxes(spoken)]
    if place in ("auto", "phrase") and not stated:
        stated = _announced(spoken, marker)
    distinct = {_spelling(text) for text in stated if text.strip()}
    return len(distinct) if len(distinct) > 1 else 0


def _spelling(text: str) -> object:
    plain = notation.normalise(text)
    number = read_number(plain)
    return notation.squeeze(plain) if number is None else (number.value, number.percent)


def last_tagged(text: str) -> str | None:
    """What the last ``<answer>…</answer>`` holds, or the box inside it."""
    found = None
    for match in _TAGGED.finditer(text):
        found = match[1]
    return None if found is None else _inside(found)


def _inside(tagged: str) -> str:
    boxed = last_boxed(tagged)
    return tagged if boxed is None else boxed


def last_boxed(text: str) -> str | None:
    """The last ``\\boxed{}``'s content; ``None`` when there is none with balanced braces."""
    boxes = _boxes(text)
    if not boxes:
        return None
    joined = [boxes[-1]]
    for box in reversed(boxes[:-1]):
        between = text[box.end : joined[0].start]
        if len(between) > 40 or not _BETWEEN_BOXES.fullmatch(between):
            break
        joined.insert(0, box)
    distinct = list(dict.fromkeys(box.content.strip() for box in joined))
    return ", ".join(distinct)


def _boxes(text: str) -> list[_Box]:
    """Outermost boxes in order of appearance, braces balanced, found in one pass."""
    found: list[_Box] = []
    open_braces: list[tuple[int, int] | None] = []
    for token in _BOX_TOKEN.finditer(text):
        if token[0] == "{":
            open_braces.append(None)
        elif token[0] == "}":
            box = open_braces.pop() if open_braces else None
            if box is not None:
                while found and found[-1].start > box[0]:
                    found.pop()
                content = re.sub(r"\\(?:boxed|fbox)\b", "", text[box[1] : token.start()])
                found.append(_Box(box[0], token.end(), content))
        elif token[0].endswith("{") and len(token[0]) > 2:
            open_braces.append((token.start(), token.end()))
    bare = [_Box(m.start(), m.end(), m["content"]) for m in _BARE_BOX.finditer(text)]
    return sorted([*found, *bare], key=lambda box: box.start)


def last_announced(text: str, marker: str | None = None) -> str | None:
    """What follows the last announcing phrase, to the end of its sentence or line."""
    end = -1
    for match in _announcing(marker).finditer(text):
        end = match.end()
    return None if end < 0 else _announced_at(text, end)


def _announcing(marker: str | None) -> re.Pattern[str]:
    if marker is None:
        return _PHRASES
    return re.compile(re.escape(marker) + r"\s*[:：]?", re.IGNORECASE)


def _announced(text: str, marker: str | None) -> list[str]:
    """What follows each announcing phrase; the last few, so that the cost stays linear."""
    ends = [match.end() for match in _announcing(marker).finditer(text)]
    return [_announced_at(text[: end + 2000], end) for end in ends[-20:]]


def _announced_at(text: str, end: int) -> str:
    rest = text[end:].lstrip()
    display = _DISPLAY.match(rest)
    if display is not None:
        return display[1] or display[2]
    said = _AFTERTHOUGHT.sub("", _SENTENCE_END.split(rest, maxsplit=1)[0]).replace("**", "")
    if (han := _HAN_SENTENCE.fullmatch(said.strip())) and not _HAN_HEDGE.search(said):
        return han[1]
    return _IN_DOLLARS.sub(r"\1 \2", said.strip())


def _stated_number(sentence: str, number: re.Match[str], units: bool) -> str:
    """The number of a sentence, with what makes it another answer: a denial or bound in front, or
    the unit of a quantity that is all of the sentence.
    """
    before, after = sentence[: number.start()], sentence[number.end() :]
    denied = _DENIED.search(before)
    if denied is not None:
        return sentence[denied.start() : number.end()]
    unit = read_unit(after, r"\text" in after or r"\mathrm" in after)
    if unit is not None and is_measure(unit):
        if not re.search(r"[^\W\d_]", before):
            return sentence
        return sentence[number.start() :].rstrip(".! ") if units else number[0]
    return number[0]


def _closing_statement(text: str, units: bool) -> str | None:
    """The only number of the last sentence, or a last line that is itself short enough to be an
    answer.
    """
    lines = [line for line in text.splitlines() if line.strip() not in ("", "```", "---")]
    if not lines or "\\boxed" in lines[-1]:
        return None
    line = lines[-1].strip().strip("*").strip()
    sentences = [part for part in re.split(r"(?<=[.!?])\s+", line) if part.strip()]
    sentence = sentences[-1] if sentences else line
    chosen = _CHOSEN.search(sentence)
    if chosen is not None and len(set(_LABEL.findall(sentence))) == 1:
        return chosen[1]
    if concluded := _CONCLUDED.search(sentence[-400:]):
        return concluded[1] or concluded[2]
    formulas = list(_FORMULA.finditer(sentence[-400:]))
    if len(formulas) == 1 and not _SIGNED_NUMBER.search(_FORMULA.sub(" ", sentence[-400:])):
        return formulas[0][1] or formulas[0][2]
    added = _SUM.search(sentence[-200:])
    if added is not None:
        return added[0].strip()
    numbers = list(_SIGNED_NUMBER.finditer(sentence))
    if len(numbers) == 1 and _WORD.search(sentence):
        return _stated_number(sentence, numbers[0], units)
    return line if len(line) <= 60 else None
