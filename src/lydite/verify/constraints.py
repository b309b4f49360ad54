"""Constraints on an answer that can be checked by reading it, in the manner of IFEval (arXiv
2311.07911), under names of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from lydite.config import Config
from lydite.verify.languages import code_of
from lydite.verify.schema import schema_fault


class Count(Config):
    """How many of something there may be. A number by itself is both bounds."""

    min: int | None = Field(default=None, ge=0, description="At least so many.")
    max: int | None = Field(default=None, ge=0, description="At most so many.")

    @model_validator(mode="before")
    @classmethod
    def _exact(cls, value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            return {"min": value, "max": value}
        if not isinstance(value, Mapping | Count):
            raise ValueError(f"give a number, or such as {{min: 2, max: 5}}, not {value!r:.40}")
        return value

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.min is None and self.max is None:
            raise ValueError("give min, max or both")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is more than max {self.max}")
        return self

    def holds(self, count: int) -> bool:
        """Whether a count is within the bounds."""
        return (self.min is None or count >= self.min) and (self.max is None or count <= self.max)

    def __str__(self) -> str:
        if self.min == self.max:
            return str(self.min)
        bounds = [f"at least {self.min}"] if self.min is not None else []
        return " and ".join(bounds + ([f"at most {self.max}"] if self.max is not None else []))


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Phrases = Annotated[list[str], BeforeValidator(_listed)]


class Constraints(Config):
    """What an answer must keep to; what is null is not checked. Counts are `{min: 2, max: 5}`, or
    a number for exactly so many.
    """

    words: Count | None = Field(
        default=None, description="Words, parted by spaces; the marks of lists are none."
    )
    sentences: Count | None = Field(
        default=None,
        description="Sentences, ended by a full stop, question or exclamation mark, or a line.",
    )
    paragraphs: Count | None = Field(default=None, description="Paragraphs, parted by empty lines.")
    bullets: Count | None = Field(
        default=None, description="Lines that begin with `-`, `*`, `•` or a number and a point."
    )
    characters: Count | None = Field(default=None, description="Characters, spaces included.")
    capital_words: Count | None = Field(
        default=None, description="Words of two letters or more, all of them capitals."
    )
    placeholders: Count | None = Field(
        default=None, description="Placeholders in brackets, such as `[name]`."
    )
    highlights: Count | None = Field(
        default=None, description="Highlighted spans, `*so*` or `**so**`."
    )
    case: Literal["lower", "upper"] | None = Field(
        default=None, description="The case that all letters must have."
    )
    include: Phrases = Field(
        default_factory=list, description="Phrases that must occur, in any case, as whole words."
    )
    exclude: Phrases = Field(
        default_factory=list, description="Phrases that must not occur, likewise."
    )
    counts: Mapping[str, Count] = Field(
        default_factory=dict, description="How often phrases must occur, likewise: `{tea: 2}`."
    )
    starts_with: str | None = Field(
        default=None, min_length=1, description="What it must begin with, in any case."
    )
    ends_with: str | None = Field(
        default=None, min_length=1, description="What it must end with, in any case."
    )
    no_commas: bool = Field(default=False, description="Whether commas are forbidden.")
    quoted: bool = Field(
        default=False, description="Whether all of it must stand in double quotation marks."
    )
    one_of: list[str] = Field(
        default_factory=list, description="Texts one of which it must be, in any case."
    )
    only_json: bool = Field(
        default=False,
        description="Whether it must be JSON and nothing else; a ```json block around it may be.",
    )
    json_schema: Mapping[str, Any] | None = Field(
        default=None, description="A JSON schema that it must fit; it is JSON then."
    )
    language: str | None = Field(
        default=None,
        description="The language of at least nine in ten of its words: `en`, `de`, or a name.",
    )

    @field_validator("language")
    @classmethod
    def _known(cls, language: str | None) -> str | None:
        return None if language is None else code_of(language)

    @field_validator("json_schema")
    @classmethod
    def _is_schema(cls, schema: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        fault = None if schema is None else schema_fault(schema)
        if fault is not None:
            raise ValueError(fault)
        return schema

    @field_validator("include", "exclude", "counts", "one_of")
    @classmethod
    def _no_empty_phrase(cls, phrases: Any) -> Any:
        if any(not phrase.strip() for phrase in phrases):
            raise ValueError("a phrase is empty")
        return phrases
