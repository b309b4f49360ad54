"""The one outer loop: resume, step, log, evaluate, checkpoint. What a step is belongs to the
trainer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from lydite.config import UserError
from lydite.ops.sampling import address_key
from lydite.train.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from lydite.train.memory import memory_figures
from lydite.watch.events import EventLog, RunResumed, StepDone, Warned
from lydite.watch.samples import Sample, write_samples


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step came to: figures for the log, in RL every rollout, and warnings as (code,
    message).
    """

    metrics: Mapping[str, float]
    samples: Sequence[Sample] = field(default_factory=tuple)
    warnings: Sequence[tuple[str, str]] = field(default_factory=tuple)


class Trainer(Protocol):
    """Anything trained step by step. All of its state is in the tensors, the JSON state and the
    step number.
    """

    total: int

    @property
    def finished(self) -> bool:
        """Whether nothing is left to train on, before ``total`` steps."""
        ...

    def step(self, step: int) -> StepResult: ...

    def state_tensors(self) -> dict[str, Tensor]: ...

    def state(self) -> dict[str, Any]: ...

    def load(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None: ...


@contextmanager
def addressed_dropout(seed: int, step: int) -> Iterator[None]:
    """What (LoRA's) dropout draws inside is a function of the seed and the step alone, so that a
    resumed step draws it again. The caller's generators are left as they were.
    """
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(address_key(seed, "dropout", 0, step))
        yield


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Evaluation mode: an old log-probability is the policy's, as when it sampled, and no noise."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Where a stage keeps its things, and how often it looks up from work. ``None`` is never."""

    stage: str
    checkpoints: Path
    samples: Path
    evaluate_every: int | None
    checkpoint_every: int | None
    keep: int
    beside: Callable[[float], None] = lambda seconds: None
    """Called after each step with the seconds that it took."""
    write: Callable[[Path], None] | None = None
    """Writes into a checkpoint's folder what the trainer's own tensors leave out: shards of ranks
    elsewhere."""


def run_steps(
    trainer: Trainer, settings: LoopSettings, log: EventLog, evaluate: Callable[[int], None]
) -> None:
    """Runs a trainer to its last step, from its newest checkpoint if there is one.

    ``evaluate(step)`` is called before the first step (with 0, when a stage is resumed too, before
    its checkpoint is loaded), at every interval and after the last.

    Raises:
        UserError: a checkpoint cannot be written; the one before it stays.
    """
    start = 0
    evaluate(0)
    found = load_checkpoint(settings.checkpoints)
    if found is not None:
        trainer.load(found.tensors, found.state)
        start = found.step
        log.append(RunResumed(stage=settings.stage, step=start))
    done = start
    while done < trainer.total and not trainer.finished:
        step, done, began = done, done + 1, time.perf_counter()
        result = trainer.step(step)
        spent = {"seconds": time.perf_counter() - began, **memory_figures()}
        metrics = {**result.metrics, **spent}
        if result.samples:
            write_samples(settings.samples, settings.stage, done, result.samples)
        for code, message in result.warnings:
            log.append(Warned(stage=settings.stage, step=done, code=code, message=message))
        log.append(StepDone(stage=settings.stage, step=done, metrics=metrics))
        settings.beside(metrics["seconds"])
        last = done == trainer.total or trainer.finished
        if last or (settings.evaluate_every and done % settings.evaluate_every == 0):
            evaluate(done)
        if last or (settings.checkpoint_every and done % settings.checkpoint_every == 0):
            _save(trainer, settings, done)


def _save(trainer: Trainer, settings: LoopSettings, step: int) -> None:
    """Writes a checkpoint; what stands in the way of that is one line."""
    state = Checkpoint(step, trainer.state_tensors(), trainer.state())
    try:
        save_checkpoint(settings.checkpoints, state, settings.keep, settings.write)
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"disk: cannot write a checkpoint to {settings.checkpoints}: {error}; mend that and "
            "give the same command again, the run goes on from its last checkpoint"
        ) from error
