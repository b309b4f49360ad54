"""The objective: orthogonal choices, frozen, from which advantages and the loss follow.

    J = Σ_i Σ_t w_it · { gain(r_it, A_i) − β·KL(π‖π_ref)_it } / D_i

``gain`` is the surrogate, ``w`` the correction for the engine's probabilities, ``D`` the divisor of
the aggregation, counted over the whole optimiser step. Where this departs from the papers:

- GRPO: the std of a group is the population's unless ``std: sample`` is chosen; no epsilon is
  added. R1 writes a sequence ratio without 1/|o|; token ratios are used for it, as everywhere.
- DAPO: a group is informative when its rewards differ, the paper's rule for two-valued rewards.
- GSPO: log-ratios are held within ±20 nats per token before they are averaged.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from lydite.config import UserError
from lydite.objective.advantage import BASELINES, SCALES, STDS, scaled_advantages
from lydite.objective.aggregate import AGGREGATIONS, Counts
from lydite.objective.correction import CORRECTIONS
from lydite.objective.group_filter import FILTERS, informative
from lydite.objective.kl import ESTIMATORS, k3, log_ratio
from lydite.objective.metrics import Metrics
from lydite.objective.overlong import soft_overlong
from lydite.objective.spec import nearest, resolve
from lydite.objective.surrogate import RATIOS, SURROGATES, Clip, Tokens

TokenOrSequence = Float[Tensor, "B T"] | Float[Tensor, " B"]

# Every field that is a name, and what it may be.
CHOICES: dict[str, Mapping[str, object]] = {
    "baseline": BASELINES,
    "scale": SCALES,
    "std": STDS,
    "ratio": RATIOS,
    "surrogate": SURROGATES,
    "aggregation": AGGREGATIONS,
    "kl_estimator": ESTIMATORS,
    "correction": CORRECTIONS,
    "group_filter": FILTERS,
}

# field: (lowest, whether the lowest itself is allowed, highest, whether None is allowed)
_BOUNDS: dict[str, tuple[float, bool, float, bool]] = {
    "std_eps": (0.0, True, math.inf, False),
    "clip_low": (0.0, False, math.inf, True),
    "clip_high": (0.0, False, math.inf, True),
    "dual_clip": (1.0, False, math.inf, True),
    "fixed_length": (1, True, math.inf, True),
    "kl": (0.0, True, math.inf, False),
    "correction_cap": (0.0, False, math.inf, False),
    "max_rounds": (1, True, math.inf, False),
    "overlong_cache": (0.0, True, 1.0, False),
}
_WHOLE = ("fixed_length", "max_rounds")


def _setting(default: object, description: str) -> Any:
    return dataclasses.field(default=default, metadata={"description": description})


@dataclass(frozen=True)
class Objective:
    """What a step maximises. Build one with :meth:`parse`; ``dataclasses.replace`` changes a field.

    Every field is a choice of its own; the description of each is in its metadata.

    Raises:
        UserError: an unknown choice, a number out of range, or a combination that has no meaning.
    """

    baseline: str = _setting(
        "group_mean", "Subtracted from a reward: group_mean, leave_one_out, none."
    )
    scale: str = _setting(
        "group_std", "What advantages are divided by: group_std, batch_std, none."
    )
    std: str = _setting("population", "Estimator of the standard deviation: population, sample.")
    std_eps: float = _setting(0.0, "Added to the standard deviation; peers use 1e-4 or 1e-6.")
    ratio: str = _setting("token", "Importance ratio: token, or sequence (its geometric mean).")
    surrogate: str = _setting("clip", "What the gradient is taken of: clip, reinforce.")
    clip_low: float | None = _setting(0.2, "The ratio is clipped below 1 − clip_low.")
    clip_high: float | None = _setting(0.2, "The ratio is clipped above 1 + clip_high.")
    dual_clip: float | None = _setting(None, "Bound on the ratio where the advantage is negative.")
    aggregation: str = _setting("sample_mean", "Mean: sample_mean, token_mean, fixed_length.")
    fixed_length: int | None = _setting(
        None, "Divisor in tokens; unset: the completion limit of the run."
    )
    kl: float = _setting(0.0, "Coefficient β of the KL to the reference; 0 loads no reference.")
    kl_estimator: str = _setting("k3", "Estimator of the KL: k1, k2, k3.")
    correction: str = _setting("none", "For engine and learner that differ: none, tis.")
    correction_cap: float = _setting(2.0, "Largest weight that the correction gives a token.")
    group_filter: str = _setting(
        "none", "For groups of equal rewards: none, drop_zero_variance, dynamic_sampling (refills)."
    )
    max_rounds: int = _setting(
        10, "Most rounds of sampling that dynamic_sampling makes for a step."
    )
    overlong_cache: float = _setting(
        0.0, "Last share of the completion limit in which a reward falls by up to 1; 0 is off."
    )
    mask_truncated: bool = _setting(False, "Leave completions that hit the limit out of the loss.")
    name: str = dataclasses.field(
        default="custom", compare=False, metadata={"description": "The spec that it was read from."}
    )

    def __post_init__(self) -> None:
        _check_names(vars(self))
        _check_numbers(vars(self))
        _check_meaning(self)

    @classmethod
    def parse(cls, spec: object) -> Objective:
        """Reads ``"grpo"``, ``"grpo+clip_higher"``, a list of such names, or a mapping.

        A mapping has ``preset`` (default grpo), ``patches``, and any field of this class. The spec
        is typed ``object`` because it comes from a recipe: what it holds is checked here.

        Raises:
            UserError: see :func:`lydite.objective.spec.resolve` and the class.
        """
        if isinstance(spec, Objective):
            return spec
        defaults = {f.name: f.default for f in dataclasses.fields(cls) if f.name != "name"}
        name, settings = resolve(spec, defaults)
        values: dict[str, Any] = {**defaults, **settings}
        _check_names(values)
        _check_numbers(values)
        for field in _BOUNDS.keys() - set(_WHOLE):
            if values[field] is not None:
                values[field] = float(values[field])
        return cls(**values, name=name)

    def with_limit(self, limit: int) -> Objective:
        """This objective with ``fixed_length`` set to ``limit`` tokens, if needed and unset."""
        if self.aggregation == "fixed_length" and self.fixed_length is None:
            return dataclasses.replace(self, fixed_length=limit)
        return self

    @property
    def needs_reference(self) -> bool:
        """Whether the loss needs reference log-probs."""
        return self.kl > 0

    @property
    def needs_behaviour(self) -> bool:
        """Whether the loss needs behaviour log-probs."""
        return CORRECTIONS[self.correction] is not None

    @property
    def refills(self) -> bool:
        """Whether dropped groups are replaced by new samples, in at most ``max_rounds`` rounds."""
        return FILTERS[self.group_filter]

    def check_group_size(self, size: int) -> None:
        """Raises:
        UserError: the advantages compare within a group, and ``size`` leaves nothing to compare.
        """
        if size < 2 and _compares(self):
            raise UserError(
                f"group size: {size} leaves baseline {self.baseline} nothing to compare; "
                "sample at least 2 completions per prompt, or use the preset reinforce"
            )

    def shape_rewards(
        self, rewards: Float[Tensor, "P G"], lengths: Int[Tensor, "P G"], limit: int
    ) -> Float[Tensor, "P G"]:
        """Rewards plus the soft overlong penalty, if it is on; ``lengths``, ``limit`` in tokens."""
        if self.overlong_cache == 0:
            return rewards
        penalty = soft_overlong(lengths, limit, self.overlong_cache * limit)
        return rewards + penalty.to(rewards.dtype)

    def keep_groups(self, rewards: Float[Tensor, "P G"]) -> Bool[Tensor, " P"]:
        """``[P]``: the groups that stay, by their rewards before :meth:`shape_rewards`."""
        if self.group_filter == "none":
            return torch.ones(rewards.shape[0], dtype=torch.bool, device=rewards.device)
        return informative(rewards)

    def advantages(self, rewards: Float[Tensor, "P G"]) -> Float[Tensor, "P G"]:
        """Advantages of rewards; NaN marks an excluded completion, whose advantage is 0.

        A group with nothing to compare (equal rewards, one survivor, none) gets exactly 0. An
        excluded completion must also leave the loss mask: see :meth:`keep`.
        """
        return scaled_advantages(
            rewards,
            BASELINES[self.baseline],
            SCALES[self.scale],
            STDS[self.std],
            self.std_eps,
        )

    def keep(
        self, rewards: Float[Tensor, "P G"], truncated: Bool[Tensor, "P G"]
    ) -> Bool[Tensor, "P G"]:
        """``[P, G]``: the completions that take part in the loss, and so in :class:`Counts`.

        Out are those of NaN reward, of a filtered group, and, under ``mask_truncated``, truncated
        ones (whose rewards stay in their group's statistics, as in DAPO's overlong filtering).
        """
        kept = ~torch.isnan(rewards) & self.keep_groups(rewards)[:, None]
        return kept & ~truncated if self.mask_truncated else kept

    def loss(  # noqa: PLR0913  (one name for each tensor of the formula)
        self,
        *,
        policy: Float[Tensor, "B T"],
        advantages: TokenOrSequence,
        mask: Shaped[Tensor, "B T"],
        counts: Counts,
        old: Float[Tensor, "B T"] | None = None,
        behaviour: Float[Tensor, "B T"] | None = None,
        reference: Float[Tensor, "B T"] | None = None,
        entropy: Float[Tensor, "B T"] | None = None,
    ) -> tuple[Float[Tensor, ""], Metrics]:
        """The loss to minimise of one micro-batch: its share of the loss of the step.

        Log-probs are in nats. ``old=None`` is the first update after sampling: the ratio is exactly
        1. ``mask`` is 1 on the tokens to train on; what lies outside it does not matter, even NaN.
        ``counts`` is of the whole step, so that the losses (and gradients) of its micro-batches and
        ranks **add up** to the step's. Metrics are per-token means once added up: ``ratio``,
        ``clip_high`` and ``clip_low`` (shares of tokens whose gradient is clipped), ``kl_old``
        KL(old‖policy), ``kl_reference`` KL(policy‖reference), ``kl_behaviour`` KL(behaviour‖old),
        all three by k3, ``correction`` (mean weight), ``entropy``.

        Raises:
            UserError: the KL or the correction is on, and its log-probs are missing.
        """
        self._check_given(reference, behaviour)
        live = mask.bool()
        policy = _inside(policy, live)
        start = policy.detach() if old is None else _inside(old, live).detach()
        signal = advantages if advantages.dim() == 2 else advantages[:, None].expand_as(policy)
        ratio = RATIOS[self.ratio](policy, start, live)
        gain = SURROGATES[self.surrogate].gain(
            Tokens(policy, ratio, _inside(signal, live)), self._clip
        )
        value = gain.value
        measured = {
            "ratio": ratio,
            "clip_high": gain.above.to(policy.dtype),
            "clip_low": gain.below.to(policy.dtype),
            "kl_old": k3(log_ratio(policy, start)),
        }
        if behaviour is not None:
            sampled = _inside(behaviour, live).detach()
            measured["kl_behaviour"] = k3(log_ratio(start, sampled))
            correct = CORRECTIONS[self.correction]
            if correct is not None:
                measured["correction"] = correct(start, sampled, self.correction_cap)
                value = value * measured["correction"]
        if reference is not None:
            drift = log_ratio(_inside(reference, live).detach(), policy)
            measured["kl_reference"] = k3(drift)
            if self.kl > 0:
                value = value - self.kl * ESTIMATORS[self.kl_estimator](drift)
        if entropy is not None:
            measured["entropy"] = _inside(entropy, live)
        divisor = AGGREGATIONS[self.aggregation](live, counts, self.fixed_length)
        loss = -(value.masked_fill(~live, 0.0) / divisor).sum()
        return loss, Metrics.over(live, measured)

    @property
    def _clip(self) -> Clip:
        low, high = (math.inf if c is None else c for c in (self.clip_low, self.clip_high))
        return Clip(low, high, self.dual_clip)

    def _check_given(self, reference: Tensor | None, behaviour: Tensor | None) -> None:
        if self.needs_reference and reference is None:
            raise UserError(
                f"objective.kl: {self.kl} needs reference log-probs; pass them or set kl: 0"
            )
        if self.needs_behaviour and behaviour is None:
            raise UserError(
                f"objective.correction: {self.correction} needs behaviour log-probs; "
                "pass what the engine returned or set correction: none"
            )


def _inside(values: Tensor, live: Tensor) -> Tensor:
    """Values in at least float32, 0 outside the mask: padding harms neither value nor gradient."""
    wide = torch.promote_types(values.dtype, torch.float32)
    return values.to(wide).masked_fill(~live, 0.0)


def _compares(objective: Objective) -> bool:
    """Whether an advantage is made by comparing within the group."""
    return BASELINES[objective.baseline].compares or SCALES[objective.scale].within_group


def _check_names(values: Mapping[str, object]) -> None:
    for field, known in CHOICES.items():
        value = values[field]
        if not isinstance(value, str) or value not in known:
            raise UserError(f"objective.{field}: no choice {value!r}; {nearest(str(value), known)}")
    if not isinstance(values["mask_truncated"], bool):
        raise UserError(
            f"objective.mask_truncated: got {values['mask_truncated']!r}; give true or false"
        )


def _check_numbers(values: Mapping[str, object]) -> None:
    for field, (low, closed, high, optional) in _BOUNDS.items():
        value = values[field]
        if value is None and optional:
            continue
        if not _is_number(value, field in _WHOLE) or not (
            low < value <= high or (closed and value == low)
        ):
            whole = "a whole number" if field in _WHOLE else "a number"
            least = "at least" if closed else "above"
            most = "" if high == math.inf else f" and at most {high:g}"
            raise UserError(f"objective.{field}: got {value!r}; give {whole} {least} {low:g}{most}")


def _is_number(value: object, whole: bool) -> TypeGuard[float]:
    return isinstance(value, int if whole else int | float) and not isinstance(value, bool)


def _check_meaning(objective: Objective) -> None:
    """Refuses combinations in which one choice makes another idle or undefined."""
    bounds = (objective.clip_low, objective.clip_high)
    if SURROGATES[objective.surrogate].uses_ratio:
        if None in bounds:
            raise UserError(
                f"objective.surrogate: {objective.surrogate} needs clip_low and clip_high, both"
            )
    elif objective.ratio != "token" or bounds != (None, None) or objective.dual_clip is not None:
        raise UserError(
            f"objective.surrogate: {objective.surrogate} has no importance ratio, so ratio, "
            "clip_low, clip_high and dual_clip mean nothing to it; leave them out or use a preset "
            "that clips"
        )
    if objective.fixed_length is not None and objective.aggregation != "fixed_length":
        raise UserError(
            f"objective.fixed_length: {objective.fixed_length} means nothing to aggregation "
            f"{objective.aggregation}; leave it out or use aggregation: fixed_length"
        )
    if not BASELINES[objective.baseline].compares:
        if SCALES[objective.scale].within_group:
            raise UserError(
                f"objective.scale: {objective.scale} is 0 for equal rewards, which carry a signal "
                f"under baseline {objective.baseline}; use a group baseline or scale: none"
            )
        if objective.group_filter != "none":
            raise UserError(
                f"objective.group_filter: {objective.group_filter} drops groups of equal rewards, "
                f"which carry a signal under baseline {objective.baseline}; use a group baseline"
            )
