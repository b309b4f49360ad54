"""How well a person can read what a model writes: its structure, and its language."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field, field_validator

from lydite.train.filters import FormatFilter
from lydite.verify.format import malformed
from lydite.verify.language import language_share, require_lingua, rivals_of
from lydite.verify.languages import code_of
from lydite.verify.spoken import TextPart, part_of


class ReadabilityConfig(FormatFilter):
    """What counts as readable. The structure is that of the reward `format`."""

    language: str | None = Field(
        None,
        description="The language that is written: `en`, `zh`, or its English name. What is in "
        "others is measured as `mixing`. Null: not measured.",
    )
    others: list[str] = Field(
        [],
        description="Languages of the same script that it is told from (needs the extra "
        "`language`); by default the script alone decides.",
    )
    part: TextPart = Field("whole", description="What the language is measured on.")

    @field_validator("language")
    @classmethod
    def _known(cls, language: str | None) -> str | None:
        return None if language is None else code_of(language)

    @field_validator("others")
    @classmethod
    def _all_known(cls, others: list[str]) -> list[str]:
        return [code_of(language) for language in others]

    def check(self) -> None:
        """
        Raises:
            UserError: the extra `language` is needed and not installed.
        """
        if self.language is not None and rivals_of(self.language, self.others):
            require_lingua()


def readability(texts: Sequence[str], config: ReadabilityConfig) -> dict[str, float]:
    """``well_formed``: the share of texts with the structure. ``mixing``: the share of words in
    another language, a mean over the texts that have words; left out where none has.
    """
    if not texts:
        return {}
    form = config.thinking, config.answer, config.opening
    found = {"well_formed": sum(malformed(text, *form) is None for text in texts) / len(texts)}
    if config.language is None:
        return found
    shares = [
        share
        for text in texts
        if (share := language_share(part_of(text, config.part), config.language, config.others))
        is not None
    ]
    if shares:
        found["mixing"] = 1 - sum(shares) / len(shares)
    return found
