"""Starts and tasks that the experiments of ``objective_effects.py`` are made on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from objective_runs import START_SEED, Bench

from lydite.config import validate
from lydite.model.saving import save_policy
from lydite.pipeline.stages.sft import SFTStage
from lydite.tasks.generated import generate, worked
from lydite.train.sft import SFTTrainer, examples_of
from lydite.types import Outcome, Problem, Verdict

STOP, LONGEST = 1 / 16, 50
"""The chance that a tail ends at each of its tokens, and where it ends at the latest."""
ROOM = 76
"""Tokens that a completion with a tail may take; the model's context is 96."""
HOLDS, FAILS = "=", "F"
"""What the model notes of its guess."""
SFT = {"lr": 1e-3, "warmup_steps": 20, "schedule": "linear"}
KINDS = {"add": 0.44, "sum": 0.28, "count": 0.28}


def free_length(start: Bench, out: Path) -> Bench:
    """A task whose outcome is settled, and known to the model, before length is.

    The model commits itself to whether a sum is even or odd, works the sum out, and then notes
    whether it was right, again and again, geometrically many times. Only the first letter counts:
    what comes after it earns nothing, so length is free, and an answer that is wrong is known to be
    wrong when its tail of notes begins. A model this small cannot add in its head, so about
    half of its answers stay wrong.
    """
    home = out / "free_length"
    if not home.is_dir():
        rng = random.Random(START_SEED)
        shown = [with_tail(p, rng) for p in generate(["sum"], 9600, START_SEED + 1, "train")]
        stage = validate(SFTStage, {"kind": "sft", "steps": 300, "optimizer": SFT})
        policy = start.policy()
        trainer = SFTTrainer(policy, stage, examples_of(policy, shown, stage), START_SEED)
        for step in range(trainer.total):
            trainer.step(step)
        save_policy(policy, home)
    problems = [p for p in start.problems if p.tag == "sum"]
    return replace(
        start, model=home, problems=problems, heldout=start.heldout[:1], verifier=FirstLetter()
    )


def letter(problem: Problem) -> str:
    """What the first letter of an answer should be."""
    return "AB"[int(problem.reference or 0) % 2]


def with_tail(problem: Problem, rng: random.Random) -> Problem:
    """The problem with a worked solution for :func:`free_length`; one guess in two is right."""
    guess, right = rng.choice("AB"), letter(problem)
    steps = worked(problem, "clean", rng).removeprefix("<think>").partition("</think>")[0]
    length = 0
    while length < LONGEST and rng.random() >= STOP:
        length += 1
    tail = (HOLDS if guess == right else FAILS) * (1 + length)
    text = f"<think>{guess};{steps}{right}{tail}</think><answer>{guess}</answer>"
    return replace(problem, worked=text)


class FirstLetter:
    """Pays for the letter that an answer begins with."""

    def verify(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Verdict]:
        """One verdict per pair."""
        found = []
        for problem, text in zip(problems, texts, strict=True):
            guess = text.removeprefix("<think>")[:1]
            right = guess == letter(problem)
            outcome = Outcome.CORRECT if right else Outcome.WRONG
            found.append(Verdict(outcome, float(right), guess))
        return found

    def close(self) -> None:
        """Nothing to end."""


def mixed_difficulty(start: Bench) -> Bench:
    """The quickstart's problems, and twice as many that nobody can solve.

    The latter are like the others, but their reference is out of reach. All of their samples are
    wrong, and after some training all samples of most others are right: groups without a signal.
    """
    kept = start.problems[::3]
    lost = [replace(p, reference=str(int(p.reference or 0) + 500)) for p in start.problems]
    return replace(start, problems=[*kept, *(p for n, p in enumerate(lost) if n % 3)])
