"""How well a person can read what a model writes: its structure, and its language."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic import Field, field_validator

from lydite.train.filters import FormatFilter
from lydite.types import Group, Problem
from lydite.verify.base_config import AnswerConfig
from lydite.verify.format import malformed
from lydite.verify.language import (
    language_share,
    require_lingua,
    rivals_of,
    script_share,
    scripts_of,
)
from lydite.verify.languages import COMMON, code_of
from lydite.verify.settings import AnyReward, VerifierConfig, all_rewards
from lydite.verify.spoken import TextPart, part_of
from lydite.verify.text_config import FormatConfig, LanguageConfig
from lydite.watch.rollouts import LONGEST_TEXT, MOST_TEXTS


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


@dataclass(frozen=True, slots=True)
class Form:
    """What a readable rollout is: ``structure`` are the arguments of
    :func:`lydite.verify.format.malformed` behind the text, ``language`` what it is to be written
    in; each ``None`` where nothing is asked.
    """

    structure: tuple[str, str, str] | None = None
    language: str | None = None
    others: tuple[str, ...] = ()
    part: TextPart = "whole"


def form_asked(verifier: VerifierConfig, given: ReadabilityConfig | None) -> Form:
    """The form that is given, else the one that rewards ask for. Those that apply to some of the
    problems only, or ask for another form from problem to problem, say nothing here.
    """
    if given is not None:
        structure = given.thinking, given.answer, given.opening
        return Form(structure, given.language, tuple(given.others), given.part)
    rewards = [reward for reward in all_rewards(verifier.rewards) if reward.when is None]
    structures = [asked for reward in rewards if (asked := _structure(reward)) is not None]
    form = Form(structures[0] if structures else None)
    # A reward for a language loads what it takes to tell it from others: here it costs no more.
    spoken = next((reward for reward in rewards if isinstance(reward, LanguageConfig)), None)
    if spoken is None:
        return form
    others = COMMON if spoken.others is None else spoken.others
    return replace(form, language=spoken.language, others=tuple(others), part=spoken.part)


def _structure(reward: AnyReward) -> tuple[str, str, str] | None:
    if isinstance(reward, FormatConfig):
        asked = reward.thinking, reward.answer, reward.opening
        return None if reward.thinking == "asked" else asked
    if not isinstance(reward, AnswerConfig):
        return None
    thinking = "required" if reward.thinking == "required" else "optional"
    answer = reward.answer if reward.answer in ("boxed", "tag") else "any"
    return None if (thinking, answer) == ("optional", "any") else (thinking, answer, "auto")


def rollout_readability(groups: Sequence[Group], form: Form) -> dict[str, float]:
    """``well_formed``: the share of completions with the structure, where one is asked for.
    ``language_share``: the share of words in the language, or where none is named, in the script
    that the problem is written in; a mean over some completions of each group, left out where none
    has words.
    """
    found: dict[str, float] = {}
    texts = [c.text for group in groups for c in group.completions]
    if form.structure is not None and texts:
        asked = form.structure
        found["well_formed"] = sum(malformed(text, *asked) is None for text in texts) / len(texts)
    each = max(1, MOST_TEXTS // max(1, len(groups)))
    shares = [
        share
        for group in groups[:MOST_TEXTS]
        for completion in group.completions[:each]
        if (share := _share(group.problem, completion.text[:LONGEST_TEXT], form)) is not None
    ]
    if shares:
        found["language_share"] = sum(shares) / len(shares)
    return found


def _share(problem: Problem, text: str, form: Form) -> float | None:
    if form.language is not None:
        return language_share(part_of(text, form.part), form.language, form.others)
    # A question may ask for an answer in another script: then its reference is in that.
    scripts = scripts_of(f"{problem.question}\n{problem.reference or ''}")
    return script_share(text, scripts) if scripts else None


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
