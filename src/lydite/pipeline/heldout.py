"""Held-out scores of a stage: measured, written to ``samples/`` and logged."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import Field

from lydite.config import Config
from lydite.model.policy import Policy
from lydite.model.render import render_prompt
from lydite.pipeline.artifact import fingerprint
from lydite.tasks.switch import Mode
from lydite.train.evaluate import Evaluation, Prompt, SamplingConfig, evaluate
from lydite.train.modes import evaluate_modes, mode_task
from lydite.train.readability import ReadabilityConfig, readability
from lydite.train.scored import budget_metrics
from lydite.types import Engine, Problem, Verifier
from lydite.verify.verifier import VerifierConfig
from lydite.watch.events import Answer, Evaluated, EventLog, Warned, now, read_events
from lydite.watch.files import write_atomic
from lydite.watch.repeated import flat
from lydite.watch.samples import samples_path, write_samples

SHOWN_ANSWERS = 20
"""Answers kept in the log of an evaluation, for people to read; every one is in ``samples/``."""
SHOWN_CHARACTERS = 2000


class EvalConfig(Config):
    """Held-out evaluation: what is measured before, during and after every stage."""

    tasks: tuple[str, ...] = Field((), description="Names under `tasks` that no stage trains on.")
    modes: tuple[Mode, ...] = Field(
        (),
        description="Ways in which each task is asked to think or not, each with a score, a length "
        "and an obedience of its own, as `TASK.MODE`. `think` and `no_think`: a flag in the user "
        "turn; `unflagged`: none; `hard_think` and `hard_no_think`: `enable_thinking`; "
        "`last_think` and `last_no_think`: a flag that contradicts that of an earlier turn. None: "
        "as the task has it.",
    )
    samples: int = Field(
        1,
        ge=1,
        description="Completions per problem (avg@k); with several, pass@k and maj@k are measured "
        "too. They differ only at a temperature above 0.",
    )
    sampling: SamplingConfig = Field(
        SamplingConfig(temperature=0.0),
        description="How held-out completions are drawn; greedy by default.",
    )
    every: int | None = Field(
        None, ge=1, description="Steps between evaluations inside a stage; null: start and end."
    )
    verifier: VerifierConfig | None = Field(
        None,
        description="A verifier of its own, for example a stricter one; the recipe's when null.",
    )
    near_duplicates: Literal["warn", "refuse", "ignore"] = Field(
        "warn",
        description="What is done where a held-out question is nearly a training question (see "
        "docs/metrics.md): said once, or the run is refused. Equal ones are always refused, and "
        "problems that are made rather than read are not compared.",
    )
    readability: ReadabilityConfig | None = Field(
        None,
        description="What a readable answer is: its share is measured beside accuracy, and how far "
        "languages are mixed. Null: not measured.",
    )

    def reported(self, task: str) -> tuple[str, ...]:
        """The names under which a task's scores appear."""
        return tuple(mode_task(task, mode) for mode in self.modes) or (task,)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """What a stage is measured on and with: problems by task, the policy that they are shown to,
    the engine that answers, the judge. ``basis`` has, by task, a digest of all that a score depends
    on but the weights.

    ``model`` is given where a stage measures several: the name of this one. What it scored before
    is then never measured again, and the answers are copied.
    """

    config: EvalConfig
    problems: Mapping[str, Sequence[Problem]]
    policy: Policy
    engine: Engine
    judge: Verifier
    basis: Mapping[str, str]
    model: str = ""

    def measure(self, stage: str, step: int, weights: str, log: EventLog, samples: Path) -> None:
        """Logs the score of every task, in every mode. ``weights`` is the fingerprint of the model
        that is measured, empty where it is on its way.

        At a stage's start it is the score that these weights got before, where they did: on the
        same problems, with the same noise.
        """
        for task in self.problems:
            of = fingerprint({"weights": weights, "basis": self.basis[task]}) if weights else ""
            names = self.config.reported(task)
            known = [self._known(log, name, of, samples) for name in names]
            if None not in known and (step == 0 or self.model):
                for event in filter(None, known):
                    if (event.stage, event.step) != (stage, step):
                        self._copy(event, stage, step, samples)
                        log.append(_again(event, stage, step, self.model))
                continue
            for result, seconds in self._evaluated(task):
                write_samples(samples, f"{stage}-{result.task}", step, result.samples(step))
                if result.undecided:
                    unjudged = f"{result.undecided} held-out answers of {result.task}"
                    message = f"{unjudged} could not be judged; left out"
                    log.append(Warned(stage=stage, step=step, code="undecided", message=message))
                found = _evaluated(stage, step, result, self.config, seconds)
                log.append(replace(found, of=of, model=self.model))

    def _known(self, log: EventLog, task: str, of: str, samples: Path) -> Evaluated | None:
        """An evaluation of the very same; the latest, which is the stage's own if it has one."""
        found = [
            event
            for event in read_events(log.path)
            if isinstance(event, Evaluated) and event.task == task and event.of == of != ""
        ]
        if self.model:
            found = [e for e in found if _answers(samples, e, e.stage, e.step).is_file()]
        return found[-1] if found else None

    def _copy(self, known: Evaluated, stage: str, step: int, samples: Path) -> None:
        if self.model:
            source = _answers(samples, known, known.stage, known.step)
            write_atomic(_answers(samples, known, stage, step), source.read_bytes())

    def _evaluated(self, task: str) -> list[tuple[Evaluation, float]]:
        """The task's evaluations, and what each took in seconds."""
        spent: dict[str, float] = {}
        params = self.config.sampling.params()

        def measure(name: str, prompts: Sequence[Prompt]) -> Evaluation:
            began = time.perf_counter()
            found = evaluate(name, prompts, self.engine, self.judge, params, self.config.samples)
            spent[name] = time.perf_counter() - began
            return found

        asked = self.problems[task]
        if self.config.modes:
            found = evaluate_modes(task, asked, self.config.modes, self.policy, measure)
        else:
            prompts = [Prompt(p, render_prompt(self.policy, p)) for p in asked]
            found = [measure(task, prompts)]
        return [(result, spent[result.task]) for result in found]


def basis_of(
    config: EvalConfig, verifier: VerifierConfig, policy: Policy, tasks: Mapping[str, str]
) -> dict[str, str]:
    """:attr:`HeldOut.basis`, by settings, by the recipe's verifier, by how the policy is shown its
    prompts, and by the fingerprints of the tasks that are held out.
    """
    settings = config.model_dump(mode="json", exclude={"tasks", "every", "near_duplicates"})
    settings["verifier"] = (config.verifier or verifier).model_dump(mode="json")
    settings["shown"] = [policy.chat, policy.thinking, policy.tokenizer.chat_template]
    return {task: fingerprint({**settings, "data": data}) for task, data in tasks.items()}


def _answers(samples: Path, event: Evaluated, stage: str, step: int) -> Path:
    return samples_path(samples, f"{stage}-{event.task}", step)


def _again(known: Evaluated, stage: str, step: int, model: str) -> Evaluated:
    """The same figures in another place; measuring them took no time."""
    metrics = {**known.metrics, "seconds": 0.0}
    return replace(known, stage=stage, step=step, model=model, time=now(), metrics=metrics)


def _evaluated(
    stage: str, step: int, result: Evaluation, config: EvalConfig, seconds: float
) -> Evaluated:
    interval = result.interval
    shown: list[Answer] = []
    for answered in result.answers:
        if answered.completion.sample == 0 and len(shown) < SHOWN_ANSWERS:
            problem = answered.prompt.problem
            correct = answered.verdict.outcome == "correct"
            shown.append(
                Answer(
                    problem_id=problem.id,
                    # With its flag, where it was asked to think or not.
                    prompt=problem.question
                    if result.obedience is None
                    else problem.messages[-1].content,
                    completion=answered.completion.text[:SHOWN_CHARACTERS],
                    correct=correct,
                )
            )
    texts = [answered.completion.text for answered in result.answers]
    readable = {} if config.readability is None else readability(texts, config.readability)
    scores = {name: sum(values) / len(values) for name, values in result.scores.items() if values}
    return Evaluated(
        stage=stage,
        step=step,
        task=result.task,
        avg=interval.mean,
        lo=interval.lo,
        hi=interval.hi,
        n=interval.n,
        k=config.samples,
        scores=scores,
        answers=tuple(shown),
        metrics={
            "length": result.mean_length,
            "cut_off": result.cut_off,
            "reward": result.mean_reward,
            "seconds": seconds,
            **readable,
            **({} if result.obedience is None else {"obedience": result.obedience}),
            **budget_metrics([answer.completion for answer in result.answers]),
            **flat(result.repeated(config.samples)),
            **flat({f"accuracy_tag_{tag or 'none'}": i for tag, i in result.by_tag.items()}),
        },
    )
