"""The first half of a step of RL: problems drawn, completions sampled and verified, rewards shaped.

It needs the policy's weights and nothing else of what the second half changes, so it can run ahead
of it (:mod:`lydite.train.ahead`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from lydite.config import UserError
from lydite.objective.objective import Objective
from lydite.rollout.curriculum import CurriculumSampler
from lydite.rollout.sampler import Collected, Cursor, Drawn, Sampler, collect
from lydite.train.answers import sample_and_verify
from lydite.train.clock import Clock
from lydite.train.evaluate import Prompt
from lydite.train.rl_config import RLConfig
from lydite.train.scored import Scored, check_failures, why_idle
from lydite.types import Completion, Engine, Group, Outcome, Problem, Request, Verdict, Verifier

STEPS_APART = 10**9
"""Policy steps between the noise addresses of two RL stages: more than a stage ever takes."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of the stage from step ``start`` (from 0) on: which prompts are drawn, what scores
    the completions, and the weights of that reward's parts.
    """

    start: int
    prompts: Sequence[Prompt]
    verifier: Verifier
    weights: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the walk through a phase's problems stands, and how many of its ``size`` are still
    drawn. ``last``: no phase follows. ``curriculum`` is what one knows of the problems.
    """

    cursor: Cursor
    retired: tuple[str, ...]
    left: int
    size: int
    phase: int = 0
    last: bool = True
    curriculum: Mapping[str, Any] | None = None

    @property
    def finished(self) -> bool:
        """Whether there is nothing more to draw."""
        return self.left == 0 and self.last

    def state(self) -> dict[str, Any]:
        """As JSON, for a checkpoint."""
        return {
            "cursor": asdict(self.cursor),
            "retired": list(self.retired),
            "phase": self.phase,
            **({} if self.curriculum is None else {"curriculum": self.curriculum}),
        }


@dataclass(frozen=True, slots=True)
class Rollout:
    """What a step is trained on. ``before`` is how many problems were still drawn when it began,
    ``place`` where the walk stood when it ended; ``version`` is the policy's that sampled it;
    ``figures`` are what there is to log of how problems were drawn.
    """

    collected: Collected[Scored]
    before: int
    place: Place
    seconds: Mapping[str, float]
    version: int
    figures: Mapping[str, float] = field(default_factory=dict)


class Rollouts(Protocol):
    """Where a trainer gets its rollouts from, in order, one a step."""

    @property
    def place(self) -> Place:
        """Behind the rollout that was taken last."""
        ...

    def take(self, step: int) -> Rollout: ...

    def publish(self, version: int) -> None:
        """The policy has new weights, of this version."""
        ...

    def state_tensors(self) -> dict[str, Tensor]: ...

    def state(self) -> dict[str, Any]: ...

    def load(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class Collector:
    """Collects a step's rollout when it is asked for it."""

    def __init__(
        self,
        config: RLConfig,
        objective: Objective,
        sampling: tuple[Engine, float],
        phases: Sequence[Phase],
        seed: int,
        first_step: int,
    ) -> None:
        """``sampling`` is what samples, and the share of undecided verdicts past which the run
        stops. Noise is addressed by ``first_step`` and the step. The first phase begins at step 0.
        """
        self._config = config
        self._objective = objective
        self._engine, self._fail_rate = sampling
        self._phases = phases
        self._seed = seed
        self._first_step = first_step
        self._params = config.sampling.params()
        self._begin(0)

    @property
    def place(self) -> Place:
        sampler, number = self._sampler, self._number
        last = number == len(self._phases) - 1
        size = len(self._phases[number].prompts)
        retired, known = tuple(sampler.retired), sampler.state()
        return Place(sampler.cursor, retired, sampler.left, size, number, last, known)

    @property
    def prompts(self) -> Sequence[Prompt]:
        """Those of the present phase."""
        return self._phases[self._number].prompts

    def figures(self) -> dict[str, float]:
        """What there is to log of how the present step's problems were drawn."""
        return self._sampler.figures()

    @property
    def verifier(self) -> Verifier:
        """What scores the completions of the present phase."""
        return self._phases[self._number].verifier

    @property
    def max_rounds(self) -> int:
        """How often a step's number of groups is drawn, at most, to fill it."""
        objective = self._objective
        return objective.group_filter.max_rounds if objective.refills else 1

    @property
    def refills(self) -> bool:
        """Whether groups that are left out are made up for by others."""
        return self._objective.refills

    def draw(self, count: int) -> list[Drawn]:
        """The next problems; fewer where all are retired."""
        return self._sampler.next(count)

    def problem(self, name: str) -> Problem | None:
        """The problem of the present phase that has this id, if it is drawn still."""
        prompt = self._prompts.get(name)
        return None if prompt is None or name in self._sampler.retired else prompt.problem

    def why_left_out(self, scored: Scored) -> str | None:
        """Why a step does not train on a group, in two words; ``None``: it does."""
        kept = self._objective.keep_groups(scored.verified[None])[0]
        return None if kept else why_idle(scored)

    def check(self, scored: Sequence[Scored]) -> None:
        """
        Raises:
            UserError: too many of their verdicts could not be decided.
        """
        check_failures([v for s in scored for v in s.group.verdicts], self._fail_rate)

    def _begin(self, number: int) -> None:
        """A phase, at the beginning of its problems."""
        self._number = number
        prompts = self._phases[number].prompts
        self._prompts = {prompt.problem.id: prompt for prompt in prompts}
        self._problems = [prompt.problem for prompt in prompts]
        self._sampler = self._sampler_at(None, (), None)

    def _sampler_at(
        self, cursor: Cursor | None, retired: Sequence[str], known: Mapping[str, Any] | None
    ) -> Sampler:
        curriculum = self._config.curriculum
        if curriculum is None:
            return Sampler(self._problems, self._seed, cursor, retired)
        size = self._config.group_size
        return CurriculumSampler(
            self._problems, self._seed, curriculum, size, cursor, retired, known
        )

    def advance(self, step: int) -> None:
        """To the phase of a step. One whose problems are all solved is left early; one with the
        prompts of that before it goes on through them.
        """
        while self._number + 1 < len(self._phases) and (
            self._phases[self._number + 1].start <= step or self._sampler.left == 0
        ):
            now, after = self._phases[self._number], self._phases[self._number + 1]
            if after.prompts is now.prompts and self._sampler.left:
                self._number += 1
            else:
                self._begin(self._number + 1)
        self._sampler.begin(step)

    def take(self, step: int) -> Rollout:
        """Samples groups until enough of them teach, or once without dynamic sampling.

        Raises:
            UserError: too many verdicts could not be decided, or whatever engine and verifier say.
        """
        clock = Clock()
        self.advance(step)
        verifier = self.verifier
        before = self._sampler.left

        def draw_and_score(drawn: Sequence[Drawn]) -> list[Scored]:
            problems = [draw.problem for draw in drawn]
            requests = [self.request(draw, step) for draw in drawn]
            self._render_ahead()
            found = sample_and_verify(self._engine, verifier, problems, requests, clock)
            scored = self.score(problems, *found)
            self.check(scored)
            self.retire(scored)
            self.learn(scored)
            return scored

        collected = collect(
            self._sampler,
            draw_and_score,
            reject=self.why_left_out,
            wanted=self._config.prompts_per_step,
            max_rounds=self.max_rounds,
        )
        version = self._engine.version
        return Rollout(collected, before, self.place, clock.seconds, version, self.figures())

    def _render_ahead(self) -> None:
        """Has the prompts of the next round rendered while this one is sampled."""
        upcoming = self._sampler.upcoming(self._config.prompts_per_step)
        prompts = [self._prompts[problem.id] for problem in upcoming]
        if all(prompt.rendered for prompt in prompts):
            return

        def render() -> None:
            with contextlib.suppress(UserError):  # who asks for the prompt will be told
                for prompt in prompts:
                    _ = prompt.token_ids

        threading.Thread(target=render, daemon=True, name="render").start()

    def retire(self, scored: Sequence[Scored]) -> None:
        """Draws the prompts that are solved no more, in this step either."""
        right = [[v.outcome is Outcome.CORRECT for v in s.group.verdicts] for s in scored]
        solved = self._objective.solved(torch.tensor(right)).tolist()
        self._sampler.retire(
            s.group.problem.id for s, done in zip(scored, solved, strict=True) if done
        )

    def learn(self, scored: Sequence[Scored]) -> None:
        """Tells the sampler what became of the groups."""
        for each in scored:
            decided = [v for v in each.group.verdicts if v.reward is not None]
            right = sum(v.outcome is Outcome.CORRECT for v in decided)
            self._sampler.learn(each.group.problem.id, right, len(decided))

    def request(self, draw: Drawn, step: int) -> Request:
        """What is asked of an engine for a draw; it renders the prompt."""
        size = self._config.group_size
        prompt = self._prompts[draw.problem.id]
        return Request(
            draw.problem.id,
            prompt.token_ids,
            size,
            self._params,
            self._first_step + step,
            first_sample=draw.epoch * size,
        )

    def score(
        self,
        problems: Sequence[Problem],
        completions: Sequence[Sequence[Completion]],
        verdicts: Sequence[Sequence[Verdict]],
    ) -> list[Scored]:
        """Each problem's group, shaped."""
        groups = [Group(*parts) for parts in zip(problems, completions, verdicts, strict=True)]
        lengths = torch.tensor([[c.sampled for c in group.completions] for group in groups])
        verified = torch.tensor([group.rewards for group in groups], dtype=torch.float64)
        shaped = self._objective.shape_rewards(verified, lengths, self._params.max_tokens)
        return [Scored(*parts) for parts in zip(groups, verified, shaped, strict=True)]

    def publish(self, version: int) -> None:
        """What samples has them already."""

    def state_tensors(self) -> dict[str, Tensor]:
        """None: it holds no weights."""
        return {}

    def state(self) -> dict[str, Any]:
        """The phase, the place in its data, and the problems that are retired."""
        return self.place.state()

    def load(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Goes on from a checkpoint."""
        del tensors
        self._begin(state.get("phase", 0))
        cursor = Cursor(**state["cursor"])
        # A checkpoint from before these were carried has none of them.
        retired = state.get("retired", ())
        self._sampler = self._sampler_at(cursor, retired, state.get("curriculum"))

    def close(self) -> None:
        """There is nothing to end."""
