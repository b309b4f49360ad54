"""Where and how a completion states its answer, and which of that a reward reads.

An attack must look like a right answer in all but its content: a reward that demands a form would
else refuse everything for the form alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lydite.verify.audit.attack import Kind

THOUGHT = "I look at what is given and go through it step by step."
PLACES = {
    "boxed": r"The answer is \boxed{§}.",
    "tag": "<answer>§</answer>",
    "phrase": "The answer is §.",
    "hash": "#### §",
    "bare": "§",
    "block": "```python\n§\n```",
    "sql block": "```sql\n§\n```",
}
_ANSWER = ("boxed", "tag", "phrase", "hash", "bare")
_BY_KIND: dict[str, tuple[str, ...]] = {
    "code": ("block", "bare"),
    "sql": ("sql block", "tag", "bare"),
}
EXPLICIT = ("boxed", "tag", "block", "sql block", "hash")


@dataclass(frozen=True, slots=True)
class Wording:
    """A place for the answer, after a thought or not."""

    place: str
    thinks: bool

    def say(self, answer: str) -> str:
        """A completion that states ``answer``."""
        stated = PLACES[self.place].replace("§", answer)
        return f"<think>\n{THOUGHT}\n</think>\n{stated}" if self.thinks else stated


def wordings(kind: Kind) -> list[Wording]:
    """Every wording that an answer of this kind may have."""
    places = _BY_KIND.get(kind, _ANSWER)
    return [Wording(place, thinks) for thinks in (False, True) for place in places]


@dataclass(frozen=True, slots=True)
class Paid:
    """What a wording was paid on average with right answers and with wrong ones; ``clear`` is
    whether the right answer has the most nearly wherever the two differ.
    """

    wording: Wording
    right: float
    wrong: float
    clear: bool


def paid_of(wording: Wording, rewards: Sequence[float]) -> Paid:
    """From the rewards of a right and a wrong answer to each of some problems, in turn."""
    right, wrong = rewards[::2], rewards[1::2]
    more = sum(one > two for one, two in zip(right, wrong, strict=True))
    less = sum(one < two for one, two in zip(right, wrong, strict=True))
    count = max(1, len(right))
    return Paid(wording, sum(right) / count, sum(wrong) / count, more > 4 * less)


def readable(paid: Sequence[Paid]) -> list[Wording]:
    """The wordings in which right answers are told from wrong ones and paid best.

    Empty when no wording of a right answer is paid more than the same wording of a wrong one.
    """
    able = [each for each in paid if each.clear and each.right > each.wrong]
    if not able:
        return []
    most = max(each.right - each.wrong for each in able)
    apart = [each for each in able if each.right - each.wrong >= 0.9 * most]
    best = max(each.right for each in apart)
    return [each.wording for each in apart if each.right >= best - 0.1 * most]


def named_places(prompt: str) -> list[str]:
    """The places that a prompt asks for the answer in."""
    signs = {"boxed": "\\boxed", "tag": "<answer>", "hash": "####"}
    return [place for place, sign in signs.items() if sign in prompt]
