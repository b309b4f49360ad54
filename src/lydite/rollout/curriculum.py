"""A curriculum: problems are drawn by the chance that a group of theirs has something to compare.

Each problem keeps the right and the decided completions that were seen of it, which count less the
older they are, for the policy has moved on. With a prior they make a Beta distribution of its pass
rate ``p``, and that the chance ``1 − E[p^G] − E[(1−p)^G]`` that a group of ``G`` is neither all
right nor all wrong: large for medium rates, and for rates that little is known of. Problems are
drawn in proportion to it, without replacement within a step.

That groups of medium pass rate teach the most is argued in 2504.03380; 2601.02648 draws problems by
their own success statistics, and tests solved and unsolved ones again from time to time. Here a
share of every step's problems comes from the plain walk through all of them (``explore``), so each
is met again within a known number of steps, and what was seen long ago is forgotten
(``half_life``).
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from pydantic import Field

from lydite.config import Config, UserError
from lydite.rollout.sampler import Cursor, Drawn, Sampler
from lydite.types import Problem

LEAST = 1e-9
"""Chance below which a problem is not thought to fall: every weight is above 0."""

_Count = tuple[float, float, int]
"""Right and decided completions as they counted at a step, and that step."""


class CurriculumConfig(Config):
    """Problems are drawn by the estimated chance that their completions differ in reward, so that
    less is sampled that teaches nothing.
    """

    explore: float = Field(
        0.25,
        gt=0,
        le=1,
        description="Share of the prompts that come from the plain walk through all problems, "
        "whatever is thought of them. N problems are all met within N / (explore × prompts a "
        "step) steps.",
    )
    half_life: float = Field(
        30.0,
        gt=0,
        description="Steps after which what was seen of a problem counts half: the policy changes.",
    )
    power: float = Field(
        1.0,
        ge=0,
        description="Exponent of the chance in a problem's weight. 0: all alike; 2: those in the "
        "middle before all.",
    )
    prior: float = Field(
        1.0,
        gt=0,
        description="Completions that the mean pass rate of all groups counts as, in the estimate "
        "of each problem.",
    )
    pass_rate: str | None = Field(
        None,
        description="Column of the task with a pass rate in 0…1, such as `lydite probe` writes; it "
        "counts as one group seen before the first step.",
    )


def mixed_chance(right: float, wrong: float, size: int) -> float:
    """The chance that ``size`` draws are neither all right nor all wrong, when the pass rate is
    Beta(``right``, ``wrong``) distributed: ``1 − E[p^G] − E[(1−p)^G]``, exactly.
    """
    all_right = all_wrong = 1.0
    for before in range(size):
        total = right + wrong + before
        all_right *= (right + before) / total
        all_wrong *= (wrong + before) / total
    return max(0.0, 1.0 - all_right - all_wrong)


def known_rates(problems: Iterable[Problem], column: str, where: str) -> dict[str, float]:
    """The pass rates in a column, by problem id.

    Raises:
        UserError: a problem has none, or one that is not within 0…1.
    """
    found: dict[str, float] = {}
    for problem in problems:
        value = problem.fields.get(column)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= float(str(value)) <= 1:
            raise UserError(
                f"{where}: {column!r} of problem {problem.id} is {value!r}; give a column of "
                "numbers from 0 to 1, or leave pass_rate out"
            )
        found[problem.id] = float(str(value))
    return found


class Estimates:
    """What is known of each problem's pass rate."""

    def __init__(
        self,
        config: CurriculumConfig,
        size: int,
        known: Mapping[str, float] | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        """``size`` is the completions of a group, ``known`` are pass rates from before the first
        step, ``state`` is of a checkpoint.
        """
        self._config = config
        self._size = max(2, size)
        known = known or {}
        self._seen: dict[str, _Count] = {
            name: (rate * size, float(size), 0) for name, rate in known.items()
        }
        self._all: _Count = (fmean(known.values()) * size, float(size), 0) if known else (0, 0, 0)
        if state is not None:
            self._seen = {name: _count(values) for name, values in state["seen"].items()}
            self._all = _count(state["all"])

    def learn(self, name: str, right: int, decided: int, step: int) -> None:
        """Takes in a group's completions: how many were right of those that could be decided."""
        self._seen[name] = self._added(self._seen.get(name, (0.0, 0.0, step)), right, decided, step)
        self._all = self._added(self._all, right, decided, step)

    def _added(self, count: _Count, right: int, decided: int, step: int) -> _Count:
        before_right, before, _ = self._at(count, step)
        return before_right + right, before + decided, step

    def _at(self, count: _Count, step: int) -> _Count:
        right, decided, then = count
        left = 0.5 ** ((step - then) / self._config.half_life)
        return right * left, decided * left, step

    def beta(self, name: str, step: int) -> tuple[float, float]:
        """The parameters of the distribution of a problem's pass rate at a step."""
        whole_right, whole, _ = self._at(self._all, step)
        # One completion, half right, keeps the mean away from 0 and 1, which nothing would move.
        mean = (whole_right + 0.5) / (whole + 1)
        right, decided, _ = self._at(self._seen.get(name, (0.0, 0.0, step)), step)
        prior = self._config.prior
        return right + prior * mean, decided - right + prior * (1 - mean)

    def rate(self, name: str, step: int) -> float:
        """The mean of that distribution."""
        right, wrong = self.beta(name, step)
        return right / (right + wrong)

    def chances(self, names: Sequence[str], step: int) -> list[float]:
        """The chance of each problem that a group of it has something to compare."""
        unseen = mixed_chance(*self.beta("", step), self._size)
        return [
            mixed_chance(*self.beta(name, step), self._size) if name in self._seen else unseen
            for name in names
        ]

    def state(self) -> dict[str, Any]:
        """As JSON, for a checkpoint; floats survive it to the bit."""
        return {"seen": {name: list(c) for name, c in self._seen.items()}, "all": list(self._all)}


def _count(values: Sequence[float]) -> _Count:
    right, decided, step = values
    return right, decided, int(step)


class CurriculumSampler(Sampler):
    """Draws problems by their chance to teach, and a share of them in their turn.

    What is drawn follows from the seed, the step and what was learned before. Beside the walk, the
    order of the problems plays no part.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        seed: int,
        config: CurriculumConfig,
        size: int,
        cursor: Cursor | None = None,
        retired: Iterable[str] = (),
        state: Mapping[str, Any] | None = None,
    ) -> None:
        """``size`` is the completions of a group; the rest as of :class:`Sampler`, and ``state`` of
        a checkpoint.

        Raises:
            UserError: see :class:`Sampler` and :func:`known_rates`.
        """
        super().__init__(problems, seed, cursor, retired)
        self._config = config
        column = config.pass_rate
        known = known_rates(problems, column, "curriculum.pass_rate") if column else {}
        self._estimates = Estimates(config, size, known, state)
        self._draws: int = 0 if state is None else state["draws"]
        self.begin(0)

    def begin(self, step: int) -> None:
        self._step = step
        self._level = 0
        self._times: Counter[str] = Counter()
        self._expected: list[float] = []
        self._arriving: Iterator[tuple[Problem, float]] = iter(())

    def learn(self, name: str, right: int, decided: int) -> None:
        self._estimates.learn(name, right, decided, self._step)
        self._arriving = iter(())

    def upcoming(self, count: int) -> list[Problem]:
        """None that could be named: they depend on what is being sampled."""
        return []

    def next(self, count: int) -> list[Drawn]:
        """The next ``count`` problems, none where all are retired; in a step, none comes again
        before every other has come.
        """
        if not self.left:
            return []
        drawn: list[Drawn] = []
        due = self._in_turn(self._draws + count) - self._in_turn(self._draws)
        self._draws += count
        while len(drawn) < due:
            drawn.append(self._note(self._turn()))
        while len(drawn) < count:
            drawn.append(self._note(self._weighed()))
        return drawn

    def _in_turn(self, draws: int) -> int:
        return math.floor(draws * self._config.explore)

    def _note(self, problem: Problem) -> Drawn:
        """How often the step had met it tells the noise of its groups apart."""
        self._times[problem.id] += 1
        return Drawn(problem, self._times[problem.id] - 1)

    def _turn(self) -> Problem:
        """The next of the walk; one that the step has met already has had its turn."""
        fewest = self._fewest()
        while True:
            problem = super().next(1)[0].problem
            if self._times[problem.id] == fewest:
                self._expected += self._estimates.chances([problem.id], self._step)
                return problem

    def _fewest(self) -> int:
        """How often the step has met those that it has met least often."""
        if len(self._times) < self.left:
            return 0
        return min(self._times[name] for name in self._ids - self._retired)

    def _weighed(self) -> Problem:
        """The next of those that the step has met least often, by their weights and without
        replacement.
        """
        while True:
            for problem, chance in self._arriving:
                if problem.id not in self._retired and self._times[problem.id] == self._level:
                    self._expected.append(chance)
                    return problem
            self._level = self._fewest()
            self._arriving = self._arrivals(self._level)

    def _arrivals(self, level: int) -> Iterator[tuple[Problem, float]]:
        """Those met so often, with their chances, in the order in which they arrive when each does
        at its own rate (Efraimidis and Spirakis, 2006).
        """
        left = [
            p for p in self._problems
            if p.id not in self._retired and self._times[p.id] == level
        ]  # fmt: skip
        chances = self._estimates.chances([p.id for p in left], self._step)
        arrivals = []
        for place, (problem, chance) in enumerate(zip(left, chances, strict=True)):
            rate = max(chance, LEAST) ** self._config.power
            where = (self._seed, "curriculum", self._step, level, problem.id)
            noise = _noise("\x1f".join(map(str, where)))
            arrivals.append((-math.log1p(-noise) / rate, problem.id, place))
        arrivals.sort()
        return iter([(left[place], chances[place]) for _, _, place in arrivals])

    def figures(self) -> dict[str, float]:
        """``informative_expected``: the mean chance of the problems that the step drew, as it was
        thought when they were drawn; ``accuracy_estimate``: the mean pass rate of all problems.
        """
        rates = [self._estimates.rate(name, self._step) for name in self._ids]
        return {
            **({"informative_expected": fmean(self._expected)} if self._expected else {}),
            "accuracy_estimate": fmean(rates),
        }

    def state(self) -> dict[str, Any]:
        return {**self._estimates.state(), "draws": self._draws}


def _noise(address: str) -> float:
    """Uniform in [0, 1)."""
    digest = hashlib.blake2b(address.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / 2**53
