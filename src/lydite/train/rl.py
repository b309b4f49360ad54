"""The RL loop's step: sample → verify → advantage → update → sync.

The only place where rollouts, rewards and objectives meet. It takes them as arguments, so the same
code runs with fakes in a test, in one process on a laptop, and with remote ones on a cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from lydite.objective.objective import Objective
from lydite.rollout.budget import Tags
from lydite.rollout.sampler import Collected
from lydite.train import advice
from lydite.train.ahead import Ahead, DetachedEngine
from lydite.train.clock import Clock
from lydite.train.collecting import STEPS_APART, Collector, Phase, Rollouts
from lydite.train.evaluate import Prompt
from lydite.train.flight import Flight
from lydite.train.learner import LearnerLike
from lydite.train.loop import StepResult, addressed_dropout
from lydite.train.readability import Form, rollout_readability
from lydite.train.rl_config import RLConfig
from lydite.train.scored import Scored, reward_metrics, reward_parts, staleness_metrics
from lydite.types import (
    Engine,
    TrainBatch,
    TrainGroup,
    TrainSequence,
    Verifier,
)
from lydite.watch.rollouts import advantage_figures
from lydite.watch.samples import Sample, samples_of


class Guide(Protocol):
    """Says of single tokens what they are worth, beside the rewards of completions or in their
    place.
    """

    @property
    def uses_rewards(self) -> bool:
        """Whether rewards count at all; if not, none is needed."""
        ...

    def advise(self, batch: TrainBatch) -> tuple[TrainBatch, dict[str, float]]:
        """The rollout with its own advantages, and figures for the log; ``flops`` are added up."""
        ...


@dataclass(frozen=True, slots=True)
class RLParts:
    """What the loop joins. ``fail_rate`` is the share of undecided verdicts past which the run
    stops; ``weights`` are those of a reward's parts, by name, 1 where a name is missing;
    ``flops`` are what a token costs the engine (0: unknown). ``ahead`` samples in the engine's
    place where the stage's settings allow it to be stale. ``sync`` has an engine with weights of
    its own take over the learner's, as a version; None: they share them. ``in_flight``
    reads the tags of thoughts where the stage is asynchronous. ``form`` is what a readable
    completion is, to be measured.
    """

    engine: Engine
    verifier: Verifier
    learner: LearnerLike
    objective: Objective
    fail_rate: float = 0.1
    weights: Mapping[str, float] = field(default_factory=dict)
    guide: Guide | None = None
    flops: float = 0.0
    ahead: DetachedEngine | None = None
    sync: Callable[[int], None] | None = None
    in_flight: Tags | None = None
    form: Form = field(default_factory=Form)


@dataclass(frozen=True, slots=True)
class _Signal:
    """Advantages ``[P, G]`` of the kept groups, and which completions take part in the loss."""

    advantages: Tensor
    included: Tensor


@dataclass(frozen=True, slots=True)
class _Learnt:
    """The signal that was trained on, what a guide told, and what the update measured."""

    signal: _Signal
    told: Mapping[str, float] = field(default_factory=dict)
    trained: Mapping[str, float] = field(default_factory=dict)


class RLTrainer:
    """One policy step at a time: see :class:`lydite.train.loop.Trainer`."""

    def __init__(
        self,
        config: RLConfig,
        parts: RLParts,
        prompts: Sequence[Prompt],
        seed: int,
        earlier: int = 0,
        later: Sequence[Phase] = (),
    ) -> None:
        """``earlier`` counts the RL stages before this one in the run: a second stage on the same
        problems meets them in another order and with other noise. ``later`` are the phases that
        follow the one that begins with ``prompts``, in order.
        """
        self.config = config
        self.total = config.steps
        self._parts = parts
        self._run_seed = seed
        self._seed = seed + earlier
        self._phases = [Phase(0, prompts, parts.verifier, parts.weights), *later]
        self._rollouts = self._rollouts_from(earlier * STEPS_APART)
        self._coefficient = parts.objective.entropy_bonus.coefficient

    def _rollouts_from(self, first_step: int) -> Rollouts:
        parts, ahead = self._parts, self._parts.ahead
        assert (ahead is None) == (self.config.staleness == 0), "staleness needs a detached engine"
        sampling = (ahead or parts.engine, parts.fail_rate)
        collector = Collector(
            self.config, parts.objective, sampling, self._phases, self._seed, first_step
        )
        if ahead is None:
            return collector
        engines = parts.engine, ahead
        if parts.in_flight is not None:
            return Flight(self.config, collector, engines, parts.in_flight, self._run_seed)
        return Ahead(collector, engines, self.config.staleness, self.total)

    @property
    def finished(self) -> bool:
        """Whether every problem is solved, and the objective retires those that are."""
        return self._rollouts.place.finished

    def close(self) -> None:
        """Ends the thread that samples ahead, if there is one."""
        self._rollouts.close()

    def step(self, step: int) -> StepResult:
        """Samples groups until enough of them teach (or once, without dynamic sampling), and trains
        on them.
        """
        began = time.perf_counter()
        clock = Clock()
        refresh = self._parts.objective.kl.refresh
        if refresh is not None and step > 0 and step % refresh == 0:
            self._parts.learner.refresh_reference()
        rollout = self._rollouts.take(step)
        collected = rollout.collected
        measured = reward_metrics(collected.seen)
        sampled_entropy = measured["entropy_sampled"]
        objective, bonus = self._at_entropy(sampled_entropy)
        place = rollout.place
        signal = self._signal(collected.groups, self._phases[place.phase].weights)
        batch = self._batch(collected.groups, signal)
        version = self._parts.engine.version
        stale = staleness_metrics(
            [c for scored in collected.groups for c in scored.group.completions], version
        )
        learnt = _Learnt(signal)
        if batch.groups:
            learnt = self._learn(batch, signal, objective, step, clock)
            self._publish(version + 1, clock)
            self._coefficient = objective.next_coefficient(self._coefficient, sampled_entropy)
        signal, told, trained = learnt.signal, learnt.told, learnt.trained
        problems = rollout.before, place.left, place.size
        retires = objective.group_filter.retire_at is not None
        sampled = sum(c.sampled for scored in collected.seen for c in scored.group.completions)
        metrics = {
            "entropy": sampled_entropy,  # until the update measures that of what it trains on
            **measured,
            **rollout_readability([s.group for s in collected.seen], self._parts.form),
            **told,
            **advantage_figures(signal.advantages[signal.included].tolist()),
            **trained,
            **bonus,
            **(stale if self.config.staleness else {}),
            **self._flops(collected.seen, told, trained),
            **rollout.figures,
            **({"retired": float(place.size - place.left)} if retires else {}),
            **({"phase": float(place.phase)} if len(self._phases) > 1 else {}),
            "groups": float(len(batch.groups)),
            "completions": float(sum(len(group.sequences) for group in batch.groups)),
            "rounds": float(collected.rounds),
            "tokens": float(sampled),
            "tokens_per_second": sampled / (time.perf_counter() - began),
            **rollout.seconds,
            **clock.seconds,
        }
        return StepResult(
            metrics,
            self._rows(collected, signal, step + 1, version),
            [
                *(advice.of_stage(objective, self.config) if step == 0 else ()),
                *advice.of_groups(objective, self.config, collected, len(batch.groups)),
                *(advice.of_retired(self.config, problems, step) if retires else ()),
            ],
        )

    def _learn(
        self, batch: TrainBatch, signal: _Signal, objective: Objective, step: int, clock: Clock
    ) -> _Learnt:
        """The second half of a step: a guide's and a critic's word, and the update."""
        told: dict[str, float] = {}
        judged: dict[str, float] = {}
        if self._parts.guide is not None:
            with clock("guide"):
                batch, told = self._parts.guide.advise(batch)
            signal = _as_judged(signal, batch)
        if objective.needs_values:
            with clock("judge"):
                batch, judged = self._parts.learner.judge(batch, objective)
            signal = _as_judged(signal, batch)
        with clock("update"), addressed_dropout(self._seed, step):
            trained = self._parts.learner.update(batch, objective, (step, self.total))
        return _Learnt(signal, told, {**judged, **trained})

    def _publish(self, version: int, clock: Clock) -> None:
        """What samples has the learner's weights from here on, and calls them this version."""
        if self._parts.sync is None and self._parts.in_flight is None:
            self._parts.engine.version = version
            return
        with clock("sync"):
            if self._parts.sync is not None:
                self._parts.sync(version)
            self._parts.engine.version = version
            self._rollouts.publish(version)

    def _flops(self, seen: Sequence[Scored], *told: Mapping[str, float]) -> dict[str, float]:
        """Of the step: sampling, what the guide did, and the update."""
        groups = [scored.group.completions for scored in seen]
        sampled = sum(len(g[0].prompt_ids) + sum(len(c.token_ids) for c in g) for g in groups)
        total = self._parts.flops * sampled + sum(each.get("flops", 0.0) for each in told)
        return {"flops": total} if total else {}

    def _at_entropy(self, entropy: float) -> tuple[Objective, dict[str, float]]:
        """The objective of a step whose rollouts had this mean entropy, and what to log of it."""
        objective = self._parts.objective.at_entropy(self._coefficient, entropy)
        if objective.entropy_bonus.target is None:
            return objective, {}
        return objective, {
            "entropy_bonus": objective.entropy_bonus.coefficient,
            "entropy_coefficient": self._coefficient,
        }

    def _rows(
        self, collected: Collected[Scored], signal: _Signal, step: int, version: int
    ) -> list[Sample]:
        """Every rollout of the step; those of groups that were left out have no advantage.
        ``version`` is the policy's that trained on it.
        """
        trained = {
            id(scored): values
            for scored, values in zip(collected.groups, signal.advantages.tolist(), strict=True)
        }
        nothing = [float("nan")] * self.config.group_size
        now = version if self.config.staleness else None
        return [
            row
            for scored in collected.seen
            for row in samples_of(scored.group, trained.get(id(scored), nothing), step, now=now)
        ]

    def _signal(self, kept: Sequence[Scored], given: Mapping[str, float]) -> _Signal:
        """Advantages over all kept groups at once: a batch's deviation needs the whole batch.
        ``given`` are the weights of the reward's parts.
        """
        if not kept:
            nothing = torch.zeros(0, self.config.group_size)
            return _Signal(nothing, nothing.bool())
        truncated = torch.tensor(
            [[c.finish == "length" for c in s.group.completions] for s in kept]
        )
        verified = torch.stack([s.verified for s in kept])
        lengths = torch.tensor([[c.sampled for c in s.group.completions] for s in kept])
        objective = self._parts.objective
        rewards, weights = torch.stack([s.shaped for s in kept]), None
        if self._parts.guide is not None and not self._parts.guide.uses_rewards:
            rewards = verified = torch.zeros_like(verified)
        elif objective.by_part:
            penalty = (rewards - verified).nan_to_num()
            rewards, weights = reward_parts([s.group for s in kept], given, penalty)
        advantages = objective.advantages(rewards, lengths, weights)
        sampled = torch.tensor([[any(c.loss_mask) for c in s.group.completions] for s in kept])
        return _Signal(advantages, objective.keep(verified, truncated) & sampled)

    def _batch(self, kept: Sequence[Scored], signal: _Signal) -> TrainBatch:
        """Excluded completions leave here: they are in no numerator and no denominator."""
        groups = []
        for scored, values, included in zip(
            kept, signal.advantages.tolist(), signal.included.tolist(), strict=True
        ):
            sequences = [
                TrainSequence(c.token_ids, c.loss_mask, c.logprobs, advantage)
                for c, advantage, use in zip(
                    scored.group.completions, values, included, strict=True
                )
                if use
            ]
            if sequences:
                groups.append(TrainGroup(scored.group.completions[0].prompt_ids, sequences))
        return TrainBatch(groups, self.config.sampling.temperature)

    def state_tensors(self) -> dict[str, Tensor]:
        """See :class:`lydite.train.loop.Trainer`."""
        return {**self._parts.learner.state_tensors(), **self._rollouts.state_tensors()}

    def state(self) -> dict[str, Any]:
        """The place in the data, the problems that are retired, the policy version, and the
        coefficient of an entropy bonus with a target.
        """
        return {
            **self._rollouts.state(),
            "version": self._parts.engine.version,
            "entropy_coefficient": self._coefficient,
        }

    def load(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Goes on from a checkpoint, to the bit."""
        self._parts.learner.load_state_tensors(tensors)
        self._rollouts.load(tensors, state)
        self._publish(state["version"], Clock())
        self._coefficient = state.get("entropy_coefficient", self._coefficient)


def _as_judged(signal: _Signal, batch: TrainBatch) -> _Signal:
    """The mean advantage of each completion's tokens, where a critic gave each its own."""
    advantages = torch.full_like(signal.advantages, float("nan"))
    judged = [s for group in batch.groups for s in group.sequences]
    advantages[signal.included] = advantages.new_tensor(
        [
            sum(a for a, bit in zip(s.advantage, s.loss_mask, strict=True) if bit)
            / sum(s.loss_mask)
            if isinstance(s.advantage, Sequence)
            else s.advantage
            for s in judged
        ]
    )
    return _Signal(advantages, signal.included)
