"""Measures one model on one or more tasks, outside a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from lydite.config import UserError, validate
from lydite.model.loading import ModelConfig, load_policy, load_prompting
from lydite.model.policy import Policy
from lydite.model.render import render_prompt
from lydite.pipeline.catalogue import find_recipe
from lydite.pipeline.device import dtype_of, pick_device
from lydite.pipeline.recipe import Recipe, load_recipe
from lydite.rollout.budget import check_budgets
from lydite.rollout.engine import EngineConfig, Progress
from lydite.rollout.select import OwnEngine, engine_of
from lydite.rollout.server_engine import UNKNOWN, ServerConfig, ServerEngine, first_served
from lydite.tasks.switch import MODES, Mode
from lydite.tasks.task import TaskConfig, TaskData, load_task
from lydite.train.evaluate import Evaluation, Prompt, SamplingConfig, evaluate
from lydite.train.modes import evaluate_modes
from lydite.types import (
    BusyEngine,
    Completion,
    Engine,
    OnCompletion,
    Request,
    SamplingParams,
    Verifier,
)
from lydite.verify.verifier import VerifierConfig, build
from lydite.watch.intervals import Interval
from lydite.watch.samples import write_sample_file


@dataclass(frozen=True, slots=True)
class Measurement:
    """What is measured and how: problems by task, the verifier, how completions are drawn and how
    many.
    """

    tasks: Mapping[str, TaskData]
    verifier: VerifierConfig
    params: SamplingParams
    samples: int = 1
    seed: int = 0
    device: str = "cpu"
    recipe: Recipe | None = None
    modes: tuple[Mode, ...] = ()

    def with_sampling(
        self, samples: int | None, temperature: float | None, max_tokens: int | None
    ) -> Measurement:
        """The same with what is given in place of what the recipe says. Without a recipe, several
        samples are drawn at temperature 1: the likeliest answer again and again tells nothing.
        """
        samples = samples or self.samples
        if temperature is None:
            several = self.recipe is None and samples > 1
            temperature = 1.0 if several else self.params.temperature
        params = replace(
            self.params,
            temperature=temperature,
            max_tokens=self.params.max_tokens if max_tokens is None else max_tokens,
        )
        return replace(self, params=params, samples=samples)

    def model(self, config: ModelConfig) -> ModelConfig:
        """The model as the recipe would show it its prompts."""
        if self.recipe is None:
            return config
        ours = self.recipe.model
        return config.model_copy(
            update={"chat": ours.chat, "thinking": ours.thinking, "dtype": dtype_of(ours)}
        )


def load_measurement(
    tasks: Sequence[str],
    recipe: str | None,
    columns: Mapping[str, Any],
    verifier: str | None,
    seed: int,
) -> Measurement:
    """Reads the problems: of files with these ``columns``, or of a recipe's tasks by name, those
    that it holds out where none is named.

    Raises:
        UserError: no task, one that the recipe does not define, or a file that cannot be read.
    """
    if recipe is None and not tasks:
        raise UserError("--tasks: name a file of problems, or give --recipe for those it holds out")
    if recipe is None:
        # Two files of one name keep their folders, so that neither hides the other.
        names = [Path(path).stem for path in tasks]
        named = {
            path if names.count(name) > 1 else name: validate(
                TaskConfig, {**columns, "path": path}, path
            )
            for path, name in zip(tasks, names, strict=True)
        }
        data = {name: load_task(name, config, seed) for name, config in named.items()}
        chosen = validate(VerifierConfig, {"rewards": verifier or "math"}, "--verifier")
        params = SamplingConfig(temperature=0.0).params()
        return Measurement(data, chosen, params, seed=seed, device=pick_device("auto"))
    loaded = load_recipe(find_recipe(recipe))
    tasks = tasks or loaded.evaluation.tasks
    if not tasks:
        raise UserError(
            f"--tasks: {recipe} holds nothing out; name one of {', '.join(loaded.tasks) or 'none'}"
        )
    for name in tasks:
        if name not in loaded.tasks:
            raise UserError(
                f"--tasks: {recipe} has no task {name!r}; it has {', '.join(loaded.tasks)}"
            )
    data = {name: load_task(name, loaded.tasks[name], loaded.seed) for name in tasks}
    chosen = loaded.evaluation.verifier or loaded.verifier
    if verifier is not None:
        chosen = validate(VerifierConfig, {"rewards": verifier}, "--verifier")
    held_out = loaded.evaluation
    return Measurement(
        data,
        chosen,
        held_out.sampling.params(),
        held_out.samples,
        seed,
        pick_device(loaded.device),
        loaded,
        held_out.modes,
    )


def modes_of(given: Sequence[str]) -> tuple[Mode, ...]:
    """Modes by name; ``both`` is the hard switch on and off, ``all`` every mode.

    Raises:
        UserError: a name that is none of these.
    """
    short: dict[str, tuple[Mode, ...]] = {"both": ("hard_think", "hard_no_think"), "all": MODES}
    named: dict[str, tuple[Mode, ...]] = {**short, **{mode: (mode,) for mode in MODES}}
    for name in given:
        if name not in named:
            raise UserError(f"--thinking: no mode {name!r}; one of {', '.join(named)}")
    return tuple(dict.fromkeys(mode for name in given for mode in named[name]))


class _Watched:
    """An engine that tells how far it is."""

    def __init__(self, engine: OwnEngine | ServerEngine, tell: Callable[[Progress], None]) -> None:
        self.version = engine.version
        self._engine = engine
        self._tell = tell

    @property
    def busy(self) -> bool:
        return isinstance(self._engine, BusyEngine) and self._engine.busy

    def generate(self, requests: Sequence[Request]) -> list[list[Completion]]:
        return self._engine.generate(requests, on_progress=self._tell)

    def stream(
        self, requests: Sequence[Request], on_completion: OnCompletion
    ) -> list[list[Completion]]:
        return self._engine.stream(requests, on_completion, self._tell)


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A model behind a server. ``tokenizer`` is where its tokenizer and chat template are; without,
    the server is asked by messages. ``field`` is what a person calls its settings.
    """

    server: ServerConfig
    tokenizer: ModelConfig | None = None
    field: str = "MODEL"


def remote_model(
    url: str, served: str | None, tokenizer: str | None, key_env: str | None, concurrency: int
) -> RemoteModel:
    """A model behind a server as ``lydite eval`` is told of it; ``served`` may be left out where
    the server lists what it has.

    Raises:
        UserError: the address is none, or the server lists nothing.
    """
    asked = {"seconds": 600, "concurrency": concurrency}
    values = {"base_url": url, "api_key_env": key_env, "requests": asked}
    server = validate(ServerConfig, {**values, "served": served or "?"}, "MODEL")
    if served is None:
        server = server.model_copy(update={"served": first_served(server, "--served")})
    return RemoteModel(server, None if tokenizer is None else ModelConfig(path=tokenizer))


def evaluate_model(
    model: ModelConfig | RemoteModel,
    plan: Measurement,
    on_progress: Callable[[str, Progress], None],
) -> dict[str, Evaluation]:
    """Scores of a model by task name.

    Raises:
        UserError: the model cannot be loaded, or a prompt does not fit its context.
    """
    return evaluate_each(model, plan, [plan.params], lambda _, *at: on_progress(*at))[0]


def evaluate_each(
    model: ModelConfig | RemoteModel,
    plan: Measurement,
    settings: Sequence[SamplingParams],
    on_progress: Callable[[int, str, Progress], None],
) -> list[dict[str, Evaluation]]:
    """:func:`evaluate_model` with each of several ways to sample; ``on_progress`` is told which, by
    number.

    Raises:
        UserError: the model cannot be loaded, a prompt does not fit its context, or a thinking
            budget cannot be kept; all before anything is sampled.
    """
    if plan.recipe is not None and plan.recipe.threads is not None:
        torch.set_num_threads(plan.recipe.threads)
    policy, engine = _loaded(model, plan)
    verifier = build(plan.verifier, [p for data in plan.tasks.values() for p in data.problems])
    try:
        plans = [replace(plan, params=params) for params in settings]
        for each in plans:
            if policy is not None:
                _check_budgets(each, policy)
        return [
            _measured(each, policy, engine, verifier, partial(on_progress, number))
            for number, each in enumerate(plans)
        ]
    finally:
        verifier.close()


def _loaded(
    model: ModelConfig | RemoteModel, plan: Measurement
) -> tuple[Policy | None, OwnEngine | ServerEngine]:
    """What renders prompts, if that is done here, and what answers them."""
    if isinstance(model, ModelConfig):
        policy = load_policy(model, plan.device, plan.seed)
        config = EngineConfig() if plan.recipe is None else plan.recipe.engine
        return policy, engine_of(policy, config, plan.seed)
    shown = None if model.tokenizer is None else load_prompting(plan.model(model.tokenizer))
    if shown is None and plan.modes:
        raise UserError("--thinking: the prompt is rendered by the server; give --tokenizer MODEL")
    engine = ServerEngine(model.server, model.field, shown, plan.seed)
    engine.check()
    return shown, engine


def _check_budgets(plan: Measurement, policy: Policy) -> None:
    problems = [p for data in plan.tasks.values() for p in data.problems]
    check_budgets(
        policy.tokenizer,
        [Request(p.id, render_prompt(policy, p), 1, plan.params) for p in problems],
    )


def _measured(
    plan: Measurement,
    policy: Policy | None,
    engine: OwnEngine | ServerEngine,
    verifier: Verifier,
    on_progress: Callable[[str, Progress], None],
) -> dict[str, Evaluation]:
    """Every task, in every mode."""
    found: dict[str, Evaluation] = {}
    for name, data in plan.tasks.items():
        asked = engine.showing(data.problems) if isinstance(engine, ServerEngine) else engine
        watched = _Watched(asked, partial(on_progress, name))
        measure = partial(_measure, plan, watched, verifier)
        if policy is None:
            prompts = [Prompt(p, (UNKNOWN,)) for p in data.problems]
            found[name] = measure(name, prompts)
        elif plan.modes:
            modes = evaluate_modes(name, data.problems, plan.modes, policy, measure)
            found |= {evaluation.task: evaluation for evaluation in modes}
        else:
            prompts = [Prompt(p, render_prompt(policy, p)) for p in data.problems]
            found[name] = measure(name, prompts)
    return found


def _measure(
    plan: Measurement, engine: Engine, verifier: Verifier, name: str, prompts: Sequence[Prompt]
) -> Evaluation:
    return evaluate(name, prompts, engine, verifier, plan.params, plan.samples)


def describe(found: Mapping[str, Evaluation], plan: Measurement) -> Table:
    """A row per task and mode, and per tag where a task has several; below them pass@k and maj@k
    where there are several samples.
    """
    table = Table(box=None, pad_edge=False)
    headings = ["task", f"avg@{plan.samples}", "95% interval", "problems", "tokens", "cut off"]
    if plan.modes:
        headings.append("obeys")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "task" else "right")
    for name, evaluation in found.items():
        lengths, cut = f"{evaluation.mean_length:.0f}", f"{evaluation.cut_off:.0%}"
        obeys = [] if evaluation.obedience is None else [f"{evaluation.obedience:.1%}"]
        table.add_row(name, *figures(evaluation.interval), lengths, cut, *obeys)
        for tag, interval in evaluation.by_tag.items():
            table.add_row(f"  {tag or 'no tag'}", *figures(interval))
        for measure, interval in evaluation.repeated(plan.samples).items():
            table.add_row(f"  {measure}", *figures(interval), style="dim")
    return table


def figures(interval: Interval) -> tuple[str, str, str]:
    """Mean, interval and number of problems, for a table."""
    return f"{interval.mean:.1%}", f"{interval.lo:.1%} to {interval.hi:.1%}", str(interval.n)


def write_answers(path: Path, found: Iterable[Evaluation]) -> None:
    """Every answer with its verdict as one Parquet file."""
    write_sample_file(path, [row for evaluation in found for row in evaluation.samples(0)])
