"""The objective: orthogonal choices, frozen, from which advantages and the loss follow.

    J = Σ_i Σ_t w_it · { gain(r_it, A_i) − β·KL(π‖π_ref)_it } / D_i

``gain`` is the surrogate, ``w`` the correction for the engine's probabilities, ``D`` the divisor of
the aggregation, counted over the whole optimiser step. Where this departs from the papers:

- GRPO: the std of a group is the population's unless ``std: sample`` is chosen; no epsilon is
  added. R1 writes a sequence ratio without 1/|o|; token ratios are used for it, as everywhere.
- DAPO: a group is informative when its rewards differ, the paper's rule for two-valued rewards.
- GSPO, GMPO, VESPO: log-ratios are held within ±20 nats per token before they are averaged
  or added up.
- RLOO, REINFORCE++: a KL in the reward is subtracted from the advantages as what lies ahead of each
  token (no discount) and takes part in no baseline and no scale: it is known only once the learner
  has run, when those are made. Rewards are whitened over sequences, not over tokens.
- GPG's α, GDPO's and Lite PPO's batch are those of the step's kept groups.
- A token that a correction or a token filter silences stays in the denominators.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from lydite.config import UserError
from lydite.objective.advantage import BASELINES, SCALES, STDS, scaled_advantages
from lydite.objective.aggregate import AGGREGATIONS, Counts, Divided
from lydite.objective.choices import Choices
from lydite.objective.credit import CREDITS, Rule
from lydite.objective.entropy import following, in_force
from lydite.objective.gae import credit_tokens
from lydite.objective.group_filter import FILTERS, informative, solved
from lydite.objective.loss import LARGEST_ADVANTAGE, Given, inside, total
from lydite.objective.meaning import MeaninglessError, check_used
from lydite.objective.metrics import Metrics
from lydite.objective.overlong import soft_overlong
from lydite.objective.settings import (
    BOUNDS,
    HEADS,
    WHOLE,
    check_names,
    check_numbers,
    nested,
)
from lydite.objective.spec import read
from lydite.objective.token_filter import TOKEN_FILTERS
from lydite.objective.value import value_loss

TokenOrSequence = Float[Tensor, "B T"] | Float[Tensor, " B"]


@dataclass(frozen=True)
class Objective(Choices):
    """What a step maximises. Build one with :meth:`parse`; ``dataclasses.replace`` changes a field.

    Raises:
        UserError: an unknown choice, a number out of range, or a combination that has no meaning.
    """

    @classmethod
    def parse(cls, spec: object) -> Objective:
        """Reads ``"grpo"``, ``"grpo+clip_higher"``, a list of such names, or a mapping.

        A mapping has ``preset`` (default grpo), ``patches``, and any field of this class; a field
        that is a record takes a mapping, a key with a dot (``kl.estimator``), or one value for its
        first field (``kl: 0.01``). The spec is typed ``object`` because it comes from a recipe:
        what it holds is checked here.

        Raises:
            UserError: see :mod:`lydite.objective.spec` and the class.
        """
        if isinstance(spec, Objective):
            return spec
        defaults = cls.defaults()
        found = read(spec, defaults, HEADS)
        settings = {**defaults, **found.settings}
        try:
            made = cls._of(settings, found.name)
        except MeaninglessError as clash:
            raise UserError(f"{clash}{found.blame(clash.keys)}") from None
        found.check_needs(settings)
        check_used(found.overrides, settings, defaults)
        return made

    @classmethod
    def _of(cls, settings: Mapping[str, Any], name: str) -> Objective:
        check_names(settings)
        check_numbers(settings)
        numbers = {
            key: float(settings[key])
            for key in BOUNDS.keys() - set(WHOLE)
            if settings[key] is not None
        }
        return cls(**nested({**settings, **numbers}), name=name)

    def changed(self, settings: Mapping[str, Any]) -> Objective:
        """This objective with some settings changed, by key.

        Raises:
            UserError: see the class.
        """
        return self._of({**self.settings, **settings}, self.name)

    def with_limit(self, limit: int) -> Objective:
        """This objective with ``fixed_length`` set to ``limit`` tokens, if needed and unset."""
        if AGGREGATIONS[self.aggregation].by_length and self.fixed_length is None:
            return dataclasses.replace(self, fixed_length=limit)
        return self

    def at_entropy(self, coefficient: float, entropy: float) -> Objective:
        """This objective as it is in a policy step: an entropy bonus with a target is in force or
        not, see :mod:`lydite.objective.entropy`.

        ``coefficient`` is that of the step (at first ``entropy_bonus.coefficient``), ``entropy``
        the mean of the tokens that it sampled, in nats.
        """
        bonus = self.entropy_bonus
        if bonus.target is None:
            return self
        size = in_force(bonus, coefficient, entropy)
        return dataclasses.replace(self, entropy_bonus=dataclasses.replace(bonus, coefficient=size))

    def next_coefficient(self, coefficient: float, entropy: float) -> float:
        """The coefficient of the next policy step, given those of :meth:`at_entropy`."""
        return following(self.entropy_bonus, coefficient, entropy)

    def solved(self, right: Bool[Tensor, "P G"]) -> Bool[Tensor, " P"]:
        """``[P]``: the prompts that ``group_filter.retire_at`` says are to be drawn no more.

        ``right`` is False too where it is not known whether a completion is.
        """
        return solved(right, self.group_filter.retire_at)

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
        if not FILTERS[self.group_filter.kind].drops:
            return torch.ones(rewards.shape[0], dtype=torch.bool, device=rewards.device)
        return informative(rewards)

    def advantages(
        self,
        rewards: Float[Tensor, "P G"] | Float[Tensor, "P G R"],
        lengths: Int[Tensor, "P G"] | None = None,
        weights: Sequence[float] | None = None,
    ) -> Float[Tensor, "P G"]:
        """Advantages of rewards; NaN marks an excluded completion, whose advantage is 0.

        A third dimension holds the parts of a reward, weighed by ``weights`` (1 each);
        ``lengths`` are in tokens. A group with nothing to compare (equal rewards, one survivor,
        none) gets exactly 0. An excluded completion must also leave the loss mask: see
        :meth:`keep`. With a critic this is the reward of each, for :meth:`token_advantages`.

        Raises:
            UserError: the baseline weighs by length, and lengths are missing.
        """
        baseline = BASELINES[self.baseline]
        if baseline.needs_lengths and lengths is None:
            raise UserError(
                f"objective.baseline: {self.baseline} needs completion lengths; pass them or use "
                "baseline: group_mean"
            )
        parts = rewards if rewards.dim() == 3 else rewards[:, :, None]
        weighed = parts.new_ones(parts.shape[2]) if weights is None else parts.new_tensor(weights)
        bessel = STDS[self.std]
        rule = Rule(self.pass_k, bessel, self.std_eps)
        return scaled_advantages(
            CREDITS[self.credit].value(parts, weighed, rule),
            baseline,
            SCALES[self.scale],
            bessel,
            self.std_eps,
            lengths,
        )

    def token_advantages(
        self,
        *,
        rewards: Float[Tensor, " B"],
        values: Float[Tensor, "B T"],
        mask: Shaped[Tensor, "B T"],
        old: Float[Tensor, "B T"] | None = None,
        reference: Float[Tensor, "B T"] | None = None,
    ) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
        """Advantages of every token of a **whole** rollout, and the returns that the critic learns.

        ``rewards`` are those of :meth:`advantages`, ``values`` the critic's before each token;
        ``old`` and ``reference`` log-probs are for a KL in the reward. Both results are 0 outside
        the mask and without gradient. Computed in float64, returned in the values' type.

        Raises:
            UserError: a KL in the reward, and its log-probs are missing.
        """
        return credit_tokens(self, rewards, values, mask.bool(), old, reference)

    def value_loss(
        self,
        *,
        values: Float[Tensor, "B T"],
        before: Float[Tensor, "B T"],
        returns: Float[Tensor, "B T"],
        mask: Shaped[Tensor, "B T"],
        counts: Counts,
    ) -> tuple[Float[Tensor, ""], Metrics]:
        """The critic's loss of one micro-batch, see :func:`lydite.objective.value.value_loss`."""
        return value_loss(values, before, returns, mask.bool(), counts, self.gae.value_clip)

    def pick(
        self,
        *,
        policy: Float[Tensor, "B T"],
        entropy: Float[Tensor, "B T"],
        advantages: TokenOrSequence,
        mask: Shaped[Tensor, "B T"],
    ) -> Bool[Tensor, "B T"]:
        """``[B, T]``: the tokens that the token filter picks out of the **whole** optimiser step.

        From the weights that the step starts from, without gradient; micro-batches get their rows
        of it as the loss's ``picked``.
        """
        live = mask.bool()
        picked = torch.zeros_like(live)
        chosen = TOKEN_FILTERS[self.token_filter.kind]
        if chosen is None or not live.any():
            return picked
        signal = advantages if advantages.dim() == 2 else advantages[:, None].expand_as(policy)
        # In float64 so that sums do not turn on the order of sequences.
        logprobs, values, entropies = (x.detach()[live].double() for x in (policy, signal, entropy))
        picked[live] = chosen.pick(logprobs, values, entropies, self.token_filter.share)
        return picked

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
        prompt_tokens: Int[Tensor, " B"] | None = None,
        picked: Bool[Tensor, "B T"] | None = None,
    ) -> tuple[Float[Tensor, ""], Metrics]:
        """The loss to minimise of one micro-batch: its share of the loss of the step.

        Log-probs are in nats. ``old=None`` is the first update after sampling: the ratio to it is
        exactly 1. ``mask`` is 1 on the tokens to train on; what lies outside it does not matter,
        even NaN. ``counts`` is of the whole step, so that the losses (and gradients) of its
        micro-batches and ranks **add up** to the step's; so is ``prompt_tokens``, for each sequence
        the tokens in the mask of all sequences of its prompt, and ``picked`` (:meth:`pick`).
        Metrics are per-token means once added up: ``ratio``, ``clip_high`` and ``clip_low`` (shares
        of tokens whose gradient is clipped), ``kl_old`` KL(old‖policy), ``kl_reference``
        KL(policy‖reference), ``kl_behaviour`` KL(behaviour‖old), all three by k3, ``correction``
        (mean weight), ``picked`` (their share), ``entropy``.

        Raises:
            UserError: what the KL, the correction, the ratio, the entropy bonus or the token filter
                needs is missing.
        """
        self._check_given(reference, behaviour, entropy, picked)
        live = mask.bool()
        signal = advantages if advantages.dim() == 2 else advantages[:, None].expand_as(policy)

        def fixed(values: Tensor | None) -> Tensor | None:
            return None if values is None else inside(values, live).detach()

        given = Given(
            live=live,
            policy=inside(policy, live),
            start=inside(policy if old is None else old, live).detach(),
            signal=inside(signal, live, LARGEST_ADVANTAGE),
            behaviour=fixed(behaviour),
            reference=fixed(reference),
            entropy=None if entropy is None else inside(entropy, live),
            picked=picked,
        )
        return total(self, given, counts, prompt_tokens)

    def mean(
        self,
        values: Float[Tensor, "B T"],
        mask: Shaped[Tensor, "B T"],
        counts: Counts,
        prompt_tokens: Int[Tensor, " B"] | None = None,
    ) -> Float[Tensor, ""]:
        """A micro-batch's share of the mean of token values over the whole step, divided as in
        :meth:`loss`: for what a learner adds to it.
        """
        live = mask.bool()
        divided = Divided(live, counts, self.fixed_length, prompt_tokens)
        divisor = AGGREGATIONS[self.aggregation].divisor(divided)
        return (inside(values, live) / divisor).sum()

    def _check_given(
        self,
        reference: Tensor | None,
        behaviour: Tensor | None,
        entropy: Tensor | None,
        picked: Tensor | None,
    ) -> None:
        if self.loss_needs_reference and reference is None:
            raise UserError(
                f"objective.kl: {self.kl.coefficient} needs reference log-probs; "
                "pass them or set kl: 0"
            )
        if self.needs_behaviour and behaviour is None:
            raise UserError(
                f"objective: {self.name} needs behaviour log-probs; pass what the engine returned, "
                "or set correction: none and anchor: old"
            )
        if self.needs_entropy and entropy is None:
            raise UserError(
                f"objective.entropy_bonus: {self.entropy_bonus.coefficient} needs entropies; "
                "pass them or set entropy_bonus: 0"
            )
        if self.picks_tokens and picked is None:
            raise UserError(
                f"objective.token_filter: {self.token_filter.kind} picks tokens of the whole step; "
                "pass what Objective.pick returned or set token_filter: none"
            )
