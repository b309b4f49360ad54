"""Single and multiple choice: the letter in its usual spellings, or the choice's own text.

What is refused: an answer that names several where one is asked for, hedges (``A or B``), denials
(``not B``), and a letter beside the text of another choice.
"""

from __future__ import annotations

import functools
import json
import re
import time
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lydite.types import Outcome, Problem
from lydite.verify import notation
from lydite.verify.answer import read_answer
from lydite.verify.final import NO_REFERENCE, same_writing
from lydite.verify.score import Score
from lydite.verify.text_config import ChoiceConfig

LABELS = "ABCDEFGHIJ"
"""The letters that an answer may name where the problem does not list its choices."""


@dataclass(frozen=True, slots=True)
class Choices:
    """The labels of a problem's choices, in order, and their texts, if it lists them."""

    labels: str = LABELS
    texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Chosen:
    """What was read: labels, or none and why."""

    labels: frozenset[str] = frozenset()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Patterns:
    one: re.Pattern[str]
    joined: re.Pattern[str]
    marked: re.Pattern[str]
    mention: re.Pattern[str]
    denied: re.Pattern[str]


_LEAD = re.compile(
    r"(?:the\s+)?(?:(?:final|correct|right|best)\s+)?(?:answers?|options?|choices?|letters?|选项|选|答案)"
    r"\s*(?:is|are|:|：|是|为|為)?\s*:?\s*",
    re.IGNORECASE,
)
_WRAPPER = re.compile(
    r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|boxed|fbox|rm|bf)\b\s*"
    r"|\\[()\[\]]|\\(?:quad|,|;|!| )"
)
_SEPARATOR = re.compile(r"(?:\s|[,;+&、，；]|\b(?:and|und|et|y)\b|[和与及])+", re.IGNORECASE)
_HEDGE = re.compile(
    r"\b(?:or|either|maybe|perhaps|possibly|unsure|oder|ou)\b|[/|或]|\?", re.IGNORECASE
)
_DENIAL = re.compile(
    r"\b(?:not|never|neither|nor|except|wrong|incorrect|false|cannot)\b|n['’]t\b|[不非错錯]",
    re.IGNORECASE,
)


_DENIED_AFTER = re.compile(
    rf"(?:is|are|was|were|seems?|cannot|can|does|do|would|looks?)\b.{{0,30}}?(?:{_DENIAL.pattern})",
    re.IGNORECASE,
)


@functools.lru_cache(maxsize=64)
def _patterns(labels: str) -> _Patterns:
    listed = "".join(sorted(set(labels + labels.lower())))
    any_case, written = f"[{listed}]", f"[{labels}]"
    named = r"(?:option|choice|answer|选项|选)\s*"
    return _Patterns(
        one=re.compile(rf"[(\[]?\s*({any_case})\s*[)\]]?\s*[.:、)]*"),
        joined=re.compile(rf"{written}{{2,}}"),
        marked=re.compile(
            rf"(?:[(\[]\s*({any_case})\s*[)\]]\s*[.:]?|({any_case})\s*[.):、]|({written})\s*[-–—=]\s)"
            rf"\s*(?=\S)"
        ),
        mention=re.compile(
            rf"[(\[]\s*({any_case})\s*[)\]]|{named}[(\[]?({written})\b|\b({written})[.):](?!\w)"
            rf"|(?:\bis|\bare|:|=|选|是)\s*({written})(?=\s*[.!,]*\s*\Z)"
        ),
        denied=re.compile(
            rf"[,;(]?\s*(?:\band\s+|\bbut\s+)?\b(?:not|rather\s+than|instead\s+of)\s+(?:{named})?[(\[]?{written}\b[)\]]*",
        ),
    )


def read_choice(answer: str, choices: Choices, multiple: bool = False) -> Chosen:
    """The labels that a final answer names.

    ``B``, ``(b)``, ``B.``, ``\\text{B}``, full-width ``（Ｂ）``, ``Option B``, ``B. Paris``, or
    ``Paris`` where that is the text of one choice; with ``multiple`` also ``A, C``, ``A and C``,
    ``AC``.
    """
    text = _plain(answer)
    if not text:
        return Chosen(reason="the final answer is empty")
    by_text = _by_text(answer, choices)
    patterns = _patterns(choices.labels)
    stripped = _LEAD.sub("", text, count=1) if _LEAD.match(text) else text
    single = patterns.one.fullmatch(stripped) or patterns.one.fullmatch(text)
    if single is not None:
        return Chosen(frozenset(single[1].upper()))
    if by_text is not None:
        return Chosen(frozenset(by_text))
    rest = patterns.denied.sub("", stripped).strip(" ,;.")
    single = patterns.one.fullmatch(rest)
    if single is not None:
        return Chosen(frozenset(single[1].upper()))
    found = _listed(rest, patterns) or _marked(rest, choices, patterns, multiple)
    if found is None:
        found = _mentioned(rest, patterns)
    if len(found.labels) > 1 and not multiple:
        named = ", ".join(sorted(found.labels))
        return Chosen(reason=f"it names several choices: {named}")
    return found


def _plain(answer: str) -> str:
    """One spelling: compatibility forms (full-width, circled) opened, markup and signs dropped."""
    text = unicodedata.normalize("NFKC", answer)
    text = _WRAPPER.sub(" ", notation.open_text(text))
    return " ".join(re.sub(r"[{}$*_`\"“”]|\\(?=\W)", " ", text).split()).strip()


def _by_text(answer: str, choices: Choices) -> str | None:
    """The label of the only choice that has the answer's text."""
    same = [
        label
        for label, text in zip(choices.labels, choices.texts, strict=False)
        if same_writing(text, answer)
    ]
    return same[0] if len(same) == 1 else None


def _listed(text: str, patterns: _Patterns) -> Chosen | None:
    """``A, C and D``, ``(A)(C)`` or ``ACD``; ``None`` where there is more to the text."""
    hedged = _HEDGE.search(text) is not None
    spaced = re.sub(r"\)\s*\(", ") (", _HEDGE.sub(" ", text)).strip(" .")
    if patterns.joined.fullmatch(spaced):
        labels = list(spaced)
    else:
        items = [patterns.one.fullmatch(item) for item in _SEPARATOR.split(spaced) if item]
        labels = [item[1].upper() for item in items if item is not None]
        if not items or len(labels) < len(items):
            return None
    if hedged:
        return Chosen(reason=f"it hedges between {', '.join(sorted(set(labels)))}")
    return Chosen(frozenset(labels))


def _marked(text: str, choices: Choices, patterns: _Patterns, multiple: bool) -> Chosen | None:
    """``B. Paris``: a label and then words, which may be the choice's text or an explanation."""
    first = patterns.marked.match(text)
    if first is None:
        return None
    label = next(group for group in first.groups() if group).upper()
    rest = text[first.end() :]
    told = _by_text(rest, choices)
    if told is not None and told != label:
        return Chosen(reason=f"it names {label} beside the text of {told}")
    if told is not None:
        return Chosen(frozenset(label))
    if _DENIED_AFTER.match(rest):
        return Chosen(reason="it says what is not the answer")
    others = _names(rest, patterns) - {label}
    if others and (_HEDGE.search(rest) or not multiple):
        return Chosen(reason=f"it names several choices: {', '.join(sorted({label, *others}))}")
    return Chosen(frozenset({label, *others}))


def _names(text: str, patterns: _Patterns) -> set[str]:
    return {
        next(group for group in match.groups() if group).upper()
        for match in patterns.mention.finditer(text)
    }


def _mentioned(text: str, patterns: _Patterns) -> Chosen:
    """What a sentence names, such as ``I choose (B)``."""
    named = _names(text, patterns)
    if not named:
        return Chosen(reason="the final answer names no choice")
    if _DENIAL.search(text):
        return Chosen(reason="it says what is not the answer")
    if _HEDGE.search(text) and len(named) > 1:
        return Chosen(reason=f"it hedges between {', '.join(sorted(named))}")
    return Chosen(frozenset(named))


def choices_of(problem: Problem) -> Choices | str:
    """A problem's choices from its column ``choices``, or what is wrong with that."""
    given = problem.fields.get("choices")
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError) as error:
            return f"choices: no JSON: {error}"
    if given is None:
        return Choices()
    if isinstance(given, Mapping) and {"label", "text"} <= set(given):
        labels, texts = given["label"], given["text"]
    elif isinstance(given, Mapping):
        kept = {str(key): value for key, value in given.items() if value is not None}
        labels, texts = list(kept), list(kept.values())
    else:
        labels, texts = None, given
    if isinstance(texts, str) or not isinstance(texts, Sequence) or len(texts) < 2:
        return "choices: expected a list of at least two texts, or letters with texts"
    names = [str(label).strip().upper() for label in labels or _letters(len(texts))]
    if len(names) != len(texts) or len(set(names)) < len(names):
        return "choices: each needs a label of its own"
    if not all(re.fullmatch("[A-Z0-9]", name) for name in names):
        return f"choices: labels are letters or digits, not {names[0]!r:.40}; at most 26 of them"
    return Choices("".join(names), tuple(str(text) for text in texts))


def _letters(count: int) -> list[str]:
    return [chr(ord("A") + index) for index in range(count)]


def gold_of(problem: Problem, choices: Choices, config: ChoiceConfig) -> Chosen:
    """The labels of the reference: letters, numbers from ``index_from``, or texts of choices."""
    gold = problem.reference
    if gold is None or not gold.strip():
        return Chosen(reason=NO_REFERENCE if gold is None else "it is empty")
    if config.index_from is not None:
        return _by_number(gold, choices, config.index_from)
    found = read_choice(gold, choices, multiple=True)
    if not found.labels:
        hint = "; set index_from for numbers" if gold.strip().isdecimal() else ""
        return Chosen(reason=f"it names none of {', '.join(choices.labels)} alone{hint}")
    if len(found.labels) > 1 and not config.multiple:
        return Chosen(reason="it names several choices; set multiple: true")
    return found


def _by_number(gold: str, choices: Choices, start: int) -> Chosen:
    numbers = re.findall(r"\d{1,3}", gold)
    if not re.fullmatch(r"[\[(]?\s*\d{1,3}(?:\s*,\s*\d{1,3})*\s*[\])]?", gold.strip()):
        return Chosen(reason="it is no number, and index_from is set")
    places = [int(number) - start for number in numbers]
    if not all(0 <= place < len(choices.labels) for place in places):
        return Chosen(reason=f"there are {len(choices.labels)} choices, numbered from {start}")
    return Chosen(frozenset(choices.labels[place] for place in places))


class ChoiceReward:
    """1.0 if the answer names the reference's choice, or all of them and no other, else 0.0."""

    def __init__(self, config: ChoiceConfig, name: str) -> None:
        self.name = name
        self.weight = config.weight
        self.decides = 2
        self._config = config

    def score(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Score]:
        """One score per completion, in order."""
        known: dict[int, tuple[Choices, Chosen] | str] = {}
        for problem in problems:
            if id(problem) not in known:
                known[id(problem)] = self._known(problem)
        return [self._score(known[id(p)], text) for p, text in zip(problems, texts, strict=True)]

    def check_golds(self, problems: Sequence[Problem]) -> list[str | None]:
        """Every reference must name a choice that is there."""
        found = [self._known(problem) for problem in problems]
        return [known if isinstance(known, str) else None for known in found]

    def _known(self, problem: Problem) -> tuple[Choices, Chosen] | str:
        choices = choices_of(problem)
        if isinstance(choices, str):
            return choices
        gold = gold_of(problem, choices, self._config)
        return (choices, gold) if gold.labels else gold.reason

    def _score(self, known: tuple[Choices, Chosen] | str, text: str) -> Score:
        begun = time.perf_counter()
        config = self._config
        if isinstance(known, str):
            return Score(Outcome.UNGRADABLE, None, detail=known)
        choices, gold = known
        answer = read_answer(
            text, config.answer, config.marker, config.thinking, config.max_chars, config.strict
        )
        if answer.text is None:
            return Score(Outcome.UNPARSEABLE, 0.0, detail=answer.reason)
        chosen = read_choice(answer.text, choices, config.multiple)
        seconds = time.perf_counter() - begun
        if not chosen.labels:
            return Score(Outcome.UNPARSEABLE, 0.0, answer.text, chosen.reason, seconds)
        right = chosen.labels == gold.labels
        outcome = Outcome.CORRECT if right else Outcome.WRONG
        return Score(outcome, float(right), ", ".join(sorted(chosen.labels)), seconds=seconds)
