"""Advantages of single tokens, from what a critic expects before each: generalised advantage
estimation, arXiv 1506.02438, as PPO for RLHF uses it (arXiv 2203.02155).

``V_t`` is the critic's value of the prompt and the tokens before ``t``: what it expects the rest to
earn. Tokens outside the mask were not chosen by the policy: they earn nothing and are stepped over,
so that a token's next state is the one before the next token in the mask. The end of a completion
is worth 0, one that was cut off included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lydite.config import UserError
from lydite.objective.advantage import SCALES, STDS
from lydite.objective.kl import ESTIMATORS, log_ratio
from lydite.objective.loss import inside

if TYPE_CHECKING:
    from lydite.objective.objective import Objective


def token_rewards(
    rewards: Float[Tensor, " B"],
    mask: Bool[Tensor, "B T"],
    penalty: Float[Tensor, "B T"] | None = None,
) -> Float[Tensor, "B T"]:
    """A completion's reward on its last token in the mask, less ``penalty`` on each; 0 outside."""
    place = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
    last = place.masked_fill(~mask, -1).amax(dim=1, keepdim=True) if mask.shape[1] else place
    found = rewards[:, None].expand(mask.shape).masked_fill(~mask | (place != last), 0.0)
    return found if penalty is None else found - penalty.masked_fill(~mask, 0.0)


def gae(
    values: Float[Tensor, "B T"],
    rewards: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    gamma: float,
    lam: float,
) -> Float[Tensor, "B T"]:
    """``A_t = Σ_k (γλ)^k δ_{t+k}``, ``δ_t = r_t + γ·V_{t+1} − V_t``; 0 outside the mask.

    Equation 16 of arXiv 1506.02438. ``A_t + V_t`` is what the critic learns. λ = 1 is the return
    less the value: unbiased whatever the critic says; λ = 0 trusts it from the next token on.
    """
    held = values.masked_fill(~mask, 0.0)
    earned = rewards.masked_fill(~mask, 0.0)
    following = ahead = held.new_zeros(held.shape[0])
    found = torch.zeros_like(held)
    for t in range(held.shape[1] - 1, -1, -1):
        here = mask[:, t]
        delta = earned[:, t] + gamma * following - held[:, t]
        ahead = torch.where(here, delta + gamma * lam * ahead, ahead)
        following = torch.where(here, held[:, t], following)
        found[:, t] = ahead.masked_fill(~here, 0.0)
    return found


def whitened(
    advantages: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], bessel: int, std_eps: float
) -> Float[Tensor, "B T"]:
    """``(A − mean) / (std + std_eps)`` over all tokens in the mask; 0 where they are all alike.

    As in PPO for RLHF, arXiv 2403.17031, over the whole rollout and before it is cut.
    """
    count = mask.sum().clamp(min=1)
    centred = torch.where(mask, advantages - advantages[mask].sum() / count, 0.0)
    spread = (centred.square().sum() / (count - bessel).clamp(min=1)).sqrt()
    # Alike up to rounding is alike.
    largest = advantages.masked_fill(~mask, 0.0).abs().amax() if mask.numel() else spread
    flat = spread <= 16 * torch.finfo(advantages.dtype).eps * largest
    return torch.zeros_like(centred) if flat else centred / (spread + std_eps)


def credit_tokens(
    objective: Objective,
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    old: Tensor | None,
    reference: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Advantages and returns: see :meth:`Objective.token_advantages`."""
    before = values.detach().masked_fill(~mask, 0.0).double()
    earned = token_rewards(
        rewards.detach().double(), mask, _kl_penalty(objective, mask, old, reference)
    )
    found = gae(before, earned, mask, objective.gae.gamma, objective.gae.lam)
    returns = found + before
    if SCALES[objective.scale].of_tokens:
        found = whitened(found, mask, STDS[objective.std], objective.std_eps)
    limit = torch.finfo(values.dtype).max
    found, returns = (x.clamp(-limit, limit).to(values.dtype) for x in (found, returns))
    return found, returns


def _kl_penalty(
    objective: Objective, mask: Tensor, old: Tensor | None, reference: Tensor | None
) -> Tensor | None:
    if not objective.kl_in_token_rewards:
        return None
    kl = objective.kl
    if old is None or reference is None:
        raise UserError(
            f"objective.kl: {kl.coefficient} in the reward needs old and reference log-probs; "
            "pass them or set kl: 0"
        )
    drift = log_ratio(inside(reference, mask), inside(old, mask)).detach().double()
    return kl.coefficient * ESTIMATORS[kl.estimator].value(drift)
