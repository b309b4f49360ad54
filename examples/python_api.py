"""GRPO from Python: a model, problems, a reward function, ``run()``.

Trains a tiny new model, in seconds on a CPU, to name the largest of three digits. Put a real model
in place of ``MODEL`` (``"HuggingFaceTB/SmolLM2-135M-Instruct"``) and your own problems in place of
``PROBLEMS``; nothing else changes.

    python examples/python_api.py
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import permutations
from typing import Any

import lydite
from lydite.pipeline.runner import Finished

MODEL = {
    "path": "init:llama",
    "init": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    "vocabulary": [*"0123456789", " "],
    "context": 16,
}
# Any column beside question and answer reaches the reward function by its name.
PROBLEMS = [
    {"question": " ".join(digits), "answer": max(digits), "digits": "".join(digits)}
    for digits in permutations("0123456789", 3)
]


def reward(
    prompts: Sequence[str],
    completions: Sequence[str],
    answer: Sequence[str],
    digits: Sequence[str],
    **columns: Any,
) -> list[float]:
    """1 for the largest digit, and a little for another of the three: something to start from."""
    return [
        1.0 if text == right else 0.2 if len(text) == 1 and text in shown else 0.0
        for text, right, shown in zip(completions, answer, digits, strict=True)
    ]


def main(out: str = "runs/python_api", steps: int = 200) -> Finished:
    """Trains, prints held-out accuracy before and after, and returns the finished run."""
    trainer = lydite.Trainer(
        model=MODEL,
        problems=[problem for n, problem in enumerate(PROBLEMS) if n % 5],
        heldout=[problem for n, problem in enumerate(PROBLEMS) if n % 5 == 0],
        reward={"kind": "function", "function": reward, "correct_above": 0.5},
        objective="grpo+clip_higher+token_mean",
        settings={
            "steps": steps,
            "prompts_per_step": 24,
            "group_size": 8,
            "sampling": {"max_tokens": 2},
            "optimizer": {"lr": 2e-3, "schedule": "linear"},
        },
        recipe={"name": "python_api", "seed": 0, "evaluation": {"sampling": {"max_tokens": 2}}},
        out=out,
    )
    finished = trainer.run()  # Given again, it goes on where it stopped.
    score = finished.stages[0].scores["heldout"]
    print(f"held out, before: {score.before.avg:.0%}")
    print(f"held out, after:  {score.after.avg:.0%}  ({score.after.n} problems)")
    print(f"model: {finished.model}")
    return finished


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/python_api")
