"""Tiny recipes, and processes that run them and are killed at a chosen instant.

A killed process is a real one that gets a real SIGKILL; it sends it to itself, so that a test says
where it dies instead of racing it.
"""

from __future__ import annotations

import copy
import importlib
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import yaml

VOCABULARY = ["add ", "sum ", "count ", " in ", "guess", " so ", *"0123456789+=;,ABCDEF"]
MODEL = {
    "path": "init:llama",
    "init": {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2,
    },
    "vocabulary": VOCABULARY,
    "context": 80,
}  # fmt: skip

REWARDS = '''
def digit(completions, **columns):
    """Right now and then: whether it begins with a digit."""
    return [float(text[:1].isdigit()) for text in completions]

def short(completions, **columns):
    return [1.0]

def words(completions, **columns):
    return ["good" for _ in completions]

def nan(completions, **columns):
    return [float("nan") for _ in completions]

def broken(completions, answer, **columns):
    raise ZeroDivisionError("of all things")
'''


def rl_stage(**changes: Any) -> dict[str, Any]:
    """Four steps of three groups of four short completions."""
    return {
        "kind": "rl", "steps": 4, "prompts_per_step": 3, "group_size": 4, "objective": "grpo",
        "sampling": {"max_tokens": 6}, "optimizer": {"lr": 3e-3}, **changes,
    }  # fmt: skip


def sft_stage(**changes: Any) -> dict[str, Any]:
    """Three steps of eight worked examples."""
    optimizer = {"lr": 3e-3}
    return {
        "kind": "sft", "task": "worked", "steps": 3, "batch_size": 8, "optimizer": optimizer,
        **changes,
    }  # fmt: skip


def preference_stage(**changes: Any) -> dict[str, Any]:
    """Four steps of four pairs, mined from what stage ``rl`` sampled."""
    return {
        "kind": "preference", "steps": 4, "batch_size": 4, "beta": 0.5, "optimizer": {"lr": 3e-3},
        "pairs": {"kind": "stage", "stage": "rl", "per_problem": 2, "allow_cut_off": True},
        **changes,
    }  # fmt: skip


def recipe(stages: list[dict[str, Any]], folder: Path, **changes: Any) -> dict[str, Any]:
    """A recipe whose runs take about a second; its reward function lies in ``folder``."""
    rewards = folder / "rewards.py"
    rewards.write_text(REWARDS)
    function = {"kind": "function", "function": f"{rewards}:digit", "isolation": "inline"}
    return copy.deepcopy(
        {
            "name": "small",
            "model": MODEL,
            "tasks": {
                "worked": {"generated": {"count": 40, "worked": "base"}},
                "train": {"generated": {"count": 20}},
                "heldout": {"generated": {"count": 4, "split": "heldout"}},
            },
            "verifier": function,
            "evaluation": {"tasks": ["heldout"], "every": 2, "sampling": {"max_tokens": 6}},
            "checkpoint": {"every": 2},
            "stages": stages,
            **changes,
        }
    )


def write(values: dict[str, Any], path: Path) -> Path:
    """A recipe as a file."""
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    return path


@dataclass(frozen=True)
class Kill:
    """Where a process dies: around the ``count``-th call of ``target`` (``module:name``), or when
    the event ``target`` (``kind stage step``) has been logged.
    """

    when: str
    target: str
    count: int = 1

    def __str__(self) -> str:
        return f"{self.when} {self.target} {self.count}"


def die() -> None:
    """Now, without any goodbye."""
    os.kill(os.getpid(), signal.SIGKILL)


def _arm(kill: Kill, log: type) -> None:
    if kill.when == "event":
        _wrap(log, "append", kill.count, None, die, lambda event: name(event) == kill.target)
        return
    module, _, path = kill.target.partition(":")
    owner: Any = importlib.import_module(module)
    *parents, attribute = path.split(".")
    for part in parents:
        owner = getattr(owner, part)
    if kill.when == "before":
        _wrap(owner, attribute, kill.count, die, None, None)
    else:
        _wrap(owner, attribute, kill.count, None, die, None)


def name(event: Any) -> str:
    """``kind stage step`` of an event."""
    return f"{event.kind} {event.stage} {event.step}"


def _wrap(
    owner: Any,
    attribute: str,
    count: int,
    before: Callable[[], None] | None,
    after: Callable[[], None] | None,
    only: Callable[[Any], bool] | None,
) -> None:
    whole = getattr(owner, attribute)
    calls = 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += only is None or only(args[-1])
        if calls == count and before:
            before()
        result = whole(*args, **kwargs)
        if calls == count and after:
            after()
        return result

    setattr(owner, attribute, counted)


def attempt(path: Path, out: Path, kill: Kill | None, said: Path, redo: bool = False) -> None:
    """What a process does: one attempt at a recipe file."""
    import torch

    from lydite.pipeline.recipe import load_recipe
    from lydite.pipeline.runner import run_recipe
    from lydite.watch.events import EventLog

    torch.set_num_threads(1)
    if kill is not None:
        _arm(kill, EventLog)
    try:
        run_recipe(load_recipe(path), out, redo=redo)
    except BaseException:
        said.write_text(traceback.format_exc())
        raise


def command(arguments: list[str], said: Path) -> None:
    """What a process does: one command line, standard error to a file."""
    import torch

    from lydite.cli.main import app

    torch.set_num_threads(1)
    handle = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.setsid()
    app(arguments, prog_name="lydite")


def start(target: Callable[..., None], arguments: Iterable[Any]) -> ForkServerProcess:
    """A process from a server that has already imported what is slow to import."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lydite.pipeline.runner", "lydite.cli.main", "pyarrow.parquet"])
    process = context.Process(target=target, args=tuple(arguments))
    process.start()
    return process


def run_and_die(path: Path, out: Path, kill: Kill, redo: bool = False) -> None:
    """An attempt that must end by SIGKILL at the given place."""
    said = path.with_suffix(".said")
    process = start(attempt, (path, out, kill, said, redo))
    process.join(60)
    assert process.exitcode == -signal.SIGKILL, (  # None: still running
        f"{kill}: exit code {process.exitcode}, {said.read_text() if said.exists() else ''}"
    )
