"""Rules about groups: whether prompts can teach anything, and which do."""

from __future__ import annotations

from collections import defaultdict

from lydite.watch.diagnosis.curves import Curves
from lydite.watch.diagnosis.learning import solved
from lydite.watch.diagnosis.rule import Rule, Seen

MOST_TIED = 0.5
"""Share of groups without a difference in reward above which a step mostly wastes its sampling."""

DOMINANT = 0.7
"""Share of the whole advantage that a tenth of the prompts may carry."""

LATE_STEPS = 4
"""Steps whose rollouts are looked at where texts are needed."""


def late_samples(curves: Curves) -> list[tuple[int, list]]:  # type: ignore[type-arg]
    """Rollouts of the last steps, those that lie on disk."""
    found = ((step, list(curves.samples(step))) for step in curves.steps[-LATE_STEPS:])
    return [(step, rows) for step, rows in found if rows]


def _tied(curves: Curves) -> Seen | None:
    share = curves.end("informative_groups")
    if share >= 1 - MOST_TIED:
        return None
    evidence = [curves.spell("informative_groups")]
    right, wrong = curves.end("groups_all_right"), curves.end("groups_all_wrong")
    accuracy = curves.end("accuracy") if curves.has("accuracy") else curves.end("reward")
    if curves.has("groups_all_right", "groups_all_wrong"):
        evidence += [curves.spell("groups_all_right"), curves.spell("groups_all_wrong")]
    else:
        evidence.append(curves.spell("accuracy" if curves.has("accuracy") else "reward"))
        right, wrong = accuracy, 1 - accuracy
    if _broken(curves, accuracy):
        return Seen(
            (*evidence, curves.spell("accuracy")),
            symptom="Nearly every group is scored alike, and not one answer is right.",
            cause="No answer was right at any step and those that were checked could mostly not "
            "be read, so the verifier, its answer format or the references are the likelier "
            "fault, not the model.",
            remedy="Look at what it says of a few answers (`lydite verify`), attack it (`lydite "
            "audit`), and state in the prompt the form that it reads",
            overrides=(),
            confidence="medium",
        )
    if right > wrong:
        if curves.start("informative_groups") >= 1 - MOST_TIED:
            return None  # It has learnt them: what is left of the work is little, as it should be.
        return Seen(
            tuple(evidence),
            symptom="Most groups are all right: the prompts are too easy to teach.",
            cause="A group whose answers are all right has no difference in reward, so every "
            "advantage is 0: sampling it was wasted.",
            remedy="Take harder prompts (`lydite probe` measures which), retire solved ones, or "
            "draw until enough groups teach",
            overrides=("objective=+dynamic_sampling", "objective=+retire_solved"),
            confidence="high",
        )
    return Seen(
        tuple(evidence),
        symptom="Most groups are all wrong: the prompts are too hard to teach.",
        cause="A group whose answers are all wrong has no difference in reward, so every "
        "advantage is 0. RL sharpens what the model now and then gets right; it adds no skill.",
        remedy="Take easier prompts (`lydite probe` measures which), more completions a prompt, "
        "or teach the skill first by SFT on worked examples",
        overrides=("group_size=*2", "objective=+dynamic_sampling"),
        confidence="high",
    )


def _broken(curves: Curves, accuracy: float) -> bool:
    """Whether nothing was ever right, and most of it could not be read."""
    unread = curves.end("outcome_unparseable") if curves.has("outcome_unparseable") else 0.0
    never = max(curves.values("accuracy") or [accuracy]) == 0
    return never and unread > 0.5


def _dominant(curves: Curves) -> Seen | None:
    """A few of the prompts that were drawn carry most of the advantage."""
    rows = [row for _, step in late_samples(curves) for row in step]
    weight: dict[str, float] = defaultdict(float)
    for row in rows:
        weight[row.problem_id] += abs(row.advantage or 0.0)
    total = sum(weight.values())
    few = len(weight) // 10
    if few < 2 or total == 0 or solved(curves):
        return None
    top = sorted(weight, key=lambda name: -weight[name])[:few]
    part = sum(weight[name] for name in top) / total
    if part < DOMINANT:
        return None
    return Seen(
        (
            f"{few} of {len(weight)} prompts carry {part:.0%} of the advantage in the last "
            f"{LATE_STEPS} steps: {', '.join(top[:3])}",
        ),
    )


TIED = Rule(
    name="tied_groups",
    symptom="Most groups have no difference in reward.",
    cause="A group without a difference in reward has no advantage and teaches nothing.",
    remedy="Choose prompts of medium difficulty",
    look=lambda curves: _tied(curves) if curves.long_enough else None,
    needs=("informative_groups",),
    elsewhere="verl: algorithm.filter_groups.enable=true; TRL has no refill: filter the data",
    source="DAPO, 2503.14476, §3.2",
)
DOMINANT_PROMPTS = Rule(
    name="dominant_prompts",
    symptom="A few prompts carry most of the advantage.",
    cause="They are drawn more often than others, or are the only ones of medium difficulty: the "
    "policy is fitted to them.",
    remedy="Add prompts of medium difficulty, or keep solved ones away",
    look=_dominant,
    override=("objective=+retire_solved",),
    confidence="medium",
)

RULES = (TIED, DOMINANT_PROMPTS)
