"""Constraints checked by reading: counts, casing, keywords, beginnings and ends, JSON, language."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lydite.config import UserError, validate
from lydite.types import Outcome, Problem
from lydite.verify.answer import after_thinking
from lydite.verify.constraints import Constraints, Count
from lydite.verify.json_data import NotJson, find_json, read_json
from lydite.verify.language import language_share
from lydite.verify.languages import LANGUAGES
from lydite.verify.pool import Handler, Item, Pool, Reply
from lydite.verify.score import Score
from lydite.verify.text_config import InstructionConfig

SCHEMA_HANDLER = Handler("lydite.verify.schema:checker")

ENOUGH_OF_LANGUAGE = 0.9
"""Names and borrowed words do not make an answer another language."""

_SENTENCE_END = re.compile(r"[.!?…]+[\"'”’)\]]{0,3}(?=\s|\Z)|[。！？]+|\n")
_ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|etc|vs|Mr|Mrs|Ms|Dr|No)\.(?=\s)")
_BULLET = re.compile(r"^[ \t]*(?:[-*•–]|\d{1,3}[.)])[ \t]+(?=\S)", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\[[^\[\]\n]{1,200}\](?!\()")
_HIGHLIGHT = re.compile(r"(?<![*\w])(\*{1,3})(?=[^\s*])[^*\n]{1,500}(?<=[^\s*])\1(?![*\w])")
_CAPITALS = re.compile(r"\b[A-Z][A-Z'’-]*[A-Z]\b")


def _filled(parts: Sequence[str]) -> int:
    """How many hold a letter or digit."""
    return sum(any(map(str.isalnum, part)) for part in parts)


COUNTERS: dict[str, Callable[[str], int]] = {
    "words": lambda text: _filled(_BULLET.sub("", text).split()),
    "sentences": lambda text: _filled(
        _SENTENCE_END.split(_ABBREVIATION.sub(" ", _BULLET.sub("", text)))
    ),
    "paragraphs": lambda text: sum(bool(p.strip()) for p in re.split(r"\n[ \t]*\n", text)),
    "bullets": lambda text: len(_BULLET.findall(text)),
    "characters": len,
    "capital_words": lambda text: len(_CAPITALS.findall(text)),
    "placeholders": lambda text: len(_PLACEHOLDER.findall(text)),
    "highlights": lambda text: len(_HIGHLIGHT.findall(text)),
}
"""What is counted, by the name of its constraint."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One constraint: whether it is kept, and if not why."""

    name: str
    fault: str | None = None


def check_text(text: str, wanted: Constraints) -> list[Kept]:
    """Each constraint that is stated, but the JSON schema, on the text of an answer."""
    found = [
        Kept(name, _off(count, COUNTERS[name](text), name.replace("_", " ")))
        for name in COUNTERS
        if (count := getattr(wanted, name)) is not None
    ]
    found += [
        Kept("counts", _off(n, occurrences(text, p), repr(p))) for p, n in wanted.counts.items()
    ]
    found += [
        Kept("include", None if occurrences(text, phrase) else f"{phrase!r} does not occur")
        for phrase in wanted.include
    ]
    found += [
        Kept("exclude", f"{phrase!r} occurs" if occurrences(text, phrase) else None)
        for phrase in wanted.exclude
    ]
    bare = text.strip().casefold()
    rules: list[tuple[str, object, bool, str]] = [
        (
            "case",
            wanted.case,
            _in_case(text, wanted.case),
            f"not all letters are {wanted.case} case",
        ),
        (
            "starts_with",
            wanted.starts_with,
            bare.startswith((wanted.starts_with or "").strip().casefold()),
            f"it does not start with {wanted.starts_with!r:.80}",
        ),
        (
            "ends_with",
            wanted.ends_with,
            bare.endswith((wanted.ends_with or "").strip().casefold()),
            f"it does not end with {wanted.ends_with!r:.80}",
        ),
        ("no_commas", wanted.no_commas, not re.search("[,，、،]", text), "there is a comma"),
        ("quoted", wanted.quoted, _quoted(text), "it is not in double quotation marks"),
        (
            "one_of",
            wanted.one_of,
            bare.rstrip(".!") in {one.strip().casefold().rstrip(".!") for one in wanted.one_of},
            "it is none of the texts it may be",
        ),
        ("only_json", wanted.only_json, _is_json(text), "it is not JSON alone"),
    ]
    found += [Kept(name, None if holds else why) for name, stated, holds, why in rules if stated]
    if wanted.language is not None:
        share = language_share(text, wanted.language)
        said = "there are no words" if share is None else f"{share:.0%} of its words are"
        fine = share is not None and share >= ENOUGH_OF_LANGUAGE
        found.append(Kept("language", None if fine else f"{said} {LANGUAGES[wanted.language][0]}"))
    return found


def occurrences(text: str, phrase: str) -> int:
    """How often a phrase occurs in any case, as whole words where it begins or ends with one."""
    phrase = " ".join(phrase.split())
    spaced = r"\s+".join(map(re.escape, phrase.split()))
    left = r"(?<!\w)" if phrase[0].isascii() and phrase[0].isalnum() else ""
    right = r"(?!\w)" if phrase[-1].isascii() and phrase[-1].isalnum() else ""
    return len(re.findall(left + spaced + right, text, re.IGNORECASE))


def _off(wanted: Count, count: int, what: str) -> str | None:
    return None if wanted.holds(count) else f"{what}: {count}, not {wanted}"


def _in_case(text: str, case: str | None) -> bool:
    cased = text.upper() if case == "upper" else text.lower()
    return text == cased and any(c.isalpha() for c in text)


def _quoted(text: str) -> bool:
    bare = text.strip()
    return len(bare) > 2 and bare[0] in '"“„«' and bare[-1] in '"”“»'


def _unfenced(text: str) -> str:
    """The text, or what a code block that is all of it holds."""
    block = re.fullmatch(
        r"\s*```(?:json)?[ \t]*\n(.*)\n[ \t]*```\s*", text, re.DOTALL | re.IGNORECASE
    )
    return text if block is None else block[1]


def _is_json(text: str) -> bool:
    try:
        read_json(_unfenced(text))
    except NotJson:
        return False
    return True


class InstructionReward:
    """1.0 if every constraint is kept, else 0.0; or the share that is."""

    def __init__(
        self, config: InstructionConfig, name: str, pool: Pool, handler: int, seconds: float
    ) -> None:
        self.name = name
        self.weight = config.weight
        self.decides = 1
        self._config = config
        self._pool = pool
        self._handler = handler
        self._seconds = seconds

    def score(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Score]:
        """One score per completion, in order."""
        known: dict[int, Constraints | str] = {}
        for problem in problems:
            if id(problem) not in known:
                known[id(problem)] = self._constraints(problem)
        begun = [self._begin(known[id(p)], text) for p, text in zip(problems, texts, strict=True)]
        replies = iter(self._pool.run([item for _, item in begun if item is not None]))
        return [
            outcome
            if isinstance(outcome, Score)
            else self._score(outcome, None if item is None else next(replies))
            for outcome, item in begun
        ]

    def check_golds(self, problems: Sequence[Problem]) -> list[str | None]:
        """A problem must state constraints that can be checked."""
        found = [self._constraints(problem) for problem in problems]
        return [fault if isinstance(fault, str) else None for fault in found]

    def _constraints(self, problem: Problem) -> Constraints | str:
        """What holds for a problem, or what is wrong with its column."""
        general = self._config.constraints
        given = problem.fields.get("constraints")
        if isinstance(given, str):
            try:
                given = json.loads(given)
            except (ValueError, RecursionError) as error:
                return f"constraints: no JSON: {error}"
        if given is not None and not isinstance(given, Mapping):
            return f"constraints: expected names with values, got {type(given).__name__}"
        stated = {**general.model_dump(exclude_defaults=True), **_without_nulls(given or {})}
        if not stated:
            return "there is no column `constraints`, and the settings have none"
        try:
            return validate(Constraints, stated, "constraints")
        except UserError as error:
            return str(error)

    def _begin(self, wanted: Constraints | str, text: str) -> tuple[Any, Item | None]:
        """A score, or the constraints checked so far; and what is asked of the workers."""
        begun = time.perf_counter()
        if isinstance(wanted, str):
            return Score(Outcome.UNGRADABLE, None, detail=wanted), None
        spoken = after_thinking(text, self._config.thinking)
        reason = spoken.reason
        if spoken.text is not None:
            reason = "" if spoken.text.strip() else "the answer is empty"
            if len(spoken.text) > self._config.max_chars:
                reason = f"the answer is longer than {self._config.max_chars} characters"
        if spoken.text is None or reason:
            return Score(Outcome.UNPARSEABLE, 0.0, detail=reason), None
        answer = spoken.text.strip()
        kept, item = check_text(answer, wanted), None
        if wanted.json_schema is not None:
            found = find_json(answer)
            try:
                data = json.dumps(read_json(found.text or "", self._config.max_chars))
                item = Item(self._handler, (json.dumps(wanted.json_schema), data), self._seconds)
            except NotJson as error:
                kept.append(Kept("json_schema", f"not JSON: {error}"))
        return (kept, time.perf_counter() - begun), item

    def _score(self, begun: tuple[list[Kept], float], reply: Reply | None) -> Score:
        kept, seconds = begun
        if reply is not None:
            seconds += reply.seconds
            if reply.status not in ("done", "timeout", "memory"):
                return Score(Outcome.CRASHED, None, detail=reply.detail, seconds=seconds)
            fault = reply.value if reply.status == "done" else reply.detail
            kept = [*kept, Kept("json_schema", fault)]
        faults = [f"{each.name}: {each.fault}" for each in kept if each.fault is not None]
        share = 1 - len(faults) / len(kept)
        outcome = Outcome.WRONG if faults else Outcome.CORRECT
        reward = share if self._config.reward == "share" else float(not faults)
        return Score(outcome, reward, detail="; ".join(faults)[:500], seconds=seconds)


def _without_nulls(given: Mapping[Any, Any]) -> dict[str, Any]:
    """What columnar files fill in is left out again, in mappings inside too (but in a schema)."""
    return {
        str(key): _without_nulls(value)
        if isinstance(value, Mapping) and key != "json_schema"
        else value
        for key, value in given.items()
        if value is not None
    }
