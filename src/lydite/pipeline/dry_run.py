"""``--dry-run``: everything about a recipe that can be checked without training."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path

from lydite.config import UserError
from lydite.model.estimate import Workload, estimate_memory
from lydite.model.loading import load_prompting
from lydite.model.policy import Policy
from lydite.model.render import prompt_text
from lydite.objective.describe import describe
from lydite.pipeline.fit import check_pairs, longest, longest_sampled
from lydite.pipeline.folder import RunFolder
from lydite.pipeline.pairs import SampledPairs, StagePairs
from lydite.pipeline.problems import load_one, problems_of
from lydite.pipeline.recipe import (
    AnyStage,
    PreferenceStage,
    Recipe,
    RejectionSamplingStage,
    RLStage,
    SFTStage,
    check_tasks,
    verified_tasks,
)
from lydite.pipeline.runner import pick_device
from lydite.tasks.select import check_disjoint
from lydite.tasks.task import TaskData
from lydite.types import Problem
from lydite.verify.describe import describe_rewards
from lydite.verify.verifier import build

SHOWN = 3
# By what they need: a recipe of several stages needs the largest.
CRITICS = (None, "head", "model")
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


def check_recipe(recipe: Recipe, out: Path) -> Iterator[Check]:
    """Checks one after another, as they are done. Nothing is trained, and nothing is written under
    ``out``.
    """
    names = ", then ".join(f"{stage.name} ({stage.kind})" for stage in recipe.stages)
    yield Check("recipe", Mark.OK, f"{recipe.name}: {names}")
    yield _try("folder", lambda: _folder(recipe, out))
    yield _try("tasks", lambda: _named(recipe))
    yield from _objectives(recipe)
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
    for name in recipe.evaluation.tasks:
        sources = (source for stage in recipe.stages for source in recipe.sources_of(stage.task))
        for trained in dict.fromkeys(sources):
            if name in tasks and trained in tasks:
                problems = tasks[trained].problems, tasks[name].problems
                yield _try(f"{name} apart from {trained}", partial(_apart, *problems))
    found: list[Policy] = []
    model = _try("model", partial(_model, recipe, found))
    yield model
    if found:
        yield from _prompts(recipe, tasks, found[0])
    yield from _sampled(recipe, tasks)
    if tasks:
        yield _try("verifier", lambda: _verifier(recipe, tasks))
    if model.mark is Mark.OK:
        yield _try("memory", lambda: _memory(recipe))


def _try(name: str, check: Callable[[], tuple[str, tuple[str, ...]]]) -> Check:
    """A check's outcome; a hub that cannot be reached is no fault of the recipe."""
    try:
        text, lines = check()
    except UserError as error:
        # What a library said, not our own line: that may hold any word the user chose.
        cause = str(error.__cause__ or "").lower()
        away = any(sign in cause for sign in OFFLINE)
        return Check(name, Mark.SKIPPED if away else Mark.FAILED, str(error))
    return Check(name, Mark.OK, text, lines)


def _folder(recipe: Recipe, out: Path) -> tuple[str, tuple[str, ...]]:
    RunFolder(out).refuse_foreign(recipe)
    return (
        f"{out} {'goes on from where it is' if (out / 'recipe.yaml').exists() else 'is free'}",
        (),
    )


def _named(recipe: Recipe) -> tuple[str, tuple[str, ...]]:
    check_tasks(recipe)
    return "every task that is named is defined, and none is both trained on and held out", ()


def _apart(trained: Sequence[Problem], held_out: Sequence[Problem]) -> tuple[str, tuple[str, ...]]:
    return check_disjoint(trained, held_out), ()


def _objectives(recipe: Recipe) -> Iterator[Check]:
    for stage in recipe.stages:
        if isinstance(stage, RLStage):
            rl = stage

            def explain(rl: RLStage = rl) -> tuple[str, tuple[str, ...]]:
                objective = rl.build_objective()
                per_step = rl.prompts_per_step * rl.group_size
                text = (
                    f"{objective.name}; {rl.prompts_per_step} prompts × {rl.group_size} = "
                    f"{per_step} completions a step"
                )
                return text, tuple(describe(objective))

            yield _try(f"objective of {stage.name}", explain)


def _task(recipe: Recipe, name: str, tasks: dict[str, TaskData]) -> tuple[str, tuple[str, ...]]:
    tasks[name] = load_one(recipe, name, tasks)
    return f"{len(tasks[name].problems)} problems", tasks[name].notes


def _pairs(stage: PreferenceStage, data: TaskData) -> tuple[str, tuple[str, ...]]:
    """Where pairs come from, and how many there can be."""
    check_pairs(stage, data.problems)
    pairs, count = stage.pairs, len(data.problems)
    if isinstance(pairs, StagePairs):
        where = f" of {pairs.run}" if pairs.run else ""
        text = f"mined from the rollouts of {pairs.stage}{where}"
    elif isinstance(pairs, SampledPairs):
        text = f"mined from {pairs.samples} answers to each of {count} problems"
    else:
        return f"{count} of the task, in {stage.total_steps(count)} steps", ()
    most = count * pairs.per_problem
    return f"{text}, {pairs.rule}: at most {most}, in {stage.total_steps(most)} steps", ()


def _model(recipe: Recipe, found: list[Policy]) -> tuple[str, tuple[str, ...]]:
    policy = load_prompting(recipe.model)
    found.append(policy)
    kind = "chat template" if policy.chat else "plain text"
    size = f"{len(policy.tokenizer)} tokens, {kind}, context {policy.context}"
    return f"{recipe.model.path}: {size}", ()


def _prompts(recipe: Recipe, tasks: dict[str, TaskData], policy: Policy) -> Iterator[Check]:
    """Prompts as the model will see them, and whether they and the completions fit its context."""
    for stage in recipe.stages:
        if stage.task in tasks:
            check = partial(_rendered, policy, stage, tasks[stage.task])
            yield _try(f"prompts of {stage.name}", check)
    for name in recipe.evaluation.tasks:
        if name in tasks:
            yield _try(f"prompts of {name}", partial(_measured, policy, recipe, tasks[name]))


def _rendered(prompting: Policy, stage: AnyStage, data: TaskData) -> tuple[str, tuple[str, ...]]:
    most = longest(prompting, stage, data.problems)
    shown = [f"{p.id}: {prompt_text(prompting, p.messages)!r}" for p in data.problems[:SHOWN]]
    if isinstance(stage, PreferenceStage) and isinstance(stage.pairs, StagePairs):
        return f"at most {most} tokens; the first {len(shown)} as the model sees them", tuple(shown)
    if isinstance(stage, SFTStage):
        shown = [f"{line} → {p.worked!r}" for line, p in zip(shown, data.problems, strict=False)]
    return (
        f"at most {most} tokens with the completion; the first {len(shown)} as the model sees them",
        tuple(shown),
    )


def _sampled(recipe: Recipe, tasks: dict[str, TaskData]) -> Iterator[Check]:
    """How much each rejection sampling stage draws, the most that a stage after it can read, and
    where pairs come from.
    """
    for stage in recipe.stages:
        if isinstance(stage, RejectionSamplingStage) and stage.task in tasks:
            yield Check(f"samples of {stage.name}", Mark.OK, *_drawn(stage, tasks[stage.task]))
        made = [m for m in map(recipe.made_by, recipe.parts_of(stage.task)) if m is not None]
        if isinstance(stage, PreferenceStage) and stage.task in tasks:
            yield _try(f"pairs of {stage.name}", partial(_pairs, stage, tasks[stage.task]))
        if made:
            names = ", ".join(each.name for each in made)
            yield Check(
                f"examples of {stage.name}",
                Mark.SKIPPED,
                f"what {names} keeps, known when that is done",
            )


def _drawn(stage: RejectionSamplingStage, data: TaskData) -> tuple[str, tuple[str, ...]]:
    prompts, filters = len(data.problems), stage.filters
    total = prompts * stage.samples
    kept = prompts * min(stage.samples, filters.per_problem or stage.samples)
    tokens = total * stage.sampling.max_tokens
    on = [name for name, value in filters if value not in (None, False) and name != "prefer"]
    return (
        f"{prompts} prompts × {stage.samples} = {total} completions in "
        f"{stage.total_steps(prompts)} steps, at most {tokens:,} tokens; at most {kept} are kept",
        (f"filters: {', '.join(on) or 'none'}; preferred: {filters.prefer}",),
    )


def _measured(prompting: Policy, recipe: Recipe, data: TaskData) -> tuple[str, tuple[str, ...]]:
    limit = recipe.evaluation.sampling.max_tokens
    most = longest_sampled(prompting, data.problems, limit, "evaluation.sampling.max_tokens")
    return f"at most {most} tokens with the completion", ()


def _verifier(recipe: Recipe, tasks: dict[str, TaskData]) -> tuple[str, tuple[str, ...]]:
    held_out = set(recipe.evaluation.tasks)
    trained = verified_tasks(recipe)
    judge = recipe.evaluation.verifier
    uses = [(recipe.verifier, trained if judge else trained | held_out)]
    if judge is not None:
        uses.append((judge, held_out))
    count = 0
    lines: list[str] = []
    for config, names in uses:
        problems = problems_of(tasks, names)
        build(config, problems).close()
        count += len(problems)
        held = "held out: " if config is judge else ""
        lines += [f"{held}{line}" for line in describe_rewards(config, problems)]
    return f"each of {count} gold answers verifies against itself", tuple(lines)


def _memory(recipe: Recipe) -> tuple[str, tuple[str, ...]]:
    device = pick_device(recipe.device)
    budgets = [
        s.update.tokens_per_micro_batch if isinstance(s, RLStage) else s.tokens_per_micro_batch
        for s in recipe.stages
        if not isinstance(s, RejectionSamplingStage)
    ]
    rl = [stage for stage in recipe.stages if isinstance(stage, RLStage)]
    rows = [
        min(recipe.engine.max_rows, s.prompts_per_step * s.group_size) * s.sampling.max_tokens
        for s in rl
    ]
    rows += [
        min(recipe.engine.max_rows, s.prompts_per_step * s.samples) * s.sampling.max_tokens
        for s in recipe.stages
        if isinstance(s, RejectionSamplingStage)
    ]
    prefer = [stage for stage in recipe.stages if isinstance(stage, PreferenceStage)]
    rows += [
        recipe.engine.max_rows * s.pairs.sampling.max_tokens
        for s in prefer
        if isinstance(s.pairs, SampledPairs)
    ]
    objectives = [stage.build_objective() for stage in rl]
    work = Workload(
        max(rows, default=0),
        max(budgets, default=0),
        reference=any(objective.needs_reference for objective in objectives)
        or any(not stage.reference_free for stage in prefer),
        refreshed=any(objective.kl.refresh is not None for objective in objectives),
        critic=max((stage.critic_kind for stage in rl), key=CRITICS.index, default=None),
    )
    estimate = estimate_memory(recipe.model, work, device)
    lines = tuple(f"{what}: {size}" for what, size in estimate.rows())
    available = _available(device)
    if available is not None and estimate.total > available:
        raise UserError(
            f"model: needs about {estimate.total / 2**30:.1f} GiB and {device} has "
            f"{available / 2**30:.1f}; set model.lora, "
            "model.gradient_checkpointing=true, or a smaller tokens_per_micro_batch"
        )
    return f"about {estimate.total / 2**30:.2f} GiB on {device}", lines


def _available(device: str) -> int | None:
    """Bytes of memory of the device, or None where it does not say."""
    if device == "cuda":
        import torch

        return int(torch.cuda.mem_get_info()[0])
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
