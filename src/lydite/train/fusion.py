"""Rows that teach one model two modes: thinking, and answering at once (Qwen3, 2505.09388, section
4.3, "Thinking mode fusion").

A row is a worked solution. In thinking mode it is imitated as it is, behind ``/think`` or, for a
share of them, no flag. In the other mode the same prompt has ``/no_think``, and what follows is an
empty block and the answer alone. In rows of several turns an earlier turn has the other flag, and
the last one holds. Where ours departs: a share of the fast rows is taught behind the hard switch,
which the paper leaves to the empty block being the same; and the paper's fast rows are other data,
here they may be (rows without a thought) or the answers of the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pydantic import Field

from lydite.config import Config, UserError
from lydite.model.thinking import CLOSE, EMPTY, OPEN
from lydite.tasks.switch import NO_THINK, THINK, after, flagged, without_flags
from lydite.types import Problem


class FusionConfig(Config):
    """How the two modes are mixed. Shares are kept to the row, and which rows they fall on is
    addressed by the run's seed.
    """

    think_share: float = Field(
        0.5, ge=0, le=1, description="Share of the rows that think; the others answer at once."
    )
    unflagged: float = Field(
        0.3, ge=0, le=1, description="Share of the thinking rows without a flag."
    )
    hard: float = Field(
        0.2,
        ge=0,
        le=1,
        description="Share of the other rows without a flag, asked by `enable_thinking: false`.",
    )
    overruled: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Share of the rows with a flag that have the other one before it.",
    )
    multi_turn: float = Field(
        0.2,
        ge=0,
        le=1,
        description="Share of the rows that come after other rows, as later turns of a "
        "conversation whose turn before has the other flag.",
    )
    carried: float = Field(
        0.3,
        ge=0,
        le=1,
        description="Share of the rows with a flag among those of several turns that have it in "
        "the turn before, where it still holds.",
    )
    max_turns: int = Field(3, ge=2, description="Most turns of a conversation.")


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a row is asked."""

    thinks: bool
    flag: bool
    overruled: bool = False
    turns: int = 1
    carried: bool = False

    @property
    def own(self) -> str:
        return THINK if self.thinks else NO_THINK

    @property
    def other(self) -> str:
        return NO_THINK if self.thinks else THINK


@dataclass(frozen=True, slots=True)
class Fused:
    """Rows to imitate, in the order they came, and what they are in a sentence."""

    problems: tuple[Problem, ...]
    note: str


def fuse(
    problems: Sequence[Problem],
    config: FusionConfig,
    seed: int,
    fits: Callable[[Problem], bool] = lambda problem: True,
) -> Fused:
    """A row for each worked solution. One without a thought can only answer at once.

    A row whose conversation does not pass ``fits`` loses its earliest turns.

    Raises:
        UserError: a solution has no answer behind its thought, or leaves its thought open; or too
            few have a thought.
    """
    parts = [_parts(problem) for problem in problems]
    plans = _plans([bool(thought) for thought, _ in parts], problems, config, seed)
    rows = [_row(number, problems, parts, plans, (seed, fits)) for number in range(len(problems))]
    late = sum(len(r.messages) > len(p.messages) for r, p in zip(rows, problems, strict=True))
    return Fused(tuple(rows), _note(plans, late))


def longest_rows(problem: Problem) -> tuple[Problem, ...]:
    """A solution alone in its longest form in each mode that it can be asked in.

    Raises:
        UserError: as :func:`fuse`.
    """
    parts = _parts(problem)
    modes = (True, False) if parts[0] else (False,)
    return tuple(
        _last_turn(problem, parts, _Plan(thinks, flag=True, overruled=True), alone=True)
        for thinks in modes
    )


def _parts(problem: Problem) -> tuple[str, str]:
    """A worked solution's thinking with its tags, and its answer."""
    worked = problem.worked or ""
    before, closed, answer = worked.rpartition(CLOSE)
    if OPEN in answer or not answer.strip():
        wrong = "leaves its thought open" if OPEN in answer else "has no answer behind its thought"
        raise UserError(
            f"problem {problem.id}: its worked solution {wrong}; leave it out (of what a "
            "rejection_sampling stage keeps, by its filters.format: {thinking: required})"
        )
    thinks = closed and before.replace(OPEN, "").strip()
    return (before + closed if thinks else ""), answer.lstrip()


def _plans(
    can_think: Sequence[bool], problems: Sequence[Problem], config: FusionConfig, seed: int
) -> list[_Plan]:
    """Which rows the shares fall on."""

    def chosen(numbers: Sequence[int], share: float, purpose: str) -> frozenset[int]:
        order = sorted(numbers, key=lambda n: _address(seed, purpose, problems[n].id, n))
        return frozenset(order[: round(share * len(numbers))])

    everyone = range(len(problems))
    able = [n for n in everyone if can_think[n]]
    wanted = round(config.think_share * len(problems))
    if wanted > len(able):
        raise UserError(
            f"think_share: {wanted} of {len(problems)} rows are to think, and {len(able)} have a "
            "thought to imitate; lower it, or add rows that have one"
        )
    thinking = chosen(able, wanted / len(able) if able else 0.0, "think")
    fast = [n for n in everyone if n not in thinking]
    bare = chosen(sorted(thinking), config.unflagged, "unflagged")
    bare |= chosen(fast, config.hard, "hard")
    marked = [n for n in everyone if n not in bare]
    overruled = chosen(marked, config.overruled, "overruled")
    late = chosen(everyone, config.multi_turn, "multi_turn")
    carried = chosen([n for n in marked if n in late], config.carried, "carried")
    more = config.max_turns - 1
    return [
        _Plan(
            thinks=n in thinking,
            flag=n not in bare,
            overruled=n in overruled,
            turns=2 + _address(seed, "turns", problems[n].id, n) % more if n in late else 1,
            carried=n in carried,
        )
        for n in everyone
    ]


def _row(
    number: int,
    problems: Sequence[Problem],
    parts: Sequence[tuple[str, str]],
    plans: Sequence[_Plan],
    given: tuple[int, Callable[[Problem], bool]],
) -> Problem:
    """A row, with as many of its turns as fit."""
    seed, fits = given
    plan, problem = plans[number], problems[number]
    others = [
        _address(seed, f"turn {back}", problem.id, number) % len(problems)
        for back in range(plan.turns - 1)
    ]
    while True:
        row = _last_turn(problem, parts[number], plan, alone=not others)
        for back, other in enumerate(others):
            row = _behind(row, problems[other], parts[other], _earlier_flag(plan, back))
        if not others or fits(row):
            return row
        others.pop()


def _last_turn(problem: Problem, parts: tuple[str, str], plan: _Plan, alone: bool) -> Problem:
    plain = replace(_plain(problem), thinking=None if plan.thinks or plan.flag else False)
    if not plan.thinks:
        plain = replace(plain, worked=EMPTY + parts[1])
    if not plan.flag or (plan.carried and not alone):
        return plain
    return flagged(plain, *([plan.other] if plan.overruled else []), plan.own)


def _plain(problem: Problem) -> Problem:
    """Without flags, and with its last answer alone to learn: those before have no mode."""
    turns = without_flags(problem).messages
    return replace(problem, messages=tuple(replace(m, learned=False) for m in turns))


def _earlier_flag(plan: _Plan, back: int) -> str:
    """The flag of the turn ``back`` before the last but one: they take turns."""
    holds = plan.own if plan.carried or (plan.thinks and not plan.flag) else plan.other
    if back % 2 == 0:
        return holds
    return NO_THINK if holds == THINK else THINK


def _behind(row: Problem, earlier: Problem, parts: tuple[str, str], flag: str) -> Problem:
    """The row with one more turn in front."""
    thought, answer = parts
    said = thought + answer if flag == THINK and thought else EMPTY + answer
    return after(row, flagged(_plain(earlier), flag), said)


def _address(seed: int, purpose: str, problem: str, number: int) -> int:
    digest = hashlib.blake2b(f"{seed}/{purpose}/{problem}/{number}".encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "big")


def _note(plans: Sequence[_Plan], late: int) -> str:
    thinking = [p for p in plans if p.thinks]
    fast = [p for p in plans if not p.thinks]
    return (
        f"{len(plans)} rows: {len(thinking)} think, {sum(not p.flag for p in thinking)} of them "
        f"without a flag; {len(fast)} answer at once, {sum(not p.flag for p in fast)} of them by "
        f"the hard switch; {late} come after other turns"
    )
