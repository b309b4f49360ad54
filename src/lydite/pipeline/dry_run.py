"""``--dry-run``: everything about a recipe that can be checked without training."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial, reduce
from operator import or_
from pathlib import Path

from lydite.config import UserError
from lydite.model.estimate import Workload, estimate_memory
from lydite.model.loading import ModelConfig, load_prompting
from lydite.model.policy import Policy
from lydite.model.render import prompt_text
from lydite.pipeline.cluster_check import cluster_checks
from lydite.pipeline.device import pick_device
from lydite.pipeline.fit import longest_sampled
from lydite.pipeline.folder import RunFolder
from lydite.pipeline.problems import (
    checked_near,
    load_one,
    near_sources,
    near_training,
    problems_of,
)
from lydite.pipeline.recipe import Recipe, check_tasks
from lydite.pipeline.stages.stage import Finding, Stage
from lydite.pipeline.survey import survey
from lydite.pipeline.verifiers import judge_of, verifier_uses
from lydite.rollout.vllm import installed_version
from lydite.tasks.overlap import pairs_shown
from lydite.tasks.select import check_disjoint
from lydite.tasks.switch import in_mode
from lydite.tasks.task import TaskData
from lydite.train.modes import check_modes
from lydite.types import Problem
from lydite.verify.describe import describe_rewards
from lydite.verify.settings import VerifierConfig
from lydite.verify.verifier import build
from lydite.watch.trackers import check_installed

SHOWN = 3
OFFLINE = ("couldn't connect", "couldn't reach", "offline", "connection error", "max retries")


class Mark(Enum):
    """How a check came out. Skipped: it needs something that cannot be reached from here."""

    OK = "ok"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its outcome in a sentence, and lines to show under it."""

    name: str
    mark: Mark
    text: str
    lines: tuple[str, ...] = ()


def check_recipe(recipe: Recipe, out: Path, redo: bool = False) -> Iterator[Check]:
    """Checks one after another, as they are done. Nothing is trained, and nothing is written under
    ``out``. ``redo`` as in :func:`lydite.pipeline.runner.run_recipe`.
    """
    names = ", then ".join(f"{stage.name} ({stage.kind})" for stage in recipe.stages)
    yield Check("recipe", Mark.OK, f"{recipe.name}: {names}")
    yield _try("folder", lambda: _folder(recipe, out))
    yield _try("tasks", lambda: _named(recipe))
    if recipe.engine.kind == "vllm":
        yield _try("engine", _vllm)
    if recipe.report:
        yield _try("report", lambda: _reported(recipe))
    for stage in recipe.stages:
        yield from (_try(name, check) for name, check in stage.settings_checks())
    checks = list(cluster_checks(recipe))
    yield from (_try(name, check) for name, check in checks[:1])
    tasks: dict[str, TaskData] = {}
    away = False
    for name in recipe.task_names():
        if name not in recipe.tasks:
            continue
        if away and recipe.tasks[name].hub is not None:
            yield Check(f"task {name}", Mark.SKIPPED, "on the hub, which cannot be reached")
            continue
        missing = [part for part in recipe.parts_of(name) if part != name and part not in tasks]
        if missing:
            yield Check(f"task {name}", Mark.SKIPPED, f"a mix with {missing[0]}, which is not read")
            continue
        check = _try(f"task {name}", partial(_task, recipe, name, tasks))
        away |= check.mark is Mark.SKIPPED
        yield check
    if (out / "recipe.yaml").exists() and tasks.keys() >= set(recipe.task_names()):
        yield _try("stages", lambda: _standing(recipe, out, tasks, redo))
    yield from _held_out(recipe, tasks)
    found: dict[str, Policy] = {}
    yield from _models(recipe, found)
    yield from _prompts(recipe, tasks, found)
    yield from _sampled(recipe, tasks)
    if tasks:
        yield _try("verifier", lambda: _verifiers(recipe, tasks))
    yield from (
        _try(
            "memory" if name == "model" else f"memory of {name}",
            partial(_memory, recipe, config),
        )
        for name, config in _origins(recipe).items()
        if name in found and any(_here(recipe, stage, config) for stage in recipe.stages)
    )
    if len(found) == len(_origins(recipe)):
        yield from (_try(name, check) for name, check in checks[1:])


def _here(recipe: Recipe, stage: Stage, config: ModelConfig) -> bool:
    """Whether a stage has this model in the memory of the run's own process."""
    elsewhere = recipe.cluster is not None and stage.on_cluster
    return recipe.models()[stage.name] == config and not elsewhere


def _vllm() -> Finding:
    """That vLLM could be started; starting it would take minutes."""
    return f"vLLM {installed_version()}, not started", ()


def _try(name: str, check: Callable[[], Finding]) -> Check:
    """A check's outcome; a hub that cannot be reached is no fault of the recipe."""
    try:
        text, lines = check()
    except UserError as error:
        # What a library said, not our own line: that may hold any word the user chose.
        cause = str(error.__cause__ or "").lower()
        away = any(sign in cause for sign in OFFLINE)
        return Check(name, Mark.SKIPPED if away else Mark.FAILED, str(error))
    return Check(name, Mark.OK, text, lines)


def _folder(recipe: Recipe, out: Path) -> Finding:
    RunFolder(out).refuse_foreign(recipe)
    return (
        f"{out} {'goes on from where it is' if (out / 'recipe.yaml').exists() else 'is free'}",
        (),
    )


def _standing(recipe: Recipe, out: Path, tasks: Mapping[str, TaskData], redo: bool) -> Finding:
    """What of the run is done, and what this recipe would do again."""
    found = survey(recipe, tasks, RunFolder(out), pick_device(recipe.device))
    again = found.describe()
    if again and not redo:
        raise UserError(f"this recipe {again}; give --redo for that, or choose another --out")
    done = [each.stage for each in found.stages if each.state == "done"]
    text = f"{', '.join(done) or 'nothing'} done already and skipped"
    return (f"{text}; {again}, and what is there is kept" if again else text), ()


def _reported(recipe: Recipe) -> Finding:
    check_installed(recipe.report)
    return f"figures go to {', '.join(recipe.report)} too", ()


def _named(recipe: Recipe) -> Finding:
    check_tasks(recipe)
    return "every task that is named is defined, and none is both trained on and held out", ()


def _held_out(recipe: Recipe, tasks: Mapping[str, TaskData]) -> Iterator[Check]:
    for name in recipe.held_out():
        for trained in recipe.trained_on():
            if name in tasks and trained in tasks:
                problems = tasks[trained].problems, tasks[name].problems
                yield _try(f"{name} apart from {trained}", partial(_apart, *problems))
        if name in tasks and near_sources(recipe, name):
            yield _try(f"{name} unlike training", partial(_unlike, recipe, name, tasks))


def _apart(trained: Sequence[Problem], held_out: Sequence[Problem]) -> Finding:
    return check_disjoint(trained, held_out), ()


def _unlike(recipe: Recipe, name: str, tasks: Mapping[str, TaskData]) -> Finding:
    near = near_training(recipe, name, tasks)
    said = checked_near(recipe, name, len(tasks[name].problems), near)
    return said.removeprefix(f"{name}: ") or "no question is nearly trained on", pairs_shown(near)


def _task(recipe: Recipe, name: str, tasks: dict[str, TaskData]) -> Finding:
    tasks[name] = load_one(recipe, name, tasks)
    return f"{len(tasks[name].problems)} problems", tasks[name].notes


def _origins(recipe: Recipe) -> dict[str, ModelConfig]:
    """The recipe's model, and those that stages bring: by the first stage with it."""
    found: dict[str, ModelConfig] = {}
    for name, config in recipe.models().items():
        if config not in found.values():
            found[name] = config
    return found


def _models(recipe: Recipe, found: dict[str, Policy]) -> Iterator[Check]:
    for name, config in _origins(recipe).items():
        where = "model" if name == "model" else f"model of {name}"
        yield _try(where, partial(_model, name, config, found))


def _model(name: str, config: ModelConfig, found: dict[str, Policy]) -> Finding:
    policy = load_prompting(config)
    found[name] = policy
    kind = "chat template" if policy.chat else "plain text"
    size = f"{len(policy.tokenizer)} tokens, {kind}, context {policy.context}"
    return f"{config.path}: {size}", ()


def _prompts(
    recipe: Recipe, tasks: dict[str, TaskData], found: Mapping[str, Policy]
) -> Iterator[Check]:
    """Prompts as the model will see them, and whether they and the completions fit its context;
    ``found`` are the models of :func:`_origins` that could be read.
    """
    origins = {name: config for name, config in _origins(recipe).items() if name in found}
    policies = {
        name: found[origin]
        for name, config in recipe.models().items()
        for origin, known in origins.items()
        if known == config
    }
    for stage in recipe.stages:
        if stage.name not in policies:
            continue
        for task in stage.uses:
            if task in tasks:
                check = partial(_rendered, policies[stage.name], stage, tasks[task])
                yield _try(f"prompts of {_place(stage, task)}", check)
        if set(stage.takes) <= policies.keys():
            check_models = _try(f"models of {stage.name}", partial(_together, stage, policies))
            if stage.takes or check_models.mark is Mark.FAILED:
                yield check_models
    for name in recipe.evaluation.tasks:
        if name in tasks and "model" in found:
            policy = found["model"]
            yield _try(f"prompts of {name}", partial(_measured, policy, recipe, tasks[name]))


def _place(stage: Stage, task: str) -> str:
    """A stage, and which of its tasks where it has several."""
    return stage.name if len(stage.uses) == 1 else f"{stage.name}, {task}"


def _rendered(prompting: Policy, stage: Stage, data: TaskData) -> Finding:
    most = stage.fit(prompting, data.problems)
    first = data.problems[:SHOWN]
    return (
        f"at most {most} tokens; the first {len(first)} as the model sees them",
        tuple(
            stage.shown(p, prompt_text(prompting, p.messages, thinking=p.thinking)) for p in first
        ),
    )


def _together(stage: Stage, policies: Mapping[str, Policy]) -> Finding:
    stage.check_models(policies[stage.name], policies)
    return f"it goes with {', '.join(stage.takes)}", ()


def _sampled(recipe: Recipe, tasks: dict[str, TaskData]) -> Iterator[Check]:
    """What the stages make of their tasks, and what is not known before some stage is done."""
    for stage in recipe.stages:
        for task in stage.uses:
            if task in tasks:
                yield from (
                    _try(name, check) for name, check in stage.task_checks(tasks[task].problems)
                )
            made = [m for m in map(recipe.made_by, recipe.parts_of(task)) if m is not None]
            if made:
                names = ", ".join(each.name for each in made)
                yield Check(
                    f"examples of {_place(stage, task)}",
                    Mark.SKIPPED,
                    f"what {names} keeps, known when that is done",
                )


def _measured(prompting: Policy, recipe: Recipe, data: TaskData) -> Finding:
    modes, sampling = recipe.evaluation.modes, recipe.evaluation.sampling
    check_modes(modes, prompting)
    asked = [in_mode(p, mode) for p in data.problems for mode in modes] or data.problems
    most = longest_sampled(prompting, asked, sampling, "evaluation.sampling")
    return f"at most {most} tokens with the completion", ()


def _verifiers(recipe: Recipe, tasks: dict[str, TaskData]) -> Finding:
    """Every verifier of the recipe, its references tried on it."""
    owners = _owners(recipe)
    count = 0
    lines: list[str] = []
    for config, names in verifier_uses(recipe):
        problems = problems_of(tasks, names)
        build(config, problems).close()
        count += len(problems)
        owner = next((who for known, who in owners if known == config), "")
        lines += [f"{owner}{line}" for line in describe_rewards(config, problems)]
    return f"each of {count} gold answers verifies against itself", tuple(lines)


def _owners(recipe: Recipe) -> list[tuple[VerifierConfig, str]]:
    """Whose a verifier is, where it is not the recipe's."""
    own = [
        (config, f"{stage.name}: ")
        for stage in recipe.stages
        for config, _ in stage.verifiers(recipe.verifier)
    ]
    return [(recipe.verifier, ""), *own, (judge_of(recipe), "held out: ")]


def _memory(recipe: Recipe, config: ModelConfig) -> Finding:
    device = pick_device(recipe.device)
    models = recipe.models()
    loads = (
        replace(stage.workload(recipe.engine), beside=_beside(stage, models, device))
        for stage in recipe.stages
        if _here(recipe, stage, config)
    )
    work = reduce(or_, loads, Workload(0, 0))
    estimate = estimate_memory(config, work, device)
    lines = tuple(f"{what}: {size}" for what, size in estimate.rows())
    available = _available(device)
    if available is not None and estimate.total > available:
        raise UserError(
            f"model: needs about {estimate.total / 2**30:.1f} GiB and {device} has "
            f"{available / 2**30:.1f}; set model.lora, "
            "model.gradient_checkpointing=true, or a smaller tokens_per_micro_batch"
        )
    return f"about {estimate.total / 2**30:.2f} GiB on {device}", lines


def _beside(stage: Stage, models: Mapping[str, ModelConfig], device: str) -> int:
    """Bytes of the models that a stage holds beside its own."""
    return sum(
        estimate_memory(config, Workload(0, 0), device).weights for config in stage.beside(models)
    )


def _available(device: str) -> int | None:
    """Bytes of memory of the device, or None where it does not say."""
    if device == "cuda":
        import torch

        return int(torch.cuda.mem_get_info()[0])
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
