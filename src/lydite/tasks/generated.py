"""Small reasoning problems that are made, not downloaded: the quickstart's.

Every training problem is a function of (seed, index). A prompt is held out or not by a hash of its
text: what is held out is trained on in no stage and by no seed.

A kind also writes *worked* solutions of chosen quality. ``clean`` is right at every step, ``slip``
gets one step wrong and follows it faithfully to a wrong answer, ``terse`` guesses near the answer
and works nothing out. A model trained on the mixture knows all three; which of them pays is for
reinforcement learning to find out.
"""

from __future__ import annotations

import hashlib
import math
import random
from bisect import bisect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from lydite.types import Message, Problem

Split = Literal["train", "heldout"]
Style = Literal["clean", "slip", "terse"]
Write = Callable[[int], int]

HELD_OUT_PERCENT = 20
ATTEMPTS = 10_000
GUESS_ERRORS = (-2, -1, 0, 1, 2)
LETTERS = "ABCDEF"
TAGGED = "<think>{steps}</think><answer>{answer}</answer>"
LOOSE = (
    "{steps} so {answer}",
    "<think>{steps}</think>{answer}",
    "{steps}<answer>{answer}</answer>",
)
STYLES: tuple[Style, ...] = ("clean", "slip", "terse")
SPECIAL_TOKENS = (
    "<pad>", "<bos>", "<eos>", "<unk>", "<system>", "<user>", "<assistant>",
    "<think>", "</think>", "<answer>", "</answer>",
)  # fmt: skip
WORDS = ("add ", "sum ", "count ", " in ", "guess", " so ")
SPOKEN = (("first ", " then "), ("先 ", " 再 "))
"""What opens a solution and joins its steps where these are spoken: in English, in Chinese."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One family of problems.

    ``draw`` makes a question. ``solve`` returns the steps of a solution and the answer; it passes
    each value that it works out through ``write`` and goes on from what comes back, so that a wrong
    one is carried to the end.
    """

    name: str
    about: str
    draw: Callable[[random.Random], str]
    solve: Callable[[str, Write], tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Mixture:
    """A weight for each style of worked solution, and whether all of them are properly tagged.

    ``foreign`` is the share of connecting words that are Chinese, the others being English; with
    ``None`` signs connect the steps, and there are no such words.
    """

    styles: Mapping[str, float]
    tagged: bool = True
    foreign: float | None = None


BASE = Mixture({"clean": 0.75, "slip": 0.10, "terse": 0.15}, tagged=False)
COLD_START = Mixture({"clean": 0.25, "slip": 0.07, "terse": 0.68}, tagged=True)


@dataclass(frozen=True, slots=True)
class Weighted:
    """Names to draw by weight; ``sums`` are the running sums of their weights."""

    names: tuple[str, ...]
    sums: tuple[float, ...]

    def draw(self, rng: random.Random) -> str:
        """A name, from one uniform number; that which ``Random.choices`` draws."""
        return self.names[bisect(self.sums, rng.random() * self.sums[-1], 0, len(self.names) - 1)]


def below(rng: random.Random, count: int) -> int:
    """A whole number from 0 to ``count`` − 1; that which ``Random.randrange`` draws, in a third of
    its time: its checks are most of what a problem costs.
    """
    bits = count.bit_length()
    number = rng.getrandbits(bits)
    while number >= count:
        number = rng.getrandbits(bits)
    return number


def _draw_add(rng: random.Random) -> str:
    return f"add {10 + below(rng, 90)}+{10 + below(rng, 90)}"


def _solve_add(question: str, write: Write) -> tuple[str, int]:
    first, second = question.removeprefix("add ").split("+")
    units = write(int(first[1]) + int(second[1]))
    carry, unit = divmod(units, 10)
    tens = write(int(first[0]) + int(second[0]) + carry)
    carried = f"+{carry}" if carry else ""
    steps = f"{first[1]}+{second[1]}={units};{first[0]}+{second[0]}{carried}={tens}"
    return steps, 10 * tens + unit


def _draw_sum(rng: random.Random) -> str:
    return f"sum {1 + below(rng, 9)},{1 + below(rng, 9)},{1 + below(rng, 9)},{1 + below(rng, 9)}"


def _solve_sum(question: str, write: Write) -> tuple[str, int]:
    first, *rest = map(int, question.removeprefix("sum ").split(","))
    total, steps = first, str(first)
    for number in rest:
        total = write(total + number)
        steps += f"+{number}={total};"
    return steps.removesuffix(";"), total


def _draw_count(rng: random.Random) -> str:
    letter, length = LETTERS[below(rng, len(LETTERS))], 6 + below(rng, 3)
    times = 1 + below(rng, length - 1)
    others = LETTERS.replace(letter, "")
    word = [letter] * times
    word += [others[int(rng.random() * len(others))] for _ in range(length - times)]
    for last in range(length - 1, 0, -1):  # Fisher and Yates
        other = below(rng, last + 1)
        word[last], word[other] = word[other], word[last]
    return f"count {letter} in {''.join(word)}"


def _solve_count(question: str, write: Write) -> tuple[str, int]:
    letter, word = question.removeprefix("count ").split(" in ")
    count, steps = 0, ""
    for each in word:
        count = write(count + (each == letter))
        steps += f"{each}{count}"
    return steps, count


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("add", "add two 2-digit numbers by columns, with carry", _draw_add, _solve_add),
        Kind("sum", "add four digits, keeping a running total", _draw_sum, _solve_sum),
        Kind("count", "count a letter in a word, keeping a tally", _draw_count, _solve_count),
    )
}


def is_held_out(question: str) -> bool:
    """Whether a prompt belongs to the held-out share. Depends on its text alone."""
    digest = hashlib.blake2b(question.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % 100 < HELD_OUT_PERCENT


def generate(
    kinds: Sequence[str] | Mapping[str, float],
    count: int,
    seed: int,
    split: Split,
    mixture: Mixture | None = None,
) -> list[Problem]:
    """``count`` problems of the named kinds, equally often or by weight.

    With a mixture they carry a ``worked`` solution, its style in ``fields``. Held-out prompts are
    distinct. The same arguments give the same problems; a larger ``count`` only adds to them.

    Raises:
        ValueError: an unknown kind, style or split, a weight below 0, or a ``count`` of held-out
            problems that the kind does not have.
    """
    if split not in ("train", "heldout"):
        raise ValueError(f"split: {split!r} is neither 'train' nor 'heldout'")
    weights = weights_of(kinds, KINDS, "kinds")
    styles = None if mixture is None else weights_of(mixture.styles, STYLES, "styles")
    seen: set[str] = set()
    problems = []
    rng = random.Random()
    for index in range(count):
        rng.seed(f"lydite/{split}/{seed}/{index}")
        kind = KINDS[weights.draw(rng)]
        question = _draw_question(kind, split, seen, rng)
        if split == "heldout":
            seen.add(question)
        right = kind.solve(question, _right)
        text, fields = None, {}
        if mixture is not None and styles is not None:
            style = styles.draw(rng)
            steps, answer = _solved(kind, question, right, style, rng)
            said = spoken(steps, mixture.foreign, rng)
            text, fields = laid_out(said, str(answer), rng, mixture.tagged), {"style": style}
        problems.append(
            Problem(
                id=f"{split}-{seed}-{index}",
                question=question,
                messages=(Message("user", question),),
                reference=str(right[1]),
                tag=kind.name,
                worked=text,
                fields=fields,
            )
        )
    return problems


def worked(
    problem: Problem,
    style: str,
    rng: random.Random,
    tagged: bool = True,
    foreign: float | None = None,
) -> str:
    """A solution of the given quality, ``<think>…</think><answer>…</answer>`` or loosely so; for
    ``foreign`` see :class:`Mixture`.
    """
    kind = KINDS[problem.tag]
    right = kind.solve(problem.question, _right)
    steps, answer = _solved(kind, problem.question, right, style, rng)
    return laid_out(spoken(steps, foreign, rng), str(answer), rng, tagged)


def _solved(
    kind: Kind, question: str, right: tuple[str, int], style: str, rng: random.Random
) -> tuple[str, int]:
    """Steps and answer in the given style; ``right`` are the right ones."""
    if style == "terse":
        return "guess", abs(right[1] + GUESS_ERRORS[below(rng, len(GUESS_ERRORS))])
    return kind.solve(question, _slip(kind, question, rng)) if style == "slip" else right


def laid_out(steps: str, answer: str, rng: random.Random, tagged: bool) -> str:
    """Steps and answer with all tags, or with some of them."""
    layout = TAGGED if tagged else LOOSE[below(rng, len(LOOSE))]
    return layout.format(steps=steps, answer=answer)


def spoken(steps: str, foreign: float | None, rng: random.Random) -> str:
    """Steps with words before and between them, each Chinese with probability ``foreign``."""
    if foreign is None:
        return steps
    text = ""
    for number, step in enumerate(steps.split(";")):
        text += SPOKEN[rng.random() < foreign][number > 0] + step
    return text


def check_disjoint(train: Iterable[Problem], heldout: Iterable[Problem]) -> str:
    """Checks that no held-out prompt is trained on or repeated, and says what was compared.

    Raises:
        ValueError: one is, or a prompt is on the wrong side of the hash.
    """
    train_prompts = {problem.question for problem in train}
    heldout_list = [problem.question for problem in heldout]
    heldout_prompts = set(heldout_list)
    shared = train_prompts & heldout_prompts
    if shared:
        raise ValueError(f"{len(shared)} held-out prompts are trained on, such as {min(shared)!r}")
    if len(heldout_prompts) < len(heldout_list):
        repeats = len(heldout_list) - len(heldout_prompts)
        raise ValueError(f"{repeats} held-out prompts are repeated")
    misplaced = {q for q in train_prompts if is_held_out(q)}
    misplaced |= {q for q in heldout_prompts if not is_held_out(q)}
    if misplaced:
        raise ValueError(f"{len(misplaced)} prompts are misplaced, such as {min(misplaced)!r}")
    return (
        f"{len(heldout_prompts)} held-out prompts, all distinct; "
        f"none among the {len(train_prompts)} training prompts"
    )


def vocabulary() -> list[str]:
    """Every token that prompts and solutions need, special ones first: about 40."""
    return [*SPECIAL_TOKENS, *WORDS, *"0123456789+=;,", *LETTERS]


def weights_of(
    chosen: Sequence[str] | Mapping[str, float], known: Collection[str], name: str
) -> Weighted:
    """The names with a weight each, alike where none is given.

    Raises:
        ValueError: an unknown one, or weights without sense.
    """
    weights = dict(chosen) if isinstance(chosen, Mapping) else dict.fromkeys(chosen, 1.0)
    unknown = sorted(set(weights) - set(known))
    if unknown:
        raise ValueError(f"{name}: {unknown[0]!r} is none of {', '.join(known)}")
    sums = tuple(accumulate(weights.values()))
    if not sums or min(weights.values()) < 0 or not 0 < sums[-1] < math.inf:
        raise ValueError(f"{name}: weights must be at least 0, and one of them more: {weights}")
    return Weighted(tuple(weights), sums)


def _draw_question(kind: Kind, split: Split, seen: Collection[str], rng: random.Random) -> str:
    for _ in range(ATTEMPTS):
        question = kind.draw(rng)
        if is_held_out(question) == (split == "heldout") and question not in seen:
            return question
    raise ValueError(f"count: found no new {split} prompt of kind {kind.name!r} after {len(seen)}")


def _right(value: int) -> int:
    return value


def _slip(kind: Kind, question: str, rng: random.Random) -> Write:
    """A ``write`` that gets one step of this question wrong by one."""
    steps = 0

    def count_steps(value: int) -> int:
        nonlocal steps
        steps += 1
        return value

    kind.solve(question, count_steps)
    left = rng.randrange(steps)

    def write(value: int) -> int:
        nonlocal left
        left -= 1
        return abs(value + rng.choice((-1, 1))) if left == -1 else value

    return write
