"""What a step's rollouts look like, as figures for the log: groups, lengths, variety, form.

Plain Python over groups with their verdicts; no torch. Each figure is defined in docs/metrics.md.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev

from lydite.types import Group, Outcome, Verdict

TAGS = 12
"""Tags with figures of their own, at most: those with the most prompts."""

WORDS = 4
"""Words in what counts as a repetition."""

LONGEST_TEXT = 20_000
MOST_TEXTS = 64
"""Characters of a completion, and completions of a step, that are looked at for repetition."""

PASS_RATES = ("0", "1_25", "26_50", "51_75", "76_99", "100")
"""Bands of a prompt's pass rate in percent."""


def rollout_figures(groups: Sequence[Group]) -> dict[str, float]:
    """All figures of a step; those that nothing can be said of are left out."""
    found = {
        **_rates(groups),
        **_lengths(groups),
        **_prompts(groups),
        **_verifying(groups),
        **_variety(groups),
        **_tags(groups),
        **_spreads(groups),
        "repetition": _repetition(groups),
    }
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _decided(group: Group) -> list[bool]:
    """Right or wrong, for each completion that a verdict was reached on."""
    return [v.outcome is Outcome.CORRECT for v in group.verdicts if v.reward is not None]


def _rates(groups: Sequence[Group]) -> dict[str, float]:
    rights = [right for group in groups if (right := _decided(group))]
    rates = [fmean(right) for right in rights]
    if not rates:
        return {}
    bands = Counter(map(band, rates))
    rewards = [v.reward for g in groups for v in g.verdicts if v.reward is not None]
    return {
        "groups_all_right": _mean([rate == 1 for rate in rates]),
        "groups_all_wrong": _mean([rate == 0 for rate in rates]),
        "reward_std": pstdev(rewards),
        **{f"pass_rate_{name}": bands[name] / len(rates) for name in PASS_RATES},
    }


def band(rate: float) -> str:
    """The one of :data:`PASS_RATES` that a pass rate falls into."""
    if rate in (0, 1):
        return PASS_RATES[0] if rate == 0 else PASS_RATES[-1]
    return PASS_RATES[1 + min(3, math.ceil(4 * rate) - 1)]


def _lengths(groups: Sequence[Group]) -> dict[str, float]:
    """Sampled tokens and the share that was cut off, by right and wrong."""
    by: dict[bool, list[tuple[int, bool]]] = {True: [], False: []}
    for group in groups:
        for completion, verdict in zip(group.completions, group.verdicts, strict=True):
            if verdict.reward is not None:
                cut = completion.finish == "length"
                by[verdict.outcome is Outcome.CORRECT].append((completion.sampled, cut))
    every = [length for each in by.values() for length, _ in each]
    found = {"length_p99": percentile(every)}
    for right, name in ((True, "right"), (False, "wrong")):
        lengths = [length for length, _ in by[right]]
        found[f"length_{name}"] = _mean(lengths)
        found[f"length_{name}_p99"] = percentile(lengths)
        found[f"truncated_{name}"] = _mean([cut for _, cut in by[right]])
    return found


def percentile(values: Sequence[float], share: float = 0.99) -> float:
    """The smallest value that this share of them do not pass; NaN for none."""
    ordered = sorted(values)
    return float(ordered[math.ceil(share * len(ordered)) - 1]) if ordered else math.nan


def _prompts(groups: Sequence[Group]) -> dict[str, float]:
    """Tokens of the prompts, each once."""
    lengths = [len(group.completions[0].prompt_ids) for group in groups if group.completions]
    return {
        "prompt_length": _mean(lengths),
        "prompt_length_max": float(max(lengths, default=math.nan)),
    }


def _verifying(groups: Sequence[Group]) -> dict[str, float]:
    """Seconds that a verdict took, where the verifier counts them."""
    seconds = [verdict.seconds for group in groups for verdict in group.verdicts]
    if not any(seconds):
        return {}
    return {"verdict_seconds": _mean(seconds), "verdict_seconds_p99": percentile(seconds)}


def _variety(groups: Sequence[Group]) -> dict[str, float]:
    """Different texts, and different answers as read, for each completion of a group: 1 where all
    differ, ``1/G`` where all are the same.
    """
    several = [group for group in groups if len(group.completions) > 1]
    texts = [len({c.text for c in g.completions}) / len(g.completions) for g in several]
    answers = []
    for group in several:
        read = [v.answer for v in group.verdicts if v.answer is not None]
        if len(read) > 1:
            answers.append(len(set(read)) / len(read))
    return {"distinct_completions": _mean(texts), "distinct_answers": _mean(answers)}


def _tags(groups: Sequence[Group]) -> dict[str, float]:
    """Accuracy and reward of each tag, where there are several."""
    by: dict[str, list[Verdict]] = defaultdict(list)
    for group in groups:
        by[group.problem.tag] += [v for v in group.verdicts if v.reward is not None]
    if len(by) < 2:
        return {}
    often = sorted(by, key=lambda tag: (-len(by[tag]), tag))[:TAGS]
    found = {}
    for tag in often:
        name = tag or "none"
        found[f"accuracy_tag_{name}"] = _mean([v.outcome is Outcome.CORRECT for v in by[tag]])
        found[f"reward_tag_{name}"] = _mean([v.reward or 0.0 for v in by[tag]])
    return found


def _spreads(groups: Sequence[Group]) -> dict[str, float]:
    """The mean standard deviation within groups of each part of a reward, where there are
    several.
    """
    by: dict[str, list[float]] = defaultdict(list)
    for group in groups:
        values: dict[str, list[float]] = defaultdict(list)
        for verdict in group.verdicts:
            for name, part in verdict.parts.items():
                if part is not None:
                    values[name].append(part)
        for name, parts in values.items():
            by[name].append(pstdev(parts))
    if len(by) < 2:
        return {}
    return {f"spread_{name}": fmean(each) for name, each in by.items()}


def _repetition(groups: Sequence[Group]) -> float:
    """Of the first completions of the groups, evenly: all of them would take seconds a step."""
    each = max(1, MOST_TEXTS // max(1, len(groups)))
    texts = [c.text for group in groups for c in group.completions[:each]]
    return _mean([repetition(text) for text in texts[:MOST_TEXTS]])


def repetition(text: str, size: int = WORDS) -> float:
    """The share of runs of ``size`` words that the text has had before: 0 for none, near 1 for a
    loop. A text without spaces is taken by characters.
    """
    cut = text[:LONGEST_TEXT]
    words: Sequence[str] = cut.split()
    if len(words) < 2 * size:
        words, size = cut, 4 * size
    count = len(words) - size + 1
    if count < 2:
        return 0.0
    runs = [tuple(words[i : i + size]) for i in range(count)]
    return 1 - len(set(runs)) / count


def advantage_figures(advantages: Sequence[float]) -> Mapping[str, float]:
    """The spread of what is trained on: deviation, and the largest to either side."""
    known = [value for value in advantages if math.isfinite(value)]
    if not known:
        return {}
    return {
        "advantage_std": pstdev(known),
        "advantage_min": min(known),
        "advantage_max": max(known),
    }


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan
