"""What may be set: the records inside an objective, its choices by name, and what they may be.

A setting's key is its field; a field of a record is ``record.field``, and the record's own name
stands for its first field, so that ``kl: 0.01`` and ``kl.estimator: k1`` are both one setting.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from lydite.config import UserError
from lydite.objective.advantage import BASELINES, SCALES, STDS
from lydite.objective.aggregate import AGGREGATIONS
from lydite.objective.correction import CORRECTIONS
from lydite.objective.credit import CREDITS
from lydite.objective.group_filter import FILTERS
from lydite.objective.kl import ESTIMATORS, PLACES
from lydite.objective.spec import nearest
from lydite.objective.surrogate import ANCHORS, RATIOS, SURROGATES
from lydite.objective.token_filter import TOKEN_FILTERS


def setting(default: object, description: str) -> Any:
    """A field with its default and what a reader should know of it."""
    return dataclasses.field(default=default, metadata={"description": description})


@dataclass(frozen=True)
class KL:
    """The pull towards the reference policy."""

    coefficient: float = setting(0.0, "Coefficient β of the KL; 0 loads no reference.")
    estimator: str = setting("k3", "Estimator; k3_unbiased is weighed by the ratio.")
    place: str = setting("loss", "Where it is subtracted; the reward is that of every token.")
    refresh: int | None = setting(
        None, "Steps after which the reference becomes the policy, again and again; unset: never."
    )


@dataclass(frozen=True)
class Correction:
    """For an engine whose probabilities differ from the learner's."""

    kind: str = setting("none", "What a token's gain is weighed by.")
    low: float = setting(0.0, "Lowest π_old/π_behaviour that keeps its weight.")
    high: float = setting(2.0, "Highest π_old/π_behaviour that keeps its weight.")
    off_policy: float | None = setting(
        None, "A bad answer whose mean log(π_behaviour/π) is above this has no gradient, in nats."
    )


@dataclass(frozen=True)
class TokenFilter:
    """Tokens picked over the whole optimiser step, before its first backward pass."""

    kind: str = setting("none", "Which tokens are picked, and what becomes of them.")
    share: float = setting(0.2, "Share of the step's tokens that are picked.")
    strength: float = setting(1.0, "kl_cov: coefficient of |log π/π_old| on the picked tokens.")


@dataclass(frozen=True)
class EntropyBonus:
    """Pays every token for its entropy: always the same, or steered to a target."""

    coefficient: float = setting(
        0.0, "Coefficient of the entropy that is added; with a target, the one it starts from."
    )
    target: float | None = setting(
        None, "Entropy per token, in nats, that the coefficient is steered to; unset: it is fixed."
    )
    step: float = setting(1e-4, "How far a policy step moves the coefficient towards the target.")
    high: float = setting(0.005, "The most that a coefficient with a target becomes.")


@dataclass(frozen=True)
class GroupFilter:
    """What follows from the rewards of a group, besides advantages."""

    kind: str = setting("none", "For groups of equal rewards; dynamic_sampling draws others.")
    max_rounds: int = setting(10, "Most rounds of sampling that dynamic_sampling makes for a step.")
    retire_at: float | None = setting(
        None, "Share of right completions from which on a prompt is drawn no more; unset: never."
    )


@dataclass(frozen=True)
class GAE:
    """Advantages of tokens from a critic's values, and how the critic learns."""

    lam: float = setting(
        1.0, "λ: 1 is the return less the value, 0 trusts the critic from the next token on."
    )
    gamma: float = setting(1.0, "γ: what a reward is worth one token earlier.")
    value_clip: float | None = setting(
        0.2, "How far a value may move before it stops learning from a rollout; unset: no limit."
    )


Record = KL | Correction | TokenFilter | EntropyBonus | GroupFilter | GAE
RECORDS: dict[str, type[Record]] = {
    "gae": GAE,
    "kl": KL,
    "correction": Correction,
    "token_filter": TokenFilter,
    "entropy_bonus": EntropyBonus,
    "group_filter": GroupFilter,
}
# record.first_field → record
HEADS = {f"{name}.{dataclasses.fields(kind)[0].name}": name for name, kind in RECORDS.items()}

# Every key that is a name, and what it may be.
CHOICES: dict[str, Mapping[str, object]] = {
    "credit": CREDITS,
    "baseline": BASELINES,
    "scale": SCALES,
    "std": STDS,
    "ratio": RATIOS,
    "anchor": ANCHORS,
    "surrogate": SURROGATES,
    "aggregation": AGGREGATIONS,
    "kl.estimator": ESTIMATORS,
    "kl.place": PLACES,
    "correction": CORRECTIONS,
    "token_filter": TOKEN_FILTERS,
    "group_filter": FILTERS,
}

# key: (lowest, whether the lowest itself is allowed, highest, whether None is allowed)
BOUNDS: dict[str, tuple[float, bool, float, bool]] = {
    "pass_k": (1, True, math.inf, False),
    "gae": (0.0, True, 1.0, False),
    "gae.gamma": (0.0, True, 1.0, False),
    "gae.value_clip": (0.0, False, math.inf, True),
    "std_eps": (0.0, True, math.inf, False),
    "clip_low": (0.0, False, math.inf, True),
    "clip_high": (0.0, False, math.inf, True),
    "dual_clip": (1.0, False, math.inf, True),
    "fixed_length": (1, True, math.inf, True),
    "kl": (0.0, True, math.inf, False),
    "kl.refresh": (1, True, math.inf, True),
    "correction.low": (0.0, True, math.inf, False),
    "correction.high": (0.0, False, math.inf, False),
    "correction.off_policy": (0.0, True, math.inf, True),
    "token_filter.share": (0.0, False, 1.0, False),
    "token_filter.strength": (0.0, False, math.inf, False),
    "entropy_bonus": (0.0, True, math.inf, False),
    "entropy_bonus.target": (0.0, False, math.inf, True),
    "entropy_bonus.step": (0.0, False, math.inf, False),
    "entropy_bonus.high": (0.0, False, math.inf, False),
    "group_filter.max_rounds": (1, True, math.inf, False),
    "group_filter.retire_at": (0.0, False, 1.0, True),
    "overlong_cache": (0.0, True, 1.0, False),
}
WHOLE = ("pass_k", "fixed_length", "kl.refresh", "group_filter.max_rounds")


def flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of an objective as settings by key."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if name not in RECORDS:
            found[name] = value
            continue
        for key, inner in vars(value).items():
            found[canonical(f"{name}.{key}")] = inner
    return found


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by key, all of them, as fields of an objective."""
    fields = {k: v for k, v in settings.items() if k not in RECORDS and "." not in k}
    for name, kind in RECORDS.items():
        keys = [field.name for field in dataclasses.fields(kind)]
        fields[name] = kind(**{key: settings[canonical(f"{name}.{key}")] for key in keys})
    return fields


def canonical(key: str) -> str:
    """``kl.coefficient`` as ``kl``: the one key that a setting goes by."""
    return HEADS.get(key, key)


def check_names(settings: Mapping[str, Any]) -> None:
    """Raises:
    UserError: a choice that does not exist.
    """
    for key, known in CHOICES.items():
        value = settings[key]
        if not isinstance(value, str) or value not in known:
            raise UserError(f"objective.{key}: no choice {value!r}; {nearest(str(value), known)}")
    if not isinstance(settings["mask_truncated"], bool):
        raise UserError(
            f"objective.mask_truncated: got {settings['mask_truncated']!r}; give true or false"
        )


def check_numbers(settings: Mapping[str, Any]) -> None:
    """Raises:
    UserError: a number out of its range, or none where one is needed.
    """
    for key, (low, closed, high, optional) in BOUNDS.items():
        value = settings[key]
        if value is None and optional:
            continue
        if not _is_number(value, key in WHOLE) or not (
            low < value <= high or (closed and value == low)
        ):
            whole = "a whole number" if key in WHOLE else "a number"
            least = "at least" if closed else "above"
            most = "" if high == math.inf else f" and at most {high:g}"
            raise UserError(f"objective.{key}: got {value!r}; give {whole} {least} {low:g}{most}")


def _is_number(value: object, whole: bool) -> TypeGuard[float]:
    return isinstance(value, int if whole else int | float) and not isinstance(value, bool)
