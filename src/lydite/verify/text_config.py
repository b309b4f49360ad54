"""What a recipe says about rewards that read a completion's text: its structure, language, length,
data and constraints, and the letter that it chose.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from lydite.verify.answer import ThinkingRule
from lydite.verify.base_config import AnswerConfig, RewardConfig
from lydite.verify.constraints import Constraints
from lydite.verify.languages import code_of
from lydite.verify.schema import schema_fault
from lydite.verify.spoken import TextPart

PART = "`whole`: all of the completion; `thinking`: up to </think>; `answer`: what follows it."


class ChoiceConfig(AnswerConfig):
    """1 if the final answer is the reference's choice, by its letter or by its text, else 0.

    The problem's column `choices`, if it has one, holds the texts: a list, `{A: …, B: …}`, or
    `{label: […], text: […]}`.
    """

    kind: Literal["choice"] = Field(default="choice", description="Single and multiple choice.")
    multiple: bool = Field(
        default=False,
        description="Whether several may be right: the answer must then name all of them and no "
        "other. Otherwise an answer that names several is refused.",
    )
    index_from: Literal[0, 1] | None = Field(
        default=None,
        description="What the first choice is numbered, where references are numbers and not "
        "letters.",
    )


class JsonConfig(RewardConfig):
    """1 if the completion gives JSON that equals the reference as data and fits the schema, else
    0.
    """

    kind: Literal["json"] = Field(default="json", description="Data written as JSON.")
    compare: bool = Field(
        default=True,
        description="Whether the data must equal the reference, which is JSON too. The order of "
        "keys is free; 1 and 1.0 are equal, 1 and true are not.",
    )
    json_schema: Mapping[str, Any] | None = Field(
        default=None,
        description="A JSON schema that the data must fit. A column `json_schema` states it for a "
        "row. References to other places than the schema itself are refused.",
    )
    unordered: bool = Field(default=False, description="Whether the order in lists is free too.")
    tolerance: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Relative difference that a number may have from the reference's.",
    )
    place: Literal["auto", "block", "text"] = Field(
        default="auto",
        description="Where the data stands: `block` (the last ```json block), `text` (all that "
        "follows the thinking and nothing else), or `auto`: the block if there is one, else the "
        "text.",
    )
    thinking: ThinkingRule = Field(
        default="auto", description="As for `math`: whether the thinking must be closed."
    )
    max_chars: int = Field(default=100_000, ge=1, description="Longer data is unparseable.")

    @field_validator("json_schema")
    @classmethod
    def _is_schema(cls, schema: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        fault = None if schema is None else schema_fault(schema)
        if fault is not None:
            raise ValueError(fault)
        return schema


class RegexConfig(RewardConfig):
    """1 if the text matches a pattern, else 0."""

    kind: Literal["regex"] = Field(default="regex", description="A pattern that must match.")
    pattern: str = Field(
        min_length=1, description="In the syntax of Python's `re`, `(?i)` and the like included."
    )
    match: Literal["search", "full"] = Field(
        default="search", description="Whether it may match anywhere, or must match all."
    )
    part: TextPart = Field(default="answer", description=f"What is matched. {PART}")
    max_chars: int = Field(default=100_000, ge=1, description="A longer text is unparseable.")

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(f"no regular expression: {error}") from None
        return pattern


class InstructionConfig(RewardConfig):
    """Whether the answer keeps to constraints that can be checked by reading it.

    They stand in the problem's column `constraints`, or in the settings for all problems; a row's
    go before the settings'.
    """

    kind: Literal["instruction"] = Field(
        default="instruction", description="Constraints that can be checked."
    )
    constraints: Constraints = Field(
        default_factory=Constraints,
        description="For all problems, such as `{words: {max: 100}, no_commas: true}`.",
    )
    reward: Literal["all", "share"] = Field(
        default="all",
        description="`all`: 1 if every constraint is kept, else 0. `share`: the share of them "
        "that is.",
    )
    thinking: ThinkingRule = Field(
        default="auto", description="As for `math`: whether the thinking must be closed."
    )
    max_chars: int = Field(default=100_000, ge=1, description="A longer answer is unparseable.")


class FormatConfig(RewardConfig):
    """1 if the completion has the demanded structure, else 0."""

    kind: Literal["format"] = Field(default="format", description="Structure of the completion.")
    thinking: Literal["required", "optional", "forbidden", "asked"] = Field(
        default="required",
        description="Whether one thought, closed by </think>, must come first. One without a "
        "letter or digit is none. `asked`: as the prompt asks, by `/think`, `/no_think` and "
        "`enable_thinking`; where it asks for none, an empty block may stand in front.",
    )
    opening: Literal["auto", "prefilled", "written"] = Field(
        default="auto",
        description="Whether the chat template writes the <think> that opens the thought, so that "
        "the completion must not, or the completion must; `auto` takes either.",
    )
    answer: Literal["any", "boxed", "tag", "none"] = Field(
        default="any",
        description="What must follow the thought: some text, a \\boxed{}, one "
        "<answer>…</answer>, or `none` of these.",
    )


class LanguageConfig(RewardConfig):
    """The share of words that are in the target language, from 0 to 1: the language consistency
    reward of DeepSeek-R1 (arXiv 2501.12948).

    Code, formulas, numbers, links and single letters do not count. A text without words pays 0. In
    scripts without spaces (Chinese, Japanese, Thai) each character counts as a word.
    """

    kind: Literal["language"] = Field(
        default="language", description="Words in the target language."
    )
    language: str = Field(
        default="en", description="The target: `en`, `zh`, `de`; or its English name."
    )
    others: list[str] | None = Field(
        default=None,
        description="Languages in the same script that it is told from, by default the most common "
        "ones; each takes memory. With `[]`, the script alone decides.",
    )
    part: TextPart = Field(default="whole", description=f"What is read. {PART}")

    @field_validator("language")
    @classmethod
    def _known(cls, language: str) -> str:
        return code_of(language)

    @field_validator("others")
    @classmethod
    def _all_known(cls, others: list[str] | None) -> list[str] | None:
        return None if others is None else [code_of(language) for language in others]


class LengthConfig(RewardConfig):
    """A term for the length of a completion, counted in characters or words.

    For DAPO's penalty in tokens, which is near the sampling limit whatever the tokenizer, take the
    objective's `soft_overlong` instead.
    """

    kind: Literal["length"] = Field(default="length", description="A term for the length.")
    rule: Literal["overlong", "relative", "shortest_correct"] = Field(
        default="overlong",
        description="`overlong` (DAPO): 0 up to `limit` less `cache`, then falling to −1 at "
        "`limit`. `relative` (Kimi k1.5): λ = 0.5 − (length − min)/(max − min) over the problem's "
        "completions, for an incorrect one min(0, λ). `shortest_correct`: 1 for the shortest "
        "correct completion of a problem where a longer one is correct too, else 0.",
    )
    limit: int | None = Field(
        default=None, ge=1, description="For `overlong`: the length from which −1 is paid."
    )
    cache: float = Field(
        default=0.2,
        gt=0,
        le=1,
        description="For `overlong`: the share of `limit` before it over which the penalty grows.",
    )
    unit: Literal["characters", "words"] = Field(
        default="characters", description="What is counted; words are parted by spaces."
    )
    part: TextPart = Field(default="whole", description=f"What is counted. {PART}")

    @property
    def grouped(self) -> bool:
        """Whether completions are compared with the others of their problem."""
        return self.rule != "overlong"

    @model_validator(mode="after")
    def _has_limit(self) -> Self:
        if (self.rule == "overlong") != (self.limit is not None):
            raise ValueError(
                "limit: rule overlong needs one, such as limit: 8000"
                if self.limit is None
                else f"limit: rule {self.rule} has none; leave it out"
            )
        return self


class RepetitionConfig(RewardConfig):
    """From 0 down to −1 for the share of word n-grams that occurred before in the same text.

    −max(0, share − allowed)/(1 − allowed). In scripts without spaces each character is a word.
    """

    kind: Literal["repetition"] = Field(default="repetition", description="Repeated n-grams.")
    n: int = Field(default=4, ge=1, le=100, description="Words in an n-gram.")
    allowed: float = Field(
        default=0.2, ge=0, lt=1, description="Share of repeated n-grams that costs nothing."
    )
    part: TextPart = Field(default="whole", description=f"What is read. {PART}")
