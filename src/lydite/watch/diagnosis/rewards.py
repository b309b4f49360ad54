"""Rules about the reward: whether it measures what it should, and whether it can be decided."""

from __future__ import annotations

import math

from lydite.watch.diagnosis.curves import Curves
from lydite.watch.diagnosis.groups import late_samples
from lydite.watch.diagnosis.learning import accuracy, solved
from lydite.watch.diagnosis.rule import Confidence, Rule, Seen
from lydite.watch.events import Evaluated
from lydite.watch.intervals import paired_difference
from lydite.watch.samples import Sample

FORMS = ("format", "tags", "thinking", "language", "length", "repetition")
"""Words in the names of parts that pay for form."""

SATURATED = 0.95
SLOW = 0.3
TIMEOUTS = 0.02
UNDECIDED = 0.01
SHOWN = 3
NEAR = 3
"""Steps to either side of an evaluation whose reward is set against it."""


def _change(before: Evaluated, after: Evaluated) -> tuple[float, float, float]:
    """Held-out change with its interval, in pairs where problems are known."""
    if before.scores and after.scores:
        found = paired_difference(before.scores, after.scores)
        return found.mean, found.lo, found.hi
    return after.avg - before.avg, after.lo - before.hi, after.hi - before.lo


def _gamed(curves: Curves) -> Seen | None:
    """Since held-out accuracy was at its best, reward has not fallen and accuracy has; or from the
    start on, reward has grown and accuracy has not.
    """
    evaluations = curves.held_out
    if len(evaluations) < 2 or not curves.long_enough or solved(curves):
        return None
    last = evaluations[-1]
    best = max(evaluations[:-1], key=lambda e: e.avg)
    fallen, lo, hi = _change(best, last)
    if fallen < 0 and hi < 0 and curves.end("reward") >= _reward_at(curves, best.step):
        return _told(curves, best, (fallen, lo, hi), "high")
    gain = curves.change("reward").mean
    if not curves.rises("reward") or gain < 0.1 * max(abs(curves.start("reward")), 0.5):
        return None
    change, lo, hi = _change(evaluations[0], last)
    if change > 0 and not hi <= 0.5 * gain:
        return None  # It grew, or nobody knows how surely it did not.
    confidence: Confidence = "high" if change <= 0 else "medium"
    return _told(curves, evaluations[0], (change, lo, hi), confidence)


def _reward_at(curves: Curves, step: int) -> float:
    """Mean reward of the steps around one."""
    pairs = zip(curves.steps, curves.metrics["reward"], strict=True)
    near = [value for s, value in pairs if abs(s - step) <= NEAR and math.isfinite(value)]
    return sum(near) / len(near) if near else math.inf


def _told(
    curves: Curves, first: Evaluated, change: tuple[float, float, float], confidence: Confidence
) -> Seen:
    mean, lo, hi = change
    last = curves.held_out[-1]
    if curves.has("accuracy") and curves.end("accuracy") < last.avg:
        confidence = "low"  # What is paid as right is rarer yet than what is right.
    return Seen(
        (
            curves.spell("reward"),
            f"held out ({last.task}): {first.avg:.1%} at step {first.step}, {last.avg:.1%} at "
            f"step {last.step}; change {mean:+.1%}"
            + (f" [{lo:+.1%}, {hi:+.1%}]" if math.isfinite(hi) else ""),
        ),
        confidence=confidence,
        examples=tuple(_well_paid(curves)),
    )


def _well_paid(curves: Curves) -> list[Sample]:
    """The shortest of the best paid rollouts of the last steps, each once: tricks are short."""
    rows = [r for _, rows in late_samples(curves) for r in rows if r.reward is not None]
    if not rows:
        return []
    best = max(row.reward or 0.0 for row in rows)
    paid = {row.completion: row for row in rows if row.reward == best}
    return sorted(paid.values(), key=lambda row: len(row.completion))[:SHOWN]


def _parts(curves: Curves) -> dict[str, str]:
    """The parts of the reward: name → metric."""
    return {
        name.removeprefix("reward_"): name
        for name in curves.metrics
        if name.startswith("reward_") and name not in ("reward_std",) and curves.has(name)
    }


def _only_form(curves: Curves) -> Seen | None:
    parts = _parts(curves)
    forms = [n for n in parts if any(word in n for word in FORMS)]
    others = [n for n in parts if n not in forms]
    full = [n for n in forms if curves.end(parts[n]) > SATURATED]
    if not full or not others:
        return None
    name = accuracy(curves)
    change = curves.change(name)
    if change.lo > 0 or solved(curves):
        return None
    return Seen((*(curves.spell(parts[n]) for n in full), curves.spell(name)))


def _one_part(curves: Curves) -> Seen | None:
    """All of the difference within groups comes from one of several parts."""
    spreads = {
        name.removeprefix("spread_"): curves.end(name)
        for name in curves.metrics
        if name.startswith("spread_") and curves.has(name)
    }
    total = sum(spreads.values())
    if len(spreads) < 2 or total == 0 or not curves.long_enough:
        return None
    top = max(spreads, key=lambda name: spreads[name])
    if spreads[top] < 0.95 * total:
        return None
    others = [name for name in spreads if name != top]
    matters = any(word in top for word in FORMS)
    return Seen(
        tuple(curves.spell(f"spread_{name}") for name in (top, *others)),
        symptom=f"Only {top} tells the answers of a group apart; {', '.join(others)} "
        f"{'does' if len(others) == 1 else 'do'} not.",
        confidence="high" if matters else "low",
    )


def _slow(curves: Curves) -> Seen | None:
    share = curves.end("seconds_verify") / max(1e-9, curves.end("seconds"))
    timeouts = curves.end("outcome_timeout") if curves.has("outcome_timeout") else 0.0
    # Seconds that nobody waits for are no trouble.
    slow = share > SLOW and curves.end("seconds_verify") > 1.0
    if not slow and timeouts < TIMEOUTS:
        return None
    evidence = [f"{share:.0%} of a step goes to verification", curves.spell("seconds_verify")]
    if timeouts:
        evidence.append(curves.spell("outcome_timeout"))
    return Seen(tuple(evidence), confidence="high" if timeouts >= TIMEOUTS else "medium")


def _ungradable(curves: Curves) -> Seen | None:
    names = [n for n in ("outcome_ungradable", "outcome_crashed") if n in curves.metrics]
    late = [curves.end(name) for name in names]
    if max((v for v in late if math.isfinite(v)), default=0.0) < UNDECIDED:
        return None
    rows = [
        r
        for _, rows in late_samples(curves)
        for r in rows
        if r.outcome in ("ungradable", "crashed")
    ]
    return Seen(tuple(curves.spell(name) for name in names), examples=tuple(rows[:SHOWN]))


def _constant(curves: Curves) -> Seen | None:
    if not curves.long_enough or curves.mean("informative_groups") > 0:
        return None
    values = curves.values("reward")
    # Nothing but 0 is what a task too hard or a verifier that reads nothing gives.
    if not values or max(values) - min(values) > 1e-9 or values[-1] == 0:
        return None
    return Seen((f"reward is {values[-1]:.3g} at each of {len(values)} steps",))


RULES = (
    Rule(
        name="verifier_gamed",
        symptom="Reward climbs and held-out accuracy does not.",
        cause="The policy has found what the verifier pays for instead of what it should check: "
        "a match of substrings, a parser that guesses, tests that are too weak. Or it learns the "
        "training problems by heart.",
        remedy="Read the best paid rollouts below, attack the verifier (`lydite audit`), and make "
        "it parse the final answer and compare it exactly; never loosen it",
        look=_gamed,
        needs=("reward",),
        source="docs/reward_hacking.md",
    ),
    Rule(
        name="constant_reward",
        symptom="Every completion earns the same.",
        cause="A reward that pays for taking part has no gradient: all advantages are 0.",
        remedy="Fix the reward: `lydite audit` grades it, `lydite verify` shows what it says",
        look=_constant,
        needs=("reward", "informative_groups"),
        confidence="high",
    ),
    Rule(
        name="only_form_is_learnt",
        symptom="The form is always right; the answers are no better.",
        cause="The reward for form is earned in full and teaches no more, and what is left gives "
        "too little signal.",
        remedy="Lower the weight of form, and take problems of medium difficulty",
        look=_only_form,
    ),
    Rule(
        name="one_part_decides",
        symptom="Advantage comes from one part of the reward only.",
        cause="The other parts are equal within every group: saturated, never reached, or far "
        "smaller in scale.",
        remedy="Standardise each part by itself, or set the weights so that each can matter",
        look=_one_part,
        override=("objective=gdpo",),
        elsewhere="TRL: multi_objective_aggregation=normalize_then_sum",
        source="GDPO, 2601.05242",
    ),
    Rule(
        name="verifier_slow",
        symptom="The verifier is slow, or runs out of time.",
        cause="Verification takes a large part of each step, or its limit is too short for this "
        "machine; what runs out of time is scored as failed.",
        remedy="Give it more workers, or a longer limit; find the slow problems in samples/",
        look=_slow,
        needs=("seconds_verify", "seconds"),
        override=("/verifier.limits.workers=*2", "/verifier.limits.seconds=*2"),
    ),
    Rule(
        name="ungradable",
        symptom="Verdicts cannot be decided.",
        cause="References that cannot be read, a sandbox that fails, a judge that does not "
        "answer: our side, never the model's. They leave the loss, so it learns from fewer and "
        "other answers than it sampled.",
        remedy="Look at the details below and mend the references or the sandbox (`lydite doctor`)",
        look=_ungradable,
        confidence="high",
    ),
)
