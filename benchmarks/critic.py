"""Does GRPO need a critic? Resident bytes and accuracy over time of PPO and GRPO, on one task.

    python benchmarks/critic.py                                  # makes its own cold start first
    python benchmarks/critic.py --model runs/quickstart/stages/cold_start/model --png critic.png

The quickstart's RL stage from one cold-started checkpoint: the same problems, noise, optimiser and
number of samples for `ppo` with a value model, `ppo` with a head on the policy's own states, and
`grpo`, which differ in the objective alone. They take turns, a few steps each, so that whatever
else the machine does slows all of them. Seconds are those of training steps, without evaluation,
by the wall and by the processor.

Bytes are counted, not estimated: weights and gradients tensor by tensor when an optimiser steps,
each optimiser's states, and as activations the most that autograd keeps for a backward pass at one
time (storages, each once, parameters left out), over one more rollout after training.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.optim.optimizer import register_optimizer_step_pre_hook

from lydite.config import UserError, load_yaml, validate
from lydite.model.loading import load_policy
from lydite.model.render import render_prompt
from lydite.pipeline.catalogue import find_recipe
from lydite.pipeline.problems import load_tasks, problems_of
from lydite.pipeline.recipe import Recipe
from lydite.pipeline.runner import run_recipe
from lydite.pipeline.stages.rl import RLStage
from lydite.rollout.select import local_engine
from lydite.tasks.task import TaskData
from lydite.train.evaluate import Prompt, evaluate
from lydite.train.learner import Learner
from lydite.train.rl import RLParts, RLTrainer
from lydite.types import Verifier
from lydite.verify.verifier import build
from lydite.watch.console import ConsoleView

CHOICES: dict[str, dict[str, Any]] = {
    "ppo": {"objective": "ppo"},
    "ppo, head only": {"objective": "ppo", "critic": {"kind": "head"}},
    "grpo": {"objective": "grpo"},
}
KINDS = ("weights", "gradients", "optimiser", "activations")


@dataclass(frozen=True)
class Point:
    """Held-out accuracy after so many steps, and the seconds that they took."""

    step: int
    wall: float
    cpu: float
    accuracy: float


@dataclass
class Side:
    """One of those that are compared, as far as it is trained."""

    name: str
    trainer: RLTrainer
    learner: Learner
    curve: list[Point] = field(default_factory=list)
    wall: float = 0.0
    cpu: float = 0.0
    step: int = 0

    def train(self, steps: int) -> None:
        """Takes so many steps more."""
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            self.trainer.step(self.step)
            self.step += 1
        self.wall += time.perf_counter() - wall
        self.cpu += time.process_time() - cpu


def main() -> None:
    """Trains all of them and prints two tables."""
    given = arguments()
    torch.set_num_threads(1)
    model = given.model or cold_start(given.out, given.seed)
    recipe = recipe_from(model, given.seed, {"steps": given.steps})
    tasks = load_tasks(recipe, {})
    verifier = build(recipe.verifier, problems_of(tasks, set(tasks)))
    try:
        sides = [start(recipe_from(model, given.seed, {"steps": given.steps, **changes}),
                       name, tasks, verifier) for name, changes in CHOICES.items()]  # fmt: skip
        for done in range(0, given.steps + 1, given.every):
            for side in sides:
                side.train(done - side.step)
                accuracy = measure(recipe, side, tasks["heldout"], verifier)
                side.curve.append(Point(done, side.wall, side.cpu, accuracy))
                sys.stderr.write(f"{side.name}: {asdict(side.curve[-1])}\n")
        held = {side.name: resident(side) for side in sides}
    finally:
        verifier.close()
    print(bytes_table(held))
    print()
    print(accuracy_table(sides))
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        curves = {side.name: [asdict(point) for point in side.curve] for side in sides}
        text = json.dumps({"seed": given.seed, "bytes": held, "curves": curves}, indent=2)
        (given.out / f"critic-{given.seed}.json").write_text(text + "\n")
    if given.png is not None:
        draw(sides, held, given.png)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="cold-started model; made when not given")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--steps", type=int, default=90)
    parser.add_argument("--every", type=int, default=10, help="steps between measurements")
    parser.add_argument("--out", type=Path, default=Path("runs/critic"))
    parser.add_argument("--png", type=Path, help="also draw both into this file")
    return parser.parse_args()


def cold_start(out: Path, seed: int) -> Path:
    """The quickstart up to its RL stage; read, not repeated, where it has been run."""
    plain = load_yaml(find_recipe("quickstart"), [f"seed={seed}"])
    plain["stages"] = plain["stages"][:-1]
    view = ConsoleView()
    with view:
        finished = run_recipe(validate(Recipe, plain), out / f"cold_start-{seed}", listeners=[view])
    return finished.model


def recipe_from(model: Path, seed: int, changes: dict[str, Any]) -> Recipe:
    """The quickstart's RL stage alone, from a model that is there."""
    plain = load_yaml(find_recipe("quickstart"), [f"seed={seed}"])
    plain["model"] = {"path": str(model), "dtype": "float32"}
    plain["stages"] = [{**plain["stages"][-1], **changes}]
    return validate(Recipe, plain)


def start(recipe: Recipe, name: str, tasks: dict[str, TaskData], verifier: Verifier) -> Side:
    """A policy of its own, a learner, a trainer."""
    stage = recipe.stages[0]
    assert isinstance(stage, RLStage)
    policy = load_policy(recipe.model, "cpu", recipe.seed)
    learner = Learner(policy, stage.optimizer, stage.update, critic=stage.build_critic(policy))
    parts = RLParts(local_engine(policy, recipe.engine, recipe.seed), verifier, learner,
                    stage.build_objective())  # fmt: skip
    prompts = [Prompt(p, render_prompt(policy, p)) for p in tasks[stage.task].problems]
    return Side(name, RLTrainer(stage, parts, prompts, recipe.seed), learner)


def measure(recipe: Recipe, side: Side, data: TaskData, verifier: Verifier) -> float:
    """Held-out accuracy, greedy."""
    policy = side.learner.policy
    prompts = [Prompt(p, render_prompt(policy, p)) for p in data.problems]
    engine = local_engine(policy, recipe.engine, recipe.seed)
    params = recipe.evaluation.sampling.params()
    return evaluate("heldout", prompts, engine, verifier, params, 1).interval.mean


def resident(side: Side) -> dict[str, int]:
    """Bytes by kind, over one more rollout."""
    learner = side.learner
    modules = [learner.policy.model, *([learner.critic.model] if learner.critic else [])]
    parameters = [p for module in modules for p in module.parameters()]
    gradients = 0

    def note(*_: Any) -> None:
        nonlocal gradients
        gradients = max(gradients, size([p.grad for p in parameters if p.grad is not None]))

    hook = register_optimizer_step_pre_hook(note)
    gc.collect()
    try:
        with kept_for_backward(parameters) as peak:
            side.trainer.step(side.step)
    finally:
        hook.remove()
    buffers = [b for module in modules for b in module.buffers()]
    states = [t for name, t in learner.state_tensors().items()
              if not name.removeprefix("critic.").startswith("weight.")]  # fmt: skip
    found = (size([*parameters, *buffers]), gradients, size(states), peak[0])
    return dict(zip(KINDS, found, strict=True))


def size(tensors: Sequence[Tensor]) -> int:
    """Bytes, each storage once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


class Kept:
    """A tensor that autograd keeps."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


@contextmanager
def kept_for_backward(parameters: Sequence[Tensor]) -> Iterator[list[int]]:
    """The most bytes that were kept for a backward pass at one time, in a list of one."""
    own = {p.untyped_storage().data_ptr() for p in parameters}
    users: Counter[int] = Counter()
    now, peak = [0], [0]

    def leave(place: int, nbytes: int) -> None:
        users[place] -= 1
        now[0] -= nbytes if users[place] == 0 else 0

    def pack(tensor: Tensor) -> Kept:
        # Detached: a node that keeps its own result would else keep itself.
        kept, storage = Kept(tensor.detach()), tensor.untyped_storage()
        place, nbytes = storage.data_ptr(), storage.nbytes()
        if place not in own:
            now[0] += nbytes if users[place] == 0 else 0
            users[place] += 1
            peak[0] = max(peak[0], now[0])
            weakref.finalize(kept, leave, place, nbytes)
        return kept

    with saved_tensors_hooks(pack, lambda kept: kept.tensor):
        yield peak


def bytes_table(held: dict[str, dict[str, int]]) -> str:
    """Bytes by kind as a Markdown table, in MiB."""
    lines = [f"| MiB | {' | '.join(held)} |", "|---" * (len(held) + 1) + "|"]
    for kind in KINDS:
        lines.append(f"| {kind} | {' | '.join(mib(each[kind]) for each in held.values())} |")
    states = [sum(each[kind] for kind in KINDS[:-1]) for each in held.values()]
    lines.append(f"| all but activations | {' | '.join(map(mib, states))} |")
    lines.append(f"| in all | {' | '.join(mib(sum(h.values())) for h in held.values())} |")
    return "\n".join(lines)


def mib(number: int) -> str:
    return f"{number / 2**20:.2f}"


def accuracy_table(sides: Sequence[Side]) -> str:
    """Held-out accuracy after the same steps, with the seconds of each, as a Markdown table."""
    cells = " | ".join(f"{side.name} | s | CPU s" for side in sides)
    lines = [f"| steps | {cells} |", "|---" * (1 + 3 * len(sides)) + "|"]
    for points in zip(*(side.curve for side in sides), strict=True):
        row = " | ".join(f"{p.accuracy:.1%} | {p.wall:.0f} | {p.cpu:.0f}" for p in points)
        lines.append(f"| {points[0].step} | {row} |")
    return "\n".join(lines)


def draw(sides: Sequence[Side], held: dict[str, dict[str, int]], path: Path) -> None:
    """Accuracy over seconds beside bytes by kind.

    Raises:
        UserError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("--png: needs the package matplotlib; pip install 'lydite[plot]'") from None
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for side in sides:
        left.plot([p.wall for p in side.curve], [p.accuracy for p in side.curve], label=side.name)
    left.set(xlabel="seconds of training", ylabel="held-out accuracy", ylim=(0, 1))
    left.legend()
    base = [0.0] * len(held)
    for kind in KINDS:
        sizes = [each[kind] / 2**20 for each in held.values()]
        right.bar(list(held), sizes, bottom=base, label=kind)
        base = [a + b for a, b in zip(base, sizes, strict=True)]
    right.set(ylabel="resident, MiB")
    right.legend(loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
