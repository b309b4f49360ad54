"""What may be chosen of an objective, and what follows from that alone.

A frozen record; :class:`lydite.objective.Objective` adds what is computed with it.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from lydite.config import UserError
from lydite.objective.advantage import BASELINES, SCALES
from lydite.objective.correction import CORRECTIONS
from lydite.objective.credit import CREDITS
from lydite.objective.group_filter import FILTERS
from lydite.objective.kl import PLACES
from lydite.objective.meaning import check_meaning
from lydite.objective.settings import (
    GAE,
    KL,
    Correction,
    EntropyBonus,
    GroupFilter,
    TokenFilter,
    check_names,
    check_numbers,
    flat,
    setting,
)
from lydite.objective.surrogate import ANCHORS, SURROGATES, Clip
from lydite.objective.token_filter import TOKEN_FILTERS

_NO_KL, _NO_CORRECTION, _NO_FILTER, _GAE = KL(), Correction(), TokenFilter(), GAE()
_NO_BONUS, _ALL_GROUPS = EntropyBonus(), GroupFilter()


@dataclass(frozen=True)
class Choices:
    """Every choice of an objective; the description of each is in its metadata.

    Raises:
        UserError: an unknown choice, a number out of range, or a combination that has no meaning.
    """

    credit: str = setting("reward", "What a completion is credited with.")
    pass_k: int = setting(4, "The k of pass_at_k, in completions.")
    baseline: str = setting(
        "group_mean", "What is subtracted from that; a critic's value is one for every token."
    )
    scale: str = setting(
        "group_std",
        "What advantages are divided by; advantage_std is the batch's, token_std a critic's.",
    )
    gae: GAE = setting(_GAE, "Advantages of tokens, with a critic.")  # noqa: RUF009
    std: str = setting("population", "Estimator of the standard deviation.")
    std_eps: float = setting(0.0, "Added to what is divided by; peers use 1e-4 or 1e-6.")
    ratio: str = setting("token", "Importance ratio; sequence is the geometric mean of its tokens.")
    anchor: str = setting(
        "old", "What the ratio is taken against: the policy before the step, or the engine."
    )
    surrogate: str = setting("clip", "What the gradient is taken of.")
    clip_low: float | None = setting(
        0.2, "How far the ratio may fall below 1 (dppo: the probability, gmpo: the log-ratio)."
    )
    clip_high: float | None = setting(0.2, "How far the ratio may rise above 1, likewise.")
    dual_clip: float | None = setting(None, "Bound on the ratio where the advantage is negative.")
    aggregation: str = setting("sample_mean", "How the tokens of a step become one number.")
    fixed_length: int | None = setting(
        None, "Divisor in tokens; unset: the completion limit of the run."
    )
    kl: KL = setting(_NO_KL, "The pull towards the reference policy.")  # noqa: RUF009
    correction: Correction = setting(_NO_CORRECTION, "For engine and learner that differ.")  # noqa: RUF009
    token_filter: TokenFilter = setting(_NO_FILTER, "Tokens that are treated apart.")  # noqa: RUF009
    entropy_bonus: EntropyBonus = setting(_NO_BONUS, "What a token is paid for its entropy.")  # noqa: RUF009
    group_filter: GroupFilter = setting(_ALL_GROUPS, "Groups without a signal, prompts solved.")  # noqa: RUF009
    overlong_cache: float = setting(
        0.0, "Last share of the completion limit in which a reward falls by up to 1; 0 is off."
    )
    mask_truncated: bool = setting(False, "Leave completions that hit the limit out of the loss.")
    name: str = dataclasses.field(
        default="custom", compare=False, metadata={"description": "The spec that it was read from."}
    )

    def __post_init__(self) -> None:
        check_names(self.settings)
        check_numbers(self.settings)
        check_meaning(self.settings)

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Every setting by key."""
        return flat({f.name: f.default for f in dataclasses.fields(cls) if f.name != "name"})

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting by key, as a spec may give them."""
        return flat({key: value for key, value in vars(self).items() if key != "name"})

    @property
    def needs_reference(self) -> bool:
        """Whether the loss needs reference log-probs."""
        return self.kl.coefficient > 0

    @property
    def needs_values(self) -> bool:
        """Whether advantages are of single tokens and need a critic's values:
        :meth:`Objective.token_advantages`.
        """
        return BASELINES[self.baseline].learned

    @property
    def kl_in_token_rewards(self) -> bool:
        """Whether the KL is in the rewards that :meth:`Objective.token_advantages` adds up."""
        return self.needs_values and self.needs_reference and PLACES[self.kl.place]

    @property
    def loss_needs_reference(self) -> bool:
        """Whether it is the loss that needs reference log-probs."""
        return self.needs_reference and not self.kl_in_token_rewards

    @property
    def needs_behaviour(self) -> bool:
        """Whether the loss needs behaviour log-probs."""
        return (
            CORRECTIONS[self.correction.kind] is not None
            or self.correction.off_policy is not None
            or ANCHORS[self.anchor]
        )

    @property
    def by_part(self) -> bool:
        """Whether advantages must be given the parts of a reward, and not their sum."""
        return CREDITS[self.credit].by_part

    @property
    def needs_entropy(self) -> bool:
        """Whether the loss needs entropies with gradient."""
        return self.entropy_bonus.coefficient > 0

    @property
    def picks_tokens(self) -> bool:
        """Whether :meth:`Objective.pick` must be called before the loss."""
        return TOKEN_FILTERS[self.token_filter.kind] is not None

    @property
    def moves_idle(self) -> bool:
        """Whether a sequence of advantage 0 has gradient."""
        chosen = TOKEN_FILTERS[self.token_filter.kind]
        return (
            self.needs_reference or self.needs_entropy or (chosen is not None and chosen.moves_idle)
        )

    @property
    def has_ratio(self) -> bool:
        """Whether an importance ratio corrects for the policy that sampled."""
        return SURROGATES[self.surrogate].ratio

    @property
    def by_drift(self) -> bool:
        """Whether the token filter takes from how far tokens have moved since the rollout."""
        chosen = TOKEN_FILTERS[self.token_filter.kind]
        return chosen is not None and chosen.of_drift

    @property
    def refills(self) -> bool:
        """Whether dropped groups are replaced by new samples, in at most
        ``group_filter.max_rounds`` rounds.
        """
        return FILTERS[self.group_filter.kind].refills

    @property
    def clip(self) -> Clip:
        """The clip range; an end that is not set is infinitely far."""
        low, high = (math.inf if c is None else c for c in (self.clip_low, self.clip_high))
        return Clip(low, high, self.dual_clip)

    def check_group_size(self, size: int) -> None:
        """Raises:
        UserError: the advantages compare within a group, and ``size`` leaves nothing to compare.
        """
        if size < 2 and _compares(self):
            raise UserError(
                f"group size: {size} leaves baseline {self.baseline} nothing to compare; "
                "sample at least 2 completions per prompt, or use the preset reinforce"
            )
        if CREDITS[self.credit].chance and size < self.pass_k:
            raise UserError(
                f"group size: {size} holds no {self.pass_k} completions to take pass_k of; "
                "sample more per prompt, or lower objective.pass_k"
            )


def _compares(chosen: Choices) -> bool:
    """Whether an advantage is made by comparing within the group."""
    return BASELINES[chosen.baseline].compares or SCALES[chosen.scale].within_group
