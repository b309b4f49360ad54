"""Which of a problem's samples are worth imitating: rejection sampling's filters, and what each
dropped.

DeepSeek-R1 (arXiv 2501.12948, section 2.3.3) keeps what is correct and drops mixed languages, long
paragraphs and code blocks. Filters are applied in the order of :class:`FilterConfig`, each to what
those before it left, so that their counts add up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from lydite.config import Config
from lydite.train.evaluate import UNDECIDED
from lydite.types import Outcome
from lydite.verify.format import malformed
from lydite.verify.language import language_share, require_lingua, rivals_of
from lydite.verify.languages import code_of
from lydite.verify.repetition import MAX_CHARS, repeated_share
from lydite.verify.spoken import TextPart, part_of, tokens_of
from lydite.watch.samples import Sample

_PART = "`whole`: all of the completion; `thinking`: up to </think>; `answer`: what follows it."


class FormatFilter(Config):
    """The structure that a completion must have; as for the reward `format`."""

    thinking: Literal["required", "optional", "forbidden"] = Field(
        "required", description="Whether there must be one closed thought."
    )
    answer: Literal["any", "boxed", "tag", "none"] = Field(
        "any",
        description="What must follow it: some text, a \\boxed{}, one <answer>…</answer>, or "
        "`none` of these.",
    )
    opening: Literal["auto", "written", "prefilled"] = Field(
        "auto",
        description="Whether the completion writes <think> itself, or the prompt did; `auto` "
        "takes either.",
    )


class LanguageFilter(Config):
    """The language that a completion must be in. One without words passes."""

    language: str = Field("en", description="The target: `en`, `zh`, `de`; or its English name.")
    at_least: float = Field(0.9, gt=0, le=1, description="Share of words in the target language.")
    others: list[str] | None = Field(
        None,
        description="Languages in the same script that it is told from, by default the most common "
        "ones. With `[]`, the script alone decides.",
    )
    part: TextPart = Field("whole", description=f"What is read. {_PART}")

    @field_validator("language")
    @classmethod
    def _known(cls, language: str) -> str:
        return code_of(language)

    @field_validator("others")
    @classmethod
    def _all_known(cls, others: list[str] | None) -> list[str] | None:
        return None if others is None else [code_of(language) for language in others]


class RepetitionFilter(Config):
    """How much a completion may say again."""

    n: int = Field(4, ge=1, le=100, description="Words in an n-gram.")
    at_most: float = Field(
        0.4, ge=0, lt=1, description="Share of n-grams that occurred before in the same text."
    )


class LengthFilter(Config):
    """How long a completion may be, in tokens."""

    at_least: int = Field(1, ge=0, description="Tokens that it must have.")
    at_most: int | None = Field(None, ge=1, description="Tokens that it may have.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.at_most is not None and self.at_most < self.at_least:
            raise ValueError(f"at_most: {self.at_most} is below at_least, {self.at_least}")
        return self


class NearDuplicateFilter(Config):
    """How alike two completions of one problem may be."""

    n: int = Field(3, ge=1, le=100, description="Words in an n-gram.")
    at_most: float = Field(
        0.8, ge=0, lt=1, description="Share of their n-grams that two may have in common (Jaccard)."
    )


class FilterConfig(Config):
    """What is kept, in the order in which it is looked at. What the verifier could not decide is
    always dropped first.
    """

    correct: bool = Field(True, description="Drop what is not correct.")
    reward_at_least: float | None = Field(None, description="Drop what has a lower reward.")
    cut_off: bool = Field(
        True,
        description="Drop what reached `sampling.max_tokens`, and what a thinking budget ended by "
        "force: the words that it injected would be imitated.",
    )
    format: FormatFilter | None = Field(None, description="Drop another structure; null is off.")
    language: LanguageFilter | None = Field(None, description="Drop another language; null is off.")
    repetition: RepetitionFilter | None = Field(
        RepetitionFilter(), description="Drop what repeats itself; null is off."
    )
    length: LengthFilter | None = Field(
        None, description="Drop what is too short or too long; null is off."
    )
    duplicates: bool = Field(
        True, description="Drop what another completion of the problem says word for word."
    )
    near_duplicates: NearDuplicateFilter | None = Field(
        NearDuplicateFilter(),
        description="Drop what is nearly another completion of the problem; null is off.",
    )
    per_problem: int | None = Field(
        4, ge=1, description="Keep at most this many of a problem, so that none outweighs others."
    )
    prefer: Literal["first", "shortest", "longest", "reward"] = Field(
        "first",
        description="Which of duplicates, and of more than `per_problem`, is kept: the lowest "
        "sample number (a fair draw), the fewest or most tokens, or the highest reward; then the "
        "lowest sample number.",
    )

    def check(self) -> None:
        """
        Raises:
            UserError: the language filter needs the extra `language`, which is not installed.
        """
        if self.language is not None and rivals_of(self.language.language, self.language.others):
            require_lingua()


@dataclass(frozen=True, slots=True)
class Filtered:
    """What was kept, in the order it came, and how many each filter dropped, in order."""

    kept: tuple[Sample, ...]
    dropped: dict[str, int]
    sampled: int


def filter_samples(samples: Sequence[Sample], config: FilterConfig) -> Filtered:
    """Applies the filters. Samples of one problem need not stand together; problems with the same
    prompt are one, for they would be imitated as one.
    """
    kept = list(samples)
    dropped: dict[str, int] = {}
    for name, passes in _tests(config).items():
        left = [sample for sample in kept if passes(sample)]
        dropped[name] = len(kept) - len(left)
        kept = left
    problems: dict[str, list[Sample]] = {}
    for sample in sorted(kept, key=_preference(config)):
        problems.setdefault(sample.prompt, []).append(sample)
    for name, choose in _choices(config).items():
        before = sum(map(len, problems.values()))
        problems = {prompt: choose(group) for prompt, group in problems.items()}
        dropped[name] = before - sum(map(len, problems.values()))
    chosen = {id(sample) for group in problems.values() for sample in group}
    return Filtered(tuple(s for s in kept if id(s) in chosen), dropped, len(samples))


def _tests(config: FilterConfig) -> dict[str, Callable[[Sample], bool]]:
    """What a completion must pass by itself."""
    tests: dict[str, Callable[[Sample], bool]] = {
        "undecided": lambda s: s.reward is not None and s.outcome not in UNDECIDED
    }
    if config.correct:
        tests["incorrect"] = lambda s: s.outcome == Outcome.CORRECT
    if (least := config.reward_at_least) is not None:
        tests["reward"] = lambda s: s.reward is not None and s.reward >= least
    if config.cut_off:
        tests["cut_off"] = lambda s: s.finish != "length" and not s.cut
    if (form := config.format) is not None:
        tests["format"] = lambda s: (
            malformed(s.completion, form.thinking, form.answer, form.opening) is None
        )
    if (language := config.language) is not None:
        tests["language"] = lambda s: _speaks(s.completion, language)
    if (repetition := config.repetition) is not None:
        tests["repetition"] = lambda s: (
            repeated_share(s.completion, repetition.n) <= repetition.at_most
        )
    if (length := config.length) is not None:
        most = float("inf") if length.at_most is None else length.at_most
        tests["length"] = lambda s: length.at_least <= s.tokens <= most
    return tests


def _speaks(text: str, config: LanguageFilter) -> bool:
    share = language_share(part_of(text, config.part), config.language, config.others)
    return share is None or share >= config.at_least


def _choices(config: FilterConfig) -> dict[str, Callable[[list[Sample]], list[Sample]]]:
    """What is kept among the completions of one problem, the preferred ones first."""
    choices: dict[str, Callable[[list[Sample]], list[Sample]]] = {}
    if config.duplicates:
        choices["duplicate"] = _distinct
    if (near := config.near_duplicates) is not None:
        choices["near_duplicate"] = lambda group: _apart(group, near)
    if (most := config.per_problem) is not None:
        choices["balance"] = lambda group: group[:most]
    return choices


def _distinct(group: Sequence[Sample]) -> list[Sample]:
    first: dict[str, Sample] = {}
    for sample in group:
        first.setdefault(sample.completion.strip(), sample)
    return list(first.values())


def _preference(config: FilterConfig) -> Callable[[Sample], tuple[float, int, str]]:
    def key(sample: Sample) -> tuple[float, int, str]:
        rank = {
            "first": 0.0,
            "shortest": float(sample.tokens),
            "longest": -float(sample.tokens),
            "reward": -(sample.reward or 0.0),
        }
        return rank[config.prefer], sample.sample, sample.problem_id

    return key


def _apart(group: Sequence[Sample], config: NearDuplicateFilter) -> list[Sample]:
    """Those that are not too like one that is kept before them."""
    kept: list[tuple[Sample, frozenset[tuple[str, ...]]]] = []
    for sample in group:
        grams = ngrams(sample.completion, config.n)
        if all(overlap(grams, other) <= config.at_most for _, other in kept):
            kept.append((sample, grams))
    return [sample for sample, _ in kept]


def ngrams(text: str, n: int) -> frozenset[tuple[str, ...]]:
    """The n-grams of a text's words and signs, in any case; of a shorter text, all of it as one."""
    words = [word.lower() for word in tokens_of(text[-MAX_CHARS:])]
    if len(words) < n:
        return frozenset([tuple(words)])
    return frozenset(zip(*(words[start:] for start in range(n)), strict=False))


def overlap(a: frozenset[tuple[str, ...]], b: frozenset[tuple[str, ...]]) -> float:
    """Jaccard's index ``|a∩b| / |a∪b|``, in [0, 1]."""
    both = len(a & b)
    return both / (len(a) + len(b) - both)
