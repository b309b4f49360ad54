"""What a rule is, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from lydite.watch.diagnosis.curves import Curves
from lydite.watch.samples import Sample

Confidence = Literal["high", "medium", "low"]
CORRECTIONS = frozenset({"tis", "mis", "icepop", "geometric_mask"})
"""Patches of an objective of which one takes the place of another."""

Severity = Literal["problem", "note"]
"""A note is nothing to mend: it answers what people ask."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule found in a stage. ``evidence`` are figures with their steps; ``overrides`` go on
    the command line of ``lydite run`` as they are; ``remedy`` is the same in words. ``examples``
    are rollouts that show it.
    """

    rule: str
    symptom: str
    evidence: tuple[str, ...]
    cause: str
    remedy: str
    overrides: tuple[str, ...] = ()
    confidence: Confidence = "medium"
    severity: Severity = "problem"
    source: str = ""
    examples: tuple[Sample, ...] = ()
    stage: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen, before the rule's own words are put to it: evidence, and where they differ
    from case to case, symptom, cause, remedy and confidence.
    """

    evidence: tuple[str, ...]
    symptom: str = ""
    cause: str = ""
    remedy: str = ""
    overrides: tuple[str, ...] | None = None
    confidence: Confidence | None = None
    examples: tuple[Sample, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """``look`` tells whether a stage has the fault; ``needs`` are the metrics without which it
    cannot. ``override`` names the setting of the stage that mends it (``objective=+clip_higher``
    adds a patch), ``elsewhere`` what other trainers call it.
    """

    name: str
    symptom: str
    cause: str
    remedy: str
    look: Callable[[Curves], Seen | None]
    needs: tuple[str, ...] = ()
    override: tuple[str, ...] = ()
    elsewhere: str = ""
    confidence: Confidence = "medium"
    severity: Severity = "problem"
    source: str = ""
    kinds: tuple[str, ...] = ("rl",)

    def apply(self, curves: Curves) -> Finding | None:
        """The finding in a stage, if there is one."""
        if curves.kind not in self.kinds or not curves.has(*self.needs):
            return None
        seen = self.look(curves)
        if seen is None:
            return None
        wanted = self.override if seen.overrides is None else seen.overrides
        ours = curves.index is not None
        remedy = seen.remedy or self.remedy
        if not ours and self.elsewhere:
            remedy = f"{remedy}. Elsewhere: {self.elsewhere}"
        return Finding(
            rule=self.name,
            symptom=seen.symptom or self.symptom,
            evidence=seen.evidence,
            cause=seen.cause or self.cause,
            remedy=remedy,
            overrides=tuple(o for each in wanted if (o := spelt(curves, each))) if ours else (),
            confidence=seen.confidence or self.confidence,
            severity=self.severity,
            source=self.source,
            examples=seen.examples,
            stage=curves.stage,
        )


def spelt(curves: Curves, override: str) -> str:
    """An override of the stage's settings as the command line takes it; empty where it would change
    nothing. ``objective=+NAME`` adds a patch to the objective that the stage has; ``/key`` is a
    setting of the recipe itself (of a verifier, the stage's own if it has one); a number behind
    ``*`` multiplies what is there.
    """
    key, _, value = override.partition("=")
    ours, place = curves.settings, f"stages.{curves.index}."
    if key.startswith("/"):
        key = key[1:]
        if not (key.startswith("verifier.") and ours.get("verifier")):
            ours, place = curves.recipe, ""
    if key == "objective" and value.startswith("+"):
        key, value = _patched(ours.get("objective", "grpo"), value[1:])
    now = _at(ours, key)
    if value.startswith("*"):
        if not isinstance(now, int | float):
            return ""
        scaled = now * float(value[1:])
        value = str(round(scaled)) if isinstance(now, int) else f"{scaled:.3g}"
    return "" if value == _written(now) else f"{place}{key}={value}"


def _written(value: object) -> str:
    """A setting as an override has it."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(str, value))}]"
    return str(value)


def _patched(objective: object, patch: str) -> tuple[str, str]:
    """Setting and value that add a patch, all else of the objective kept but what it replaces."""

    def extended(given: Iterable[object]) -> list[str]:
        kept = (str(name) for name in given if not {str(name), patch} <= CORRECTIONS)
        return list(dict.fromkeys([*kept, patch]))

    if isinstance(objective, dict):
        if patch in CORRECTIONS and "correction" in objective:
            return "objective.correction", patch
        given = objective.get("patches") or ()
        listed = given.split("+") if isinstance(given, str) else given
        return "objective.patches", _written(extended(listed))
    if isinstance(objective, list | tuple):
        return "objective", _written(extended(objective))
    return "objective", "+".join(extended(str(objective).split("+")))


def _at(settings: object, key: str) -> object:
    for part in key.split("."):
        if isinstance(settings, list | tuple) and part.isdigit() and int(part) < len(settings):
            settings = settings[int(part)]
        else:
            settings = settings.get(part) if isinstance(settings, dict) else None
    return settings
