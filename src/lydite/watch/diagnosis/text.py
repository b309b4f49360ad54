"""Rules about what is written: length, truncation, repetition, language, form."""

from __future__ import annotations

import math

from lydite.watch.diagnosis.curves import Curves
from lydite.watch.diagnosis.groups import late_samples
from lydite.watch.diagnosis.learning import accuracy, clips_above, solved
from lydite.watch.diagnosis.rule import Rule, Seen

TRUNCATED, BADLY_TRUNCATED = 0.05, 0.10
SHORTER, LONGER = 0.7, 1.5
FOREIGN = 0.1
REPEATED = 0.3
WELL_FORMED = 0.5
DISTINCT = 0.25


def _improves(curves: Curves) -> bool:
    """Whether held-out accuracy grew over its second half; of a log without, training accuracy."""
    found = curves.held_out
    if len(found) >= 3:
        middle = found[len(found) // 2]
        return found[-1].avg > middle.avg + 0.01
    return curves.late_change(accuracy(curves)).lo > 0


def _shortening(curves: Curves) -> Seen | None:
    if not curves.falls("length") or curves.end("length") > SHORTER * curves.start("length"):
        return None
    if _improves(curves) or solved(curves):
        return None
    evidence = [curves.spell("length"), curves.spell(accuracy(curves))]
    evidence += [_held_out(curves)] if curves.held_out else []
    return Seen(tuple(evidence))


def _wrong_lengthen(curves: Curves) -> Seen | None:
    wrong, right = curves.end("length_wrong"), curves.end("length_right")
    if not curves.rises("length_wrong") or wrong < LONGER * curves.start("length_wrong"):
        return None
    if math.isfinite(right) and wrong < 1.2 * right:
        return None
    return Seen((curves.spell("length_wrong"), curves.spell("length_right")))


def _truncated(curves: Curves) -> Seen | None:
    share = curves.end("truncated")
    if share < TRUNCATED:
        return None
    evidence = [curves.spell("truncated")]
    if curves.has("length"):
        evidence.append(curves.spell("length"))
    bad = share >= BADLY_TRUNCATED
    return Seen(
        tuple(evidence),
        symptom=f"{share:.0%} of the completions are cut off at the limit"
        + (": enough to make training unstable." if bad else "."),
        confidence="high" if bad else "medium",
    )


def _repetition(curves: Curves) -> Seen | None:
    if curves.end("repetition") < REPEATED or not curves.rises("repetition"):
        return None
    return Seen((curves.spell("repetition"), curves.spell("length")))


def _mixing(curves: Curves) -> Seen | None:
    share = curves.end("language_share")
    if share > 1 - FOREIGN or not (curves.falls("language_share") or share < 1 - 2 * FOREIGN):
        return None
    return Seen((curves.spell("language_share"),))


def _messy(curves: Curves) -> Seen | None:
    share = curves.end("well_formed")
    if share > WELL_FORMED or curves.change("well_formed").lo > 0.1:
        return None
    return Seen((curves.spell("well_formed"), curves.spell(accuracy(curves))))


def _identical(curves: Curves) -> Seen | None:
    name = accuracy(curves)
    if not curves.long_enough or solved(curves):
        return None
    moves = curves.late_change(name)
    if curves.end("distinct_completions") > DISTINCT or moves.lo > 0:
        return None
    examples = [row for _, rows in late_samples(curves) for row in rows][:2]
    evidence = curves.spell("distinct_completions"), curves.spell(name)
    if clips_above(curves):
        return Seen(evidence, examples=tuple(examples))
    return Seen(
        evidence,
        remedy="Raise the temperature, or take new prompts",
        overrides=("sampling.temperature=*1.2",),
        examples=tuple(examples),
    )


def _overlong_prompts(curves: Curves) -> Seen | None:
    share = curves.end("prompts_cut")
    if math.isnan(share) or share == 0:
        return None
    return Seen((curves.spell("prompts_cut"),))


def _held_out(curves: Curves) -> str:
    first, last = curves.held_out[0], curves.held_out[-1]
    return (
        f"held out ({last.task}): {first.avg:.1%} at step {first.step}, {last.avg:.1%} at step "
        f"{last.step}"
    )


RULES = (
    Rule(
        name="answers_shorten",
        symptom="Answers get shorter while held-out accuracy does not grow.",
        cause="Each answer's loss is averaged over its own length, so short right answers are "
        "pushed hardest: the model learns to be brief instead of right. Or the reward pays for "
        "brevity.",
        remedy="Give every token the same weight, or take the length and deviation out of the "
        "normalisation",
        look=_shortening,
        needs=("length",),
        override=("objective=dr_grpo", "objective=+token_mean"),
        elsewhere="TRL: loss_type=dr_grpo, scale_rewards=none",
        source="Dr. GRPO, 2503.20783, §3.1",
    ),
    Rule(
        name="wrong_answers_lengthen",
        symptom="Wrong answers grow long.",
        cause="A long wrong answer's penalty is spread over its tokens, so each of them is hardly "
        "held back: rambling costs nothing.",
        remedy="Divide by a fixed length or by all tokens of the step; take something off for "
        "answers near the limit",
        look=_wrong_lengthen,
        needs=("length_wrong",),
        override=("objective=dr_grpo", "objective=+soft_overlong"),
        elsewhere="TRL: loss_type=dr_grpo",
        source="2503.20783, §3.1; 2503.14476, §3.4",
    ),
    Rule(
        name="truncation",
        symptom="Many completions are cut off at the limit.",
        cause="What is cut off is scored as wrong though it may have been right: noise in the "
        "reward, and pressure to be brief.",
        remedy="Raise the limit, or leave what is cut off out of the loss, or take it off "
        "gradually",
        look=_truncated,
        needs=("truncated",),
        override=(
            "sampling.max_tokens=*2",
            "objective=+mask_truncated",
            "objective=+soft_overlong",
        ),
        elsewhere="TRL: max_completion_length × 2 or mask_truncated_completions=True",
        source="ScaleRL, 2510.13786: 10-15% unsettles training",
    ),
    Rule(
        name="repetition",
        symptom="The text repeats itself more and more.",
        cause="Loops are a cheap way to fill the length that the reward or the loss pays for; "
        "often the last sign before collapse.",
        remedy="Add a repetition penalty to the verifier, drop looping rollouts, lower the "
        "learning rate",
        look=_repetition,
        needs=("repetition", "length"),
        override=("optimizer.lr=*0.5",),
        source="MiniMax-M1, 2506.13585",
    ),
    Rule(
        name="language_mixing",
        symptom="The thinking mixes languages.",
        cause="Nothing pays for staying in one language, and pure RL is indifferent to form.",
        remedy="Add a language reward (kind: language), or a cold start on readable traces",
        look=_mixing,
        needs=("language_share",),
        source="R1, 2501.12948, §2.3",
    ),
    Rule(
        name="messy_output",
        symptom="Reasoning comes, but few answers have the form that was asked for.",
        cause="Pure RL on a base model optimises what is right, not how it is written.",
        remedy="Start from a short SFT on well-formed examples (a cold start), and let the "
        "verifier ask for the form (thinking: required)",
        look=_messy,
        needs=("well_formed",),
        source="R1, 2501.12948, §2.3",
    ),
    Rule(
        name="identical_samples",
        symptom="Progress has stopped and the answers of a group are nearly the same text.",
        cause="Exploration has ended: all answers of a group earn the same, so nothing can be "
        "learnt from their differences.",
        remedy="Raise the upper clip bound or the temperature, or take new prompts",
        look=_identical,
        needs=("distinct_completions",),
        override=("objective=+clip_higher", "sampling.temperature=*1.2"),
        elsewhere="TRL: epsilon_high=0.28, temperature",
        confidence="high",
        source="2503.14476, §3.1",
    ),
    Rule(
        name="overlong_prompts",
        symptom="Some prompts are cut to fit.",
        cause="A prompt that lost its end asks another question, and its answers are scored as if "
        "it had not.",
        remedy="Leave long prompts out of the task, or raise the context",
        look=_overlong_prompts,
        needs=("prompts_cut",),
        override=("/model.context=*2",),
        confidence="high",
    ),
)
