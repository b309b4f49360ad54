"""How much of a text is in a language: DeepSeek-R1's language consistency reward.

Where the script alone decides (Chinese, Korean, Greek, …) nothing is loaded. Languages that share
a script are told apart by `lingua`, stretch by stretch: single words carry too little.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import time
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from lydite.config import UserError
from lydite.types import Outcome, Problem
from lydite.verify.languages import COMMON, LANGUAGES, RANGES, UNSPACED_SCRIPTS
from lydite.verify.score import Score
from lydite.verify.spoken import part_of
from lydite.verify.text_config import LanguageConfig

STRETCH = 8
"""Words that are judged together at least: below, a language cannot be told well."""

MAX_STRETCHES = 200
"""Stretches that are judged of one text, 0.1 to 0.3 ms each; of more, so many evenly spread."""

MUCH_LIKELIER = 3.0
"""By this factor another language must be likelier than the target: the doubt is the model's."""

MAX_CHARS = 200_000
"""Of a longer text both ends are read, half of this each."""

KANJI_ALONE = 6
"""So many Han characters may stand in a Japanese sentence without kana."""

_DROPPED = re.compile(
    r"```(?:(?!```).)*(?:```|\Z)"  # code blocks
    r"|`[^`\n]{1,500}`"
    r"|\$\$(?:(?!\$\$).){1,2000}\$\$|\$(?=\S)[^$\n]{1,500}(?<=\S)\$(?!\d)"
    r"|\\\((?:(?!\\\().){0,2000}?\\\)|\\\[(?:(?!\\\[).){0,2000}?\\\]"
    r"|\\(?:begin|end|boxed|text[a-z]*|math[a-z]*)\b|\\[A-Za-z]+"
    r"|https?://\S{1,2000}"
    r"|<[/|]?[A-Za-z][^<>\n]{0,60}>",  # tags and special tokens
    re.DOTALL,
)
_MARK = r"\u0300-\u036f\u064b-\u065f\u0670\u0591-\u05c7"
_WORD = re.compile(
    "|".join(
        rf"(?P<{script}>[{ranges}])"
        if script in UNSPACED_SCRIPTS
        else rf"(?P<{script}>[{ranges}](?:[{ranges}{_MARK}]|['’](?=[{ranges}])){{0,60}})"
        for script, ranges in RANGES.items()
    )
    + r"|(?P<end>[.!?。！？;；\n])|(?P<coded>[\w]*[\d_][\w]*)"
)
_NAME_IN_CODE = re.compile(r"\b(?=\w*[\d_])\w{1,200}\b")

Sentence = list[tuple[str, str]]


def words_of(text: str) -> list[Sentence]:
    """The words that count, each with its script, by sentence; code, formulas, links, numbers,
    names with digits and single letters left out.
    """
    if len(text) > MAX_CHARS:
        text = f"{text[: MAX_CHARS // 2]}\n{text[-MAX_CHARS // 2 :]}"
    plain = _NAME_IN_CODE.sub(" ", _DROPPED.sub(" ", text))
    sentences: list[Sentence] = [[]]
    for match in _WORD.finditer(plain):
        script, word = match.lastgroup or "", match[0]
        if script == "end":
            sentences.append([])
        elif script in UNSPACED_SCRIPTS or len(word) > 1:
            sentences[-1].append((script, word))
    return [sentence for sentence in sentences if sentence]


def rivals_of(target: str, others: Sequence[str] | None) -> tuple[str, ...]:
    """The languages that a target must be told from because they share its script; sorted."""
    script = LANGUAGES[target][1]
    named = COMMON if others is None else others
    found = {code for code in named if LANGUAGES[code][1] == script and code != target}
    return tuple(sorted(found))


def language_share(text: str, target: str, others: Sequence[str] | None = None) -> float | None:
    """The share of words in the target language, in [0, 1]; ``None`` where there is no word.

    Raises:
        UserError: languages of one script must be told apart and `lingua` is not installed.
    """
    sentences = words_of(text)
    total = sum(len(sentence) for sentence in sentences)
    if not total:
        return None
    if target in ("zh", "ja"):
        return sum(_han_or_kana(sentence, target) for sentence in sentences) / total
    script = LANGUAGES[target][1]
    ours = [[word for kind, word in sentence if kind == script] for sentence in sentences]
    count = sum(len(words) for words in ours)
    rivals = rivals_of(target, others)
    if not count or not rivals:
        return count / total
    return count * _share_told(_stretches(ours), target, rivals) / total


def scripts_of(text: str) -> frozenset[str]:
    """The scripts that a fifth of a text's words or more are written in."""
    counts = Counter(script for sentence in words_of(text) for script, _ in sentence)
    return frozenset(s for s, count in counts.items() if 5 * count >= counts.total())


def script_share(text: str, scripts: Collection[str]) -> float | None:
    """The share of words in one of these scripts; ``None`` where there is no word. It tells
    Chinese from English, and never English from French.
    """
    found = [script in scripts for sentence in words_of(text) for script, _ in sentence]
    return sum(found) / len(found) if found else None


def _han_or_kana(sentence: Sentence, target: str) -> int:
    """How many characters of a sentence are Chinese, or Japanese: Han beside kana is Japanese."""
    kinds = Counter(script for script, _ in sentence)
    han, kana = kinds["han"], kinds["kana"]
    if target == "zh":
        return 0 if kana else han
    return kana + han if kana or han <= KANJI_ALONE else 0


def _stretches(sentences: Sequence[Sequence[str]]) -> list[list[str]]:
    """Sentences joined until they hold :data:`STRETCH` words, and long ones cut."""
    found: list[list[str]] = []
    pending: list[str] = []
    for words in sentences:
        for start in range(0, len(words), 3 * STRETCH):
            pending += words[start : start + 3 * STRETCH]
            if len(pending) >= STRETCH:
                found.append(pending)
                pending = []
    if pending and found and len(pending) < STRETCH // 2:
        found[-1] = found[-1] + pending
    elif pending:
        found.append(pending)
    return found


def _share_told(stretches: Sequence[Sequence[str]], target: str, rivals: tuple[str, ...]) -> float:
    """The share of the stretches' words in the target language."""
    detector, languages = detector_of(target, rivals)
    step = max(1.0, len(stretches) / MAX_STRETCHES)
    sample = [stretches[int(i * step)] for i in range(min(len(stretches), MAX_STRETCHES))]
    held = sum(len(words) * _ours(detector, " ".join(words), languages[target]) for words in sample)
    return held / sum(len(words) for words in sample)


def _ours(detector: Any, stretch: str, target: Any) -> bool:
    """Whether a stretch passes for the target: nothing is clearly likelier."""
    if detector.detect_language_of(stretch) in (target, None):
        return True  # the usual case, without the cost of weighing
    told = {
        each.language: each.value for each in detector.compute_language_confidence_values(stretch)
    }
    ours = told.pop(target)
    return bool(max(told.values()) <= MUCH_LIKELIER * ours)


@functools.lru_cache(maxsize=8)
def detector_of(target: str, rivals: tuple[str, ...]) -> tuple[Any, dict[str, Any]]:
    """A detector of these languages alone, so that only their models take memory, and what they
    are called in it.

    Raises:
        UserError: `lingua` is not installed.
    """
    require_lingua()
    from lingua import Language, LanguageDetectorBuilder

    languages = {code: getattr(Language, LANGUAGES[code][0].upper()) for code in (target, *rivals)}
    builder = LanguageDetectorBuilder.from_languages(*languages.values())
    return builder.with_low_accuracy_mode().build(), languages


def require_lingua() -> None:
    """
    Raises:
        UserError: `lingua` is not installed.
    """
    if importlib.util.find_spec("lingua") is None:
        raise UserError(
            "language: telling languages of one script apart needs lingua; "
            "pip install 'lydite[language]', or set others: []"
        )


class LanguageReward:
    """The share of words in the target language; correct where that is more than half."""

    def __init__(self, config: LanguageConfig, name: str) -> None:
        """
        Raises:
            UserError: the extra `language` is needed and not installed.
        """
        self.name = name
        self.weight = config.weight
        self.decides = 0
        self._config = config
        if rivals_of(config.language, config.others):
            require_lingua()

    def score(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Score]:
        """One score per completion, in order."""
        return [self._score(text) for text in texts]

    def check_golds(self, problems: Sequence[Problem]) -> list[str | None]:
        """A language needs no reference."""
        return [None] * len(problems)

    def _score(self, text: str) -> Score:
        begun = time.perf_counter()
        config = self._config
        share = language_share(part_of(text, config.part), config.language, config.others)
        seconds = time.perf_counter() - begun
        if share is None:
            return Score(Outcome.UNPARSEABLE, 0.0, detail="there are no words", seconds=seconds)
        detail = (
            "" if share == 1 else f"{share:.0%} of the words are {LANGUAGES[config.language][0]}"
        )
        outcome = Outcome.CORRECT if share > 0.5 else Outcome.WRONG
        return Score(outcome, share, detail=detail, seconds=seconds)
