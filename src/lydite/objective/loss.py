"""The loss of one micro-batch, term by term: surrogate, token filter, correction, KL, entropy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lydite.objective.aggregate import AGGREGATIONS, Counts, Divided
from lydite.objective.correction import CORRECTIONS, on_policy_or_good
from lydite.objective.kl import ESTIMATORS, PLACES, k3, log_ratio, to_go
from lydite.objective.metrics import Metrics
from lydite.objective.mismatch import moments
from lydite.objective.surrogate import ANCHORS, RATIOS, SURROGATES, Tokens
from lydite.objective.token_filter import TOKEN_FILTERS

if TYPE_CHECKING:
    from lydite.objective.objective import Objective

# Far past any log-probability or entropy in nats, and any advantage: held within these, no finite
# input makes a product or a sum overflow float32. What is infinite stays so, to be seen.
LARGEST, LARGEST_ADVANTAGE = 1e15, 1e12

PLACES_APART = 5
"""The start, the end and the most open tokens of a completion are each a fifth of it."""


@dataclass(frozen=True, slots=True)
class Given:
    """What :meth:`Objective.loss` was given, each ``[B, T]``, 0 outside ``live``.

    Only ``policy`` and ``entropy`` have gradient. ``start`` is the old policy.
    """

    live: Tensor
    policy: Tensor
    start: Tensor
    signal: Tensor
    behaviour: Tensor | None = None
    reference: Tensor | None = None
    entropy: Tensor | None = None
    picked: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Sum:
    """The value to maximise so far ``[B, T]``, and what was measured of it."""

    value: Tensor
    measured: dict[str, Tensor]

    def having(self, value: Tensor | None = None, **measured: Tensor) -> Sum:
        """With another value and more measurements."""
        return Sum(self.value if value is None else value, {**self.measured, **measured})


def inside(values: Tensor, live: Tensor, largest: float = LARGEST) -> Tensor:
    """Values in at least float32, 0 outside the mask: padding harms neither value nor gradient.

    Finite ones are held within ``±largest``.
    """
    wide = torch.promote_types(values.dtype, torch.float32)
    kept = values.to(wide).masked_fill(~live, 0.0)
    return torch.where(kept.isinf(), kept, kept.clamp(-largest, largest))


def total(
    objective: Objective, given: Given, counts: Counts, prompt_tokens: Tensor | None
) -> tuple[Tensor, Metrics]:
    """The loss and its metrics: see :meth:`Objective.loss`."""
    given = replace(given, signal=_with_kl_reward(objective, given))
    found = _surrogate(objective, given)
    for term in TERMS:
        found = term(objective, given, found)
    divisor = AGGREGATIONS[objective.aggregation].divisor(
        Divided(given.live, counts, objective.fixed_length, prompt_tokens)
    )
    loss = -(found.value.masked_fill(~given.live, 0.0) / divisor).sum()
    return loss, Metrics.over(given.live, found.measured) + _by_place(given)


def _with_kl_reward(objective: Objective, given: Given) -> Tensor:
    """Advantages less β times the KL that lies ahead, where the KL is part of the reward."""
    kl = objective.kl
    if given.reference is None or kl.coefficient == 0 or not PLACES[kl.place]:
        return given.signal
    if objective.kl_in_token_rewards:  # They are in the advantages already.
        return given.signal
    drift = log_ratio(given.reference, given.start)
    return given.signal - kl.coefficient * to_go(ESTIMATORS[kl.estimator].value(drift))


def _surrogate(objective: Objective, given: Given) -> Sum:
    policy, start = given.policy, given.start
    anchored = given.behaviour is not None and ANCHORS[objective.anchor]
    anchor = given.behaviour if anchored and given.behaviour is not None else start
    ratio = RATIOS[objective.ratio](policy, anchor, given.live)
    gain = SURROGATES[objective.surrogate].gain(
        Tokens(policy, anchor, ratio, given.signal, given.live), objective.clip
    )
    return Sum(
        gain.value,
        {
            "ratio": ratio,
            "ratio_squared": ratio.clamp(max=LARGEST).square(),
            "clip_high": gain.above.to(policy.dtype),
            "clip_low": gain.below.to(policy.dtype),
            "kl_old": k3(log_ratio(policy, start)),
        },
    )


def _filtered(objective: Objective, given: Given, found: Sum) -> Sum:
    chosen = TOKEN_FILTERS[objective.token_filter.kind]
    if chosen is None or given.picked is None:
        return found
    picked, strength = given.picked & given.live, objective.token_filter.strength
    value = chosen.treat(given.policy, given.start, found.value, picked, strength)
    return found.having(value, picked=picked.to(value.dtype))


def _corrected(objective: Objective, given: Given, found: Sum) -> Sum:
    if given.behaviour is None:
        return found
    record = objective.correction
    gap = log_ratio(given.start, given.behaviour)
    weights = []
    correct = CORRECTIONS[record.kind]
    if correct is not None:
        weights.append(correct.weight(gap, given.live, record.low, record.high))
    if record.off_policy is not None:
        lag = log_ratio(given.behaviour, given.policy.detach())
        weights.append(on_policy_or_good(lag, given.live, given.signal, record.off_policy))
    found = found.having(kl_behaviour=k3(gap), **moments(given.start, given.behaviour))
    if not weights:
        return found
    weight = torch.stack(weights).prod(dim=0)
    return found.having(found.value * weight, correction=weight)


def _anchored(objective: Objective, given: Given, found: Sum) -> Sum:
    if given.reference is None:
        return found
    drift = log_ratio(given.reference, given.policy)
    found = found.having(kl_reference=k3(drift), kl_reference_k1=-drift)
    if objective.kl.coefficient == 0 or PLACES[objective.kl.place]:
        return found
    estimator = ESTIMATORS[objective.kl.estimator]
    kl = estimator.value(drift)
    if estimator.weighted:
        kl = kl * log_ratio(given.policy, given.start).exp()
    return found.having(found.value - objective.kl.coefficient * kl)


def _by_place(given: Given) -> Metrics:
    """Entropy at the start and the end of each completion, and of its most open tokens."""
    if given.entropy is None:
        return Metrics()
    live, entropy = given.live, given.entropy.detach()
    count = live.sum(dim=1, keepdim=True)
    share = (count / PLACES_APART).ceil()
    place = live.cumsum(dim=1)
    # Within each completion, so that micro-batches change nothing.
    order = entropy.masked_fill(~live, -torch.inf).argsort(dim=1, descending=True).argsort(dim=1)
    parts = {
        "entropy_first": live & (place <= share),
        "entropy_last": live & (place > count - share),
        "entropy_top": live & (order < share),
    }
    return sum((Metrics.over(mask, {n: entropy}) for n, mask in parts.items()), Metrics())


def _explored(objective: Objective, given: Given, found: Sum) -> Sum:
    if given.entropy is None:
        return found
    found = found.having(entropy=given.entropy)
    coefficient = objective.entropy_bonus.coefficient
    if coefficient == 0:
        return found
    return found.having(found.value + coefficient * given.entropy)


# A correction weighs what comes before it and not the KL or the entropy.
TERMS: tuple[Callable[[Objective, Given, Sum], Sum], ...] = (
    _filtered,
    _corrected,
    _anchored,
    _explored,
)
