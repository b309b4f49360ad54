"""The entropy bonus whose size follows the entropy: Skywork-OR1, arXiv 2505.22312.

    α_k = c_k where H_k ≤ target, 0 elsewhere
    c_{k+1} = c_k + step where H_k < target, c_k − step where H_k > target, within 0 … high

``k`` counts policy steps; ``H_k`` is the mean entropy of a token, in nats, that the step's rollouts
were sampled with. TRL moves the coefficient at every optimiser step and compares with the entropy
of the step before.
"""

from __future__ import annotations

from lydite.objective.settings import EntropyBonus


def in_force(bonus: EntropyBonus, coefficient: float, entropy: float) -> float:
    """``α_k``; without a target the bonus is what it is."""
    if bonus.target is None:
        return bonus.coefficient
    return coefficient if entropy <= bonus.target else 0.0


def following(bonus: EntropyBonus, coefficient: float, entropy: float) -> float:
    """``c_{k+1}``; without a target, or for an entropy that is NaN, ``c_k``."""
    if bonus.target is None:
        return coefficient
    if entropy < bonus.target:
        return min(coefficient + bonus.step, bonus.high)
    return max(coefficient - bonus.step, 0.0) if entropy > bonus.target else coefficient
