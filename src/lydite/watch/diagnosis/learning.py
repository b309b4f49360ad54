"""Rules about the update: loss, learning rate, gradient, entropy, KL, the sampler's mismatch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median
from typing import Any

from lydite.watch.diagnosis.curves import Curves
from lydite.watch.diagnosis.rule import Confidence, Rule, Seen

SMALL_LOSS = 0.02
CEILING = 0.9
"""Accuracy from which falling entropy is what success looks like."""

COLLAPSED = 0.2
"""Share of its first value to which entropy has fallen when it has collapsed."""
EXPLODED = 2.0
LARGE_ENTROPY = 1.0
"""Nats a token."""
MISMATCH = 0.01
"""k3 between sampler and trainer in nats; healthy dense models stay near 1e-3."""
LARGE_MISMATCH = 0.1
FEWEST_EFFECTIVE = 0.3
SPIKE = 10.0
LARGE_KL = 0.1
MOST_GRADIENT = 10.0
LARGE_STEP = 0.01
"""Share of their size that one step may move the weights by and still be small."""
STOOD_STILL = 1e-4
MOVED = 1e-3
"""Sums of ``update_ratio`` over a run: all of it is less than the least that can be seen, or more
than a rate too low would give.
"""
MOST_CLIPPED = 0.3


def accuracy(curves: Curves) -> str:
    """What stands for how often it is right: the share, with a curriculum its estimate over all
    problems, for those that are drawn are chosen; or where a log has none, the reward.
    """
    found = (name for name in ("accuracy_estimate", "accuracy") if curves.has(name))
    return next(found, "reward")


def solved(curves: Curves) -> bool:
    """Whether there is little left to learn: held out, or where nothing is, in training."""
    found = curves.held_out
    # A plain reward function may count every answer as right; what is held out has its own judge.
    return (found[-1].avg if found else curves.end(accuracy(curves))) > CEILING


STALE = (
    "The weights that sample lag up to {lag} updates behind those that are trained, and each moves "
    "them far; what the engine's kernels and dtype add is in the same figure."
)


def _zero_loss(curves: Curves) -> Seen | None:
    loss, gradients = curves.values("loss"), curves.values("grad_norm")
    if not loss or max(map(abs, loss)) > SMALL_LOSS:
        return None
    if gradients and max(gradients) == 0:
        return None  # Another rule's: nothing is trained.
    evidence = [f"loss stays within ±{max(map(abs, loss)):.2g}"]
    if gradients:
        evidence.append(curves.spell("grad_norm"))
    return Seen(tuple(evidence))


def _frozen(curves: Curves) -> Seen | None:
    gradients = curves.values("grad_norm")
    if len(gradients) < 3 or max(gradients) > 0:
        return None
    if curves.has("informative_groups") and curves.mean("informative_groups") == 0:
        return None  # Tied groups explain it.
    return Seen((f"grad_norm is 0 at each of {len(gradients)} steps",))


def _rate_too_high(curves: Curves) -> Seen | None:
    name = accuracy(curves)
    values = curves.values(name)
    if not curves.long_enough or not values:
        return None
    size = max(2, len(values) // 5)
    windows = [sum(values[i : i + size]) / size for i in range(len(values) - size + 1)]
    best = max(windows)
    at = curves.steps[min(windows.index(best) + size, len(curves.steps)) - 1]
    fallen = windows[-1] < 0.5 * best and best - windows[-1] > 0.1
    held = curves.held_out
    lost = held[0].avg - held[-1].avg if held else 0.0
    # Where reward grows meanwhile, it is the reward that asks for something else.
    if lost > 0.1 and held[-1].avg < 0.5 * held[0].avg and not curves.rises("reward"):
        fallen, name, best, at = True, "held-out accuracy", held[0].avg, held[0].step
        windows[-1] = held[-1].avg
    norms = curves.values("grad_norm")
    wild = bool(norms) and max(norms) > MOST_GRADIENT * median(norms) and max(norms) > 1.0
    drift = max(curves.values("kl_old") or [0.0]) > LARGE_KL
    leap = max(curves.values("update_ratio") or [0.0]) > LARGE_STEP
    if not fallen:
        return None
    evidence = [f"{name} was {best:.3g} around step {at} and is {windows[-1]:.3g} at the end"]
    evidence += [curves.spell("grad_norm")] if norms else []
    evidence += [curves.spell(n) for n in ("update_ratio", "entropy") if curves.has(n)]
    return Seen(tuple(evidence), confidence="high" if wild or drift or leap else "medium")


def _rate_too_low(curves: Curves) -> Seen | None:
    name = accuracy(curves)
    if len(curves.steps) < 20 or solved(curves):
        return None
    teaches = not curves.has("informative_groups") or curves.mean("informative_groups") > 0.3
    moved = curves.change(name)
    entropy = curves.change("entropy")
    still = moved.lo <= 0 <= moved.hi and entropy.lo <= 0 <= entropy.hi
    # A move too small to matter is none, whatever its interval.
    still = still and abs(entropy.mean) < 0.1 * max(1e-9, curves.start("entropy"))
    if not teaches or not still:
        return None
    evidence = curves.spell(name), curves.spell("entropy"), curves.spell("lr")
    if not curves.has("update_ratio"):
        return Seen(evidence)
    moved_by = sum(curves.values("update_ratio")) * _steps_a_rollout(curves)
    if moved_by > MOVED:
        return None
    told = f"all steps together moved the weights by {moved_by:.1g} of their size at most"
    return Seen((*evidence, told), confidence="high" if moved_by < STOOD_STILL else None)


def _steps_a_rollout(curves: Curves) -> int:
    """``update_ratio`` is that of the last of them."""
    update = curves.settings.get("update") or {}
    return int(update.get("minibatches", 1)) * int(update.get("epochs", 1))


def _collapse(curves: Curves) -> Seen | None:
    name = accuracy(curves)
    if not curves.long_enough:
        return None
    first, last = curves.start("entropy"), curves.end("entropy")
    if last > COLLAPSED * first or not curves.falls("entropy"):
        return None
    if solved(curves) or curves.late_change(name).lo > 0:
        return None
    evidence = [curves.spell("entropy"), curves.spell(name)]
    if curves.has("distinct_answers"):
        evidence.append(curves.spell("distinct_answers"))
    confidence: Confidence = "high" if last < 0.1 * first else "medium"
    if clips_above(curves):
        return Seen(tuple(evidence), confidence=confidence)
    return Seen(
        (*evidence, curves.spell("clip_high")),
        cause="The policy has made up its mind: the answers of a group are alike, so hardly any "
        "difference in reward is left to learn from. No token reaches the clip bound, so that is "
        "not what holds rare good tokens down.",
        remedy="Hold back the tokens that drive entropy down, or pay for entropy",
        overrides=("objective=+clip_cov", "objective=+entropy_bonus"),
        confidence=confidence,
    )


def clips_above(curves: Curves) -> bool:
    """Whether the upper clip bound holds any token, as far as is known: with one update a rollout
    every ratio is 1, and a wider bound changes nothing.
    """
    return max(curves.values("clip_high") or [1.0]) > 0


def _explosion(curves: Curves) -> Seen | None:
    first, last = curves.start("entropy"), curves.end("entropy")
    if not curves.rises("entropy") or last < EXPLODED * first or last < LARGE_ENTROPY:
        return None
    if curves.late_change(accuracy(curves)).lo > 0:
        return None
    bonus = (_objective(curves).get("entropy_bonus") or {}).get("coefficient", 0)
    return Seen(
        (curves.spell("entropy"), curves.spell(accuracy(curves))),
        overrides=("objective.entropy_bonus.coefficient=*0.1",) if bonus else None,
        confidence="high" if bonus else None,
    )


def _objective(curves: Curves) -> Mapping[str, Any]:
    """The objective's settings where the recipe has them one by one."""
    found = curves.settings.get("objective")
    return found if isinstance(found, dict) else {}


def _kl_spike(curves: Curves) -> Seen | None:
    for name in ("kl_reference", "kl_old"):
        values = curves.values(name)
        if len(values) < 4:
            continue
        high, usual = max(values), median(values)
        if high > LARGE_KL and high > SPIKE * max(usual, 1e-6):
            at = curves.steps[list(curves.metrics[name]).index(high)]
            return Seen((f"{name} {high:.3g} at step {at}, {usual:.3g} as a rule",))
    return None


def _mismatch(curves: Curves) -> Seen | None:
    gap = curves.end("kl_behaviour")
    effective = curves.end("mismatch_ess") if curves.has("mismatch_ess") else 1.0
    if gap < MISMATCH and effective > FEWEST_EFFECTIVE:
        return None
    evidence = [curves.spell("kl_behaviour")]
    evidence += [curves.spell("mismatch_ess")] if curves.has("mismatch_ess") else []
    bad = gap > LARGE_MISMATCH or effective < FEWEST_EFFECTIVE
    confidence: Confidence = "high" if bad else "medium"
    lag = curves.settings.get("staleness") or 0
    cause = STALE.format(lag=lag) if lag else ""
    if not curves.has("correction"):
        return Seen(tuple(evidence), cause=cause, confidence=confidence)
    return Seen(
        (*evidence, curves.spell("correction")),
        cause=cause,
        remedy="A correction is on already: it bounds the harm and leaves the cause. "
        + (
            "Sample with newer weights, or drop what is far off instead of weighing it less"
            if lag
            else "Check that the engine has the newest weights, the same dtype and temperature; "
            "until then drop what is far off instead of weighing it less"
        ),
        overrides=(*(["staleness=*0.5"] if lag else []), "objective=+icepop"),
        confidence=confidence,
    )


def _clipped(curves: Curves) -> Seen | None:
    share = curves.end("clip_low") + curves.end("clip_high")
    if math.isnan(share) or share < MOST_CLIPPED:
        return None
    return Seen((curves.spell("clip_low"), curves.spell("clip_high")))


RULES = (
    Rule(
        name="loss_near_zero",
        severity="note",
        symptom="The loss stays near 0.",
        cause="That is normal: with one update a rollout the ratio is exactly 1 and a group's "
        "advantages sum to 0, so the loss is about 0 while its gradient is not. Reward, held-out "
        "accuracy and grad_norm tell how it goes.",
        remedy="Nothing to mend",
        look=_zero_loss,
        needs=("loss",),
        confidence="high",
        source="2402.03300, eq. 3",
    ),
    Rule(
        name="nothing_trained",
        symptom="The gradient is exactly 0 at every step.",
        cause="No parameter is trainable (an adapter that matches no layer, or everything "
        "frozen), or no completion takes part in the loss.",
        remedy="Check which parameters are trained (model.lora.targets), and that completions are "
        "not all masked",
        look=_frozen,
        needs=("grad_norm",),
        confidence="high",
    ),
    Rule(
        name="learning_rate_too_high",
        symptom="It learnt, and then fell apart.",
        cause="Updates larger than the policy can take: typical of a learning rate too high, or "
        "of too many updates on one rollout.",
        remedy="Lower the learning rate, and go on from the checkpoint before the fall",
        look=_rate_too_high,
        override=("optimizer.lr=*0.3",),
        elsewhere="learning_rate × 0.3",
        source="R1-Zero used 3e-6, DAPO 1e-6 at 32B: 2501.12948, 2503.14476",
    ),
    Rule(
        name="learning_rate_too_low",
        symptom="Neither reward nor entropy moves, though the groups could teach.",
        cause="The weights hardly change: typical of a learning rate too low for the number of "
        "steps. LoRA wants about ten times that of full training.",
        remedy="Raise the learning rate",
        look=_rate_too_low,
        needs=("entropy",),
        override=("optimizer.lr=*3",),
        elsewhere="learning_rate × 3",
        confidence="low",
    ),
    Rule(
        name="entropy_collapse",
        symptom="Entropy has collapsed, and progress has stopped.",
        cause="The policy has made up its mind: the answers of a group are alike, so hardly any "
        "difference in reward is left to learn from. Symmetric clipping holds rare good tokens "
        "down.",
        remedy="Raise the upper clip bound; if that is not enough, hold back the tokens that "
        "drive entropy down, or take fewer updates from each rollout",
        look=_collapse,
        needs=("entropy",),
        override=("objective=+clip_higher", "objective=+kl_cov"),
        elsewhere="TRL: epsilon_high=0.28; verl: actor.clip_ratio_high=0.28",
        source="DAPO, 2503.14476, §3.1; covariance, 2505.22617",
    ),
    Rule(
        name="entropy_explosion",
        symptom="Entropy grows and accuracy does not.",
        cause="The policy drifts towards noise: an entropy bonus too large, a learning rate too "
        "high, or a reward that pays for nothing that is in the text.",
        remedy="Lower the entropy bonus or the learning rate, and read some rollouts",
        look=_explosion,
        needs=("entropy",),
        override=("optimizer.lr=*0.5",),
        elsewhere="entropy coefficient to 0, learning_rate × 0.5",
    ),
    Rule(
        name="kl_spike",
        symptom="The policy jumped away.",
        cause="One update moved it much further than the others: a batch with extreme "
        "advantages, or a learning rate near its limit.",
        remedy="Lower the learning rate or the gradient's limit; keep a KL term where drift hurts",
        look=_kl_spike,
        override=("optimizer.max_grad_norm=*0.5", "optimizer.lr=*0.5"),
        elsewhere="max_grad_norm × 0.5",
        source="2402.03300",
    ),
    Rule(
        name="sampler_mismatch",
        symptom="What sampled and what is trained give different probabilities.",
        cause="The engine's kernels, dtype or weights differ from the learner's, so training is "
        "off-policy without saying so; left alone it ends in collapse.",
        remedy="Weigh tokens by the ratio of both (and check that the engine has the newest "
        "weights, the same dtype and temperature)",
        look=_mismatch,
        needs=("kl_behaviour",),
        override=("objective=+tis",),
        elsewhere="TRL: vllm_importance_sampling_correction=True; verl: rollout correction TIS",
        source="2510.18855; F. Yao et al. 2025",
    ),
    Rule(
        name="much_clipped",
        symptom="A large share of the tokens is clipped.",
        cause="Later updates on a rollout work on a policy that has left it.",
        remedy="Take fewer updates from each rollout, or use a ratio of whole sequences",
        look=_clipped,
        needs=("clip_low", "clip_high"),
        override=("update.minibatches=1", "objective=gspo"),
        elsewhere="fewer mini-batches or num_iterations",
        confidence="low",
        source="2507.18071",
    ),
)
